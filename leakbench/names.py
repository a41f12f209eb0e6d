"""Closed vocabularies shared by the parts that must not import torch."""

from __future__ import annotations

from typing import Literal

Knowledge = Literal["naive", "adaptive"]

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
}
"""Networks by name (`models.build` makes them)."""
