"""What is known about each data set without opening it; imports neither torch nor numpy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from leakbench.errors import LeakbenchError, unknown_name

ENVIRONMENT_VARIABLE = "LEAKBENCH_DATA"
SAMPLES = Path(__file__).parent / "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The static facts of one data set.

    `input_shape` is (channels, height, width) of images, (columns,) of a table. `sample` is a file
    in `samples/` with examples, or None where none may be shipped; `sample_counts` its candidates,
    further training examples and public examples; `root_files` are relative to a data root, none
    where the sample is the whole set; `full_counts` its training and test examples. `class_names`
    is empty where the names come with the data.
    """

    name: str
    title: str
    classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    sample: str | None
    sample_counts: tuple[int, int, int]
    root_files: tuple[str, ...]
    full_counts: tuple[int, int]
    licence: str


def _idx_files(folder: str) -> tuple[str, ...]:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(f"{folder}/raw/{part}-ubyte" for part in parts)


_ENTRIES = (
    Entry(
        name="mnist",
        title="MNIST handwritten digits",
        classes=10,
        class_names=tuple("0123456789"),
        input_shape=(1, 28, 28),
        sample="mnist.npz",
        sample_counts=(1000, 3000, 1000),
        root_files=_idx_files("MNIST"),
        full_counts=(60_000, 10_000),
        licence="CC BY-SA 3.0 (as usually given)",
    ),
    Entry(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        input_shape=(1, 28, 28),
        sample="fashion_mnist.npz",
        sample_counts=(1000, 3000, 1000),
        root_files=_idx_files("FashionMNIST"),
        full_counts=(60_000, 10_000),
        licence="MIT",
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        input_shape=(3, 32, 32),
        sample="cifar10.npz",
        sample_counts=(1000, 0, 1000),
        root_files=("cifar10.npz",),
        full_counts=(50_000, 10_000),
        licence="none stated by the authors",
    ),
    Entry(
        name="lfw",
        title="Labeled Faces in the Wild, the 62 people with at least 20 images",
        classes=62,
        class_names=(),
        input_shape=(3, 32, 32),
        sample=None,
        sample_counts=(1000, 1267, 756),
        root_files=("lfw.npz",),
        full_counts=(2267, 756),
        licence="none stated; faces of real people, for research only",
    ),
    Entry(
        name="breast_cancer",
        title="Breast Cancer Wisconsin (Diagnostic), tabular",
        classes=2,
        class_names=("malignant", "benign"),
        input_shape=(30,),
        sample="breast_cancer.npz",
        sample_counts=(200, 200, 169),
        root_files=(),
        full_counts=(400, 169),
        licence="CC BY 4.0",
    ),
    Entry(
        name="adult",
        title="Adult census income, tabular",
        classes=2,
        class_names=("<=50K", ">50K"),
        input_shape=(105,),
        sample=None,
        sample_counts=(1000, 3000, 1000),
        root_files=("adult.npz",),
        full_counts=(32_561, 16_281),
        licence="CC BY 4.0; answers of real people",
    ),
)

CATALOG = {entry.name: entry for entry in _ENTRIES}
NAMES = tuple(CATALOG)


def look_up(name: str) -> Entry:
    """The facts of a data set; LeakbenchError with the closest match for an unknown name."""
    try:
        return CATALOG[name]
    except KeyError:
        raise unknown_name("data set", name, NAMES) from None


def data_root() -> Path | None:
    """The folder named by LEAKBENCH_DATA, absolute; None when the variable is unset or empty.

    LeakbenchError when it names something that is not a folder.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not text:
        return None
    root = Path(text).absolute()
    if not root.is_dir():
        raise LeakbenchError(
            f"{ENVIRONMENT_VARIABLE}: '{root}' is not a folder; it must name a data root made by "
            "'leakbench data prepare DEST'"
        )
    return root


def how_to_get(entry: Entry) -> str:
    """The command that puts the full data set into a data root, in words."""
    if not entry.root_files:
        return "part of leakbench"
    return f"leakbench data prepare DEST {entry.name}, then {ENVIRONMENT_VARIABLE}=DEST"


def describe(root: Path | None = None) -> list[dict[str, str]]:
    """One row a data set: name, title, status, where, how_to_get, licence; all plain text.

    `status` is "in data root" when every file of the full data set is in `root` (default: the
    folder of LEAKBENCH_DATA), else "embedded sample", else "missing". No file is opened.
    LeakbenchError when LEAKBENCH_DATA is not a folder.
    """
    root = root if root is not None else data_root()
    return [_row(entry, root) for entry in _ENTRIES]


def _row(entry: Entry, root: Path | None) -> dict[str, str]:
    files = [root / file for file in entry.root_files] if root is not None else []
    if files and all(file.is_file() for file in files):
        status, where = "in data root", str(files[0].parent)
    elif entry.sample is not None:
        status, where = "embedded sample", str(SAMPLES / entry.sample)
    else:
        status, where = "missing", str(root) if root is not None else ""
    return {
        "name": entry.name,
        "title": entry.title,
        "status": status,
        "where": where,
        "how_to_get": how_to_get(entry),
        "licence": entry.licence,
    }
