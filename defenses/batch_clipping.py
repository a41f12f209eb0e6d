"""Batch clipping: the gradients of subsets are clipped, whole or layer by layer.

Five defenses of Nguyen, Nguyen, Nguyen and van Dijk, "Batch clipping and adaptive layerwise
clipping for differential private stochastic gradient descent", that differ in what is clipped
together and to which bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.clipping import UPDATES, bound_factor, check_parameters, clip_flat
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    Observer,
    Row,
    Setting,
    Weights,
)
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.parameters import check_kinds, require_in
from leakbench.schedules import stepped

Layer = Literal["tensor", "layer"]
Names = tuple[str, ...]
Constants = Mapping[Names, Tensor]
"""Parameters that belong together -> their bound C_h or factor m_h, shape (); each in one key."""

LEAST_RATIO = 1e-6
"""Smallest e_h / max e that counts: bounds stay positive and factors finite."""
LEAST_NORM = 1e-30
"""Smallest e_h that counts, far below any gradient and still a normal float32."""


# ---------------------------------------------------------------------------- layers


def layers_of(names: Iterable[str], layer: Layer) -> list[Names]:
    """Parameter names by layer, in the model's order.

    layer: "tensor" sets each name apart; "layer" puts names together that are equal up to their
    last dot, "conv1.weight" and "conv1.bias"; a name without a dot is a layer of its own.
    """
    found: dict[str, Names] = {}
    for name in names:
        key = name if layer == "tensor" else name.rpartition(".")[0] or name
        found[key] = (*found.get(key, ()), name)
    return list(found.values())


def norms_of(public: Iterable[Gradients], parts: Iterable[Names]) -> dict[Names, Tensor]:
    """Norms (rows,) of each part of the gradients, axes ("client", "example"), of all pieces."""
    named = list(parts)
    pieces = [[_of(piece, names).flat_norm().flatten() for names in named] for piece in public]
    return {
        names: torch.cat(of_part)
        for names, of_part in zip(named, zip(*pieces, strict=True), strict=True)
    }


def expected_norms(norms: Mapping[Names, Tensor]) -> dict[Names, Tensor]:
    """e_h = mean of the norms (rows,) of part h, each of shape ().

    A part that public examples hardly move counts as moved by `LEAST_RATIO` of the largest e_h, and
    as `LEAST_NORM` where none moves; inf or nan anywhere makes all constants made of the result nan
    (Zhang's: inf or nan).
    """
    means = torch.stack([of_part.mean() for of_part in norms.values()])
    least = (LEAST_RATIO * means.max()).clamp(min=LEAST_NORM)
    return dict(zip(norms, torch.maximum(means, least).unbind(), strict=True))


def similar(norms: Mapping[Names, Tensor], groups: int) -> list[Names]:
    """Layers joined into `groups` of similar norm, or all of them apart if they are no more.

    Ordered by norm and cut where neighbours differ by the largest ratios; at equal ratios the
    smaller norms are cut first, at equal norms the model's order holds.
    """
    ordered = sorted(norms, key=lambda names: float(norms[names]))
    ratios = [float(norms[larger] / norms[smaller]) for smaller, larger in pairwise(ordered)]
    widest = sorted(range(len(ratios)), key=lambda place: -ratios[place])[: groups - 1]
    edges = [0, *sorted(place + 1 for place in widest), len(ordered)]
    return [tuple(name for names in ordered[a:b] for name in names) for a, b in pairwise(edges)]


def _of(gradients: Gradients, names: Names) -> Gradients:
    return replace(gradients, tensors={name: gradients.tensors[name] for name in names})


def _by_name(constants: Constants) -> dict[str, Tensor]:
    return {name: value for names, value in constants.items() for name in names}


# ---------------------------------------------------------------------------- the family


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetClipping(Defense):
    """Base: subset means clipped to the bounds in the state, noise on their sum.

    on_examples: the gradient g(w; S_j) of every subset is the mean over its s examples (equation
    7); each part h of it is scaled to L2 norm <= C_h. on_batch: N(0, (2 C_h sigma)^2) on part h of
    the sum over the k = B / s subsets (equation 6), which is std 2 C_h sigma / k on their mean, the
    gradient of the step; with k = 1 mean and sum are one. Parts under their bound pass bit for bit
    and zeros stay zeros; nan makes the subset's part nan, and inf makes it nan and zeros.

    Guarantee: Gaussian mechanism for replacing one example: one clipped mean moves by up to 2 C_h
    in each of L parts, and all parts in units of their own noise by sqrt(L) / sigma (section 3.2).
    In round t the bounds are C_h clip_factor^floor(t / clip_every); the noise follows, so mu stays.
    Single gradients are not protected: noise enters behind the type-2 example tap. With s > 1
    nothing is promised under Poisson sampling of examples: one more moves others into the next
    subset, and the mean of a large batch weighs more than 1.

    The paper trains ResNet-18 with sigma = 0.01875: mu >= 53 a step, no meaningful privacy.
    """

    paper: ClassVar[str] = "Nguyen et al., batch clipping"
    noise_multiplier: float = 0.01875
    subset: int = 0
    clip_factor: float = 1.0
    clip_every: int = 1

    def __post_init__(self) -> None:
        check_parameters(self.name, self._master(), self.noise_multiplier)
        for name, least in (("subset", 0), ("groups", 0), ("every", 1), ("clip_every", 1)):
            require_at_least(self.name, least, **{name: getattr(self, name, least)})
        require_in(self.name, "(0, 1]", clip_factor=self.clip_factor)
        check_kinds(self)

    @property
    def row(self) -> Row:
        return self.subset or "batch"

    @property
    def rowwise(self) -> bool:
        return True

    def on_examples(
        self, gradients: Gradients, state: Constants, context: Context
    ) -> tuple[Gradients, Constants]:
        clipped = {
            name: value
            for names, bound in state.items()
            for name, value in clip_flat(
                _of(gradients, names), bound * self._left(context.round)
            ).tensors.items()
        }
        return gradients.map(lambda name, _: clipped[name]), state

    def on_batch(
        self, gradients: Gradients, state: Constants, context: Context
    ) -> tuple[Gradients, Constants]:
        share = 2 * self.noise_multiplier / self._subsets(context.batch_size)
        bounds = self._noise_bounds(state, context.round)
        std = {name: share * bound for name, bound in bounds.items()}
        return context.add_gaussian(gradients, std, "batch"), state

    def scales(self, state: Constants, context: Context) -> dict[str, float]:
        """Of the part with the largest bound C_h; the sensitivity is that of the sum over it."""
        largest = max(map(float, self._noise_bounds(state, context.round).values()))
        return {
            "clip": largest,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": 2 * largest,
        }

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        size = self.row_size(setting.batch_size)
        if observer == "type2":
            single = "noise enters after the tap: clipping only"
            reason = single if size == 1 else "single examples are neither clipped nor noised"
            return Guarantee(level="none", reason=reason)
        if self.noise_multiplier == 0:
            return Guarantee(level="none", reason="no noise is added")
        if self.subset != 1 and setting.sampling == "poisson" and setting.all_clients == 1:
            reason = "Poisson sampling fixes neither the members of a subset nor its weight"
            return Guarantee(level="none", reason=reason)
        unit, parts = self._clipped(weights)
        master = self._master() * self._left(setting.round)
        one = 2 * master / self._subsets(setting.batch_size)
        return Guarantee(
            level="instance",
            relation="replace_one",
            sensitivity=math.sqrt(parts * setting.uses(observer)) * one,
            noise_std=self.noise_multiplier * one,
            unit=unit,
            tensors=parts,
            assumptions=self._assumptions(size),
        )

    def noise_std(
        self, observer: Observer, weights: Weights, state: Constants, context: Context
    ) -> dict[str, float] | None:
        if observer == "model":
            return None
        if observer == "type2":
            return dict.fromkeys(weights, 0.0)
        share = 2 * self.noise_multiplier / self._subsets(context.batch_size)
        if observer in UPDATES:
            share = context.of_steps(share)
        bounds = self._noise_bounds(state, context.round)
        return {name: share * float(bound) for name, bound in bounds.items()}

    def _subsets(self, batch_size: int) -> int:
        """k."""
        return batch_size // self.row_size(batch_size)

    def _left(self, round: int) -> float:
        """What decay has left of the bounds in this round."""
        return stepped(self.clip_factor, self.clip_every, round)

    def _noise_bounds(self, state: Constants, round: int) -> dict[str, Tensor]:
        """Parameter name -> the C_h its noise is scaled by in this round."""
        left = self._left(round)
        return {name: bound * left for name, bound in _by_name(state).items()}

    def _clipped(self, weights: Weights) -> tuple[Literal["tensor", "layer", "flat"], int]:
        """What is clipped apart, and into how many parts."""
        return "flat", 1

    def _master(self) -> float:
        """C of the first round, the bound that sensitivity and noise std are stated for."""
        return 1.0

    def _assumptions(self, size: int) -> tuple[str, ...]:
        fixed = "neighbouring data sets differ in one example of one subset of a fixed partition"
        if size == 1:
            return (fixed,)
        return (fixed, "adding or removing an example may move its subset as far as replacing it")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClip(SubsetClipping):
    """General batch clipping: the full gradient of every subset mean clipped to C (section 3.1).

    The state never changes: one part, bound C. See `SubsetClipping` for hooks and guarantee
    (mu = 1 / sigma a step) and for what zero, inf and nan become.

    Args:
        clip: C (paper: 0.095 in sections 4.1, 4.5 and A.4, but 0.0095 in 4.2 to 4.4).
        noise_multiplier: sigma; the noise on the sum has std 2 C sigma.
        subset: s examples a subset; 0: the whole batch (BC, k = 1), 1: single examples (IC).
        clip_factor, clip_every: every so many rounds C is multiplied by the factor (paper, A.3:
            0.9 every epoch; elsewhere 1, no decay).
    """

    name: ClassVar[str] = "batch_clip"
    clip: float = 0.095

    def init(self, weights: Weights) -> dict[Names, Tensor]:
        return {tuple(weights): _scalar(weights, self.clip)}

    def _master(self) -> float:
        return self.clip


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClipLayerwise(SubsetClipping):
    """Layerwise clipping: each layer of every subset mean clipped to C (section 3.2).

    As `batch_clip`, with L parts of bound C_h = C and mu = sqrt(L) / sigma a step.

    Args:
        clip: C of every layer.
        noise_multiplier, subset, clip_factor, clip_every: see `batch_clip`.
        layer: "tensor" clips weight and bias of a layer apart, "layer" together.
    """

    name: ClassVar[str] = "batch_clip_layerwise"
    clip: float = 0.095
    layer: Layer = "tensor"

    def init(self, weights: Weights) -> dict[Names, Tensor]:
        return dict.fromkeys(layers_of(weights, self.layer), _scalar(weights, self.clip))

    def _clipped(self, weights: Weights) -> tuple[Layer, int]:
        return self.layer, len(layers_of(weights, self.layer))

    def _master(self) -> float:
        return self.clip


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicClipping(SubsetClipping):
    """Base: constants from the expected layer norms e_h of public examples (section 3.3).

    on_round: in round 0 and every `every` rounds after it, e_h at the round's weights and the
    constants from it; before that every e_h counts as 1. e_h is the mean norm of what is clipped:
    of the gradients of public subsets of s examples, so of batches through the network as it is in
    training where s = B, which is what BatchNorm needs, and of single examples where s = 1. (The
    paper writes single examples even for batches.) With `groups` > 0 layers are joined into
    so many groups of similar e_h (appendix B.1; see `similar`), each then a layer of its own: its
    e is the mean norm of the group's gradient, which sqrt(sum e_h^2) of its layers falls short of.

    Raises:
        LeakbenchError: `on_round` finds no public examples where it needs them.
    """

    needs_public: ClassVar[bool] = True
    layer: Layer = "tensor"
    groups: int = 0
    every: int = 1

    def init(self, weights: Weights) -> Constants:
        one = _scalar(weights, 1.0)
        ones = dict.fromkeys(layers_of(weights, self.layer), one)
        return self._constants(dict.fromkeys(self._joined(ones), one))

    def on_round(self, weights: Weights, state: Constants, context: Context) -> Constants:
        if context.round % self.every:
            return state
        if context.public is None:
            raise LeakbenchError(
                f"{self.name}: round {context.round} needs the gradients of public examples for "
                "the layers' norms, and the context has none"
            )
        public = context.public(weights, self.row_size(context.batch_size))
        norms = norms_of(public, layers_of(weights, self.layer))
        if self.groups:  # a group's norm is that of its layers' norms
            norms = {
                group: torch.linalg.vector_norm(
                    torch.stack([norms[names] for names in norms if names[0] in group]), dim=0
                )
                for group in self._joined(expected_norms(norms))
            }
        return self._constants(expected_norms(norms))

    def _joined(self, norms: Mapping[Names, Tensor]) -> list[Names]:
        return similar(norms, self.groups) if self.groups else list(norms)

    def _constants(self, norms: Mapping[Names, Tensor]) -> Constants:
        raise NotImplementedError

    def _clipped(self, weights: Weights) -> tuple[Literal["tensor", "layer", "flat"], int]:
        layers = len(layers_of(weights, self.layer))
        return self.layer, min(self.groups or layers, layers)

    def _assumptions(self, size: int) -> tuple[str, ...]:
        # Without arguments super() looks for the class that dataclass(slots=True) replaced.
        shared = SubsetClipping._assumptions(self, size)
        return (*shared, "the layers' constants come from public data only", self._units())

    def _units(self) -> str:
        """In which units sensitivity and noise std are stated."""
        return "sensitivity and noise std are stated with every layer scaled to the largest bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClipALC(PublicClipping):
    """Enhanced adaptive layerwise clipping: C_h = C e_h / max e from public data (section 3.3).

    As `batch_clip_layerwise` otherwise: mu = sqrt(L) / sigma a step, whatever the bounds, or
    sqrt(groups) / sigma. One group is `batch_clip`. A layer without public gradient gets a bound of
    1e-6 C; public gradients all zero give C to all; nan or inf in them make everything nan.

    Args:
        clip: the master constant C, of the layer with the largest e_h (paper: see `batch_clip`).
        noise_multiplier, subset, clip_factor, clip_every: see `batch_clip`.
        layer: see `batch_clip_layerwise`.
        groups: of layers clipped together; 0: each layer apart.
        every: rounds between two looks at the public data (paper: an epoch).
    """

    name: ClassVar[str] = "batch_clip_alc"
    clip: float = 0.095

    def _constants(self, norms: Mapping[Names, Tensor]) -> Constants:
        largest = torch.stack(list(norms.values())).max()
        return {names: self.clip * norm / largest for names, norm in norms.items()}

    def _master(self) -> float:
        return self.clip


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClipZhang(PublicClipping):
    """Adaptive layerwise clipping of Zhang, Ji and Wang (2018): C_h = e_h from public data.

    As the paper describes it in section 3.3: `batch_clip_alc` without a master constant, so that
    the bounds follow the gradients' own size. A layer without public gradient gets a bound of 1e-6
    of the largest; public gradients all zero let nothing through. nan in them makes everything nan,
    inf as well.

    Args:
        noise_multiplier, subset, clip_factor, clip_every: see `batch_clip`; the factor multiplies
            every e_h.
        layer, groups, every: see `batch_clip_alc`.
    """

    name: ClassVar[str] = "batch_clip_zhang"

    def _constants(self, norms: Mapping[Names, Tensor]) -> Constants:
        return norms

    def _units(self) -> str:
        return "sensitivity and noise std are stated in units of every layer's own bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClipFactors(PublicClipping):
    """Multiplication factors: full-gradient clipping of layers levelled by public data (B.2).

    m_h = max e / e_h. on_examples: the subset mean is scaled so that the gradient of multiplied
    layers m_h g_h has L2 norm <= C. on_batch: N(0, (2 C sigma)^2) on the sum of these, then divided
    by m_h: std 2 C sigma / (k m_h) on layer h of the mean. The division is public arithmetic and
    done here, so that every tap sees gradients in their own units. mu = 1 / sigma a step, without
    the sqrt(L) of clipping layers apart. A layer without public gradient has m_h = 1e6; public
    gradients all zero give m_h = 1; nan or inf in them make everything nan.

    Args:
        clip: C of the multiplied gradient, whose layers all have expected norm max e: the paper
            expects to need sqrt(L) (or sqrt(groups)) times that of `batch_clip_alc` and gives none.
        noise_multiplier, subset, clip_factor, clip_every: see `batch_clip`.
        layer, every: see `batch_clip_alc`.
        groups: of layers that share a factor; 0: each has its own.
    """

    name: ClassVar[str] = "batch_clip_factors"
    clip: float = 0.095

    def on_examples(
        self, gradients: Gradients, state: Constants, context: Context
    ) -> tuple[Gradients, Constants]:
        norm = gradients.scale(_by_name(state)).flat_norm()
        return gradients.scale(bound_factor(norm, self.clip * self._left(context.round))), state

    def _noise_bounds(self, state: Constants, round: int) -> dict[str, Tensor]:
        clip = self.clip * self._left(round)
        return {name: clip / factor for name, factor in _by_name(state).items()}

    def _constants(self, norms: Mapping[Names, Tensor]) -> Constants:
        largest = torch.stack(list(norms.values())).max()
        return {names: largest / norm for names, norm in norms.items()}

    def _clipped(self, weights: Weights) -> tuple[Literal["flat"], int]:
        return "flat", 1

    def _master(self) -> float:
        return self.clip

    def _units(self) -> str:
        return "sensitivity and noise std are those of the gradient of multiplied layers"


def _scalar(weights: Weights, value: float) -> Tensor:
    """`value` as a tensor of shape (), of the weights' type and device."""
    return torch.full_like(next(iter(weights.values())).flatten()[0], value)
