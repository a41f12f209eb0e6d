"""Data sets, samples and the data root, against known numbers and damaged files."""

import functools
import gzip
import hashlib
import importlib.util
import io
import json
import math
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from leakbench import data
from leakbench.data import catalog, datasets, entries, prepare, readers, writing
from leakbench.data.families import binary, faces
from leakbench.errors import DataMissing, LeakbenchError

SAMPLED = ("mnist", "fashion_mnist", "cifar10")
REPOSITORY = Path(__file__).parents[1]


def script() -> ModuleType:
    """scripts/make_samples.py as a module."""
    path = REPOSITORY / "scripts" / "make_samples.py"
    spec = importlib.util.spec_from_file_location("make_samples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imbalance(labels: torch.Tensor, classes: int) -> int:
    """The largest difference between two classes' counts over all prefixes of the labels."""
    counts = torch.nn.functional.one_hot(labels, classes).cumsum(0)
    return int((counts.amax(1) - counts.amin(1)).max())


def digests(images: torch.Tensor) -> list[str]:
    return [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images]


@pytest.fixture
def fresh() -> Iterator[None]:
    """No data set remembered from another test, nor kept for the next."""
    datasets._load.cache_clear()
    datasets._load_full.cache_clear()
    yield
    datasets._load.cache_clear()
    datasets._load_full.cache_clear()


# ---- the samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLED)
def test_sample_has_its_counts_types_and_range(name: str) -> None:
    found = data.load(name)
    further = {"mnist": 3000, "fashion_mnist": 3000, "cifar10": 0}[name]
    for images, labels, count in (
        (found.candidates, found.candidate_labels, 1000),
        (found.train, found.train_labels, 1000 + further),
        (found.public, found.public_labels, 1000),
    ):
        assert images.shape == (count, *found.input_shape)
        assert images.dtype == torch.float32
        assert float(images.min()) == 0.0
        assert float(images.max()) == 1.0
        assert labels.shape == (count,)
        assert labels.dtype == torch.int64
        assert torch.bincount(labels).tolist() == [count // 10] * 10
    assert torch.equal(found.train[:1000], found.candidates)
    assert found.candidate_indices.dtype == torch.int64
    assert len(set(found.candidate_indices.tolist())) == 1000
    assert found.classes == len(found.class_names) == 10
    assert found.source == "sample"


@pytest.mark.parametrize("name", SAMPLED)
def test_every_prefix_is_balanced(name: str) -> None:
    found = data.load(name)
    assert imbalance(found.candidate_labels, 10) == 1
    assert imbalance(found.train_labels, 10) == 1
    assert imbalance(found.public_labels, 10) == 1


@pytest.mark.parametrize("name", SAMPLED)
def test_no_image_occurs_twice(name: str) -> None:
    found = data.load(name)
    seen = digests(found.train) + digests(found.public)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("name", "means", "tolerance"),
    [  # the published means of the full training sets; the tolerance is 4 standard errors
        ("mnist", [0.1307], 0.004),
        ("fashion_mnist", [0.2860], 0.012),
        ("cifar10", [0.4914, 0.4822, 0.4465], 0.02),
    ],
)
def test_means_are_near_the_published_ones(name: str, means: list[float], tolerance: float) -> None:
    found = torch.cat([data.load(name).train, data.load(name).public]).mean((0, 2, 3))
    torch.testing.assert_close(found, torch.tensor(means), atol=tolerance, rtol=0)


def test_samples_are_small_and_match_their_checksums() -> None:
    assert sum(path.stat().st_size for path in entries.SAMPLES.iterdir()) <= 8_000_000
    lines = (entries.SAMPLES / "SHA256SUMS").read_text().splitlines()
    listed = {file: digest for digest, file in (line.split("  ") for line in lines)}
    assert set(listed) == {"mnist.npz", "fashion_mnist.npz", "cifar10.npz", "breast_cancer.npz",
                           "lfw_indices.json", "adult_indices.json"}  # fmt: skip
    for file, digest in listed.items():
        assert hashlib.sha256((entries.SAMPLES / file).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_are_plain_npz_with_fixed_dates(name: str) -> None:
    path = entries.SAMPLES / f"{name}.npz"
    with np.load(path, allow_pickle=False) as arrays:
        assert {key: arrays[key].dtype.name for key in arrays.files} == {
            "images": "uint8",
            "labels": "uint8",
            "indices": "int32",
            "split": "uint8",
        }
        assert np.all(np.diff(arrays["split"].astype(int)) >= 0)
        assert torch.equal(torch.from_numpy(arrays["images"][:9]) / 255, data.load(name).train[:9])
    with zipfile.ZipFile(path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_loading_twice_gives_the_same_object_and_checksums_differ_between_sets() -> None:
    assert data.load("mnist") is data.load("mnist")
    assert len({data.load(name).checksum for name in SAMPLED}) == 3


def test_data_root_does_not_change_a_sample(tmp_path: Path, fresh: None) -> None:
    before = data.load("cifar10").checksum
    (tmp_path / "cifar10.npz").write_bytes(b"anything")
    datasets._load.cache_clear()
    assert data.load("cifar10", tmp_path).checksum == before


def test_lfw_indices_are_those_of_the_script_and_balanced() -> None:
    index = json.loads((entries.SAMPLES / "lfw_indices.json").read_text())
    make_samples = script()
    assert index == make_samples.lfw_indices()
    parts = [index[part] for part in ("candidates", "train", "public")]
    assert [len(part) for part in parts] == [1000, 1267, 756]
    assert sorted(i for part in parts for i in part) == list(range(3023))
    labels = torch.arange(62).repeat_interleave(torch.tensor(make_samples.LFW_COUNTS))
    assert imbalance(labels[index["candidates"]], 62) == 1
    assert imbalance(labels[index["public"]][: 3 * 62], 62) == 1
    assert torch.bincount(labels[index["public"]]).min() == 3


# ---- tables --------------------------------------------------------------------------------------

# Minimum and maximum of some columns, from the summary that scikit-learn prints with the set.
BREAST_CANCER_RANGES = {0: (6.981, 28.11), 1: (9.71, 39.28), 3: (143.5, 2501.0), 6: (0.0, 0.4268),
                        13: (6.802, 542.2), 20: (7.93, 36.04), 23: (185.2, 4254.0)}  # fmt: skip


def breast_cancer_arrays() -> dict[str, Any]:
    with np.load(entries.SAMPLES / "breast_cancer.npz", allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def test_breast_cancer_sample_is_the_published_set() -> None:
    arrays = breast_cancer_arrays()
    assert arrays["images"].shape == (569, 30)
    assert arrays["images"].dtype == np.float32
    assert np.bincount(arrays["labels"]).tolist() == [212, 357]
    for column, ends in BREAST_CANCER_RANGES.items():
        values = arrays["images"][:, column]
        assert (values.min(), values.max()) == pytest.approx(ends, rel=1e-6)
    assert sorted(arrays["indices"]) == list(range(569))
    assert len({row.tobytes() for row in arrays["images"]}) == 569


def test_breast_cancer_sample_is_that_of_scikit_learn() -> None:
    x, y = pytest.importorskip("sklearn.datasets").load_breast_cancer(return_X_y=True)
    arrays = breast_cancer_arrays()
    assert np.array_equal(arrays["images"], x[arrays["indices"]].astype(np.float32))
    assert np.array_equal(arrays["labels"], y[arrays["indices"]])


def test_breast_cancer_has_its_counts_order_and_classes() -> None:
    found = data.load("breast_cancer")
    assert found.input_shape == (30,)
    assert found.input_range == (0.0, 1.0)
    assert found.candidates.shape == (200, 30)
    assert found.train.shape == (400, 30)
    assert found.public.shape == (169, 30)
    assert torch.equal(found.train[:200], found.candidates)
    assert imbalance(found.candidate_labels, 2) == 1
    assert torch.bincount(found.public_labels).tolist() == [51, 118]  # 30 %, as of what was left
    assert imbalance(found.public_labels[:102], 2) == 1
    malignant, benign = (found.train[found.train_labels == c, 0].mean() for c in (0, 1))
    assert found.class_names == ("malignant", "benign")
    assert malignant > benign  # the mean radius of the nuclei


def test_columns_of_a_table_are_scaled_by_its_training_part() -> None:
    found, arrays = data.load("breast_cancer"), breast_cancer_arrays()
    for images in (found.candidates, found.train, found.public):
        assert images.dtype == torch.float32
        assert float(images.min()) >= 0
        assert float(images.max()) <= 1
    assert found.train.amin(0).tolist() == [0.0] * 30
    assert found.train.amax(0).tolist() == [1.0] * 30
    rows = torch.from_numpy(arrays["images"].astype(np.float64))
    low, high = rows[:400].amin(0), rows[:400].amax(0)
    outside = (rows[400:] < low) | (rows[400:] > high)
    assert outside.any()  # so that clipping is put to the test
    expected = ((rows[400:] - low) / (high - low)).clamp(0, 1).float()
    torch.testing.assert_close(found.public, expected, rtol=1e-4, atol=1e-6)


def test_breast_cancer_needs_no_root(tmp_path: Path) -> None:
    whole, found = data.load_full("breast_cancer", tmp_path), data.load("breast_cancer")
    assert (len(whole.train), len(whole.test)) == (426, 143)  # the papers' split
    rows = torch.cat([found.train, found.public])
    labels = torch.cat([found.train_labels, found.public_labels])
    others = [row for row in range(569) if not 400 <= row < 484]  # but the first half of the public
    others.sort(key=lambda row: hashlib.sha256(f"breast_cancer:{row}".encode()).hexdigest())
    tested = sorted([*range(400, 484), *others[:59]])
    kept = sorted(set(range(569)) - set(tested))
    assert torch.equal(whole.test, rows[tested])
    assert torch.equal(whole.train, rows[kept])
    assert torch.equal(whole.test_labels, labels[tested])
    assert torch.equal(whole.train_labels, labels[kept])
    assert int((labels[others[:59]] == 0).sum()) == 19  # 32 %; of all rows, 37 %
    assert whole.source == found.source == "sample"
    assert data.as_unit(whole.train) is whole.train


def test_adult_indices_come_from_their_parts() -> None:
    index = json.loads((entries.SAMPLES / "adult_indices.json").read_text())
    parts = [index[part] for part in ("candidates", "train", "public")]
    assert [len(part) for part in parts] == [1000, 3000, 1000]
    assert len({row for part in parts for row in part}) == 5000
    assert max(*parts[0], *parts[1]) < 32_561 <= min(parts[2])
    assert max(parts[2]) < 48_842
    assert index["sha256"] == script().ADULT_SHA256


# ---- names, roots, missing data ------------------------------------------------------------------


def test_importing_and_describing_needs_no_torch() -> None:
    code = (
        "import sys, leakbench.data as d; rows = d.describe(); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; "
        "print([r['status'] for r in rows])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, env={}
    )
    assert done.returncode == 0, done.stderr
    sampled = {"breast_cancer", "cifar10", "fashion_mnist", "mnist"}
    expected = ["embedded sample" if n in sampled else "missing" for n in data.NAMES]
    assert done.stdout.strip() == str(expected)
    assert expected.count("embedded sample") == 4


def test_describe_sees_complete_data_roots_only(tmp_path: Path) -> None:
    for file in ("lfw.npz", "MNIST/raw/train-images-idx3-ubyte"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    rows = {row["name"]: row for row in data.describe(tmp_path)}
    assert rows["lfw"]["status"] == "in data root"
    assert rows["lfw"]["where"] == str(tmp_path)
    assert rows["mnist"]["status"] == "embedded sample"
    assert rows["breast_cancer"]["status"] == "embedded sample"
    assert rows["breast_cancer"]["how_to_get"] == "part of leakbench"
    assert rows["adult"]["status"] == "missing"
    assert set(rows["lfw"]) == {"name", "title", "status", "where", "how_to_get", "licence"}


def test_missing_lfw_says_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    with pytest.raises(DataMissing, match=r"lfw.*LEAKBENCH_DATA is not set.*prepare DEST lfw"):
        data.load("lfw")
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
    with pytest.raises(DataMissing) as caught:
        data.load("lfw")
    text = str(caught.value)
    assert str(tmp_path / "lfw.npz") in text
    assert "leakbench data prepare DEST lfw" in text
    assert "LEAKBENCH_DATA=DEST" in text
    assert "\n" not in text


@pytest.mark.parametrize("name", [name for name in data.NAMES if name != "breast_cancer"])
def test_missing_full_data_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=f"prepare DEST {name}'"):
        data.load_full(name, tmp_path)


@pytest.mark.parametrize("get", [data.load, data.load_full])
def test_unknown_name_gets_the_closest_match(get: Any) -> None:
    with pytest.raises(LeakbenchError, match=r"'mnits' \(did you mean 'mnist'\?\).*cifar10.*lfw"):
        get("mnits")
    with pytest.raises(LeakbenchError, match=r"'\.\./mnist': a path must lead to .* is not there"):
        get("../mnist")


def test_data_root_must_be_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKBENCH_DATA", "")
    assert data.data_root() is None
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
    assert data.data_root() == tmp_path
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(LeakbenchError, match=r"LEAKBENCH_DATA: '.*nowhere' is not a folder"):
        data.data_root()
    with pytest.raises(LeakbenchError, match="is not a folder"):
        data.load("lfw")


# ---- damaged files -------------------------------------------------------------------------------


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Path:
    """A private copy of the samples that `load` reads."""
    for path in entries.SAMPLES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(entries, "SAMPLES", tmp_path)
    return tmp_path


def test_a_changed_sample_is_refused(samples: Path) -> None:
    content = bytearray((samples / "mnist.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (samples / "mnist.npz").write_bytes(content)
    with pytest.raises(LeakbenchError, match=r"mnist\.npz: its SHA-256 is not.*reinstall"):
        data.load("mnist")
    data.load("fashion_mnist")


@pytest.mark.parametrize("file", ["mnist.npz", "SHA256SUMS"])
def test_an_absent_sample_is_named(samples: Path, file: str) -> None:
    (samples / file).unlink()
    with pytest.raises(LeakbenchError, match=f"{file}: cannot be read"):
        data.load("mnist")


def lfw_arrays() -> dict[str, Any]:
    """What lfw.npz holds, with grey levels that tell the row instead of faces."""
    x = np.zeros((3023, 32, 32, 3), np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(3023) // 256, np.arange(3023) % 256
    y = np.repeat(np.arange(62, dtype=np.uint8), script().LFW_COUNTS)
    return {"x": x, "y": y, "class_names": np.array([f"Person_{i:02d}" for i in range(62)])}


@pytest.fixture(scope="module")
def lfw_bytes() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **lfw_arrays())
    return stream.getvalue()


def load_lfw(root: Path) -> data.Dataset:
    datasets._load.cache_clear()
    return data.load("lfw", root)


def test_lfw_rows_come_in_the_order_of_the_index(tmp_path: Path, lfw_bytes: bytes) -> None:
    (tmp_path / "lfw.npz").write_bytes(lfw_bytes)
    found = load_lfw(tmp_path)
    index = json.loads((entries.SAMPLES / "lfw_indices.json").read_text())

    def rows(images: torch.Tensor) -> list[int]:
        corner = (images[:, :2, 0, 0] * 255).round().to(torch.int64)
        return (corner[:, 0] * 256 + corner[:, 1]).tolist()

    assert rows(found.candidates) == index["candidates"] == found.candidate_indices.tolist()
    assert rows(found.train) == index["candidates"] + index["train"]
    assert rows(found.public) == index["public"]
    assert found.class_names[61] == "Person_61"
    assert found.source == f"{tmp_path / 'lfw.npz'} (pixels differ from the reference copy)"
    full = data.load_full("lfw", tmp_path)
    assert torch.equal(full.train, (found.train * 255).round().to(torch.uint8))
    assert torch.equal(full.test_labels, found.public_labels)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_lfw_is_one_sentence(
    share: float, tmp_path_factory: pytest.TempPathFactory, lfw_bytes: bytes
) -> None:
    root = tmp_path_factory.mktemp("truncated")
    (root / "lfw.npz").write_bytes(lfw_bytes[: int(share * len(lfw_bytes))])
    with pytest.raises(LeakbenchError, match=r"lfw\.npz: cannot be read as an npz file"):
        load_lfw(root)


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 10**9), mask=st.integers(1, 255))
def test_flipped_bits_give_the_same_data_or_one_sentence(
    place: int, mask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "file.npz"
    wanted = {"x": readers.Wanted((7, 5), "uint8"), "t": readers.Wanted((2,), "str")}
    x, t = np.arange(35, dtype=np.uint8).reshape(7, 5), np.array(["a", "bc"])
    np.savez(path, x=x, t=t)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= mask
    path.write_bytes(content)
    try:
        found = readers.read_npz(path, wanted)
    except LeakbenchError as problem:
        assert str(path) in str(problem)
        assert "\n" not in str(problem)
    else:
        assert np.array_equal(found["x"], x)
        assert found["t"].tolist() == t.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "array 'x' is missing"),
        ({"x": np.zeros((3022, 32, 32, 3), np.uint8)}, r"array 'x' is uint8 \(3022, 32, 32, 3\)"),
        ({"x": np.zeros((3023, 32, 32, 3), np.float32)}, "array 'x' holds .* bytes, allowed"),
        ({"y": np.zeros(3023, np.int8)}, r"array 'y' is int8 \(3023,\), it must be uint8"),
        ({"y": np.zeros(3023, np.uint8)}, "the labels 'y' are not those of lfw_indices.json"),
        ({"class_names": np.array([{}] * 62)}, "Object arrays cannot be loaded"),
    ],
)
def test_wrong_lfw_arrays_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {key: value for key, value in (lfw_arrays() | change).items() if value is not None}
    np.savez_compressed(tmp_path / "lfw.npz", **arrays)
    with pytest.raises(LeakbenchError, match=message):
        load_lfw(tmp_path)


def test_adult_rows_come_in_the_order_of_the_index(samples: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    arrays: dict[str, Any] = {
        "x": random.uniform(-3, 5, (48_842, 105)).astype(np.float32),
        "y": random.integers(0, 2, 48_842, dtype=np.uint8),
        "is_test": np.repeat(np.array([0, 1], np.uint8), [32_561, 16_281]),
    }
    arrays["x"][-1] = 9  # beyond what the training part holds
    np.savez(tmp_path / "adult.npz", **arrays)
    with pytest.raises(LeakbenchError, match=r"adult\.npz: .* not those of adult_indices"):
        data.load("adult", tmp_path)
    with pytest.raises(LeakbenchError, match="not those of adult_indices"):
        data.load_full("adult", tmp_path)

    index = json.loads((samples / "adult_indices.json").read_text())
    index["sha256"] = readers.arrays_digest(arrays)
    content = json.dumps(index).encode()
    (samples / "adult_indices.json").write_bytes(content)
    sums = f"{hashlib.sha256(content).hexdigest()}  adult_indices.json\n"
    (samples / "SHA256SUMS").write_text(sums)
    found, whole = data.load("adult", tmp_path), data.load_full("adult", tmp_path)
    low, high = arrays["x"][:32_561].min(0), arrays["x"][:32_561].max(0)
    unit = torch.from_numpy(((arrays["x"] - low) / (high - low)).clip(0, 1))
    assert found.candidate_indices.tolist() == index["candidates"]
    assert torch.equal(found.train, unit[index["candidates"] + index["train"]])
    assert torch.equal(found.public, unit[index["public"]])
    assert found.public_labels.tolist() == arrays["y"][index["public"]].tolist()
    assert found.source == whole.source == str(tmp_path / "adult.npz")
    # A quarter tests: all that is public, and of the rest those whose SHA-256 comes first.
    assert (len(whole.train), len(whole.test)) == (36_631, 12_211)
    used = {row for part in ("candidates", "train", "public") for row in index[part]}
    free = sorted(
        set(range(48_842)) - used,
        key=lambda row: hashlib.sha256(f"adult:{row}".encode()).hexdigest(),
    )
    tested = sorted([*index["public"], *free[:11_211]])
    assert torch.equal(whole.test, unit[tested])
    assert torch.equal(whole.train, unit[sorted(set(range(48_842)) - set(tested))])
    assert whole.train.shape == (36_631, 105)
    assert unit[-1].tolist() == [1.0] * 105


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x80\x04N.", b"PK\x03\x04" + b"\0" * 99])
def test_other_files_are_not_taken_for_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lfw.npz").write_bytes(content)
    with pytest.raises(LeakbenchError, match="cannot be read as an npz file"):
        load_lfw(tmp_path)


def test_idx_files_must_fit_exactly(tmp_path: Path) -> None:
    path = tmp_path / "images"
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = idx_bytes(images)
    path.write_bytes(content)
    assert np.array_equal(readers.read_idx(path, (2, 3, 4)), images)
    with pytest.raises(LeakbenchError, match="header"):
        readers.read_idx(path, (3, 2, 4))
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(LeakbenchError, match=f"{length} bytes long, it must be 40"):
            readers.read_idx(path, (2, 3, 4))


# ---- preparing a data root -----------------------------------------------------------------------


def idx_bytes(array: Any) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + bytes(array.tobytes())


def tar_bytes(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def jpeg_bytes(grey: int) -> bytes:
    """A 250 x 250 picture, black outside the rows and columns that are kept."""
    pixels = np.zeros((250, 250, 3), np.uint8)
    pixels[70:195, 78:172] = grey
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=100, subsampling=0)
    return stream.getvalue()


def announce(
    monkeypatch: pytest.MonkeyPatch, name: str, contents: list[bytes], folder: Path
) -> None:
    """Put small archives into a folder and make their checksums the published ones."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for archive, content in zip(catalog.CATALOG[name].archives, contents, strict=True):
        path = folder / archive.file
        path.write_bytes(content)
        changed.append(
            entries.Archive(
                file=archive.file,
                urls=((folder / "absent").as_uri(), path.as_uri()),
                algorithm=archive.algorithm,
                digest=hashlib.new(archive.algorithm, content).hexdigest(),
            )
        )
    entry = replace(catalog.CATALOG[name], archives=tuple(changed))
    monkeypatch.setitem(catalog.CATALOG, name, entry)


def idx_archives(seed: int) -> tuple[list[bytes], list[bytes]]:
    """Four gzip files as they are published and what is in them."""
    random = np.random.default_rng(seed)
    shapes: list[tuple[int, ...]] = [(6, 28, 28), (6,), (2, 28, 28), (2,)]
    contents = [idx_bytes(random.integers(0, 10, shape, dtype=np.uint8)) for shape in shapes]
    return [gzip.compress(content) for content in contents], contents


def test_prepare_idx_sets_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    mnist, mnist_contents = idx_archives(1)
    fashion, fashion_contents = idx_archives(2)
    announce(monkeypatch, "mnist", mnist, source)
    announce(monkeypatch, "fashion_mnist", fashion, source / "fashion_mnist")
    lines: list[str] = []
    prepare.prepare(dest, ["mnist", "fashion_mnist"], source, lines.append)
    for name, contents in (("mnist", mnist_contents), ("fashion_mnist", fashion_contents)):
        files = [dest / file for file in catalog.look_up(name).root_files]
        assert [file.read_bytes() for file in files] == contents
    assert not list(dest.rglob("*.part"))
    assert not (dest / "downloads").exists()
    assert lines[-1] == "fashion_mnist: ready"

    kept = dest / "MNIST/raw/train-labels-idx1-ubyte"
    kept.write_bytes(b"mine")
    (dest / "MNIST/raw/train-images-idx3-ubyte").unlink()
    prepare.prepare(dest, ["mnist", "fashion_mnist"], source, lines.append)
    assert kept.read_bytes() == b"mine"
    assert (dest / "MNIST/raw/train-images-idx3-ubyte").read_bytes() == mnist_contents[0]
    assert lines[-1] == "fashion_mnist: already there"


def test_prepare_cifar10_from_the_binary_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    x = random.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    y = random.integers(0, 10, 12, dtype=np.uint8)
    records = [bytes([y[i]]) + x[i].transpose(2, 0, 1).tobytes() for i in range(12)]
    folder = "cifar-10-batches-bin"
    files = {f"{folder}/data_batch_{i + 1}.bin": b"".join(records[2 * i : 2 * i + 2])
             for i in (4, 3, 2, 1, 0)}  # fmt: skip
    files |= {f"{folder}/test_batch.bin": b"".join(records[10:]), "../evil": b"no"}
    announce(monkeypatch, "cifar10", [tar_bytes(files)], tmp_path / "source")
    prepare.prepare(tmp_path / "dest", ["cifar10"], tmp_path / "source")
    with np.load(tmp_path / "dest" / "cifar10.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["x_train"], x[:10])
        assert np.array_equal(arrays["y_train"], y[:10])
        assert np.array_equal(arrays["x_test"], x[10:])
        assert np.array_equal(arrays["y_test"], y[10:])
        assert tuple(arrays["class_names"]) == catalog.look_up("cifar10").class_names
    assert not list(tmp_path.rglob("evil"))


def test_prepare_lfw_keeps_people_with_enough_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grey = {"Zoe_B_0001": 40, "Zoe_B_0002": 80, "Ann_C_0002": 160, "Ann_C_0001": 120,
            "Bob_A_0001": 200}  # fmt: skip
    files = {f"lfw_funneled/{k[:-5]}/{k}.jpg": jpeg_bytes(v) for k, v in grey.items()}
    files["lfw_funneled/pairs_01.txt"] = b"not a picture"
    monkeypatch.setattr(faces, "MIN_IMAGES", 2)
    announce(monkeypatch, "lfw", [tar_bytes(files)], tmp_path)
    prepare.prepare(tmp_path / "dest", ["lfw"], tmp_path)
    with np.load(tmp_path / "dest" / "lfw.npz", allow_pickle=False) as arrays:
        assert arrays["class_names"].tolist() == ["Ann_C", "Zoe_B"]
        assert arrays["y"].tolist() == [0, 0, 1, 1]
        assert arrays["x"].shape == (4, 32, 32, 3)
        middle = arrays["x"][:, 8:24, 8:24].astype(int).mean((1, 2, 3))
        assert np.abs(middle - [120, 160, 40, 80]).max() <= 1
        # A crop that is off by one row or column would let black in at the border.
        assert arrays["x"].min(axis=(1, 2, 3)).tolist() == pytest.approx([120, 160, 40, 80], abs=6)


ADULT_LINES = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K",
    "52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband, White, Male, 0, 1902, 45, ?, >50K",
    "25, Private, 226802, 11th, 7, Never-married, Sales, Own-child, Black, Female, "
    "0, 0, 40, Cuba, <=50K.",
)


def test_prepare_adult_from_its_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = f"{ADULT_LINES[0]}\n{ADULT_LINES[1]}\n\n".encode()
    test = f"|1x3 Cross validator\n{ADULT_LINES[2]}\n\n".encode()
    announce(monkeypatch, "adult", [train, test], tmp_path)
    prepare.prepare(tmp_path / "dest", ["adult"], tmp_path)
    with np.load(tmp_path / "dest" / "adult.npz", allow_pickle=False) as arrays:
        columns, x = arrays["columns"].tolist(), arrays["x"]
        assert arrays["y"].tolist() == [0, 1, 0]
        assert arrays["is_test"].tolist() == [0, 0, 1]
    assert columns == [
        "age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week",
        "workclass=Private", "workclass=State-gov",
        "education=11th", "education=Bachelors", "education=HS-grad",
        "marital_status=Married-civ-spouse", "marital_status=Never-married",
        "occupation=Adm-clerical", "occupation=Sales",
        "relationship=Husband", "relationship=Not-in-family", "relationship=Own-child",
        "race=Black", "race=White", "sex=Female", "sex=Male",
        "native_country=Cuba", "native_country=United-States",
    ]  # fmt: skip
    assert x.dtype == np.float32
    assert x[:, :6].tolist() == [
        [39, 77516, 13, 2174, 0, 40], [52, 209642, 9, 0, 1902, 45], [25, 226802, 7, 0, 0, 40],
    ]  # fmt: skip
    hot = [{columns[j] for j in range(6, len(columns)) if row[j] == 1} for row in x]
    assert hot[1] == {"education=HS-grad", "marital_status=Married-civ-spouse",
                      "relationship=Husband", "race=White", "sex=Male"}  # fmt: skip
    assert len(hot[0]) == len(hot[2]) == 8
    assert x[:, 6:].sum() == 8 + 5 + 8


def test_prepare_cifar100_keeps_the_fine_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(4)
    x = random.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    coarse, fine = np.array([3, 1, 19, 0, 7]), np.array([99, 0, 50, 7, 12])
    records = [bytes([coarse[i], fine[i]]) + x[i].transpose(2, 0, 1).tobytes() for i in range(5)]
    files = {"cifar-100-binary/train.bin": b"".join(records[:3]),
             "cifar-100-binary/test.bin": b"".join(records[3:])}  # fmt: skip
    announce(monkeypatch, "cifar100", [tar_bytes(files)], tmp_path / "source")
    prepare.prepare(tmp_path / "dest", ["cifar100"], tmp_path / "source")
    with np.load(tmp_path / "dest" / "cifar100.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["x_train"], x[:3])
        assert arrays["y_train"].tolist() == fine[:3].tolist()
        assert np.array_equal(arrays["x_test"], x[3:])
        assert arrays["y_test"].tolist() == fine[3:].tolist()
        assert len(set(arrays["class_names"].tolist())) == 100
    # Of the archive that its authors publish: three names and the places where they stand in it.
    names = catalog.look_up("cifar100").class_names
    assert (names[0], names[58], names[99]) == ("apple", "pickup_truck", "worm")


def test_a_set_without_an_index_list_is_split_by_a_seed(tmp_path: Path) -> None:
    sample = data.load("cifar10")
    images = (torch.cat([sample.candidates, sample.public]) * 255).round().to(torch.uint8)
    x, labels = images.permute(0, 2, 3, 1).numpy(), (np.arange(2000) % 100).astype(np.uint8)
    np.savez(tmp_path / "cifar100.npz", x_train=x[:1500], y_train=labels[:1500],
             x_test=x[1500:], y_test=labels[1500:])  # fmt: skip
    entry = replace(catalog.look_up("cifar100"), full_counts=(1500, 500))
    found = entry.read(entry, [tmp_path / "cifar100.npz"])
    assert found.counts == (1000, 500, 500)
    assert imbalance(torch.from_numpy(found.labels[:1500]).long(), 100) == 1
    assert imbalance(torch.from_numpy(found.labels[1500:]).long(), 100) == 1
    assert np.array_equal(found.images.transpose(0, 2, 3, 1), x[found.indices])
    assert np.array_equal(found.labels, labels[found.indices])
    assert sorted(found.indices) == list(range(2000))
    assert max(found.indices[:1500]) < 1500
    again = entry.read(entry, [tmp_path / "cifar100.npz"])
    assert np.array_equal(found.indices, again.indices)
    whole = entry.read_full(entry, [tmp_path / "cifar100.npz"])
    assert np.array_equal(whole.train.transpose(0, 2, 3, 1), x[:1500])
    assert np.array_equal(whole.test_labels, labels[1500:])


BITS = [[3, 0, 1, 1], [1, 1, 1, 0], [2, 0, 0, 0], [3, 1, 0, 1]]


def bits_archive(file: str, rows: list[list[int]], quote: str = "") -> bytes:
    """An archive with a file of lines "label,value,..."."""
    lines = [",".join(f"{quote}{value}{quote}" for value in row) for row in rows]
    return tar_bytes({file: "\n".join([*lines, ""]).encode()})


@pytest.mark.parametrize("quote", ["", '"'])
def test_prepare_rows_of_zeros_and_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quote: str
) -> None:
    (tmp_path / "dataset_location.tgz").write_bytes(bits_archive("bangkok", BITS, quote))
    build = functools.partial(binary.build, file="bangkok", shape=(4, 3), classes=3)
    monkeypatch.setitem(
        catalog.CATALOG, "location30", replace(catalog.look_up("location30"), build=build)
    )
    prepare.prepare(tmp_path / "dest", ["location30"], tmp_path)
    with np.load(tmp_path / "dest" / "location30.npz", allow_pickle=False) as arrays:
        assert arrays["x"].tolist() == [row[1:] for row in BITS]
        assert arrays["y"].tolist() == [2, 0, 1, 2]
        assert arrays["x"].dtype == arrays["y"].dtype == np.uint8


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (BITS[:3], r"a table \(3, 4\), it must be \(4, 4\)"),
        ([row[:3] for row in BITS], r"a table \(4, 3\), it must be \(4, 4\)"),
        ([*BITS[:3], [4, 0, 0, 1]], "labels 1 to 3, then zeros and ones"),
        ([*BITS[:3], [0, 0, 0, 1]], "labels 1 to 3, then zeros and ones"),
        ([*BITS[:3], [1, 0, 2, 1]], "labels 1 to 3, then zeros and ones"),
        ([*BITS[:3], [1, 0, 999, 1]], "no table of bytes"),
        ([*BITS[:3], [1, 0, -1, 1]], "no table of bytes"),
        ([*BITS[:3], [1, 0]], "no table of bytes"),
    ],
)
def test_prepare_says_when_rows_are_not_zeros_and_ones(
    tmp_path: Path, rows: list[list[int]], message: str
) -> None:
    archive = tmp_path / "rows.tgz"
    archive.write_bytes(bits_archive("bangkok", rows))
    with pytest.raises(LeakbenchError, match=message):
        binary.build([archive], [tmp_path / "x.npz"], file="bangkok", shape=(4, 3), classes=3)
    with pytest.raises(LeakbenchError, match="'other' is missing"):
        binary.build([archive], [tmp_path / "x.npz"], file="other", shape=(4, 3), classes=3)
    assert not (tmp_path / "x.npz").exists()


def test_rows_of_zeros_and_ones_are_split_and_their_source_is_remarked(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    x = random.integers(0, 2, (90, 446), dtype=np.uint8)
    y = np.arange(90, dtype=np.uint8) % 30
    x[89] = x[59]  # of the same class; the first one counts
    np.savez(tmp_path / "location30.npz", x=x, y=y)
    entry = replace(catalog.look_up("location30"), full_counts=(90, 0))
    found = entry.read(entry, [tmp_path / "location30.npz"])
    assert found.source == f"{tmp_path / 'location30.npz'} (differs from the reference copy)"
    assert found.counts == (59, 0, 30)
    assert found.images.dtype == np.float32
    assert np.array_equal(found.images, x[found.indices])
    assert sorted(found.indices) == list(range(89))
    whole = entry.read_full(entry, [tmp_path / "location30.npz"])
    assert (len(whole.train), len(whole.test)) == (59, 30)
    other = replace(catalog.look_up("purchase100"), full_counts=(90, 0), classes=30,
                    input_shape=(446,))  # fmt: skip
    assert other.read(other, [tmp_path / "location30.npz"]).source.endswith(
        "(not verified, no checksum known)"
    )
    np.savez(tmp_path / "location30.npz", x=x + 1, y=y)
    with pytest.raises(LeakbenchError, match="'x' must hold zeros and ones only"):
        entry.read(entry, [tmp_path / "location30.npz"])


def test_archives_without_a_published_checksum_are_never_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_download", lambda *_: pytest.fail("was downloaded"))
    with pytest.raises(DataMissing, match="state no checksum, so it is not downloaded; fetch http"):
        prepare.prepare(tmp_path / "dest", ["purchase100"])
    with pytest.raises(DataMissing, match=r"'dataset_purchase\.tgz' is not in"):
        prepare.prepare(tmp_path / "dest", ["purchase100"], tmp_path)
    monkeypatch.setattr(catalog, "NAMES", ("location30", "purchase100"))
    lines: list[str] = []
    prepare.prepare(tmp_path / "dest", report=lines.append)
    assert [line.split(";")[0] for line in lines] == [
        "location30: left out", "purchase100: left out",
    ]  # fmt: skip
    for entry in catalog.CATALOG.values():
        unverified = entry.name in ("location30", "purchase100")
        assert all(bool(archive.digest) != unverified for archive in entry.archives)


def test_a_member_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "rows.tgz"
    archive.write_bytes(tar_bytes({"bangkok": b"1,0\n" * 99}))
    monkeypatch.setattr(writing, "LIMIT_BYTES", 395)
    with pytest.raises(LeakbenchError, match="'bangkok' is 396 bytes long, allowed are 395"):
        binary.build([archive], [tmp_path / "x.npz"], file="bangkok", shape=(99, 1), classes=1)


@pytest.mark.parametrize(
    "content",
    [b"", b"|1x3 Cross validator\n", b"39, State-gov\n", b"\xff" * 99, b"a, " * 14 + b"<=50K\n"],
)
def test_prepare_says_when_a_file_is_not_adult(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    announce(monkeypatch, "adult", [f"{ADULT_LINES[0]}\n".encode(), content], tmp_path)
    with pytest.raises(LeakbenchError, match=r"adult\.test: each line must hold 15 fields"):
        prepare.prepare(tmp_path / "dest", ["adult"], tmp_path)
    assert not list((tmp_path / "dest").rglob("*"))


def test_prepare_has_nothing_to_do_for_a_set_that_is_all_in_the_package(tmp_path: Path) -> None:
    lines: list[str] = []
    prepare.prepare(tmp_path / "dest", ["breast_cancer"], report=lines.append)
    assert lines == ["breast_cancer: part of leakbench"]
    assert not (tmp_path / "dest").exists()


def test_prepare_refuses_a_wrong_checksum_and_missing_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    announce(monkeypatch, "cifar10", [b"as published"], source)
    (source / "cifar-10-binary.tar.gz").write_bytes(b"another")
    with pytest.raises(LeakbenchError, match=r"cifar-10-binary\.tar\.gz: its MD5 is .*must be"):
        prepare.prepare(tmp_path / "dest", ["cifar10"], source)
    with pytest.raises(DataMissing, match=r"'lfw-funneled\.tgz' is not in"):
        prepare.prepare(tmp_path / "dest", ["lfw"], source)
    with pytest.raises(LeakbenchError, match="did you mean 'lfw'"):
        prepare.prepare(tmp_path / "dest", ["lfww"], source)
    with pytest.raises(LeakbenchError, match="is not a folder"):
        prepare.prepare(tmp_path / "dest", ["lfw"], source / "absent")
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize(
    "content",
    [b"no archive", gzip.compress(b"no tar"), tar_bytes({}), tar_bytes({"a": b"b"})[:-20]],
    ids=["no archive", "no tar", "empty", "cut"],  # the bytes of an archive hold the time
)
@pytest.mark.parametrize("name", ["cifar10", "lfw"])
def test_prepare_says_when_an_archive_makes_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    announce(monkeypatch, name, [content], tmp_path)
    with pytest.raises(LeakbenchError):
        prepare.prepare(tmp_path / "dest", [name], tmp_path)
    assert not list((tmp_path / "dest").rglob("*"))


def test_prepare_downloads_from_the_next_mirror_and_keeps_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives, contents = idx_archives(4)
    announce(monkeypatch, "mnist", archives, tmp_path / "mirror")
    lines: list[str] = []
    prepare.prepare(tmp_path / "dest", ["mnist"], report=lines.append)
    assert (tmp_path / "dest/MNIST/raw/t10k-labels-idx1-ubyte").read_bytes() == contents[3]
    kept = sorted((tmp_path / "dest/downloads/mnist").iterdir())
    assert [path.suffix for path in kept] == [".gz"] * 4
    assert sum(line.startswith("mnist: fetching") for line in lines) == 8

    for path in (tmp_path / "mirror").iterdir():
        path.unlink()
    (tmp_path / "dest/MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    prepare.prepare(tmp_path / "dest", ["mnist"])
    assert (tmp_path / "dest/MNIST/raw/t10k-labels-idx1-ubyte").read_bytes() == contents[3]


def test_prepare_says_when_every_mirror_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(monkeypatch, "cifar10", [b"as published"], tmp_path / "mirror")
    (tmp_path / "mirror" / "cifar-10-binary.tar.gz").write_bytes(b"cut off")
    with pytest.raises(
        LeakbenchError, match=r"could not get.*absent.*MD5 is.*the source"
    ) as caught:
        prepare.prepare(tmp_path / "dest", ["cifar10"])
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "dest/downloads/cifar10").iterdir())

    monkeypatch.setattr(writing, "LIMIT_BYTES", 3)
    with pytest.raises(LeakbenchError, match="more than the 3 bytes allowed"):
        prepare.prepare(tmp_path / "dest", ["cifar10"])


@pytest.mark.parametrize(
    ("name", "known"),
    [("mnist", torchvision.datasets.MNIST), ("fashion_mnist", torchvision.datasets.FashionMNIST)],
)
def test_checksums_and_mirrors_are_those_of_torchvision(name: str, known: Any) -> None:
    archives = catalog.CATALOG[name].archives
    assert {(a.file, a.digest) for a in archives} == set(known.resources)
    assert known.mirrors[0] + archives[0].file in archives[0].urls


# ---- with a data root ----------------------------------------------------------------------------


def full(name: str) -> data.FullDataset:
    root = data.data_root()
    if root is None:
        pytest.skip("LEAKBENCH_DATA is not set")
    return data.load_full(name, root)


@pytest.mark.data
@pytest.mark.parametrize("name", SAMPLED)
def test_sample_images_are_in_the_full_set(name: str) -> None:
    whole, sample = full(name), data.load(name)
    train = dict(zip(digests(whole.train), whole.train_labels.tolist(), strict=True))
    test = dict(zip(digests(whole.test), whole.test_labels.tolist(), strict=True))

    def check(images: torch.Tensor, labels: torch.Tensor, place: dict[str, int]) -> None:
        found = digests((images * 255).round().to(torch.uint8))
        assert [place.get(digest) for digest in found] == labels.tolist()

    check(sample.train, sample.train_labels, train)
    check(sample.public, sample.public_labels, train if name == "mnist" else test)
    if name != "mnist":  # the others were taken from the files in their original order
        there = (sample.candidates * 255).round().to(torch.uint8)
        assert torch.equal(whole.train[sample.candidate_indices], there)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "mean"), [("mnist", 0.1307), ("fashion_mnist", 0.2860), ("cifar10", 0.4734)]
)
def test_full_sets_have_the_published_means(name: str, mean: float) -> None:
    whole = full(name)
    assert float(whole.train.double().mean() / 255) == pytest.approx(mean, abs=1e-4)
    assert whole.test.shape == (10_000, *whole.input_shape)


@pytest.mark.data
def test_lfw_of_the_data_root() -> None:
    whole, found = full("lfw"), data.load("lfw")
    assert imbalance(found.candidate_labels, 62) == 1
    assert torch.equal(whole.train[:1000], (found.candidates * 255).round().to(torch.uint8))
    assert len(whole.train) == 2267
    assert len(whole.test) == 756
    assert len(set(digests(found.train) + digests(found.public))) == 3023
    assert found.class_names[0] == "Alejandro_Toledo"
    assert list(found.class_names) == sorted(found.class_names)


@pytest.mark.data
def test_adult_of_the_data_root() -> None:
    whole, found = full("adult"), data.load("adult")
    assert whole.train.shape == (36_631, 105)
    assert whole.test.shape == (12_211, 105)
    positives = int(whole.train_labels.sum()), int(whole.test_labels.sum())
    assert sum(positives) == 11_687  # 23.93 %, as UCI states
    assert positives[0] / 36_631 == pytest.approx(0.2393, abs=0.005)
    assert positives[1] / 12_211 == pytest.approx(0.2393, abs=0.01)
    assert float(torch.cat([whole.train, whole.test]).min()) == 0
    assert float(whole.train.max()) == 1
    assert float(whole.test.min()) >= 0
    assert float(whole.test.max()) <= 1
    years = torch.cat([whole.train, whole.test])[:, 0].double() * (90 - 17) + 17
    assert float(years.mean()) == pytest.approx(38.6436, abs=1e-4)
    assert torch.bincount(found.candidate_labels).tolist() == [500, 500]
    for labels in (found.candidate_labels, found.train_labels, found.public_labels):
        assert imbalance(labels, 2) == 1
    assert set(digests(found.train)) <= set(digests(whole.train))
    assert set(digests(found.public)) <= set(digests(whole.test))
    assert len(set(digests(found.train) + digests(found.public))) == 5000
    assert found.class_names == ("<=50K", ">50K")


@pytest.mark.data
def test_adult_columns_of_the_data_root() -> None:
    with np.load(full("adult").source, allow_pickle=False) as arrays:
        columns, x = arrays["columns"].tolist(), arrays["x"]
    assert len(columns) == 105
    assert columns[:2] == ["age", "fnlwgt"]
    assert columns[-1] == "native_country=Yugoslavia"
    assert int(x[:, columns.index("sex=Female")].sum()) == 16_192
    assert int(x[:, columns.index("sex=Male")].sum()) == 32_650
    assert int((x[:, [c.startswith("workclass=") for c in columns]].sum(1) == 0).sum()) == 2799


@pytest.mark.data
def test_location30_of_the_data_root() -> None:
    root = data.data_root()
    if root is None or not (root / "location30.npz").is_file():
        pytest.skip("location30.npz is not in the data root")
    whole, found = data.load_full("location30"), data.load("location30")
    assert found.source == str(root / "location30.npz")  # the reference copy
    assert (len(whole.train), len(whole.test)) == (3758, 1252)
    assert whole.train.unique().tolist() == [0.0, 1.0]
    assert imbalance(found.candidate_labels, 30) == 1
    assert len(found.train) == 3758
    assert len(found.public) == 1000
    rows = digests(found.train) + digests(found.public)
    assert len(set(rows)) == len(rows)
    assert set(digests(found.public)) <= set(digests(whole.test))


@pytest.mark.data
def test_every_training_digit_is_a_candidate() -> None:
    whole, sample = full("mnist"), data.load("mnist")
    every = data.load("mnist_60000", data.data_root())
    assert every.candidates.shape == (60_000, 1, 28, 28)
    assert torch.equal(every.candidates[:1000], sample.candidates)
    assert torch.equal(every.candidate_labels[:1000], sample.candidate_labels)
    pixels = (every.candidates * 255).round().to(torch.uint8)
    assert torch.equal(whole.train[every.candidate_indices], pixels)
    assert torch.equal(whole.train_labels[every.candidate_indices], every.candidate_labels)
    assert every.candidate_indices.sort().values.tolist() == list(range(60_000))
    assert set(digests((every.public * 255).round().to(torch.uint8))) <= set(digests(whole.test))
    assert every.public_labels.bincount().tolist() == [100] * 10


def test_digits_without_those_of_the_sample_are_refused(tmp_path: Path) -> None:
    """IDX files of the right size, all black."""
    entry = catalog.look_up("mnist_60000")
    for file, n in zip(entry.root_files, (60_000, 60_000, 10_000, 10_000), strict=True):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        images = "images" in file
        shape = (n, 28, 28) if images else (n,)
        header = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
        (tmp_path / file).write_bytes(header + bytes(math.prod(shape)))
    with pytest.raises(LeakbenchError, match="digit 0 of the embedded sample is not in it"):
        data.load("mnist_60000", tmp_path)
