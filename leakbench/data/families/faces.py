"""Labeled Faces in the Wild: people with enough images, cut and made small."""

from __future__ import annotations

import io
import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakbench.data.entries import Archive, Entry
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from leakbench.data.examples import Examples, Whole

INDICES = "lfw_indices.json"
MIN_IMAGES = 20
CROP = (78, 70, 172, 195)  # left, upper, right, lower of 250 x 250: the face, little background
SIZE = (32, 32)
MEMBER = re.compile(r"lfw_funneled/(?P<person>[^/]+)/(?P=person)_\d{4}\.jpg")


def read(entry: Entry, files: Sequence[Path]) -> Examples:
    """The rows of lfw.npz in the order of the index list.

    The labels must be those of the list, else its indices mean other people. Pixels may differ
    in a copy made with another JPEG decoder: such a copy is used, and its source says so.
    """
    from leakbench.data import examples, readers
    from leakbench.data.readers import Wanted

    path = files[0]
    index = examples.index_list(INDICES)
    channels, height, width = entry.input_shape
    n = sum(entry.sample_counts)
    wanted = {
        "x": Wanted((n, height, width, channels), "uint8"),
        "y": Wanted((n,), "uint8"),
        "class_names": Wanted((entry.classes,), "str"),
    }
    arrays = readers.read_npz(path, wanted)
    if examples.digest(arrays["y"]) != index["y_sha256"]:
        raise LeakbenchError(
            f"{path}: the labels 'y' are not those of {INDICES}; the rows must be the 62 "
            "people in alphabetical order, each one's images in file order"
        )
    reference = examples.digest(arrays["x"]) == index["x_sha256"]
    return examples.listed(
        index,
        arrays["x"].transpose(0, 3, 1, 2),
        arrays["y"],
        class_names=tuple(str(text) for text in arrays["class_names"]),
        source=str(path) if reference else f"{path} (pixels differ from the reference copy)",
    )


def read_full(entry: Entry, files: Sequence[Path]) -> Whole:
    """All rows of lfw.npz, the public ones for testing: there is no official split."""
    from leakbench.data.examples import public_as_test

    return public_as_test(read(entry, files))


def build(archives: Sequence[Path], outputs: Sequence[Path]) -> None:
    """x (n, 32, 32, 3), y (n,) and class_names of the people with enough images.

    Classes in alphabetical order of the people's names, images in the order of their file names.
    """
    import numpy as np

    from leakbench.data import writing

    with tarfile.open(archives[0], "r:gz") as tar:
        members = _members(tar)
        # Read in the archive's order: going back in a gzip stream means starting over.
        faces = {
            member.name: _face(writing.content(tar, member), member.name) for member in members
        }
    if not faces:
        raise LeakbenchError(f"{archives[0]}: no person has {MIN_IMAGES} images or more")
    ordered = sorted(faces)
    people = [file.split("/")[1] for file in ordered]
    class_names = sorted(set(people))
    arrays = {
        "x": np.stack([faces[file] for file in ordered]),
        "y": np.array([class_names.index(person) for person in people], dtype=np.uint8),
        "class_names": np.array(class_names),
    }
    writing.write_npz(outputs[0], arrays)


def _members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The images of all people who have at least MIN_IMAGES, in the archive's order."""
    matches = [(MEMBER.fullmatch(member.name), member) for member in tar if member.isfile()]
    images = [(match["person"], member) for match, member in matches if match]
    counts = Counter(person for person, _ in images)
    return [member for person, member in images if counts[person] >= MIN_IMAGES]


def _face(content: bytes, file: str) -> NDArray[np.uint8]:
    """The middle of a 250 x 250 picture, made (32, 32, 3) by bicubic interpolation."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        face = picture.convert("RGB").crop(CROP)
    small = np.asarray(face.resize(SIZE, Image.Resampling.BICUBIC), dtype=np.uint8)
    if small.shape != (*SIZE, 3):
        raise LeakbenchError(f"lfw: '{file}' does not give a {SIZE} colour picture")
    return small


ENTRIES = (
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
        read=read,
        read_full=read_full,
        archives=(
            Archive(  # the mirror and the checksum that scikit-learn uses
                file="lfw-funneled.tgz",
                urls=("https://ndownloader.figshare.com/files/5976015",),
                algorithm="sha256",
                digest="b47c8422c8cded889dc5a13418c4bc2abbda121092b3533a83306f90d900100a",
            ),
        ),
        build=build,
    ),
)
