"""The federation of the papers: clients who share examples, many of them, logs, stops, inputs."""

import math
import resource
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakbench import data, federated
from leakbench.architectures import build
from leakbench.contracts import Defense, Setting
from leakbench.data.partitions import Drawn, fewest, most_holders
from leakbench.defenses.adaclip import AdaClip
from leakbench.defenses.fed_alpha_cdp import FedAlphaCDP
from leakbench.defenses.fed_cdp import FedCDP, FedCDPDecay
from leakbench.defenses.fed_sdp import FedSDPClient
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.errors import LeakbenchError
from leakbench.federated import Trained, train
from leakbench.preparation import augmented, normaliser_of
from leakbench.sampling import partition, sample
from leakbench.streams import NoiseStreams, generator
from leakbench.training_schedule import Schedule
from leakbench.utility import privacy_of, rounds_within

DIGITS = data.load("mnist")
IMAGES, LABELS = DIGITS.train[:600], DIGITS.train_labels[:600]
SEED, AXES = 11, ("mnist", 0)
MANY = Schedule(
    rounds=2, batch_size=3, learning_rate=0.1, clients=50, clients_a_round=7, local_steps=2,
    overlap=True, examples_a_client=40,
)  # fmt: skip


def trained(defense: Defense, schedule: Schedule, name: str = "mlp", **options: Any) -> Trained:
    model = build(name, (1, 28, 28), 10, "default")
    weights = model.init(generator(3, "weights"), torch.float64)
    named: dict[str, Any] = {"seed": SEED, "noise": NoiseStreams(5, ()), "axes": AXES} | options
    return train(model, weights, IMAGES, LABELS, defense, schedule, **named)


# ------------------------------------------------------------------------------ who holds what


def test_clients_draw_from_all_examples_and_share_them() -> None:
    """N = 1,000 draws of 40 out of 600: an example is held by Binomial(1000, 1/15) clients."""
    shares = partition(LABELS, replace(MANY, clients=1000), SEED, AXES)
    assert isinstance(shares, Drawn) and len(shares) == 1000 and fewest(shares) == 40
    held = Counter(position for client in range(1000) for position in shares[client].tolist())
    assert all(len(set(shares[client].tolist())) == 40 for client in range(50))
    assert sum(held.values()) == 40_000 and len(held) == 600
    mean, std = 1000 / 15, math.sqrt(1000 / 15 * 14 / 15)
    assert all(abs(count - mean) < 6 * std for count in held.values())
    assert most_holders(shares) == max(held.values())


def test_clients_of_two_classes_hold_both_in_equal_parts() -> None:
    shares = partition(LABELS, replace(MANY, partition="shards", clients=200), SEED, AXES)
    pairs = Counter()
    for client in range(200):
        classes = Counter(LABELS[shares[client]].tolist())
        assert sorted(classes.values()) == [20, 20]
        pairs[frozenset(classes)] += 1
    assert len(pairs) > 30  # of 45 pairs of classes
    uneven = partition(
        LABELS, replace(MANY, partition="shards", classes_a_client=3), SEED, AXES
    )  # 40 = 14 + 13 + 13
    assert sorted(Counter(LABELS[uneven[0]].tolist()).values()) == [13, 13, 14]


def test_what_a_class_has_too_few_for_comes_from_further_classes() -> None:
    """As for LFW: 300 images of about 15 people, of whom most have fewer than 20."""
    labels = torch.repeat_interleave(torch.arange(10), torch.tensor([3, 60] * 5))
    wanted = replace(MANY, partition="shards", classes_a_client=4, examples_a_client=40)
    shares = partition(labels, wanted, SEED, AXES)
    numbers = set()
    for client in range(50):
        held = Counter(labels[shares[client]].tolist())
        assert sum(held.values()) == len(set(shares[client].tolist())) == 40
        assert max(held.values()) <= 10 and all(held[few] <= 3 for few in range(0, 10, 2))
        numbers.add(len(held))
    assert 4 in numbers and len(numbers) > 2
    too_many = replace(wanted, classes_a_client=9, examples_a_client=120)
    with pytest.raises(LeakbenchError, match="cannot draw 120 examples of 80"):  # 5 x 3 + 5 x 13
        partition(labels, too_many, SEED, AXES)


def test_a_draw_depends_on_no_other_client_and_is_kept_nowhere() -> None:
    few, many = (
        partition(LABELS, replace(MANY, clients=number), SEED, AXES) for number in (50, 10**6)
    )
    assert all(torch.equal(few[client], many[client]) for client in (0, 7, 49))
    assert not torch.equal(many[0], many[999_999])
    with pytest.raises(IndexError):
        few[50]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"examples_a_client": None}, "examples_a_client"),
        ({"clients": 1, "clients_a_round": 1}, "several clients"),
        ({"partition": "dirichlet"}, "'iid', 'shards'"),
        ({"divisor": "clients_minus_one", "clients_a_round": 1}, "two clients a round"),
        ({"divisor": "clients_minus_one", "aggregation": "fed_averaging"}, "'fed_sgd'"),
        ({"divisor": "none"}, "clients, clients_minus_one"),
        ({"momentum": 1.0}, "momentum"),
        ({"learning_rate_policy": "warm"}, "constant, cosine, linear, step"),
        ({"augment": ("rotate",)}, "crop, flip"),
    ],
)
def test_a_wrong_federation_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        replace(MANY, **changes)


@pytest.mark.parametrize(("partition_", "most"), [("iid", 600), ("shards", None)])
def test_more_than_there_are_cannot_be_drawn(partition_: Any, most: int | None) -> None:
    wanted = replace(MANY, partition=partition_, examples_a_client=601)
    with pytest.raises(LeakbenchError, match=f"allowed .*{most or ''}"):
        partition(LABELS, wanted, SEED, AXES)
    with pytest.raises(LeakbenchError, match="allowed: 1 to 10"):
        partition(LABELS, replace(wanted, partition="shards", classes_a_client=11), SEED, AXES)


# ------------------------------------------------------------------------------ groups of clients


@pytest.mark.parametrize(
    "defense",
    [
        Defense(), FedCDP(convention="sum"), FedAlphaCDP(), FedSDPClient(), QuantileClip(),
        AdaClip(),
    ],
    ids=lambda defense: type(defense).__name__,
)  # fmt: skip
def test_groups_of_clients_change_rounding_only(
    defense: Defense, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client at a time, three at a time or all together."""
    together = trained(defense, MANY, log_at=(1, 2))
    size = sum(v.numel() * v.element_size() for v in together.weights.values())
    for clients in (1, 3):
        monkeypatch.setattr(federated, "GROUP_BYTES", clients * size * MANY.batch_size)
        apart = trained(defense, MANY, log_at=(1, 2))
        for name, value in apart.weights.items():
            torch.testing.assert_close(value, together.weights[name], rtol=1e-9, atol=1e-10)
        for one, other in zip(apart.log, together.log, strict=True):
            assert one.norms == pytest.approx(other.norms, rel=1e-5)
            assert one.update_distance == pytest.approx(other.update_distance, rel=1e-5)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clients() -> None:
    """A round of 500 of 10,000 clients with weights of their own: less than 1 GiB more."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    schedule = replace(MANY, clients=10_000, clients_a_round=500, rounds=1)
    trained(FedCDP(convention="sum"), schedule, "cnn3x3")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # in KiB


# ------------------------------------------------------------------------------ what is promised


def test_an_example_of_several_clients_is_released_on_by_each() -> None:
    weights = {"w": torch.zeros(3)}
    defense = FedCDP(convention="sum")
    setting = Setting(
        batch_size=5, local_steps=10, clients=4, all_clients=20, examples=100, rounds=3
    )
    alone = defense.events(weights, setting)
    for holders, times in ((2, 2), (4, 4), (9, 4)):
        (shared,) = defense.events(weights, replace(setting, holders=holders))
        assert shared.steps == times * alone[0].steps
    client = FedSDPClient()
    assert client.events(weights, replace(setting, holders=9)) == client.events(weights, setting)


def test_shared_examples_are_said() -> None:
    weights = {"w": torch.zeros(3)}
    setting = Setting(batch_size=5, clients=4, all_clients=20, examples=100, rounds=3, holders=2)
    said = privacy_of(FedCDP(convention="sum"), weights, setting, 1e-5)
    assert said["flags"] == ["not_amplified", "shared_examples"]
    assert privacy_of(FedSDPClient(), weights, setting, 1e-5)["flags"] == []


# ------------------------------------------------------------------------------ stops


@pytest.mark.parametrize(
    "defense", [FedSDPClient(noise_multiplier=3.0), FedCDPDecay(convention="sum")]
)
def test_a_budget_lasts_to_the_round(defense: Defense) -> None:
    """One round more would exceed it, by the epsilon that a record of that training says."""
    weights = {name: torch.zeros(2) for name in "ab"}
    setting = Setting(
        batch_size=5, local_steps=4, clients=5, all_clients=50, examples=40, rounds=20
    )
    spent = [privacy_of(defense, weights, setting, 1e-5, n)["epsilon"] for n in range(1, 21)]
    assert spent == sorted(spent)
    above = 1 + 1e-9  # a record has 12 digits
    for budget in (spent[0] * above, spent[6] * above, (spent[11] + spent[12]) / 2, spent[19] + 1):
        found = rounds_within(budget, defense, weights, setting, 1e-5)
        assert found == sum(value <= budget for value in spent)
    with pytest.raises(LeakbenchError, match="one round"):
        rounds_within(spent[0] / 2, defense, weights, setting, 1e-5)


def test_no_promise_no_budget() -> None:
    setting = Setting(batch_size=5, rounds=3)
    with pytest.raises(LeakbenchError, match="l2-max"):
        rounds_within(1.0, FedAlphaCDP(), {"w": torch.zeros(2)}, setting, 1e-5)


def test_training_ends_after_the_round_that_reaches_its_target() -> None:
    shares = iter([0.1, 0.3, 0.2, 0.8, 0.9])
    schedule = replace(MANY, rounds=4)
    done = trained(
        Defense(), schedule, evaluate=lambda _: next(shares), evaluate_at=range(5), target=0.75
    )
    assert done.reached and done.rounds == 3 and done.iterations == 6
    assert [share for _, share in done.curve] == [0.1, 0.3, 0.2, 0.8]
    shorter = trained(Defense(), replace(schedule, rounds=3), total=4)
    for name, value in done.weights.items():
        assert torch.equal(value, shorter.weights[name])
    never = trained(
        Defense(), replace(MANY, rounds=1), evaluate=lambda _: 0.5, evaluate_at=(1,), target=0.75
    )
    assert not never.reached and never.rounds == 1


# ------------------------------------------------------------------------------ the log


def test_the_log_of_a_round_by_hand() -> None:
    """Norms and loss of the first batches, and the updates of Fed-SDP, from plain autograd."""
    schedule = replace(MANY, rounds=1, local_steps=1, clients_a_round=3)
    defense = FedSDPClient(clip=0.05, noise_multiplier=0.0)
    model = build("mlp", (1, 28, 28), 10, "default")
    weights = model.init(generator(3, "weights"), torch.float64)
    (log,) = trained(defense, schedule, log_at=(1,)).log
    shares = partition(LABELS, schedule, SEED, AXES)
    _, (step,) = sample(shares, schedule, SEED, AXES, 0)
    norms, losses, raw, released, moved = [], [], [], [], []
    for row in range(3):
        leaves = {k: v.clone().requires_grad_() for k, v in weights.items()}
        images, labels = IMAGES[step.positions[row]].double(), LABELS[step.positions[row]]
        loss = F.cross_entropy(model.logits(leaves, images), labels)
        losses.append(loss.item())
        update = [-0.1 * g for g in torch.autograd.grad(loss, list(leaves.values()))]
        kept = [u * min(1.0, 0.05 / float(u.norm())) for u in update]
        norms += [float(u.norm()) / 0.1 for u in update]
        whole = [torch.cat([u.flatten() for u in each]) for each in (update, kept)]
        raw.append(float(whole[0].norm()))
        released.append(float(whole[1].norm()))
        moved.append(float((whole[1] - whole[0]).norm()))
    expected = torch.quantile(
        torch.tensor(norms, dtype=torch.float64), torch.linspace(0, 1, 5, dtype=torch.float64)
    )
    assert log.round == 1 and log.loss == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert log.norms == pytest.approx(expected.tolist(), rel=1e-5)
    assert log.update_raw == pytest.approx(sum(raw) / 3, rel=1e-5)
    assert log.update_released == pytest.approx(sum(released) / 3, rel=1e-5)
    assert log.update_distance == pytest.approx(sum(moved) / 3, rel=1e-5)
    assert max(moved) > 0.01


def test_looking_on_changes_nothing() -> None:
    seen, unseen = trained(FedAlphaCDP(), MANY, log_at=(1, 2)), trained(FedAlphaCDP(), MANY)
    assert [each.round for each in seen.log] == [1, 2] and unseen.log == ()
    assert all(torch.equal(v, unseen.weights[k]) for k, v in seen.weights.items())


# ------------------------------------------------------------------------------ inputs


def test_normalised_digits_have_mean_0_and_variance_1() -> None:
    public = DIGITS.public[:100].double()
    found = normaliser_of(public)(public)
    assert found.mean().item() == pytest.approx(0, abs=1e-12)
    assert found.std(correction=0).item() == pytest.approx(1)
    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert normaliser_of(rows)(rows).tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_training_on_normalised_inputs_is_training_on_them() -> None:
    normaliser = normaliser_of(DIGITS.public[:100].double())
    schedule = replace(MANY, normalise=True)
    found = trained(Defense(), schedule, normaliser=normaliser).weights
    model = build("mlp", (1, 28, 28), 10, "default")
    expected = train(
        model, model.init(generator(3, "weights"), torch.float64), normaliser(IMAGES.double()),
        LABELS, Defense(), schedule, seed=SEED, noise=NoiseStreams(5, ()), axes=AXES,
    ).weights  # fmt: skip
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name])


def test_flips_mirror_half_of_the_images() -> None:
    images = DIGITS.train[:200].float()
    found = augmented(images, ("flip",), generator(0, "augment"))
    flipped = [torch.equal(one, other.flip(-1)) for one, other in zip(found, images, strict=True)]
    kept = [torch.equal(one, other) for one, other in zip(found, images, strict=True)]
    assert all(one or other for one, other in zip(flipped, kept, strict=True))
    assert 70 < sum(flipped) < 130


def test_crops_are_windows_of_the_image_with_zeros_around() -> None:
    images = data.load("cifar10").train[:40].float()
    found = augmented(images, ("crop",), generator(0, "augment"))
    seen = set()
    for one, other in zip(found, images, strict=True):
        places = [
            (top, left)
            for top in range(-4, 5)
            for left in range(-4, 5)
            if torch.equal(one, shifted(other, top, left))
        ]
        assert places
        seen.add(places[0])
    assert len(seen) > 15
    with pytest.raises(LeakbenchError, match="images only"):
        augmented(torch.zeros(2, 5), ("flip",), generator(0, "augment"))


def shifted(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved against the window, zeros where nothing is."""
    height, width = image.shape[1:]
    padded = torch.zeros(len(image), 3 * height, 3 * width)
    padded[:, height : 2 * height, width : 2 * width] = image
    top, left = height + down, width + right
    return padded[:, top : top + height, left : left + width]


def test_augmented_clients_do_not_depend_on_each_other() -> None:
    schedule = replace(MANY, augment=("crop", "flip"), rounds=1)
    one, other = trained(Defense(), schedule), trained(Defense(), schedule)
    plain = trained(Defense(), replace(schedule, augment=()))
    assert all(torch.equal(v, other.weights[k]) for k, v in one.weights.items())
    assert not all(torch.equal(v, plain.weights[k]) for k, v in one.weights.items())
