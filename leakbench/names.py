"""Closed vocabularies shared by the parts that must not import torch."""

from __future__ import annotations

from typing import Literal

Knowledge = Literal["naive", "adaptive"]
"""naive: ignores the defense; adaptive: knows its public description."""

Grant = Literal["labels", "candidates", "public"]
"""What a threat model may hand to the attacker beside model, weights and gradients: the victims'
labels; a list of labelled candidates that holds the victims; public inputs of the same kind."""

Status = Literal["ok", "nan", "diverged", "oom", "timeout", "skipped", "error"]
"""How a trial ended. ok: the attack returned; nan: it left the finite numbers; diverged: its
returned loss is above its start's; oom, timeout, error: no reconstruction; skipped: no data."""

STATUSES: tuple[Status, ...] = ("ok", "nan", "diverged", "oom", "timeout", "skipped", "error")

JUDGED: tuple[Status, ...] = ("ok", "nan", "diverged")
"""Statuses with a reconstruction to judge."""

MODELS: dict[str, str] = {
    "lenet_cpl": "four sigmoid convolutions of 12 channels, one dense layer (CPL notebooks)",
    "lenet_dlg": "three sigmoid convolutions of 12 channels, one dense layer (DLG, iDLG)",
    "cnn2": "two sigmoid convolutions of 16 and 32 channels, one dense layer (TIFS section VI)",
    "cnn2_relu": "two ReLU convolutions of 16 and 32 channels with max-pooling, one dense layer, "
    "no biases; to train",
    "mlp": "two hidden dense ReLU layers of 64 and 32 units, one dense head; also for tables",
}
"""Networks by name (`models.build` makes them)."""

IMAGE_MODELS = frozenset({"lenet_cpl", "lenet_dlg", "cnn2", "cnn2_relu"})
"""Networks that take images only."""

ACCOUNTANTS: dict[str, str] = {
    "base": "sum of the steps' epsilons",
    "advanced": "advanced composition, the classic theorem",
    "advanced_eq3": "advanced composition as TIFS eq. 3 has it",
    "optimal": "composition of Kairouz, Oh and Viswanath; TIFS eq. 4 in the papers' presets",
    "zcdp": "zero-concentrated DP",
    "moments": "Renyi DP of the Poisson-subsampled Gaussian",
    "gdp": "Gaussian DP: exact without sampling, else the central limit",
    "pld": "privacy loss distributions: an upper bound, and tight",
}
"""Privacy accountants by name (`privacy.account` runs them)."""
