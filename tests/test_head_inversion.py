"""Labels and features off the head's gradient, against the features that the network computes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import leakbench as lb
from leakbench import data
from leakbench.attacks.analytic_head import AnalyticHead
from leakbench.captured import CapturedLeak
from leakbench.errors import LeakbenchError
from leakbench.head_inversion import features_of, invert_head
from leakbench.streams import VictimStreams
from leakbench.testing import check_attack
from leakbench.user_models import as_model

DIGITS = data.load("mnist")
STREAMS = VictimStreams(0, ((0,),))


class Body(nn.Sequential):
    """What is before the head."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        )  # fmt: skip


def network(bias: bool = True) -> nn.Sequential:
    """As layers draw it: not sure of anything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(Body(), nn.Linear(144, 10, bias=bias))


def batch(*numbers: int) -> tuple[Tensor, Tensor]:
    return DIGITS.candidates[list(numbers)], DIGITS.candidate_labels[list(numbers)]


def captured(*numbers: int, bias: bool = True, **more: object) -> CapturedLeak:
    return lb.leak(network(bias), *batch(*numbers), observer="type1", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
def test_features_are_those_of_the_network(bias: bool) -> None:
    module = network(bias)
    model, weights = as_model(module, inputs=DIGITS.candidates[:1])
    found = features_of(model, weights, DIGITS.candidates[:40])
    wanted = module[0](DIGITS.candidates[:40]).detach()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_labels_and_features_of_a_batch() -> None:
    """Six classes, one twice: single ones give their feature, two their mean."""
    numbers = (0, 1, 2, 3, 5, 7, 15)  # candidates are in round robin over the classes
    images, labels = batch(*numbers)
    assert sorted(labels.tolist()) == [0, 1, 2, 3, 5, 5, 7]
    found = invert_head(captured(*numbers).seen_by("naive"), STREAMS)
    assert found.labels.tolist() == [[0, 1, 2, 3, 5, 5, 7]]
    features = network()[0](images).detach()
    for place, label in enumerate(found.labels[0].tolist()):
        wanted = features[labels == label].mean(dim=0)
        cosine = torch.cosine_similarity(found.features[0, place], wanted, dim=0)
        length = found.features[0, place].norm() / wanted.norm()
        assert cosine > 0.995 and length == pytest.approx(1, abs=0.1)


def test_one_example_gives_its_own_feature_exactly() -> None:
    """Its row of the gradient is a multiple of it."""
    found = invert_head(captured(4).seen_by("naive"), STREAMS)
    wanted = network()[0](DIGITS.candidates[[4]]).detach()
    assert found.labels.tolist() == [[4]]
    torch.testing.assert_close(found.features[0], wanted, rtol=1e-3, atol=1e-5)


def test_the_table_of_a_head() -> None:
    table = captured(0, 1, 2, 5, 15).head()
    assert table.label.tolist() == [0, 1, 2, 5] and table["count"].tolist() == [1, 1, 1, 2]
    assert (table["count"] == table.count_found).all() and (table.feature_cosine > 0.995).all()


def test_the_image_of_a_list_is_named() -> None:
    """8 of 8 among 1,000, by one forward pass."""
    numbers = (0, 1, 2, 3, 4, 5, 6, 7)
    leak = captured(*numbers, candidates=(DIGITS.candidates, DIGITS.candidate_labels))
    table = lb.attack(leak, "analytic_head").score()
    assert table.strict.all() and table.identified.all() and (table["rank"] == 1).all()
    assert table.evaluations.eq(0).all()


def test_without_a_list_only_labels_leak() -> None:
    result = lb.attack(captured(0, 1, 2, 3), "analytic_head")
    inputs = result["analytic_head"].inputs
    assert inputs is not None and bool((inputs == 0.5).all())
    assert result.score().labels_found.eq(1).all()


def test_a_gradient_that_is_not_finite_gives_nothing() -> None:
    leak = captured(0, 1)
    sent = {k: v * math.nan for k, v in leak.gradients.tensors.items()}
    other = captured(0, 1, sent=sent)
    assert lb.attack(other, "analytic_head").score().status.eq("nan").all()


def test_what_has_no_head_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten())
    leak = lb.leak(module, *batch(0, 1), observer="type1")
    with pytest.raises(LeakbenchError, match="head"):
        leak.head()
    assert lb.attack(leak, "analytic_head").answers[0].reason


def test_the_contract_holds() -> None:
    check_attack(AnalyticHead())
