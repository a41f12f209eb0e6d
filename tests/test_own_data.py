"""A user's own data: folders of images and npz files, good and bad, alone and in a suite."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from leakbench import data, networks, runner, trials
from leakbench.data import catalog, datasets, own
from leakbench.data.entries import OwnData
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.records import Run
from leakbench.spec import plan_from_json, plan_to_json
from leakbench.suite import resolve

DIGITS = data.load("mnist")
COLOURS = data.load("cifar10")


def as_bytes(images: torch.Tensor) -> Any:
    """Images (n, c, h, w) in [0, 1] as uint8 (n, h, w, c)."""
    return (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def save(folder: Path, images: torch.Tensor, labels: torch.Tensor, suffix: str = ".png") -> None:
    """Write images as folder/c0/000.png and so on."""
    for number, (pixels, label) in enumerate(zip(as_bytes(images), labels.tolist(), strict=True)):
        place = folder / f"c{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.squeeze()).save(place / f"{number:03d}{suffix}")


@pytest.fixture
def forty(tmp_path: Path) -> Path:
    """A folder of 40 digits, four of each class."""
    save(tmp_path / "forty", DIGITS.candidates[:40], DIGITS.candidate_labels[:40])
    return tmp_path / "forty"


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def forget() -> None:
    """Read again what is loaded next."""
    own.entry.cache_clear()
    datasets._load.cache_clear()
    datasets._load_full.cache_clear()


def load(path: Path, **options: Any) -> data.Dataset:
    """The data at a path, read anew."""
    forget()
    return data.load(catalog.locate(str(path), **options))


def refused(path: Path, **options: Any) -> str:
    """The one sentence that says what is wrong."""
    with pytest.raises(LeakbenchError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def rows_of(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


# ---- what is right -------------------------------------------------------------------------------


def test_forty_images_make_a_data_set(forty: Path) -> None:
    found, whole = load(forty), data.load_full(str(forty))
    assert found.name == "forty"
    assert found.class_names == tuple(f"c{i}" for i in range(10))
    assert found.input_shape == (1, 28, 28)
    # Of four images a class one is public.
    assert found.candidates.shape == found.train.shape == (30, 1, 28, 28)
    assert found.public.shape == (10, 1, 28, 28)
    assert torch.bincount(found.public_labels).tolist() == [1] * 10
    counts = torch.nn.functional.one_hot(found.candidate_labels, 10).cumsum(0)
    assert int((counts.amax(1) - counts.amin(1)).max()) == 1
    originals = dict(
        zip([i.numpy().tobytes() for i in DIGITS.candidates[:40]],
            DIGITS.candidate_labels[:40].tolist(), strict=True)
    )  # fmt: skip
    images = torch.cat([found.candidates, found.public])
    labels = torch.cat([found.candidate_labels, found.public_labels])
    assert rows_of(images) == originals.keys()
    assert [originals[image.numpy().tobytes()] for image in images] == labels.tolist()
    assert whole.train.dtype == torch.uint8
    assert rows_of(data.as_unit(whole.train)) == rows_of(found.train)
    assert rows_of(data.as_unit(whole.test)) == rows_of(found.public)


def test_moving_a_folder_changes_nothing_and_a_seed_does(forty: Path, tmp_path: Path) -> None:
    before, other = load(forty), load(forty, seed=1)
    (tmp_path / "away").mkdir()
    moved = shutil.move(forty, tmp_path / "away" / "forty")
    after = load(moved)
    assert after.checksum == before.checksum != other.checksum
    assert after.name == before.name
    assert torch.equal(after.candidates, before.candidates)
    assert not torch.equal(other.candidates, before.candidates)
    assert after.source == str(moved)


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    save(tmp_path / "two" / "train", DIGITS.candidates[:30], DIGITS.candidate_labels[:30])
    save(tmp_path / "two" / "test", DIGITS.public[:20], DIGITS.public_labels[:20])
    (tmp_path / "two" / ".hidden").mkdir()
    (tmp_path / "two" / "read me.txt").write_text("no image")
    found, whole = load(tmp_path / "two"), data.load_full(str(tmp_path / "two"))
    assert rows_of(found.train) == rows_of(DIGITS.candidates[:30])
    assert rows_of(found.public) == rows_of(DIGITS.public[:20])
    assert rows_of(data.as_unit(whole.test)) == rows_of(DIGITS.public[:20])


def test_equal_images_are_used_once_and_never_on_both_sides(tmp_path: Path) -> None:
    images, labels = DIGITS.candidates[:20], DIGITS.candidate_labels[:20]
    twice = {"x_train": as_bytes(torch.cat([images, images[:5]]))[..., 0],
             "y_train": torch.cat([labels, labels[:5]]).numpy(),
             "x_test": as_bytes(torch.cat([images[:3], DIGITS.public[:10]]))[..., 0],
             "y_test": torch.cat([labels[:3], DIGITS.public_labels[:10]]).numpy()}  # fmt: skip
    found = load(npz(tmp_path / "twice.npz", **twice))
    assert len(found.train) == 20
    assert rows_of(found.train) == rows_of(images)
    assert len(found.public) == 10
    assert rows_of(found.public) == rows_of(DIGITS.public[:10])


def test_grey_stays_grey_unless_one_image_has_colours(forty: Path) -> None:
    assert load(forty).input_shape == (1, 28, 28)
    red = np.zeros((28, 28, 3), np.uint8)
    red[..., 0] = 200
    Image.fromarray(red).save(forty / "c0" / "red.png")
    found = load(forty)
    assert found.input_shape == (3, 28, 28)
    images = torch.cat([found.train, found.public])
    coloured = (images[:, 0] != images[:, 1]).flatten(1).any(1)
    assert int(coloured.sum()) == 1
    expected = torch.tensor([200, 0, 0]) / 255
    assert torch.equal(images[coloured][0].amax((1, 2)), expected)


def test_images_are_resized_where_a_size_is_given(tmp_path: Path) -> None:
    save(tmp_path / "sizes", COLOURS.candidates[:20], COLOURS.candidate_labels[:20])
    small = Image.fromarray(as_bytes(COLOURS.public[:1])[0]).resize((40, 20))
    small.save(tmp_path / "sizes" / "c0" / "wide.png")
    text = refused(tmp_path / "sizes")
    assert "wide.png: is 40 x 20 pixels" in text
    assert "is 32 x 32" in text
    assert "size = 32" in text
    found = load(tmp_path / "sizes", size=16)
    assert found.input_shape == (3, 16, 16)
    assert found.checksum != load(tmp_path / "sizes", size=17).checksum
    # Averages survive resizing: an independent look at the right image in the right place.
    means = torch.cat([found.train, found.public]).mean((2, 3)).sort(0).values
    wide = torch.from_numpy(np.asarray(small) / 255).mean((0, 1))
    originals = torch.cat([COLOURS.candidates[:20].mean((2, 3)), wide[None]])
    torch.testing.assert_close(means, originals.float().sort(0).values, atol=0.01, rtol=0)


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".bmp", ".webp"])
def test_other_kinds_of_images_are_read(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / "kinds", COLOURS.candidates[:20], COLOURS.candidate_labels[:20], suffix)
    found = load(tmp_path / "kinds")
    assert found.input_shape == (3, 32, 32)
    means = torch.cat([found.train, found.public]).mean((1, 2, 3)).sort().values
    expected = COLOURS.candidates[:20].mean((1, 2, 3)).sort().values
    torch.testing.assert_close(means, expected, atol=0.01, rtol=0)


PIXELS = as_bytes(COLOURS.candidates[:20])
LABELS = COLOURS.candidate_labels[:20].numpy()


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": PIXELS},
        {"x": PIXELS.transpose(0, 3, 1, 2)},
        {"x": PIXELS.astype(np.float32) / 255},
        {"x": np.asfortranarray(PIXELS)},
        {"x": PIXELS, "y": LABELS.astype(np.uint8)},
        {"x": PIXELS, "class_names": np.array(COLOURS.class_names)},
    ],
    ids=["hwc", "chw", "float", "fortran", "uint8 labels", "class names"],
)
def test_arrays_come_in_several_layouts(tmp_path: Path, arrays: dict[str, Any]) -> None:
    found = load(npz(tmp_path / "mine.npz", **({"y": LABELS} | arrays)))
    assert found.input_shape == (3, 32, 32)
    images = torch.cat([found.train, found.public])
    torch.testing.assert_close(
        images.sum((1, 2, 3)).sort().values, COLOURS.candidates[:20].sum((1, 2, 3)).sort().values
    )
    assert rows_of((images * 255).round().byte()) == rows_of((COLOURS.candidates[:20] * 255).byte())
    names = COLOURS.class_names if "class_names" in arrays else tuple("0123456789")
    assert found.class_names == names


def test_images_without_channels_and_rows(tmp_path: Path) -> None:
    grey = as_bytes(DIGITS.candidates[:20])[..., 0]
    labels = DIGITS.candidate_labels[:20].numpy()
    assert load(npz(tmp_path / "grey.npz", x=grey, y=labels)).input_shape == (1, 28, 28)
    rows = data.load("breast_cancer").train[:60]
    table = {"x": rows.numpy(), "y": data.load("breast_cancer").train_labels[:60].numpy()}
    found = load(npz(tmp_path / "rows.npz", **table))
    assert found.input_shape == (30,)
    assert rows_of(torch.cat([found.train, found.public])) == rows_of(rows)
    binary = (rows > 0.2).numpy().astype(np.uint8)
    found = load(npz(tmp_path / "binary.npz", x=binary, y=table["y"]))
    assert rows_of(torch.cat([found.train, found.public])) == rows_of((rows > 0.2).float())
    whole = data.load_full(str(tmp_path / "binary.npz"))
    assert whole.train.dtype == torch.float32
    many = load(npz(tmp_path / "bytes.npz", x=(rows * 255).byte().numpy(), y=table["y"]))
    assert float(torch.cat([many.train, many.public]).max()) == 1.0


def test_large_sets_are_cut_to_the_counts_of_the_samples(tmp_path: Path) -> None:
    whole = torch.cat([DIGITS.train, DIGITS.public])
    labels = torch.cat([DIGITS.train_labels, DIGITS.public_labels])
    both = torch.cat([whole, 1 - whole])[:, 0].numpy()
    found = load(npz(tmp_path / "large.npz", x=both, y=torch.cat([labels, labels]).numpy()))
    assert len(found.candidates) == 1000
    assert len(found.train) == 4000
    assert len(found.public) == 1000
    assert torch.bincount(found.public_labels).tolist() == [100] * 10
    full = data.load_full(str(tmp_path / "large.npz"))
    assert len(full.train) + len(full.test) == 10_000
    assert rows_of(found.train) <= rows_of(full.train)
    assert rows_of(found.public) <= rows_of(full.test)
    assert not rows_of(full.train) & rows_of(full.test)


# ---- what is wrong with arrays -------------------------------------------------------------------

GREY = as_bytes(DIGITS.candidates[:20])[..., 0]
CLASSES = DIGITS.candidate_labels[:20].numpy()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": None}, "neither 'x' nor 'x_train'"),
        ({"x_train": GREY}, "both 'x' and 'x_train'"),
        ({"y": None}, "array 'y' is missing"),
        ({"x_test": GREY}, "array 'y_test' is missing"),
        ({"y_test": CLASSES}, "array 'x_test' is missing"),
        ({"x": GREY.astype(np.int64)}, "array 'x' is int64; allowed: uint8, or floats"),
        ({"x": GREY.astype(np.float32)}, r"array 'x' holds 0 to 25\d; allowed"),
        ({"x": GREY / -255.0}, r"array 'x' holds -\S+ to .*; allowed"),
        ({"x": np.where(GREY > 9, np.nan, 0.5)}, "array 'x' holds nan or infinity"),
        ({"x": np.where(GREY > 9, np.inf, 0.5)}, "array 'x' holds nan or infinity"),
        ({"x": np.array([{}] * 20)}, "array 'x' holds Python objects"),
        ({"y": np.array([[1], 2], dtype=object)}, "array 'y' holds Python objects"),
        ({"x": np.zeros(20, [("a", "u1")])}, "array 'x' is a table of fields"),
        ({"x": GREY[:, 0, 0]}, r"array 'x' has the shape \(20,\)"),
        ({"x": GREY[:, :0]}, r"array 'x' has the shape \(20, 0, 28\)"),
        ({"x": GREY[:0], "y": CLASSES[:0]}, r"array 'x' has the shape \(0, 28, 28\)"),
        ({"x": GREY[None, None]}, r"array 'x' has the shape \(1, 1, 20, 28, 28\)"),
        ({"x": GREY.reshape(20, 2, 14, 28)}, "no axis is the channels"),
        ({"x": GREY.reshape(20, 1, 784, 1)}, "either of two axes may be the channels"),
        ({"y": CLASSES[:19]}, r"array 'y' is int64 \(19,\); allowed: whole numbers, \(20,\)"),
        ({"y": CLASSES[:, None]}, r"array 'y' is int64 \(20, 1\)"),
        ({"y": CLASSES + 0.0}, r"array 'y' is float64 \(20,\)"),
        ({"y": CLASSES - 1}, "array 'y' holds a label below 0"),
        ({"y": CLASSES.astype(np.uint64) + 2**63}, r"a label below 0 or above 2\^63"),
        ({"y": CLASSES * 2}, "no training example has the label 1, the largest is 18"),
        ({"y": np.where(CLASSES > 8, 10**12, CLASSES)}, "has the label 9, the largest is 10000000"),
        ({"y": CLASSES * 0}, "one class only"),
        ({"class_names": np.array(["a", "b"])}, "the label 9; allowed are 0 to 1"),
        ({"class_names": np.array(list("abcdefghijk"))}, "no training example has the label 10"),
        ({"class_names": np.arange(10)}, r"array 'class_names' is int64 \(10,\)"),
        ({"x_test": GREY[:, 1:], "y_test": CLASSES}, r"those of 'x_test' are uint8 \(1, 27, 28\)"),
        ({"x_test": GREY / 255, "y_test": CLASSES}, "those of 'x_test' are float32"),
        ({"x_test": 255 - GREY, "y_test": CLASSES + 1}, "'y_test' holds the label 10; allowed are"),
        ({"x_test": 255 - GREY[:9], "y_test": CLASSES[:9]}, "class '9' has no test example"),
        ({"x_test": GREY, "y_test": CLASSES}, "class '0' has no test example that is not the same"),
        ({"x": GREY[:12], "y": CLASSES[:12]}, "class '2' has 1 example .*at least 2"),
    ],
)  # fmt: skip
def test_bad_arrays_are_one_sentence(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    whole = {"x": GREY, "y": CLASSES} | arrays
    path = npz(tmp_path / "bad.npz", **{k: v for k, v in whole.items() if v is not None})
    text = refused(path)
    assert text.startswith(str(path))
    with pytest.raises(LeakbenchError, match=message):
        load(path)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x80\x04N.", b"PK\x03\x04" + b"\0" * 99])
def test_what_is_no_npz_file_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    assert "cannot be read as an npz file" in refused(tmp_path / "bad.npz")


def test_sizes_are_checked_before_anything_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("was decompressed"))
    monkeypatch.setattr(own, "LIMIT_BYTES", 3_000_000)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((3000, 1000), np.uint8))
    assert (tmp_path / "bomb.npz").stat().st_size < 4000
    text = refused(tmp_path / "bomb.npz")
    assert text.endswith("its arrays take 3,000,128 bytes; allowed are 3,000,000")
    # A header that says another size than the archive.
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 2**40)}
    )
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + b"\0" * 9)
    assert "its header says" in refused(tmp_path / "liar.npz")


@settings(max_examples=120, deadline=None)
@given(place=st.integers(0, 10**9), mask=st.integers(1, 255))
def test_flipped_bits_give_the_same_data_or_one_sentence(
    place: int, mask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "bits.npz"
    good = load(npz(path, x=GREY[:, :6, :6] // 2 + np.arange(20, dtype=np.uint8)[:, None, None],
                    y=CLASSES))  # fmt: skip
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= mask
    path.write_bytes(content)
    forget()
    try:
        found = data.load(str(path))
    except LeakbenchError as problem:
        assert str(path) in str(problem)
        assert "\n" not in str(problem)
    else:
        assert found.checksum == good.checksum


# ---- what is wrong with folders ------------------------------------------------------------------


def test_bad_folders_are_one_sentence(forty: Path) -> None:
    folder = forty / "c3"
    (folder / "loop.png").symlink_to(folder / "loop.png")
    assert "loop.png: is not a regular file" in refused(forty)
    (folder / "loop.png").unlink()
    os.mkfifo(folder / "pipe.png")
    assert "pipe.png: is not a regular file" in refused(forty)
    (folder / "pipe.png").unlink()
    (folder / "inner").mkdir()
    assert "inner: a folder inside a class" in refused(forty)
    (folder / "inner").rmdir()
    good = (folder / "003.png").read_bytes()
    (folder / "003.png").write_bytes(good[: len(good) // 2])
    assert "003.png: cannot be read as an image" in refused(forty)
    (folder / "003.png").write_bytes(b"no image")
    text = "003.png: cannot be read as an image (not an image that Pillow knows)"
    assert refused(forty).endswith(text)
    Image.fromarray(np.zeros((28, 28), np.uint16)).save(folder / "003.png")
    assert "has pixels of the kind 'I;16'" in refused(forty)
    Image.new("L", (5000, 2)).save(folder / "003.png")
    assert "003.png: is 5000 x 2 pixels; allowed are 4096 a side" in refused(forty)
    assert "allowed are 4096 a side" in refused(forty, size=8)
    for file in folder.iterdir():
        file.unlink()
    assert f"{folder}: holds no image" in refused(forty)


def test_folders_without_classes(tmp_path: Path) -> None:
    (tmp_path / "a" / "one").mkdir(parents=True)
    assert "one class only" in refused(tmp_path / "a")
    (tmp_path / "a" / "one").rmdir()
    assert "holds no folder" in refused(tmp_path / "a")
    save(tmp_path / "b" / "train", DIGITS.candidates[:20], DIGITS.candidate_labels[:20])
    save(tmp_path / "b" / "test", DIGITS.public[:20], DIGITS.public_labels[:20] + 1)
    assert "c10: the training part has no such class" in refused(tmp_path / "b")


def test_folders_and_files_too_large_are_refused(
    forty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "LIMIT_BYTES", 40 * 28 * 28 - 1)
    assert "its images take 31,360 bytes; allowed are 31,359" in refused(forty)
    assert "allowed are 31,359" in refused(npz(forty.parent / "a.npz", x=GREY.repeat(3, 0), y=[0]))


def test_a_picture_bomb_is_not_decoded(forty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 28 * 28 - 1)
    assert "cannot be read as an image" in refused(forty)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("./nothing", "is not there"),
        ("./file.txt", "is neither of them"),
        ("./file.npz/inside", "is not there"),
        ("/dev/null", "is neither of them"),
        ("loop/x", "is not there"),
        ("./loop.npz", "is neither of them"),
        ("./folder.npz\0", "is not there"),
        ("x/" * 3000, "is not there"),
        ("./mnist", "it would be called 'mnist'"),
    ],
)
def test_paths_are_checked(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "file.npz").write_text("")
    (tmp_path / "mnist").mkdir()
    for name in ("loop", "loop.npz"):
        (tmp_path / name).symlink_to(tmp_path / name)
    with pytest.raises(LeakbenchError, match=message):
        catalog.locate(text, tmp_path)


def test_names_sizes_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my faces (new)").mkdir()
    found = catalog.locate("./my faces (new)", tmp_path, size=32)
    assert found == OwnData(path=str(tmp_path / "my faces (new)"), name="my_faces_new", size=32)
    monkeypatch.chdir(tmp_path / "my faces (new)")
    assert catalog.locate("./").path == found.path
    for size in (0, -1, 2.5, True, 4097):
        with pytest.raises(LeakbenchError, match="size must be"):
            catalog.locate("./", size=size)  # type: ignore[arg-type]
    with pytest.raises(LeakbenchError, match="seed must be"):
        catalog.locate("./", seed=-1)
    npz(tmp_path / "a.npz", x=GREY, y=CLASSES)
    assert "size resizes a folder" in refused(tmp_path / "a.npz", size=3)


def test_data_that_went_away_is_missing(forty: Path) -> None:
    source = catalog.locate(str(forty))
    shutil.rmtree(forty)
    forget()
    with pytest.raises(DataMissing, match="'forty' is not on this machine"):
        data.load(source)


# ---- in a suite ----------------------------------------------------------------------------------

SUITE = """
schema = 1
name = "mine"
title = "My own data"
paper = "none"
source = "written for a test"
version = 1
seed = 0
datasets = ["./forty", "mnist"]
model = { name = "cnn2" }
attack = { name = "cpl", parameters = { steps = 2 } }
knowledge = { naive = {} }
defenses = [{ id = "none", name = "none", label = "no defense" }]
rules = [{ name = "mse", label = "MSE", kind = "mse", threshold = 0.05 }]

[training.batch_size]
"./forty" = 4
"*" = 2

[profiles.quick]
networks = 1
victims = 2
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(forty: Path, tmp_path: Path) -> Write:
    """Write the suite with one text in place of another, beside the folder of forty images."""

    def put(old: str = "", new: str = "") -> Path:
        assert old in SUITE
        path = tmp_path / "mine.toml"
        path.write_text(SUITE.replace(old, new), encoding="utf-8")
        return path

    return put


def test_a_suite_names_data_by_path(
    write: Write, forty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("", "")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # paths are relative to the suite, not to this
    plan = resolve(str(path))
    assert [(cell.dataset, cell.batch_size) for cell in plan.cells] == [("forty", 4), ("mnist", 2)]
    assert plan.cells[0].own == OwnData(path=str(forty), name="forty")
    assert plan.cells[1].own is None
    assert str(forty) not in str(plan.cells[0].spec())
    assert plan_from_json(plan_to_json(plan)) == plan


def test_tables_by_data_set_may_name_data_by_path(write: Write, forty: Path) -> None:
    path = write('"*" = 2', '"*" = 2\n[training.iterations]\n"./forty" = 7\nmnist = 9')
    assert [(c.dataset, c.iterations) for c in resolve(str(path)).cells] == [
        ("forty", 7), ("mnist", 9),
    ]  # fmt: skip


def test_a_path_of_the_command_line_is_relative_to_the_working_directory(
    write: Write, forty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("", "")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    npz(tmp_path / "there" / "mine.npz", x=GREY, y=CLASSES)
    plan = resolve(str(path), settings=['datasets=["./mine.npz", "forty"]'])
    assert [(cell.dataset, cell.batch_size) for cell in plan.cells] == [("mine", 2), ("forty", 4)]
    (tmp_path / "there" / "sub").mkdir()
    with pytest.raises(LeakbenchError, match=r"key datasets: data set './forty'.*is not there"):
        resolve(str(path), settings=['datasets=["./forty"]'])


def test_a_table_gives_a_size_and_a_seed(write: Write) -> None:
    path = write('["./forty", "mnist"]', '[{ path = "./forty", size = 14, seed = 3 }]')
    cell = resolve(str(path)).cells[0]
    assert cell.own is not None
    assert (cell.own.size, cell.own.seed) == (14, 3)
    assert data.load(cell.source).input_shape == (1, 14, 14)
    assert cell.batch_size == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"./forty", "mnist"', '"./fourty"', "key datasets: data set './fourty'.*is not there"),
        ('"./forty", "mnist"', '"forty"', "key datasets: unknown data set 'forty'"),
        ('"./forty", "mnist"', '"./forty", "./forty"', "key datasets: 'forty' stands there twice"),
        ('"./forty", "mnist"', '"./forty", "./b/forty"', "would both be called 'forty'; rename"),
        ('"./forty", "mnist"', '{ path = "./forty", sise = 3 }', "unknown key 'sise'.*'size'"),
        ('"./forty", "mnist"', "{ size = 3 }", "needs path"),
        ('"./forty", "mnist"', '{ path = "./forty", size = "a" }', "size must be a whole number"),
        ('"*" = 2', "", "key training.batch_size: no entry for 'mnist'"),
        ('"*" = 2', "forty = 2", "key batch_size: one data set stands there twice"),
        ('"*" = 2', '"*" = 0', r"key training.batch_size.\*: input should be greater than 0"),
        ('"./forty", "mnist"', '"./bad.npz"', "key datasets: .*bad.npz: array 'y' is missing"),
        ('"./forty", "mnist"', '"./forty", "./rows.npz"', "key model.name, 'rows'"),
    ],
)
def test_bad_data_in_a_suite_are_one_sentence(
    write: Write, forty: Path, old: str, new: str, message: str
) -> None:
    shutil.copytree(forty, forty.parent / "b" / "forty")
    npz(forty.parent / "bad.npz", x=GREY)
    npz(forty.parent / "rows.npz", x=GREY.reshape(20, 784), y=CLASSES)
    path = write(old, new)
    with pytest.raises(LeakbenchError, match=message) as caught:
        resolve(str(path))
    assert "\n" not in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_moving_data_and_suite_attacks_nothing_again(
    write: Write, forty: Path, tmp_path: Path
) -> None:
    path = write('["./forty", "mnist"]', '["./forty"]')
    first = runner.run(resolve(str(path)), tmp_path / "run", root=None)
    assert (first.ran, first.errors) == (2, 0)
    records = list(Run(tmp_path / "run").records().values())
    assert {record["dataset"] for record in records} == {"forty"}
    (tmp_path / "away").mkdir()
    shutil.move(forty, tmp_path / "away")
    moved = shutil.move(path, tmp_path / "away")
    again = runner.run(resolve(str(moved)), tmp_path / "run", root=None)
    assert (again.ran, again.present) == (0, 2)
    Image.new("L", (28, 28), 7).save(tmp_path / "away" / "forty" / "c0" / "new.png")
    forget()
    changed = runner.run(resolve(str(moved)), tmp_path / "run", root=None)
    assert changed.ran == 2


def test_equal_data_of_two_names_and_other_data_of_one_name_are_other_networks(
    write: Write, forty: Path, tmp_path: Path
) -> None:
    shutil.copytree(forty, tmp_path / "copy")
    path = write('["./forty", "mnist"]', '["./forty", "./copy"]')
    first, second = resolve(str(path)).cells
    forty_data, copy = data.load(first.source), data.load(second.source)
    assert forty_data.checksum == copy.checksum
    one = trials.attacked_network(first, forty_data, 0)
    assert trials.attacked_network(first, forty_data, 0) is one
    two = trials.attacked_network(second, copy, 0)
    assert not torch.equal(one.weights["dense.weight"], two.weights["dense.weight"])
    _, drawn = networks.first_network(second, copy, 0)
    assert torch.equal(two.weights["dense.weight"], drawn["dense.weight"])
    shutil.rmtree(forty / "c9")
    forget()
    fewer = trials.attacked_network(first, data.load(first.source), 0)
    assert len(fewer.weights["dense.bias"]) == 9
