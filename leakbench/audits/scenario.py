"""A scenario file (TOML): what `leakbench audit` is to audit; see docs/audit.md.

Nothing in a file is executed; every mistake is one sentence with the file, the key and what is
allowed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from leakbench import architectures, data, registry
from leakbench.audits.advice import Target
from leakbench.audits.auditing import audit, audit_claim
from leakbench.audits.findings import AuditReport, Claim
from leakbench.contracts import Model, Weights
from leakbench.data.catalog import is_path, locate
from leakbench.dp_config import DPConfig
from leakbench.errors import LeakbenchError
from leakbench.plugin_files import one_line
from leakbench.spec import Scalar
from leakbench.streams import generator
from leakbench.suite.files import read_bytes
from leakbench.suite.parameters import complete
from leakbench.suite.reading import document_of, explain
from leakbench.suite.tables import Positive, PositiveNumber, TomlTable

Described = TypeVar("Described", DPConfig, Claim, Target)
NotNegative = Annotated[int, Field(ge=0)]


class NetworkTable(TomlTable):
    """[model] a network by name.

    first, trained: state dicts (torch.save) of its weights when training begins and when it is
    over, relative to the file; without `first` they are drawn as `weights` says.
    """

    name: str
    parameters: dict[str, Scalar | list[Scalar]] = Field(default={})
    weights: Literal["uniform", "default"] = "default"
    first: str | None = None
    trained: str | None = None


class DataTable(TomlTable):
    """[data] a data set by name, or by the path of a folder of images or of an .npz file.

    size, seed: of a path: edge of the pictures, and of the choice of candidates.
    """

    dataset: str
    size: Positive | None = None
    seed: NotNegative = 0


class EffortTable(TomlTable):
    """[audit] how much is tried: arguments of `auditing.audit`."""

    candidates: Positive = 1000
    victims: Positive = 8
    attacks: list[str] | None = None
    attack_seconds: PositiveNumber = 30.0
    trials: Positive = 10_000
    train_seconds: Annotated[float, Field(ge=0)] = 0.0
    seed: NotNegative = 0


class ScenarioFile(TomlTable):
    """The file. dp, claim, target: fields of `DPConfig`, `Claim` and `Target`.

    Without [model] and [data] a claim is judged by arithmetic alone.
    """

    schema_version: Literal[1] = Field(alias="schema")
    title: str = ""
    model: NetworkTable | None = None
    data: DataTable | None = None
    dp: dict[str, Any] | None = None
    claim: dict[str, Any] | None = None
    target: dict[str, Any] | None = None
    audit: EffortTable = EffortTable()


def run(path: Path, progress: Callable[[str], None] = lambda _: None) -> AuditReport:
    """Audit what a scenario file describes.

    Raises:
        LeakbenchError: a file that cannot be read, a mistake in it, or what cannot be audited.
    """
    file = str(path)
    try:
        found = ScenarioFile.model_validate(document_of(read_bytes(path, "scenario"), file))
    except ValidationError as error:
        raise LeakbenchError(f"{file}: {explain(error, ScenarioFile)}") from None
    config = _described(DPConfig, found.dp, f"{file}, [dp]")
    claim = _described(Claim, found.claim, f"{file}, [claim]")
    target = _described(Target, found.target, f"{file}, [target]")
    if found.model is None and found.data is None:
        if claim is None:
            raise LeakbenchError(
                f"{file}: nothing to audit; give [claim], or [model], [data] and [dp]"
            )
        return audit_claim(claim, config)
    if found.model is None or found.data is None or config is None:
        missing = [name for name in ("model", "data", "dp") if getattr(found, name) is None]
        raise LeakbenchError(f"{file}: key {missing[0]}: missing; a network needs all of the three")
    examples = _examples(found.data, file, path.parent)
    model, first, trained = _network(found.model, examples, file, path.parent, found.audit.seed)
    effort = found.audit
    return audit(
        model, (examples.train, examples.train_labels), config,
        claim=claim, weights=first, trained=trained, target=target, candidates=effort.candidates,
        victims=effort.victims, attacks="by size" if effort.attacks is None else effort.attacks,
        attack_seconds=effort.attack_seconds, trials=effort.trials,
        train_seconds=effort.train_seconds, input_range=examples.input_range, progress=progress,
        seed=effort.seed,
    )  # fmt: skip


def _described(
    kind: type[Described], table: Mapping[str, Any] | None, where: str
) -> Described | None:
    if table is None:
        return None
    found: Described = kind(**complete(kind, table, where))
    return found


def _examples(table: DataTable, file: str, base: Path) -> data.Dataset:
    source = table.dataset
    try:
        if is_path(source):
            return data.load(locate(source, base, size=table.size, seed=table.seed))
        if table.model_fields_set & {"size", "seed"}:
            raise LeakbenchError(f"size and seed belong to a path; '{source}' is a name")
        return data.load(source)
    except LeakbenchError as error:
        raise LeakbenchError(f"{file}, [data]: {error}") from None


def _network(
    table: NetworkTable, examples: data.Dataset, file: str, base: Path, seed: int
) -> tuple[Model, Weights, Weights | None]:
    """The network, its first weights, and those after training if they are given."""
    where = f"{file}, [model]"
    try:
        kind = registry.load("models", table.name)
        parameters = complete(kind, table.parameters, f"model '{table.name}'")
        model = architectures.build(
            table.name, examples.input_shape, examples.classes, table.weights, parameters
        )
    except LeakbenchError as error:
        raise LeakbenchError(f"{where}: {error}") from None
    drawn = model.init(generator(seed, "audit weights", table.name), torch.float32)
    first = drawn if table.first is None else _weights(base / table.first, drawn, where)
    trained = None if table.trained is None else _weights(base / table.trained, drawn, where)
    return model, first, trained


def _weights(path: Path, drawn: Weights, where: str) -> dict[str, Tensor]:
    """A state dict; no code in it is run."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise LeakbenchError(f"{where}: {path}: {error.strerror}") from None
    except pickle.UnpicklingError:  # whose text tells how to run the code in it
        raise LeakbenchError(
            f"{where}: {path}: no state dict; allowed: tensors by name, and no other objects"
        ) from None
    except (RuntimeError, EOFError, ValueError) as error:
        raise LeakbenchError(f"{where}: {path}: no state dict: {one_line(error)}") from None
    if not isinstance(found, Mapping):
        raise LeakbenchError(f"{where}: {path}: no state dict, but {type(found).__name__}")
    for name, value in drawn.items():
        held = found.get(name)
        if not isinstance(held, Tensor) or held.shape != value.shape:
            got = f"shape {tuple(held.shape)}" if isinstance(held, Tensor) else "nothing"
            raise LeakbenchError(
                f"{where}: {path}: '{name}' must have shape {tuple(value.shape)}, got {got}"
            )
    return {name: found[name].to(value) for name, value in drawn.items()}
