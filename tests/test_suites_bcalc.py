"""The suites of the batch-clipping paper: epochs, printed points and what is refused."""

from importlib import resources
from typing import Any

import pytest

from leakbench.spec import Plan, UtilityCell
from leakbench.suite import resolve

NAMES = sorted(
    path.name.removesuffix(".toml")
    for path in resources.files("leakbench.suites").iterdir()
    if path.name.startswith("bcalc_")
)
TRAINING = {"cifar10": 45_000, "mnist": 54_000}
"""Nine tenths of the training parts; a tenth is public (section 4.1)."""

# By (figure, row): what the text and the captions print, in per cent.
PRINTED = {
    ("2", "m64_e20/none"): "88.31", ("2", "m64/none"): "90.24",
    ("3", "m64_e20/alc_m64"): "60", ("3", "m64/alc_m64"): "67",
    ("5", "e10/s0_5"): "20", ("6", "m1024/c0_9"): "59.02", ("7", "m1024/c0_1"): "40.58",
    ("8", "m64/none"): "80.55", ("8", "m1024/none"): "61.19", ("9", "c0_14"): "43.42",
    ("10", "m64/alc_m64"): "40", ("10", "m64/none"): "80.55", ("11", "c0_2"): "84.80",
    ("12", "m64/s2_5"): "50.38", ("12", "m64/s1_5"): "67", ("12", "m1024/alc_m1024"): "45.11",
    ("15", "css/ic_ccs"): "21.12", ("16_17", "css/bc_ccs"): "40",
    ("18", "alc"): "66.66", ("18", "fgc"): "46.35",
}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: resolve(name, "paper") for name in NAMES}


def test_every_printed_accuracy_stands_beside_its_row(plans: dict[str, Plan]) -> None:
    found = {
        (name.removeprefix("bcalc_figure"), row): printed.accuracy
        for name, plan in plans.items()
        for (_, row), printed in plan.printed_utility.items()
    }
    assert found.keys() == PRINTED.keys()
    for key, text in PRINTED.items():
        assert float(found[key] or "nan") == pytest.approx(float(text) / 100)


def cells(plans: dict[str, Plan]) -> list[UtilityCell]:
    return [cell for plan in plans.values() for cell in plan.utility]


def test_rounds_and_decays_are_counted_in_epochs_of_the_papers_training_part(
    plans: dict[str, Plan],
) -> None:
    """An epoch is N / m rounds, rounded down; learning rate, C and public norms change by it."""
    for cell in cells(plans):
        size = TRAINING[cell.dataset]
        if cell.variant == "" and cell.dataset == "cifar10" and cell.model == "bn_lenet5":
            assert cell.schedule["rounds"] == 3 * (size // 64)
            continue  # of two data sets in one suite, the learning rate counts MNIST's epochs
        assert cell.schedule["examples_a_client"] == size and cell.schedule["clients"] == 1
        if cell.variant == "m64" and cell.schedule["learning_rate_every"] == 43:
            continue  # the stand-in of Figures 6 and 7, which the paper does not have
        epoch = size // cell.schedule["batch_size"]
        assert cell.schedule["rounds"] % epoch == 0
        assert cell.schedule["rounds"] // epoch in (3, 10, 20, 50)
        if cell.schedule["learning_rate_policy"] == "step":
            assert cell.schedule["learning_rate_every"] == epoch
            assert cell.schedule["learning_rate_factor"] == 0.9
        parameters: dict[str, Any] = dict(cell.defense_parameters)
        assert parameters.get("every", epoch) == epoch
        if parameters.get("clip_factor", 1.0) < 1:
            assert (parameters["clip_factor"], parameters["clip_every"]) == (0.9, epoch)


def test_single_examples_are_clipped_only_without_batch_norm(plans: dict[str, Plan]) -> None:
    single = [cell for cell in cells(plans) if cell.defense_parameters.get("subset") == 1]
    assert len(single) >= 5
    assert {cell.model_parameters["norm"] for cell in single} == {"none"}


def test_layers_are_those_the_paper_counts(plans: dict[str, Plan]) -> None:
    """62 tensors of ResNet-18; 8 layers of BN-LeNet-5 (appendices A.4 and B.1)."""
    for cell in cells(plans):
        if "layer" in cell.defense_parameters:
            layer = "tensor" if cell.model == "resnet18" else "layer"
            assert cell.defense_parameters["layer"] == layer
    equal = next(c for c in plans["bcalc_figure18"].utility if c.defense_id == "fgc_equal")
    assert equal.defense_parameters["noise_multiplier"] == pytest.approx(
        0.01875 / 62**0.5, rel=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_profile_is_of_batches_that_the_sample_has(name: str) -> None:
    quick, medium = (resolve(name, profile).utility for profile in ("quick", "medium"))
    assert quick and {cell.schedule["batch_size"] for cell in quick} == {64}
    assert max(cell.schedule["rounds"] for cell in quick) <= 60
    assert medium and max(cell.schedule["rounds"] for cell in medium) <= 13_000
