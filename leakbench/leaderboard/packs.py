"""What a leak pack is: leaks of victims that nobody knows, as npz and JSON.

A pack is a folder::

    pack.json     what leaked, of which networks, under which defenses, and what counts: `Pack`
    leaks.npz     the numbers: gradients, weights, granted labels and public inputs
    network.py    builds the networks with torch alone (`reference`)

and, kept by its maintainer, an answers file with the originals. `pack.json` commits to that by its
SHA-256, which is also the name of the pack; a nonce inside keeps it from being guessed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench.data.features import Feature
from leakbench.data.readers import file_digest
from leakbench.errors import LeakbenchError
from leakbench.leaderboard.files import Arrays, read_json
from leakbench.plain import from_json

SCHEMA = 1
"""Of packs, answers, submissions and scores."""

DESCRIPTION = "pack.json"
NUMBERS = "leaks.npz"
NETWORK = "network.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A rule of the judge. recovers: a success shows the victim itself. names: it names him."""

    name: str
    label: str
    condition: str
    recovers: bool
    names: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A tensor of a network, in its order."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network with its weights.

    Attributes:
        id: its arrays are "weights/ID/NAME" and "buffers/ID/NAME".
        name, parameters, scheme: of the architecture, for leakbench; scheme: how it draws weights.
        layers: the calls it consists of, see `reference`; None where it is no chain of them, and
            then leakbench, or the paper of that name, has to build it.
        loss: what was differentiated: the mean over a batch, cross-entropy in nats.
        head: name of the last dense layer's weight; None without one.
        weights, buffers: in the order of the network.
        accuracy: on public inputs of the same kind, 0 to 1.
    """

    id: str
    name: str
    parameters: Mapping[str, Any]
    scheme: str
    layers: tuple[Mapping[str, Any], ...] | None
    loss: str
    head: str | None
    dtype: str
    weights: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAt:
    """One look at the victims of a leak: its arrays are "gradients/GRADIENTS/NAME", one row a
    victim, at the weights of `network`, in a 0-based round of the training."""

    network: str
    gradients: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The defense as everybody may know it.

    noise_std: of what was observed, parameter by parameter; None where it is not published.
    guarantee: what is promised to who reads here, in words.
    """

    name: str
    parameters: Mapping[str, Any]
    noise_std: Mapping[str, float] | None
    guarantee: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLeak:
    """Gradients of n victims who were protected in one way; what is asked for are their inputs.

    Attributes:
        id: of its arrays, and of the arrays in a submission.
        row, label: which row of the pack it belongs to, and what that is called; leaks of a row
            differ in network and victims.
        network: number of the network within the row.
        dataset, input_shape, input_range, classes: public facts of the data.
        victims: n.
        batch_size: B, examples behind one gradient: (n, B, *input_shape) are to be reconstructed.
        local_steps, learning_rate: of the update behind types 0 and 1, whose gradients are
            -dW / (local_steps * learning_rate).
        type, view: where it was read, see docs/threat-model.md. rounds: planned ones.
        labels: whether the array "labels/ID" (n, B) is granted.
        public: id of the array "public/PUBLIC" (m, *input_shape); "" where none is granted.
        features: what the columns of a row of a table mean; () for images.
    """

    id: str
    row: str
    label: str
    network: int
    dataset: str
    input_shape: tuple[int, ...]
    input_range: tuple[float, ...]
    classes: int
    victims: int
    batch_size: int
    local_steps: int
    learning_rate: float | None
    type: int
    view: str
    rounds: int
    labels: bool
    public: str
    looks: tuple[LookAt, ...]
    defense: Protection
    features: tuple[Feature, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, B, *input shape) of its answer."""
        return (self.victims, self.batch_size, *self.input_shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """All that is said of a pack.

    Attributes:
        name, title: of the suite it was made of, with the profile.
        threat_model: what the attacker is given, and what not, in words.
        counts: rules that answers are judged by; attacks are ranked by the first that recovers.
        numbers: SHA-256 of leaks.npz.
        checksum: SHA-256 of the answers file, by which submissions name the pack.
    """

    schema: int
    name: str
    title: str
    threat_model: str
    counts: tuple[Counts, ...]
    networks: tuple[Network, ...]
    leaks: tuple[PackedLeak, ...]
    numbers: str
    checksum: str = ""

    def network(self, name: str) -> Network:
        """A network by its id."""
        return next(each for each in self.networks if each.id == name)

    @property
    def rows(self) -> dict[str, list[PackedLeak]]:
        """Leaks by row, in order."""
        found: dict[str, list[PackedLeak]] = {}
        for leak in self.leaks:
            found.setdefault(leak.row, []).append(leak)
        return found


def to_json(pack: Pack) -> dict[str, Any]:
    """A pack as plain values; `from_table` reads it back."""
    return dataclasses.asdict(pack)


def from_table(table: Mapping[str, Any], where: str) -> Pack:
    """The pack that `to_json` wrote.

    Raises:
        LeakbenchError: a value that is missing, unknown or of another kind; an id that stands
            twice or for nothing; a size that no leak has.
    """
    if table.get("schema") != SCHEMA:
        text = f"schema {table.get('schema')!r:.40}, this leakbench reads {SCHEMA}"
        raise LeakbenchError(f"{where}: {text}")
    pack: Pack = from_json(Pack, table, where)
    for kind, ids in (
        ("networks", [each.id for each in pack.networks]),
        ("leaks", [each.id for each in pack.leaks]),
    ):
        if len(set(ids)) < len(ids):
            raise LeakbenchError(f"{where}, key {kind}: an id is there twice")
    known = {each.id for each in pack.networks}
    for leak in pack.leaks:
        if min(leak.shape) < 1 or math.prod(leak.shape) > MOST_NUMBERS:
            raise LeakbenchError(
                f"{where}, leak {leak.id!r:.40}: shape {leak.shape}; allowed: sizes from 1, up to "
                f"{MOST_NUMBERS} numbers in all"
            )
        if len(leak.input_range) != 2 or not leak.looks:
            text = "input_range must be two numbers, looks at least one"
            raise LeakbenchError(f"{where}, leak {leak.id!r:.40}: {text}")
        for look in leak.looks:
            if look.network not in known:
                raise LeakbenchError(
                    f"{where}, leak {leak.id!r:.40}: unknown network {look.network!r:.40}"
                )
    return pack


MOST_NUMBERS = 2**28
"""In the inputs of one leak."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenPack:
    """A pack's description with its arrays, which are loaded when they are asked for."""

    pack: Pack
    arrays: Arrays


def read(folder: Path) -> OpenPack:
    """A pack from its folder.

    Raises:
        LeakbenchError: a file that is missing, damaged, or not the one that was described; arrays
            of another shape.
    """
    where = folder / DESCRIPTION
    pack = from_table(read_json(where), str(where))
    numbers = folder / NUMBERS
    if file_digest(numbers, "sha256") != pack.numbers:
        raise LeakbenchError(f"{numbers}: is not the file that {DESCRIPTION} describes")
    arrays = Arrays(numbers)
    for name, shape in shapes_of(pack).items():
        if arrays.header(name).shape != shape:
            text = f"array {name!r:.80}: shape {arrays.header(name).shape}; allowed: {shape}"
            raise LeakbenchError(f"{numbers}: {text}")
    return OpenPack(pack=pack, arrays=arrays)


def shapes_of(pack: Pack) -> dict[str, tuple[int, ...]]:
    """Name of an array -> its shape; public inputs, of which there may be any number, are left
    out."""
    found: dict[str, tuple[int, ...]] = {}
    for network in pack.networks:
        for kind, parameters in (("weights", network.weights), ("buffers", network.buffers)):
            for each in parameters:
                found[f"{kind}/{network.id}/{each.name}"] = each.shape
    for leak in pack.leaks:
        for look in leak.looks:
            for each in pack.network(look.network).weights:
                name = f"gradients/{look.gradients}/{each.name}"
                found[name] = (leak.victims, *each.shape)
        if leak.labels:
            found[f"labels/{leak.id}"] = leak.shape[:2]
    return found
