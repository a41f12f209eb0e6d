"""Networks by name: what a plugin of the kind "models" is, and how one is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, cast

import torch
from torch import nn

from leakbench import registry
from leakbench.contracts import Model
from leakbench.errors import LeakbenchError
from leakbench.losses import Loss, require_classes
from leakbench.modules import Mode, ModuleModel, require_steady
from leakbench.parameters import check_kinds
from leakbench.plugin_files import one_line
from leakbench.weights import Scheme

Takes = Literal["images", "rows", "any"]
"""Inputs of a network: (channels, height, width), (columns,), or any, which it flattens."""


class Architecture(ABC):
    """Family base: `name` identifies the plugin, fields are its hyper-parameters.

    The properties are for plugins that build a `torch.nn.Module`; a model that is none says it
    itself. A class attribute or a field may stand for each.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    takes: ClassVar[Takes] = "any"

    def __post_init__(self) -> None:
        check_kinds(self)

    @property
    def loss(self) -> Loss:
        """What client and attacker differentiate."""
        return "cross_entropy"

    @property
    def head(self) -> str | None:
        """Name of the weight of the module's last dense layer; None: no label is read off it."""
        return None

    @property
    def mode(self) -> Mode | None:
        """See `modules.ModuleModel`; None: its layers are as `build` leaves them."""
        return None

    @property
    def mixes_examples(self) -> bool:
        """Whether examples of a batch mix in another way than by BatchNorm, which is noticed."""
        return False

    @abstractmethod
    def build(
        self, input_shape: tuple[int, ...], classes: int, scheme: Scheme
    ) -> Model | nn.Module:
        """The network for inputs of this shape, which `takes` allows.

        A module needs not look at `scheme`: its weights are drawn by it afterwards.
        """


def build(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    scheme: Scheme = "uniform",
    parameters: Mapping[str, Any] | None = None,
) -> Model:
    """Network `name` for inputs of `input_shape`; parameters not given keep their defaults.

    Raises:
        LeakbenchError: no such model, or one that does not take such inputs; see also `assemble`.
    """
    kind = cast(type[Architecture], registry.load("models", name))
    require_taken(kind, input_shape)
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in (parameters or {}).items()}
    return assemble(kind(**given), input_shape, classes, scheme)


@lru_cache(maxsize=16)  # every cell of a suite asks for it, and a large module takes a second
def assemble(
    architecture: Architecture, input_shape: tuple[int, ...], classes: int, scheme: Scheme
) -> Model:
    """The stateless network that a plugin builds.

    What a plugin draws while it builds a module is the same every time, and leaves no trace in
    torch's global generator.

    Raises:
        LeakbenchError: a module that `ModuleModel` or `require_steady` refuses, or whose number of
            outputs does not go with the classes and the loss.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            built = architecture.build(input_shape, classes, scheme)
        except LeakbenchError:
            raise
        except Exception as error:  # foreign code may fail in any way; the text names it
            text = f"build failed: {one_line(error)}"
            raise LeakbenchError(f"model '{architecture.name}': {text}") from error
    if not isinstance(built, nn.Module):
        wanted = ("init", "logits", "head", "loss", "mixes_examples")
        if lacking := [name for name in wanted if not hasattr(built, name)]:
            text = f"build gave {type(built).__name__}, which has no '{lacking[0]}'"
            raise LeakbenchError(
                f"model '{architecture.name}': {text}; allowed: a torch.nn.Module, or a model"
            )
        return built
    try:
        model = ModuleModel(
            module=built,
            head=architecture.head,
            loss=architecture.loss,
            mode=architecture.mode,
            scheme=scheme,
            mixed=architecture.mixes_examples,
        )
        require_classes(model.loss, require_steady(model, input_shape), classes)
    except LeakbenchError as error:
        raise LeakbenchError(f"model '{architecture.name}': {error}") from None
    return model


def require_taken(kind: type[Architecture], input_shape: tuple[int, ...], where: str = "") -> None:
    """Refuse a network for inputs of a shape that it does not take.

    Raises:
        LeakbenchError: naming the models that do.
    """
    if _takes(kind, input_shape):
        return
    wanted = {"images": "images (channels, height, width)", "rows": "rows (columns,)"}[kind.takes]
    names = [plugin.name for plugin in registry.discover("models") if plugin.status == "ok"]
    others = [name for name in names if _takes(registry.load("models", name), input_shape)]
    place = f"{where}: " if where else ""
    raise LeakbenchError(
        f"{place}model '{kind.name}': takes {wanted}, not inputs of shape {input_shape}; "
        f"allowed for those: {', '.join(others)}"
    )


def _takes(kind: type, input_shape: tuple[int, ...]) -> bool:
    takes: Takes = getattr(kind, "takes", "any")
    return takes == "any" or len(input_shape) == {"images": 3, "rows": 1}[takes]
