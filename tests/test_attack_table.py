"""docs/api.md says which attack suits which leak; here they are asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import leakbench as lb
from leakbench.data import load

DOCS = Path(__file__).parent.parent / "docs" / "api.md"


def said() -> dict[str, tuple[bool, bool, str]]:
    """Attack -> what the table says of batches, of local steps, of binary losses."""
    text = DOCS.read_text(encoding="utf-8").split("| attack | batch of several |")[1]
    found = {}
    for line in text.split("\n\n")[0].splitlines()[2:]:
        names, batch, steps, binary, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for name in names.replace("`", "").split(", "):
            found[name] = (batch.startswith("yes"), steps.startswith("yes"), binary.split(" ")[0])
    return found


def refused(
    name: str, count: int, *, classes: int = 10, steps: int = 1, known: bool = False
) -> str:
    """Why an attack does not run on an update of so many digits; "" where it does."""
    digits = load("mnist")
    numbers = (
        digits.candidate_labels[:20] % classes if classes > 1 else digits.candidate_labels[:20] % 2
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Sigmoid(), nn.Linear(8, classes))
    y = numbers[:count]
    leak = lb.leak(
        model, digits.candidates[:count], y if classes > 1 else y.float(), observer="type1",
        loss="cross_entropy" if classes > 1 else "bce", local_steps=steps, labels_known=known,
        candidates=(digits.candidates[:20], numbers),
    )  # fmt: skip
    few = {} if name in ("candidates", "analytic", "analytic_head") else {"steps": 1}
    few |= {"restarts": 1, "pooled": 1} if name == "tableak" else {}
    return lb.attack(leak, name, **few)[name].reason


COSTLY = ("gauss_newton",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in COSTLY else ()) for name in said()],
)
def test_the_table_of_attacks_is_right(name: str) -> None:
    batch, steps, binary = said()[name]
    assert (refused(name, 3) == "") == batch
    assert (refused(name, 2, steps=2) == "") == steps
    assert (refused(name, 1, classes=1) == "") == (binary != "no")
    if batch:
        assert (refused(name, 3, classes=1) == "") == (binary == "yes")
        assert (refused(name, 3, classes=1, known=True) == "") == (binary != "no")
