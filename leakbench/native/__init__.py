"""Programs in C for what attacks and trainings spend their time with, where they can be used.

`pip install` builds them where it finds a C compiler. They need a processor with AVX2 and FMA, and
their bits are the same on all of them; torch does the same work elsewhere, with other roundings, so
`arithmetic.mode` says which of the two computes. Nothing here imports torch: tensors come as
addresses, and whoever calls sees to it that they are contiguous, in float32 and on the CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from leakbench.errors import unknown_name

CHOICE = "LEAKBENCH_COMPILED"
"""Environment variable that may say "no": compute as where nothing was built."""

SOURCES = ("kernels.c", "sigmoid.inc", "relu.inc", "lbfgs.inc", "normals.inc")
"""Files beside this one that are compiled."""

_NAME = "_kernels"


def lanes() -> int:
    """Numbers in a vector of this processor, 16 or 8; 0 where the compiled programs are not used.

    Raises:
        LeakbenchError: `LEAKBENCH_COMPILED` is set to anything but "no".
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "no"):
        raise unknown_name("value", choice, ("no",), CHOICE)
    return 0 if choice else _lanes()


@cache
def _lanes() -> int:
    library = _library()
    return 0 if library is None else int(library.leakbench_lanes())


@cache
def _library() -> ctypes.CDLL | None:
    """The shared library beside this file; None where none was built for this system from the
    sources that are there."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(_NAME + suffix)
        if path.is_file():
            try:
                library = ctypes.CDLL(str(path))
                library.leakbench_sources.restype = ctypes.c_char_p
                library.leakbench_kept.restype = ctypes.c_long
            except (OSError, AttributeError):  # of another system, or of another version
                continue
            if library.leakbench_sources().decode() == digest(Path(__file__).parent):
                return library
    return None


def _loaded() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "lanes() says whether there is one"
    return library


def digest(folder: Path) -> str:
    """SHA-256 of the sources in `folder`."""
    sha = hashlib.sha256()
    for name in SOURCES:
        sha.update((folder / name).read_bytes())
    return sha.hexdigest()


class SigmoidSweeps:
    """The two sweeps of `sigmoid_gradients` for one network and its weights.

    shape: channels, height and width of an input. layers: channels and stride of each convolution.
    weights: addresses of kernel and bias of each convolution, then of the dense layer. width: of
    the vectors; every width gives the same bits.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        layers: Sequence[tuple[int, int]],
        weights: Sequence[int],
        width: int,
    ) -> None:
        self._library, self._width = _loaded(), width
        numbers = [*shape, classes, *(number for layer in layers for number in layer)]
        self._shape = (ctypes.c_long * len(numbers))(*numbers)
        self._layers = len(layers)
        self._weights = _addresses(weights)
        self.kept = int(self._library.leakbench_kept(self._shape, self._layers))
        """float32 numbers an example that `gradients` leaves for `derivative`."""

    def gradients(self, n: int, inputs: int, labels: int, kept: int, found: Sequence[int]) -> None:
        """inputs (n, *shape), labels (n, classes) -> found, an array a weight (n, *its shape).

        Raises:
            MemoryError: none is left.
        """
        _require_memory(
            "gradients of single examples",
            self._library.leakbench_gradients(
                self._shape, self._layers, self._weights, ctypes.c_long(n),
                ctypes.c_void_p(inputs), ctypes.c_void_p(labels), ctypes.c_void_p(kept),
                _addresses(found), self._width,
            )
        )  # fmt: skip

    def derivative(
        self, n: int, kept: int, by: Sequence[int], by_inputs: int, by_labels: int
    ) -> None:
        """by, arrays as `found` -> by_inputs (n, *shape), by_labels (n, classes) unless 0.

        Raises:
            MemoryError: none is left.
        """
        _require_memory(
            "gradients of single examples",
            self._library.leakbench_derivative(
                self._shape, self._layers, self._weights, ctypes.c_long(n), ctypes.c_void_p(kept),
                _addresses(by), ctypes.c_void_p(by_inputs), ctypes.c_void_p(by_labels),
                self._width,
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReluSweeps:
    """The sweeps of `relu_gradients`.

    shape: channels, height and width of an input. kernel: its side and the zeros around. channels:
    of each convolution. weights: addresses, (clients, ...) each. width: of the vectors; every width
    gives the same bits.
    """

    shape: Sequence[int]
    classes: int
    kernel: tuple[int, int]
    channels: Sequence[int]
    weights: Sequence[int]
    width: int

    def gradients(
        self, counts: tuple[int, int, int], inputs: int, labels: int, found: Sequence[int]
    ) -> None:
        """Gradients of the sum of some examples' losses; counts: clients, n examples of each, and
        how many of them make a sum. Addresses: inputs (clients, n, *shape), labels (clients, n,
        classes), found, an array a weight (clients, sums, *its shape).

        Raises:
            MemoryError: none is left.
        """
        _require_memory(
            "ReLU networks",
            _loaded().leakbench_relu(
                *self._network(), *map(ctypes.c_long, counts), ctypes.c_void_p(inputs),
                ctypes.c_void_p(labels), _addresses(found), self.width,
            )
        )  # fmt: skip

    def logits(self, n: int, inputs: int, logits: int) -> None:
        """inputs (n, *shape) -> logits (n, classes), of one client's weights.

        Raises:
            MemoryError: none is left.
        """
        _require_memory(
            "ReLU networks",
            _loaded().leakbench_relu_logits(
                *self._network(), ctypes.c_long(n), ctypes.c_void_p(inputs),
                ctypes.c_void_p(logits), self.width,
            )
        )  # fmt: skip

    def _network(self) -> tuple[ctypes.Array[ctypes.c_long], int, ctypes.Array[ctypes.c_void_p]]:
        assert len(self.channels) <= MOST_LAYERS
        numbers = [*self.shape, self.classes, *self.kernel, *self.channels]
        shape = (ctypes.c_long * len(numbers))(*numbers)
        return shape, len(self.channels), _addresses(self.weights)


def directions(
    sizes: tuple[int, int],
    arrays: Sequence[int],
    pairs: int,
    count: int,
    index: int,
    begun: int,
    g: int,
    previous: int,
    t: int,
    d: int,
    columns: int,
    room: int,
    width: int,
) -> None:
    """`histories.History.directions`; sizes: numbers of a problem, pairs of a ring. arrays: s, y,
    products, rho and scale. pairs and index are int64, begun is one byte each. room: 2 numbers and
    3 `size`, up to a multiple of 16, of float32."""
    _loaded().leakbench_directions(
        (ctypes.c_long * 2)(*sizes), _addresses(arrays), ctypes.c_void_p(pairs),
        ctypes.c_long(count), *map(ctypes.c_void_p, (index, begun, g, previous, t, d, columns)),
        ctypes.c_void_p(room), width,
    )  # fmt: skip


def normals(seed: int, count: int, to: int) -> None:
    """`streams.normals`: N(0, 1) numbers, at least 16, to the address `to`."""
    _loaded().leakbench_normals(
        ctypes.c_uint32(seed & 0xFFFFFFFF), ctypes.c_long(count), ctypes.c_void_p(to)
    )


MOST_LAYERS = 16
"""Convolutions that the compiled sweeps take."""


def _addresses(values: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)


def _require_memory(what: str, done: int) -> None:
    if not done:
        raise MemoryError(what)
