"""Metrics against scikit-image and brute force on real digits; success rules at their limits."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from leakbench import data, metrics
from leakbench.errors import LeakbenchError
from leakbench.metrics import pixels
from leakbench.metrics.contract import Comparison
from leakbench.metrics.distance import distance
from leakbench.metrics.mse import mse
from leakbench.metrics.psnr import psnr
from leakbench.metrics.rank import candidate_ranks
from leakbench.metrics.registry import all_metrics, judge_versions
from leakbench.metrics.rules import SuccessRule, kinds, make_rule, succeeded
from leakbench.metrics.ssim import SSIM_WINDOW, ssim
from leakbench.spec import plan_from_json, plan_to_json
from leakbench.suite import resolve

Metric = Callable[[Tensor, Tensor], Tensor]

NUMBERS: dict[str, Any] = {
    "mse_raw": 0.5,
    "mse_clamped": 0.5,
    "distance_raw": 0.5,
    "distance_clamped": 0.5,
    "best_baseline_mse": 0.5,
    "rank": 5,
}


@pytest.fixture(scope="module")
def candidates() -> Tensor:
    """All 1,000 real digits, (1000, 1, 28, 28) in [0, 1]."""
    return torch.as_tensor(data.load("mnist").candidates)


@pytest.fixture(scope="module")
def digits(candidates: Tensor) -> Tensor:
    """(100, 1, 28, 28)."""
    return candidates[:100]


@pytest.fixture(scope="module")
def noisy(digits: Tensor) -> Tensor:
    """The digits under noise that leaves [0, 1] on both sides."""
    noise = torch.randn(digits.shape, generator=torch.Generator().manual_seed(1))
    return digits + 0.3 * noise


def paper_readings() -> list[SuccessRule]:
    """The four ways to read "MSE < 0.70"."""
    return [
        make_rule(name=f"{kind}-{clamp}", kind=kind, threshold=0.70, clamp=clamp)
        for kind in ("mse", "distance")
        for clamp in (False, True)
    ]


def judge_images(rule: SuccessRule, images: Tensor, reference: Tensor) -> list[bool]:
    columns = zip(
        mse(images, reference).tolist(),
        mse(images, reference, clamp=True).tolist(),
        distance(images, reference).tolist(),
        distance(images, reference, clamp=True).tolist(),
        strict=True,
    )
    return [
        rule.judge(
            {
                "mse_raw": mse_raw,
                "mse_clamped": mse_clamped,
                "distance_raw": distance_raw,
                "distance_clamped": distance_clamped,
            }
        )
        for mse_raw, mse_clamped, distance_raw, distance_clamped in columns
    ]


# ---------------------------------------------------------------------------------------------
# Pixel metrics against independent implementations
# ---------------------------------------------------------------------------------------------


def test_mse_is_that_of_scikit_image(noisy: Tensor, digits: Tensor) -> None:
    for clamp in (False, True):
        images = noisy.clamp(0, 1) if clamp else noisy
        expected = [
            mean_squared_error(y.double().numpy(), x.double().numpy())
            for x, y in zip(images, digits, strict=True)
        ]
        assert mse(noisy, digits, clamp=clamp).tolist() == pytest.approx(expected, rel=1e-12)


def test_distance_is_the_norm_of_the_difference(noisy: Tensor, digits: Tensor) -> None:
    for clamp in (False, True):
        images = noisy.clamp(0, 1) if clamp else noisy
        difference = (images.double() - digits.double()).numpy().reshape(100, -1)
        expected = np.linalg.norm(difference, axis=1)
        assert distance(noisy, digits, clamp=clamp).numpy() == pytest.approx(expected, rel=1e-12)


def test_distance_is_the_root_of_the_summed_mse(noisy: Tensor, digits: Tensor) -> None:
    torch.testing.assert_close(distance(noisy, digits), (784 * mse(noisy, digits)).sqrt())


def test_psnr_is_that_of_scikit_image_on_clamped_images(noisy: Tensor, digits: Tensor) -> None:
    expected = [
        peak_signal_noise_ratio(y.double().numpy(), x.double().numpy(), data_range=1)
        for x, y in zip(noisy.clamp(0, 1), digits, strict=True)
    ]
    assert psnr(noisy, digits).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_is_that_of_wang_et_al(noisy: Tensor, digits: Tensor, channels: int) -> None:
    """Oracle written from the formula, one channel at a time, with an explicit 11 x 11 window."""
    grid = torch.arange(-5, 6, dtype=torch.float64)
    profile = torch.exp(-grid.square() / (2 * 1.5**2))
    window = (profile[:, None] * profile)[None, None] / profile.sum() ** 2

    def local_mean(image: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(image[None, None], window)

    def oracle(x: Tensor, y: Tensor) -> Tensor:
        mean_x, mean_y = local_mean(x), local_mean(y)
        variance_x = local_mean(x * x) - mean_x**2
        variance_y = local_mean(y * y) - mean_y**2
        covariance = local_mean(x * y) - mean_x * mean_y
        c1, c2 = 0.01**2, 0.03**2
        luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
        structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
        return (luminance * structure).mean()

    images = noisy[: 10 * channels].reshape(10, channels, 28, 28)
    reference = digits[: 10 * channels].reshape(10, channels, 28, 28)
    expected = [
        torch.stack([oracle(x, y) for x, y in zip(image, target, strict=True)]).mean()
        for image, target in zip(images.clamp(0, 1).double(), reference.double(), strict=True)
    ]
    torch.testing.assert_close(ssim(images, reference), torch.stack(expected))


def test_one_image_without_torch_has_the_same_numbers(noisy: Tensor, digits: Tensor) -> None:
    for image, target in zip(noisy[:20], digits[:20], strict=True):
        alone = pixels.structural_similarity(image.numpy(), target.numpy())
        assert alone == ssim(image[None], target[None]).item()
        expected = mse(image[None], target[None]).item()
        assert pixels.squared_error(image.numpy(), target.numpy()) == pytest.approx(expected)


def test_ssim_uses_the_declared_variant(noisy: Tensor, digits: Tensor) -> None:
    expected = structural_similarity(
        digits[0].double().numpy(),
        noisy[0].clamp(0, 1).double().numpy(),
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1,
        channel_axis=0,
    )
    assert ssim(noisy[:1], digits[:1]).item() == pytest.approx(expected, abs=1e-12)


def test_identical_images(digits: Tensor) -> None:
    assert (mse(digits, digits) == 0).all()
    assert (distance(digits, digits) == 0).all()
    assert (psnr(digits, digits) == math.inf).all()
    torch.testing.assert_close(ssim(digits, digits), torch.ones(100, dtype=torch.float64))


def test_opposite_images_have_a_psnr_of_zero() -> None:
    black, white = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    assert math.copysign(1, psnr(black, white).item()) == 1
    assert psnr(black, white).item() == 0


def test_one_nan_pixel_makes_the_example_nan_and_no_other(noisy: Tensor, digits: Tensor) -> None:
    broken = noisy.clone()
    broken[3, 0, 5, 5] = math.nan
    every: list[Metric] = [
        mse,
        distance,
        lambda x, y: mse(x, y, clamp=True),
        lambda x, y: distance(x, y, clamp=True),
        psnr,
        ssim,
    ]
    for metric in every:
        before, after = metric(noisy, digits), metric(broken, digits)
        assert after.isnan().nonzero().flatten().tolist() == [3]
        keep = torch.arange(100) != 3
        assert torch.equal(after[keep], before[keep])


def test_infinities_are_clamped_to_the_range(digits: Tensor) -> None:
    infinite, saturated = digits.clone(), digits.clone()
    infinite[:, :, 0, 0], saturated[:, :, 0, 0] = math.inf, 1
    infinite[:, :, 14, 14], saturated[:, :, 14, 14] = -math.inf, 0
    assert torch.equal(mse(infinite, digits, clamp=True), mse(saturated, digits))
    assert torch.equal(distance(infinite, digits, clamp=True), distance(saturated, digits))
    assert torch.equal(psnr(infinite, digits), psnr(saturated, digits))
    assert (mse(infinite, digits) == math.inf).all()
    assert (distance(infinite, digits) == math.inf).all()
    assert ssim(infinite, digits).isnan().all()


def test_squares_of_diverged_float32_values_do_not_overflow(digits: Tensor) -> None:
    diverged = torch.full_like(digits, 1e30)
    assert mse(diverged, digits).isfinite().all()


@pytest.mark.parametrize("metric", [mse, distance, psnr, ssim])
def test_metrics_leave_their_input_alone(metric: Metric, noisy: Tensor, digits: Tensor) -> None:
    images = noisy.clone().requires_grad_()
    result = metric(images, digits)
    assert torch.equal(images.detach(), noisy)
    assert not result.requires_grad
    assert result.shape == (100,)
    assert result.dtype == torch.float64


@pytest.mark.parametrize("metric", [mse, distance, psnr, ssim])
def test_no_examples_give_no_numbers(metric: Metric) -> None:
    assert metric(torch.empty(0, 1, 28, 28), torch.empty(0, 1, 28, 28)).shape == (0,)


@pytest.mark.parametrize("metric", [mse, distance, psnr, ssim])
def test_shapes_must_agree(metric: Metric) -> None:
    # This pair would broadcast.
    with pytest.raises(ValueError, match="differ in shape"):
        metric(torch.zeros(4, 1, 28, 28), torch.zeros(1, 1, 28, 28))
    with pytest.raises(ValueError, match=r"\(n, \*shape\)"):
        metric(torch.zeros(4), torch.zeros(4))


def test_ssim_is_undefined_below_its_window() -> None:
    small = torch.zeros(2, 1, SSIM_WINDOW - 1, 28)
    assert ssim(small, small).isnan().all()
    enough = torch.zeros(2, 1, SSIM_WINDOW, SSIM_WINDOW)
    assert (ssim(enough, enough) == 1).all()
    with pytest.raises(ValueError, match="channels, height, width"):
        ssim(torch.zeros(2, 784), torch.zeros(2, 784))


# ---------------------------------------------------------------------------------------------
# Ranks
# ---------------------------------------------------------------------------------------------


def brute_force_rank(image: Tensor, candidates: Tensor, truth: int) -> int:
    errors = [
        float(mean_squared_error(candidate.double().numpy(), image.clamp(0, 1).double().numpy()))
        for candidate in candidates
    ]
    others = [error for index, error in enumerate(errors) if index != truth]
    closer = sum(error < errors[truth] for error in others)
    equal = sum(error == errors[truth] for error in others)
    return 1 + closer + equal


def test_ranks_are_those_of_brute_force(candidates: Tensor) -> None:
    generator = torch.Generator().manual_seed(2)
    truth = torch.randperm(1000, generator=generator)[:30]
    noise = torch.randn(30, 1, 28, 28, generator=generator)
    images = 0.2 * candidates[truth] + noise * torch.linspace(0, 2, 30)[:, None, None, None]
    expected = [
        brute_force_rank(image, candidates, int(index))
        for image, index in zip(images, truth, strict=True)
    ]
    assert candidate_ranks(images, candidates, truth).tolist() == expected
    assert len(set(expected)) > 10, "the noise should spread the ranks"


def test_every_distinct_digit_is_nearest_to_itself(candidates: Tensor) -> None:
    distinct = torch.unique(candidates, dim=0)
    ranks = candidate_ranks(distinct, distinct, torch.arange(len(distinct)))
    assert ranks.dtype == torch.int64
    assert (ranks == 1).all()


def test_ties_count_against_the_attacker(candidates: Tensor) -> None:
    twice = torch.cat([candidates[:50], candidates[:50]])
    assert (candidate_ranks(candidates[:50], twice, torch.arange(50)) == 2).all()
    # Also when the tie is not at distance zero, where rounding could break it.
    blurred = candidates[:50] * 0.7 + 0.1
    single = candidate_ranks(blurred, candidates[:50], torch.arange(50))
    assert torch.equal(candidate_ranks(blurred, twice, torch.arange(50)), 2 * single)


def test_a_constant_list_identifies_nobody() -> None:
    same = torch.full((7, 1, 28, 28), 0.5)
    assert candidate_ranks(same[:2], same, torch.tensor([0, 6])).tolist() == [7, 7]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_broken_image_is_ranked_last(candidates: Tensor, value: float) -> None:
    images = candidates[:3].clone()
    images[1, 0, 14, 14] = value
    ranks = candidate_ranks(images, candidates, torch.arange(3)).tolist()
    assert ranks == [1, 1000, 1]


def test_ranks_do_not_depend_on_the_work_size(
    candidates: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = torch.randn(100, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    images, truth = candidates[:100] + noise, torch.arange(100)
    whole = candidate_ranks(images, candidates, truth)
    monkeypatch.setattr("leakbench.metrics.rank._CANDIDATE_ELEMENTS", 784 * 37)
    monkeypatch.setattr("leakbench.metrics.rank._IMAGE_BLOCK", 7)
    assert torch.equal(candidate_ranks(images, candidates, truth), whole)


def test_ranks_refuse_what_does_not_fit(candidates: Tensor) -> None:
    images = candidates[:2]
    with pytest.raises(ValueError, match="do not fit"):
        candidate_ranks(images, torch.zeros(5, 3, 28, 28), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="do not fit"):
        candidate_ranks(images, candidates[:0], torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="must index"):
        candidate_ranks(images, candidates, torch.tensor([0, 1000]))
    with pytest.raises(ValueError, match="must index"):
        candidate_ranks(images, candidates, torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match="integers"):
        candidate_ranks(images, candidates, torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="integers"):
        candidate_ranks(images, candidates, torch.tensor([0]))


# ---------------------------------------------------------------------------------------------
# Success rules
# ---------------------------------------------------------------------------------------------


def test_clamped_noise_passes_the_papers_rule(digits: Tensor) -> None:
    """Noise of standard deviation 24 holds no trace of the digit, and "succeeds" 100 times."""
    noise = 24 * torch.randn(digits.shape, generator=torch.Generator().manual_seed(4))
    rates = {rule.error: sum(judge_images(rule, noise, digits)) for rule in paper_readings()}
    assert rates == {
        "mse_clamped": 100,
        "mse_raw": 0,
        "distance_clamped": 0,
        "distance_raw": 0,
    }


def test_the_start_passes_the_papers_rule_at_step_zero(digits: Tensor) -> None:
    start = torch.rand(digits.shape, generator=torch.Generator().manual_seed(5))
    rates = {rule.error: sum(judge_images(rule, start, digits)) for rule in paper_readings()}
    assert rates == {
        "mse_clamped": 100,
        "mse_raw": 100,
        "distance_clamped": 0,
        "distance_raw": 0,
    }


@pytest.mark.parametrize(
    ("kind", "clamp", "column"),
    [
        ("mse", False, "mse_raw"),
        ("mse", True, "mse_clamped"),
        ("distance", False, "distance_raw"),
        ("distance", True, "distance_clamped"),
    ],
)
def test_threshold_rules_read_one_column(kind: Any, clamp: bool, column: str) -> None:
    rule = make_rule(name="rule", kind=kind, threshold=0.7, clamp=clamp)
    nothing: dict[str, Any] = dict.fromkeys(NUMBERS)
    perfect: dict[str, Any] = dict.fromkeys(NUMBERS, 0)
    assert rule.judge({**nothing, column: 0.69})
    assert not rule.judge({**nothing, column: 0.70}), "the threshold itself is no success"
    for missing in (None, math.nan, math.inf):
        assert not rule.judge({**perfect, column: missing})


def test_strict_needs_both_parts() -> None:
    rule = make_rule(name="strict", kind="strict", threshold=0.01, clamp=True)

    def recovered(error: float | None, baseline: float | None) -> bool:
        numbers = {**NUMBERS, "mse_clamped": error, "best_baseline_mse": baseline}
        return rule.judge(numbers)

    assert recovered(0.009, 0.065)
    assert not recovered(0.01, 0.065)
    assert not recovered(0.009, 0.024), "a quarter of the baseline is 0.006"
    assert recovered(0.0059, 0.024)
    assert not recovered(0.006, 0.024)
    assert not recovered(0.0, 0.0), "a baseline that is exact leaves nothing to recover"
    assert not recovered(None, 0.065)
    assert not recovered(math.nan, 0.065)
    assert not recovered(0.001, None)
    assert not recovered(0.001, math.nan)


def test_strict_fraction_can_be_chosen() -> None:
    rule = make_rule(name="strict", kind="strict", threshold=0.01, clamp=True, fraction=0.5)
    assert rule.judge({**NUMBERS, "mse_clamped": 0.009, "best_baseline_mse": 0.024})


def test_identified_counts_ranks_up_to_top() -> None:
    first = make_rule(name="top-1", kind="identified", threshold=None, clamp=True)
    tenth = make_rule(name="top-10", kind="identified", threshold=None, clamp=True, top=10)
    assert [first.judge({**NUMBERS, "rank": rank}) for rank in (1, 2)] == [True, False]
    assert [tenth.judge({**NUMBERS, "rank": rank}) for rank in (10, 11)] == [True, False]
    assert not tenth.judge({**NUMBERS, "rank": None})


@given(
    error=st.none() | st.floats(0, 2) | st.just(math.nan),
    baseline=st.none() | st.floats(0, 1) | st.just(math.nan),
    fraction=st.floats(0.01, 1),
)
def test_strict_implies_the_clamped_mse_rule(
    error: float | None, baseline: float | None, fraction: float
) -> None:
    numbers = {**NUMBERS, "mse_clamped": error, "best_baseline_mse": baseline}
    strict = make_rule(name="s", kind="strict", threshold=0.01, clamp=True, fraction=fraction)
    plain = make_rule(name="p", kind="mse", threshold=0.01, clamp=True)
    assert strict.judge(numbers) <= plain.judge(numbers)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "msee"}, "unknown kind 'msee' .did you mean 'mse'"),
        ({"threshold": None}, "threshold must be positive"),
        ({"threshold": 0.0}, "threshold must be positive"),
        ({"threshold": math.nan}, "threshold must be positive"),
        ({"threshold": math.inf}, "threshold must be positive"),
        ({"kind": "identified"}, "has no threshold"),
        ({"kind": "identified", "threshold": None, "clamp": False}, "clamp must be true"),
        ({"kind": "strict", "clamp": False}, "clamp must be true"),
        ({"kind": "identified", "threshold": None, "top": 0}, "top must be"),
        ({"kind": "strict", "fraction": 0.0}, "fraction must be"),
        ({"kind": "strict", "fraction": 1.5}, "fraction must be"),
    ],
)
def test_impossible_rules_are_refused(change: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {"name": "x", "kind": "mse", "threshold": 0.7, "clamp": True}
    with pytest.raises(LeakbenchError, match=text) as caught:
        make_rule(**{**arguments, **change})
    assert "rule 'x'" in str(caught.value)


def test_a_rule_without_what_its_kind_needs_is_refused() -> None:
    with pytest.raises(LeakbenchError, match="rule 'x': strict needs threshold"):
        make_rule(kind="strict", name="x")
    assert make_rule(kind="identified", name="x", fraction=0.5).judge({"rank": 1})


def test_every_kind_is_found_in_its_file() -> None:
    assert list(kinds()) == ["distance", "features", "identified", "mse", "strict"]
    for name, kind in kinds().items():
        assert kind.__module__ == f"leakbench.metrics.rules.{name}"


@pytest.mark.parametrize(
    "rule",
    [
        make_rule(kind="mse", name="a", threshold=0.5),
        make_rule(kind="distance", name="b", threshold=0.5, clamp=False),
        make_rule(kind="strict", name="c", threshold=0.5),
        make_rule(kind="identified", name="d", top=1),
        make_rule(kind="features", name="e", parameters={"share": 0.5}),
    ],
)
def test_many_images_are_judged_as_each(rule: SuccessRule) -> None:
    """All pairs of numbers below, at and above what the rule asks, and of none."""
    numbers = (None, 0.0, 0.124, 0.125, 0.4999, 0.5, 1.0, 2.0)
    table = [dict(zip(rule.reads, pair, strict=False)) for pair in product(numbers, repeat=2)]
    columns = {
        name: np.array([each[name] for each in table], dtype=np.float64) for name in rule.reads
    }
    expected = [rule.judge(each) for each in table]
    assert rule.judge_all(columns).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_every_kind_of_rule_is_tried_on_many_images() -> None:
    assert {*kinds()} == {"mse", "distance", "strict", "identified", "features"}


def test_rules_are_read_without_torch() -> None:
    code = "import sys; from leakbench.metrics import rules; rules.kinds(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "leakbench.metrics.rules.strict" in ran.stdout.split()
    assert "torch" not in ran.stdout.split()


def test_a_rule_that_is_followed_judges_an_iterate_as_it_judges_a_result(
    noisy: Tensor, digits: Tensor
) -> None:
    """Distances are made from the mean squared error and the number of pixels."""
    rules = [
        *(
            make_rule(name="d", kind="distance", threshold=8.0, clamp=clamp)
            for clamp in (True, False)
        ),
        *(make_rule(name="m", kind="mse", threshold=0.08, clamp=clamp) for clamp in (True, False)),
        make_rule(name="s", kind="strict", threshold=0.06, clamp=True, fraction=0.8),
    ]
    noise = noisy - digits
    images = digits + noise * torch.linspace(0.5, 1.5, 100)[:, None, None, None]
    raw, clamped = mse(images, digits), mse(images, digits, clamp=True)
    baselines = digits.double().square().flatten(1).mean(dim=1)
    far = (distance(images, digits), distance(images, digits, clamp=True))
    for rule in rules:
        assert rule.stepwise
        judged = [
            rule.judge(
                {
                    "mse_raw": float(raw[i]),
                    "mse_clamped": float(clamped[i]),
                    "distance_raw": float(far[0][i]),
                    "distance_clamped": float(far[1][i]),
                    "best_baseline_mse": float(baselines[i]),
                }
            )
            for i in range(100)
        ]
        followed = [
            rule.success_at(
                error=float((raw if rule.follows == "raw" else clamped)[i]),
                pixels=784,
                baseline=float(baselines[i]),
            )
            for i in range(100)
        ]
        assert followed == judged
        assert 5 < sum(judged) < 95, rule


def test_a_rule_that_reads_two_kinds_of_error_cannot_be_followed() -> None:
    class Both(kinds()["mse"]):  # type: ignore[misc]
        reads = ("mse_raw", "mse_clamped")

    assert Both(name="both", threshold=1.0).follows is None
    for clamp in (True, False):
        rule = make_rule(name="one", kind="mse", threshold=1.0, clamp=clamp)
        assert rule.follows == ("clamped" if clamp else "raw")


def test_ranks_are_not_followed() -> None:
    rule = make_rule(name="who", kind="identified", top=10)
    assert not rule.stepwise
    with pytest.raises(ValueError, match="identified cannot be followed"):
        rule.success_at(error=0.0, pixels=784, baseline=None)


def test_what_a_record_says_is_judged_by_its_smallest_trivial_baseline() -> None:
    rule = make_rule(name="strict", kind="strict", threshold=0.01)
    record: dict[str, Any] = {
        "status": "ok",
        "mse_clamped": 0.009,
        "baselines": {"start_image": 0.2, "mean_image": 0.065, "class_mean": None},
    }
    assert succeeded(rule, record)
    assert succeeded(rule, {**record, "status": "diverged"})
    assert not succeeded(rule, {**record, "status": "error"})
    # The nearest public image was searched for: it is no trivial guess.
    nearest = {**record["baselines"], "nearest_public": 0.01}
    assert succeeded(rule, {**record, "baselines": nearest})
    assert not succeeded(rule, {**record, "baselines": {**nearest, "class_mean": 0.03}})
    assert not succeeded(rule, {**record, "baselines": {}})


# ---------------------------------------------------------------------------------------------
# One file is enough
# ---------------------------------------------------------------------------------------------

EXAMPLES = dict(
    re.findall(
        r"```python\n# leakbench/metrics/(\S+)\n(.*?)```",
        (Path(__file__).parent.parent / "docs" / "plugins.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
)
"""Files of the documentation."""

SUITE_RULE = """
[[rules]]
name = "alike"
label = "alike"
kind = "at_least"
parameters = { metric = "ssim", least = 0.9 }
"""


@pytest.fixture
def brought_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a metric and one with a rule, searched beside leakbench's own."""
    (tmp_path / "rules").mkdir()
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
    for package, folder in ((metrics, tmp_path), (metrics.rules, tmp_path / "rules")):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    kinds.cache_clear()
    all_metrics.cache_clear()
    yield
    kinds.cache_clear()
    all_metrics.cache_clear()
    sys.modules.pop("leakbench.metrics.worst_pixel", None)
    sys.modules.pop("leakbench.metrics.rules.at_least", None)


@pytest.mark.usefixtures("brought_along")
def test_a_metric_is_one_file(noisy: Tensor, digits: Tensor) -> None:
    compared = Comparison(
        images=noisy, reference=digits, candidates=digits, numbers=torch.arange(100)
    )
    found = all_metrics()["worst_pixel"].function(compared)
    expected = (noisy.double().clamp(0, 1) - digits.double()).abs().flatten(1).numpy().max(axis=1)
    assert isinstance(found, Tensor)
    assert found.numpy() == pytest.approx(expected, rel=1e-12)
    versions = judge_versions()
    assert versions["metric worst_pixel"] == versions["metric mse_raw"] == 1


@pytest.mark.usefixtures("brought_along")
def test_a_rule_is_one_file(tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    text = (Path(__file__).parent.parent / "suites" / "ladder.toml").read_text()
    suite.write_text(text + SUITE_RULE)
    plan = resolve(str(suite))
    assert [rule.name for rule in plan.rules if rule.kind == "at_least"] == ["alike"]
    rule = make_rule(**next(r for r in plan.rules if r.kind == "at_least").judged())
    assert [rule.judge({"ssim": value}) for value in (0.89, 0.9, None)] == [False, True, False]
    assert not rule.stepwise
    assert judge_versions()["rule at_least"] == 1
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    for old, new, words in (
        ("least = 0.9", "last = 0.9", "unknown parameter 'last' (did you mean 'least'?)"),
        ('metric = "ssim", ', "", "at_least needs metric"),
        ('"at_least"', '"at_lest"', "unknown kind; allowed: 'at_least', 'distance'"),
    ):
        suite.write_text(text + SUITE_RULE.replace(old, new))
        with pytest.raises(LeakbenchError, match=re.escape(words)):
            resolve(str(suite))


def test_two_metrics_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_psnr.py").write_text(
        EXAMPLES["worst_pixel.py"].replace("worst_pixel", "psnr")
    )
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])
    all_metrics.cache_clear()
    with pytest.raises(ValueError, match="metric 'psnr' is defined twice"):
        all_metrics()
    sys.modules.pop("leakbench.metrics.other_psnr")


def test_every_metric_and_kind_is_described() -> None:
    """docs/metrics.md lists all of them, with what it says of clamping and of which end is good."""
    text = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    lines = [[part.strip(" `") for part in line.split("|")] for line in text.splitlines()]
    rows = {line[1]: line[2:] for line in lines if len(line) > 3}
    for name, metric in all_metrics().items():
        assert rows[name][1:3] == ["clamped" if metric.clamps else "raw", metric.better], name
    for name, kind in kinds().items():
        own = {field.name for field in dataclasses.fields(kind)} - {"name", "clamp"}
        mentioned = set(re.findall(r"\w+", rows[name][0]))
        assert own - {"threshold"} <= mentioned, name
