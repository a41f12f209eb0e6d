"""Which convention an epsilon is computed by: the mechanism's own guarantee, or a paper's.

`strict` is a guarantee. Presets named `paper:<id>` reproduce printed numbers with the rounding,
grids and counts behind them; they are no guarantee, and their assumptions say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leakbench.errors import unknown_name
from leakbench.privacy.events import Relation, Sampling
from leakbench.privacy.rdp import DENSE_ORDERS, OPACUS_ORDERS, TF_PRIVACY_ORDERS, Conversion


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Conventions of all accountants.

    guarantee: whether the numbers may be relied on. relations: those it can be asked for, the
    first by default. sampling: how the paper's batches are counted. noise_factor: std of the noise
    over sigma C. charges_parts: whether M parts clipped to C apart count as sqrt(M) C and not as
    C. extra_steps: added to the steps of a run, for counters that start at 0 and
    stop after T. orders, conversion: of the moments accountant. decimals, amplified_decimals:
    digits a step's epsilon is rounded to, by accountant, before and after sampling.
    assumptions: sentences every result repeats.
    """

    name: str
    guarantee: bool = False
    relations: tuple[Relation, ...] = ("add_remove",)
    sampling: Sampling = "poisson"
    noise_factor: float = 1.0
    charges_parts: bool = False
    extra_steps: int = 0
    orders: tuple[float, ...] = DENSE_ORDERS
    conversion: Conversion = "improved"
    decimals: Mapping[str, int] = field(default_factory=dict)
    amplified_decimals: Mapping[str, int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


_CHARGED_C = (
    "reproduction of printed numbers only, not a guarantee",
    "sensitivity C is charged however many tensors are clipped to C apart",
    "sampling is taken as Poisson at the stated rate",
)
_NOT_COMPOSED = (
    "base, advanced and optimal spend the same delta in every step and leave q T delta out of the "
    "total",
    "the step's epsilon is sqrt(2 ln(1.25/delta))/sigma also where that is above 1",
    "zcdp takes rho = q^2/sigma^2 a step, without the half and amplified by sampling",
)
_TF_GRID = "moments: 72 orders of TF-Privacy 0.5, classic conversion"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(name="strict", guarantee=True, relations=("add_remove", "replace_one")),
        Preset(
            name="paper:tifs",
            extra_steps=1,
            orders=TF_PRIVACY_ORDERS,
            conversion="classic",
            decimals={"base": 3, "advanced": 3},
            amplified_decimals={"base": 8},
            assumptions=(
                *_CHARGED_C,
                *_NOT_COMPOSED,
                "base and advanced round a step's epsilon to 3 digits (0.807), base the sampled "
                "one to 8; optimal does not",
                "T + 1 steps",
                _TF_GRID,
            ),
        ),
        Preset(
            name="paper:tifs-budget",
            orders=TF_PRIVACY_ORDERS,
            conversion="classic",
            assumptions=(*_CHARGED_C, *_NOT_COMPOSED, "T steps, nothing rounded", _TF_GRID),
        ),
        Preset(
            name="paper:icdcs",
            extra_steps=1,
            orders=TF_PRIVACY_ORDERS,
            conversion="classic",
            assumptions=(
                *_CHARGED_C,
                *_NOT_COMPOSED,
                "T + 1 steps",
                _TF_GRID,
                "the client-level numbers of Fed-CDP are the instance-level ones: joint DP",
            ),
        ),
        Preset(
            name="paper:tpds",
            extra_steps=1,
            orders=TF_PRIVACY_ORDERS,
            conversion="classic",
            assumptions=(
                *_CHARGED_C,
                *_NOT_COMPOSED,
                "T + 1 steps",
                _TF_GRID,
                "noise scaled to the largest norm found counts as if it were scaled to C",
            ),
        ),
        Preset(
            name="paper:cloak",
            orders=OPACUS_ORDERS,
            assumptions=(
                *_CHARGED_C,
                *_NOT_COMPOSED,
                "moments: the orders of Opacus, improved conversion, exact series",
                "choosing C and sigma on private data is not charged",
            ),
        ),
        Preset(
            name="paper:bcalc",
            relations=("replace_one",),
            sampling="fixed_size",
            noise_factor=2.0,
            charges_parts=True,
            assumptions=(
                "reproduction of printed numbers only, not a guarantee",
                "gdp is the central limit for batches drawn without replacement, which can be "
                "below the true epsilon",
                "neighbours differ in one example of one mini-batch; the noise's std is 2 sigma C",
            ),
        ),
    )
}


def preset_of(name: str) -> Preset:
    """Preset by name.

    Raises:
        LeakbenchError: If there is none of that name.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]
