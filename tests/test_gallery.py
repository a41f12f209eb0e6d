"""Galleries: nothing is cut or overlaps, whatever labels say; what stands beside a reconstruction
is what it is called; single pictures have names of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.records import Record, Run
from leakbench.report import drawing, gallery, shots, singles
from leakbench.report.drawing import Block, Column, Picture, Row, blocks_of
from leakbench.report.victims import Chosen, Original, Shelf, Victim, spans
from leakbench.spec import Cell
from leakbench.suite import resolve

HOSTILE = (
    "../../etc/passwd", "<script>alert(1)</script>", "$\\frac{", "a | b",
    "line\nbreak\r\x1b[2J\x00", "W" * 150, "word " * 150, "", " ", ".", "..", "-", "=cmd()",
    "\ud800", "%s{x}", "é" * 90,
)  # fmt: skip
SQUARE = np.linspace(0, 1, 784, dtype=np.float32).reshape(1, 28, 28)


@pytest.fixture(scope="module")
def cell() -> Cell:
    return next(each for each in resolve("tifs_table3", "quick").cells if each.dataset == "mnist")


# ------------------------------------------------------------------------------ drawing


def sheet(methods: int, attackers: int, label: str = "DP-dyn[S,sigma], sigma0=15") -> list[Block]:
    """Blocks of two victims, with so many methods."""
    columns = [Column(head="", detail="original")] + [
        Column(head=f"{number} {label}", detail=f"attacker {who}", row=str(number), knowledge="")
        for number in range(methods)
        for who in range(attackers)
    ]
    picture = Picture(image=SQUARE, caption="1.7e5 / -0.02\nwrong: no. 615", success=True)
    blank = Picture(image=None, caption=label)
    rows = [
        Row(label=(f"median: {label}",), pictures=(picture,) * len(columns)),
        Row(label=("worst", label), pictures=(picture, *[blank] * (len(columns) - 1))),
    ]
    return [*blocks_of(columns, rows, title=label), Block(rows=(Row(label=(), text=label),))]


def assert_nothing_cut_or_covered(blocks: list[Block], legend: list[str]) -> None:
    """Every text lies inside the figure, and over no other text and no picture."""
    place = drawing.layout(blocks, legend)
    figure = drawing.sheet_of(blocks, legend)
    renderer = FigureCanvasAgg(figure).get_renderer()
    found = [text.get_window_extent(renderer) for text in figure.texts if text.get_text()]
    edges = np.array([[box.x0, place.height - box.y1, box.x1, place.height - box.y0]
                      for box in found])  # fmt: skip
    assert (edges[:, :2] >= 0).all()
    assert (edges[:, 2] <= place.width).all() and (edges[:, 3] <= place.height).all()
    images = [
        drawing.centred(box, 112, 112)
        for block, rows in zip(blocks, place.boxes, strict=True)
        for row, boxes in zip(block.rows, rows, strict=True)
        for box, picture in zip(boxes, row.pictures, strict=True)
        if picture.image is not None
    ]
    solid = np.array([[box.left, box.top, box.left + box.width, box.top + box.height]
                      for box in images])  # fmt: skip
    every = np.concatenate([edges, solid]) if len(solid) else edges
    # Letters may touch the lines above and below them by a pixel.
    wide = np.minimum(edges[:, None, 2], every[None, :, 2]) - np.maximum(
        edges[:, None, 0], every[None, :, 0]
    )
    high = np.minimum(edges[:, None, 3], every[None, :, 3]) - np.maximum(
        edges[:, None, 1], every[None, :, 1]
    )
    over = (wide > 1) & (high > 1.5)
    over[np.arange(len(edges)), np.arange(len(edges))] = False
    assert not over.any(), [figure.texts[i].get_text() for i in np.argwhere(over)[0][:1]]


@pytest.mark.parametrize(("methods", "attackers"), [(1, 1), (3, 1), (11, 2), (4, 4)])
def test_a_sheet_is_as_wide_as_a_page_and_nothing_is_cut(methods: int, attackers: int) -> None:
    blocks = sheet(methods, attackers)
    legend = ["Blue frame: success under 'strict': " + "clamped MSE < 0.01 and so on, " * 12]
    place = drawing.layout(blocks, legend)
    assert drawing.NARROWEST <= place.width <= drawing.PAGE
    shown = [column.head for block in blocks for column in block.columns[1:]]
    assert len(shown) == methods * attackers == len({*shown}) * attackers
    assert all(block.columns[0].detail == "original" for block in blocks[:-1])
    counts = [len({column.row for column in block.columns[1:]}) for block in blocks[:-1]]
    assert max(counts) - min(counts) <= len(counts), "about as many methods in each"
    assert_nothing_cut_or_covered(blocks, legend)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_labels_stay_in_their_place(label: str) -> None:
    blocks = sheet(3, 1, label)
    place = drawing.layout(blocks, [label])
    assert place.width <= drawing.PAGE and place.height < 4000
    assert_nothing_cut_or_covered(blocks, [label, "the end"])
    assert drawing.sheet_of(blocks, [label]).png().startswith(b"\x89PNG")


def test_fitted_text_keeps_every_letter_or_says_that_it_does_not() -> None:
    text = "AdaClip, reference start " + "x" * 80
    lines = drawing.fitted(text, 120)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(drawing.text_width(line, 8.5) <= 120 for line in lines)
    short = drawing.fitted(text, 120, most=2)
    assert len(short) == 2 and short[-1].endswith("…")
    assert drawing.text_width(short[-1], 8.5) <= 120


def test_a_sheet_that_cannot_be_drawn_says_so() -> None:
    blocks = sheet(2, 1) * 250
    with pytest.raises(LeakbenchError, match="at most 65535 either way"):
        drawing.sheet_of(blocks, [])


# ------------------------------------------------------------------------------ beside


def made(run: Run, **changes: Any) -> tuple[Record, np.ndarray]:
    """A trial on victim 7 of MNIST that ended far away after a better step, and the original."""
    truth = load("mnist").candidates[7].numpy()
    far = np.full_like(truth, 0.9)
    steps = np.stack([far, truth * 0.5, truth * 0.9, np.full_like(truth, np.nan)])
    nothing = np.zeros_like(steps)
    with run.writing() as writer:
        writer.arrays("a.npz", {
            "inputs": np.stack([np.zeros_like(truth), far * 3 - 1]),
            "snapshots": np.stack([nothing, steps], axis=1),
            "snapshot_steps": np.array([1, 5, 10, 20]),
        })  # fmt: skip
    record = {
        "victim": 7, "network": 0, "status": "ok", "mse_raw": 2.5, "ssim": 0.1, "rank": 40,
        "host": {"arrays": {"file": "a.npz", "row": 1}},
    }  # fmt: skip
    return record | changes, truth


def victim_of(cell: Cell, record: Record, truth: np.ndarray) -> Victim:
    original = Original(image=truth, class_name="2", mean=truth * 0)
    return Victim(cell=cell, record=record, why="worst", original=original, alike={})


def test_what_stands_beside_a_reconstruction(cell: Cell, tmp_path: Path) -> None:
    run = Run(tmp_path)
    record, truth = made(run)
    warnings: list[str] = []
    shelf = Shelf(run, warnings, gallery.SNAPSHOTS)
    apart = shots.difference(record, truth, shelf)
    assert apart.image is not None and apart.apart and not apart.success
    assert np.allclose(apart.image, np.abs(1.0 - truth))  # 1.7 is shown, and compared, as 1
    assert apart.caption == "largest 1"

    best = shots.best_step(record, truth, shelf)
    assert best.image is not None and np.array_equal(best.image, truth * np.float32(0.9))
    assert best.apart and best.caption.startswith("step 10\n")
    better = shots.best_step(record | {"mse_raw": 1e-9}, truth, shelf)
    assert better.image is None and "none better" in better.caption

    victim = victim_of(cell, record, truth)
    checksum = load(cell.source).checksum
    wrong = shots.Candidates(cell, checksum, shelf).nearest(record, victim)
    # The brightest digit of all is nearest to white; the victim is not it.
    everyone = load("mnist").candidates.numpy()
    number = int(np.square(1.0 - everyone[:, 0]).sum(axis=(1, 2)).argmin())
    assert number != 7 and wrong.image is not None and wrong.apart
    assert np.array_equal(wrong.image, everyone[number])
    lines = wrong.caption.split("\n")
    assert lines[0] == f"wrong: no. {number}" and lines[2] == "victim is place 40"
    right = shots.Candidates(cell, checksum, shelf).nearest(record | {"rank": 1}, victim)
    assert right.image is None and "rightly" in right.caption
    assert warnings == []


def test_the_victim_is_no_wrong_candidate() -> None:
    everyone = np.array([[[[0.1]]], [[[0.5]]], [[[0.9]]]], dtype=np.float32)
    image = np.array([[[0.55]]], dtype=np.float32)
    assert [shots.nearest_other(image, everyone, victim) for victim in (0, 1, 2)] == [1, 2, 1]
    assert shots.nearest_other(image * 9, everyone, 0) == 2


def test_candidates_of_other_data_are_not_shown(cell: Cell, tmp_path: Path) -> None:
    run = Run(tmp_path)
    record, truth = made(run)
    warnings: list[str] = []
    shelf = Shelf(run, warnings, gallery.SNAPSHOTS)
    found = shots.Candidates(cell, "0" * 64, shelf).nearest(record, victim_of(cell, record, truth))
    assert found.image is None and found.caption == "data are not here"
    assert "not those of the run" in warnings[0]


def test_a_method_has_four_columns_beside_each_other() -> None:
    plan = resolve("tifs_table3", "quick")
    columns = gallery.columns_of(plan, beside=True)
    assert len(columns) == 3 + 4 * 2 * len(plan.defenses)
    assert [(c.head, c.detail) for c in columns[3:8]] == [
        ("non-private, naive", "returned"),
        ("non-private, naive", "difference"),
        ("non-private, naive", "nearest candidate"),
        ("non-private, naive", "best step: oracle"),
        ("non-private, adaptive", "returned"),
    ]


# ------------------------------------------------------------------------------ single pictures


def test_single_pictures_are_those_of_the_sheet(cell: Cell, tmp_path: Path) -> None:
    record, truth = made(Run(tmp_path / "run"))
    victim = victim_of(cell, record, truth)
    columns = (
        Column(head="", detail="original"),
        Column(head="needs no gradient", detail="mean image"),
        Column(head="X", detail="naive", row="cpl/none", knowledge="naive"),
        Column(head="Y", detail="naive", row="cpl/adaclip", knowledge="naive"),
        Column(head="X, naive", detail="best step: oracle", row="none", knowledge="naive"),
    )
    pictures = (
        Picture(image=truth, caption=""),
        Picture(image=truth * 0, caption=""),
        Picture(image=1 - truth, caption="", success=True),
        Picture(image=None, caption="timeout"),
        Picture(image=truth, caption=""),
    )
    chosen = Chosen(dataset="mnist", title="MNIST", cells=(cell,), victims=(victim,))
    section = gallery.Section(chosen=chosen, columns=columns, pictures=(pictures,))
    assert singles.write_all([section], tmp_path / "new" / "folder") == 4
    files = {path.name: path for path in (tmp_path / "new" / "folder").iterdir()}
    assert sorted(files) == [
        "mnist-cpl+none-naive-network0-victim7-returned.png",
        "mnist-network0-victim7-mean_image.png",
        "mnist-network0-victim7-original.png",
        "mnist-none-naive-network0-victim7-best_step.png",
    ]
    with Image.open(files["mnist-cpl+none-naive-network0-victim7-returned.png"]) as image:
        assert np.array_equal(np.asarray(image), drawing.enlarged(1 - truth))
    (tmp_path / "file").write_text("")
    with pytest.raises(LeakbenchError, match="file: cannot write"):
        singles.write_all([section], tmp_path / "file")


def test_names_of_single_pictures_are_safe_and_their_own(cell: Cell, tmp_path: Path) -> None:
    record, truth = made(Run(tmp_path / "run"))
    victim = victim_of(cell, record, truth)
    labels = [*HOSTILE, "a/b", "a b", "a_b", "a+b", "a/b/c", "/a", "a/", "none", "sigma_0.5"]
    names = [
        singles.file_name(dataset, victim, Column(head="", detail="naive", row=row, knowledge=who))
        for dataset, row, who in [
            *((label, "none", "naive") for label in labels),
            *(("mnist", label, "naive") for label in labels if label),
            *(("mnist", "none", label) for label in labels if label),
        ]
    ]
    for name in names:
        assert len(name) < 250 and not name.startswith((".", "-"))
        assert set(name) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-+="
        )
    assert len({*names}) == len(names)


def test_spans() -> None:
    assert spans([7, 1, 0, 2, 2, 9, 10]) == "0 to 2, 7, 9 to 10"
    assert spans([]) == "none"
