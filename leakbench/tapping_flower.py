"""What Flower's clients really send, recorded by a mod; the client's code stays as it is.

    app = ClientApp(mods=[recording_mod("sent")])        # first, so that it is the last to see it
    ...                                                  # flwr run
    update = updates("sent")[0]
    leak = update.leak(model, x, y, learning_rate=0.1, local_steps=1)

Clients run in processes of their own, so an update is a file. Flower is not imported here: messages
are read by their attributes.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leakbench.errors import LeakbenchError
from leakbench.user_models import unwrapped

if TYPE_CHECKING:
    from leakbench.captured import CapturedLeak

Arrays = Mapping[str, NDArray[Any]]
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]

_BEFORE, _AFTER = "before:", "after:"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """What one client was sent and sent back in one round: names and arrays as Flower has them."""

    round: int
    client: int
    before: Arrays
    after: Arrays

    def leak(
        self, model: nn.Module, x: Tensor, y: Tensor, *, learning_rate: float,
        local_steps: int = 1, **options: Any,
    ) -> CapturedLeak:  # fmt: skip
        """The update, as `lb.attack` takes it, in the units of a gradient.

        Args:
            model: of the client's architecture.
            x, y: that the client trained on in the round, in that order.
            learning_rate, local_steps: of his training.
            options: of `api.leak`: loss, defense, candidates ...

        Raises:
            LeakbenchError: arrays that are not the module's, and as `api.leak`.
        """
        from leakbench import api

        before, after = (_named(arrays, model) for arrays in (self.before, self.after))
        unit = local_steps * learning_rate
        return api.leak(
            model, x, y,
            weights=before,
            sent={name: (value - after[name])[None] / unit for name, value in before.items()},
            learning_rate=learning_rate, local_steps=local_steps,
            **{"observer": "type1"} | options,
        )  # fmt: skip


def recording_mod(folder: str | Path, rounds: Collection[int] | None = None) -> Mod:
    """A client mod that writes what is sent to `folder`, and changes nothing.

    Args:
        rounds: to record, as the server counts them; None: all.

    Raises:
        LeakbenchError: (by the mod) the folder cannot be written.
    """
    place = Path(folder)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        number = _round(message)
        wanted = message.metadata.message_type.split(".")[0] == "train" and (
            rounds is None or number in rounds
        )
        # Read first: the client's code may write into what it was sent.
        before = _arrays(message) if wanted else {}
        reply = call_next(message, context)
        if wanted and reply.has_content():
            client = int(context.node_config.get("partition-id", context.node_id))
            _write(place / f"round-{number}-client-{client}.npz", before, _arrays(reply))
        return reply

    return mod


def updates(folder: str | Path) -> list[Update]:
    """What `recording_mod` has written, round by round.

    Raises:
        LeakbenchError: a file that cannot be read.
    """
    found = []
    for path in Path(folder).glob("round-*-client-*.npz"):
        _, number, _, client = path.stem.split("-")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                both = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise LeakbenchError(f"{path}: no recorded update ({error})") from None
        found.append(
            Update(
                round=int(number),
                client=int(client),
                before=_of(both, _BEFORE),
                after=_of(both, _AFTER),
            )
        )
    return sorted(found, key=lambda one: (one.round, one.client))


def _of(both: Arrays, prefix: str) -> Arrays:
    return {k.removeprefix(prefix): v for k, v in both.items() if k.startswith(prefix)}


def _arrays(message: Any) -> dict[str, NDArray[Any]]:
    """Of all records of a message."""
    records = message.content.array_records
    return {name: array.numpy() for record in records.values() for name, array in record.items()}


def _round(message: Any) -> int:
    """The server's count, which strategies send along; older ones call the group of messages so."""
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])
    group = message.metadata.group_id
    return int(group) if group.isdigit() else 0


def _write(path: Path, before: Arrays, after: Arrays) -> None:
    """Whole or not at all: other clients' files appear beside it."""
    named = {_BEFORE + k: v for k, v in before.items()} | {_AFTER + k: v for k, v in after.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            np.savez(file, **named)  # type: ignore[arg-type]  # its other keyword is a bool
        os.replace(file.name, path)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None


def _named(arrays: Arrays, model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters by the module's names; arrays that are only numbered follow its state."""
    module = unwrapped(model)
    state = list(module.state_dict())
    if set(arrays) != set(state):
        if len(arrays) != len(state) or not all(name.isdigit() for name in arrays):
            raise LeakbenchError(
                f"update: {len(arrays)} arrays {sorted(arrays)[:3]} are not those of the module, "
                f"{len(state)}: {state[:3]}"
            )
        ordered = [arrays[name] for name in sorted(arrays, key=int)]
        arrays = dict(zip(state, ordered, strict=True))
    trained = {name for name, own in module.named_parameters() if own.requires_grad}
    return {name: torch.as_tensor(arrays[name]) for name in state if name in trained}
