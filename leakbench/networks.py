"""The network and the defense of a cell, whether it is attacked or trained for its accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from leakbench import architectures, registry
from leakbench.contracts import Defense, Model
from leakbench.modules import fixed_of
from leakbench.spec import Cell, UtilityCell, canonical
from leakbench.streams import generator
from leakbench.weights import Scheme, digest


class Inputs(Protocol):
    """What of a data set a network is built for: `data.Dataset` and `data.entries.Entry` know."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def classes(self) -> int: ...


def model_of(cell: Cell | UtilityCell, inputs: Inputs) -> Model:
    """The cell's network."""
    scheme = cast(Scheme, cell.weights)
    return architectures.build(
        cell.model, inputs.input_shape, inputs.classes, scheme, cell.model_parameters
    )


def first_network(
    cell: Cell | UtilityCell, inputs: Inputs, number: int
) -> tuple[Model, dict[str, Tensor]]:
    """Model and first weights number `number` of a cell; the same for every defense and attack."""
    model = model_of(cell, inputs)
    stream = generator(cell.seed, "weights", cell.model, cell.weights, cell.dataset, number)
    return model, model.init(stream, getattr(torch, cell.dtype))


def identity_of(
    spec: Mapping[str, Any], number: int, model: Model, weights: Mapping[str, Tensor]
) -> str:
    """Resume key of what `spec` says, done with network `number`."""
    of_weights = digest({**weights, **fixed_of(model)})
    whole = {**spec, "network": number, "weights_digest": of_weights}
    return hashlib.sha256(canonical(whole).encode()).hexdigest()


def build_defense(cell: Cell | UtilityCell) -> Defense:
    """The cell's defense with all its parameters."""
    kind = registry.load("defenses", cell.defense)
    return cast(Defense, kind(**cell.defense_parameters))
