"""A tap changes nothing of a training, and what it records is what was sent."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakbench as lb
from leakbench.data import load
from leakbench.errors import LeakbenchError

DIGITS = load("mnist", None)
X, Y = DIGITS.candidates, DIGITS.candidate_labels
CLIP = 1.0


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Sigmoid(), nn.Linear(24, 10))


def private(
    noise: float, tapped: bool, *, epochs: int = 3, batch: int = 16, **options: Any
) -> tuple[nn.Module, Any, lb.DPConfig]:
    """Epochs of Opacus on 200 digits: user code, but for one line."""
    opacus = pytest.importorskip("opacus")
    model, criterion = network(), nn.CrossEntropyLoss()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(X[:200], Y[:200]), batch_size=batch
    )
    engine = opacus.PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader,
            noise_multiplier=noise, max_grad_norm=CLIP,
        )  # fmt: skip
        config = lb.DPConfig.from_opacus(engine, optimizer, loader, epochs=epochs)
        tap = None
        if tapped:
            tap = lb.tap(optimizer, model=model, criterion=criterion, **options)
        torch.manual_seed(2)
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return model, tap, config


def test_a_tapped_training_is_the_same_bit_for_bit() -> None:
    bare, _, _ = private(1.0, False)
    model, tap, _ = private(1.0, True)
    for one, other in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [one.step for one in tap.releases] == [0, 1, 2, 4, 8, 16, 32]
    assert tap.steps == 3 * 13


def test_what_was_recorded_is_what_moved_the_weights() -> None:
    _, tap, _ = private(1.0, True, epochs=1, steps=range(100))
    velocity: list[Tensor] = [torch.zeros_like(value) for value in tap.releases[0].sent]
    assert len(tap.releases) == 13
    for now, after in zip(tap.releases, tap.releases[1:], strict=False):
        # SGD with momentum by hand: v = .9 v + g, w = w - .5 v.
        velocity = [0.9 * v + g for v, g in zip(velocity, now.sent, strict=True)]
        for old, v, new in zip(now.weights, velocity, after.weights, strict=True):
            torch.testing.assert_close(old - 0.5 * v, new)


def test_without_noise_it_is_the_clipped_mean_of_the_recorded_batch() -> None:
    _, tap, _ = private(0.0, True, epochs=1, steps=(5,))
    (release,) = tap.releases
    module = network()
    with torch.no_grad():
        for own, value in zip(module.parameters(), release.weights, strict=True):
            own.copy_(value)
    total = [torch.zeros_like(value) for value in release.weights]
    for x, y in zip(release.inputs, release.labels, strict=True):
        loss = nn.functional.cross_entropy(module(x[None]), y[None])
        own = torch.autograd.grad(loss, list(module.parameters()))
        norm = torch.cat([value.flatten() for value in own]).norm()
        for place, value in zip(total, own, strict=True):
            place += value * min(1.0, CLIP / (float(norm) + 1e-6))
    # Opacus loads 13 batches of 200 / 13 digits on average, and divides by the whole number below.
    for sent, expected in zip(release.sent, total, strict=True):
        torch.testing.assert_close(sent, expected / int(200 / 13), rtol=1e-4, atol=1e-7)


def test_a_clipped_step_of_one_digit_is_solved_and_a_noisy_one_is_not() -> None:
    for noise, named in ((0.0, True), (20.0, False)):
        model, tap, config = private(noise, True, epochs=1, batch=1, steps=range(12))
        release = next(one for one in tap.releases if len(one.inputs) == 1)
        leak = release.leak(model, defense=config, candidates=(X[:200], Y[:200]))
        assert torch.equal(leak.truth[0, 0], release.inputs[0])
        scores = lb.attack(leak, "candidates").score()
        assert bool(scores["identified"].iloc[0]) is named


def test_a_batch_in_parts_is_one_step() -> None:
    opacus = pytest.importorskip("opacus")
    model = opacus.GradSampleModule(network())  # whose weights stay: the learning rate is 0
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=0.0, max_grad_norm=CLIP, expected_batch_size=8,
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    with lb.tap(optimizer, model=model, criterion=criterion) as tap:
        for last in (False, True):
            part = slice(4, 8) if last else slice(0, 4)
            optimizer.signal_skip_step(do_skip=not last)
            criterion(model(X[part]), Y[part]).backward()
            optimizer.step()
            optimizer.zero_grad()
    (release,) = tap.releases
    assert torch.equal(release.inputs, X[:8]) and torch.equal(release.labels, Y[:8])
    config = lb.DPConfig(clip=CLIP, noise_multiplier=0.0, batch_size=8, examples=8, steps=1)
    leak = release.leak(model, defense=config)
    own = lb.leak(model, X[:8], Y[:8], defense=config, observer="type2_batch")
    for name, value in leak.gradients.tensors.items():
        torch.testing.assert_close(value, own.gradients.tensors[name], rtol=1e-4, atol=1e-7)


def test_any_optimiser_of_torch_and_evaluation_between_steps() -> None:
    model, criterion = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    tap = lb.tap(optimizer, model=model, criterion=criterion, steps=(0,))
    model.eval()
    model(X[50:60])
    model.train()
    with torch.no_grad():
        criterion(model(X[60:70]), Y[60:70])
    criterion(model(X[:1]), Y[:1]).backward()
    optimizer.step()
    tap.detach()
    optimizer.step()
    assert tap.steps == 1
    leak = tap.releases[0].leak(model)
    assert torch.equal(leak.truth[0], X[:1])
    assert lb.attack(leak, "analytic").score()["mse_raw"].iloc[0] < 1e-8


def gradient(release: Any) -> list[Tensor]:
    """Of what was recorded, at the weights that were recorded."""
    model = network()
    with torch.no_grad():
        for own, value in zip(model.parameters(), release.weights, strict=True):
            own.copy_(value)
    loss = nn.functional.cross_entropy(model(release.inputs), release.labels)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def failed(model: nn.Module, loss: Any, optimizer: Any) -> None:
    model(X[50:54])  # and an error before the loss


def left_out(model: nn.Module, loss: Any, optimizer: Any) -> None:
    loss(model(X[50:54]), Y[50:54])  # not finite, say


def thrown_away(model: nn.Module, loss: Any, optimizer: Any) -> None:
    loss(model(X[50:54]), Y[50:54]).backward()
    optimizer.zero_grad(set_to_none=False)


def evaluated(model: nn.Module, loss: Any, optimizer: Any) -> None:
    model.eval()
    loss(model(X[50:54]), Y[50:54])


@pytest.mark.parametrize("before", [failed, left_out, thrown_away, evaluated])
@pytest.mark.parametrize(
    ("kind", "closure"),
    [(torch.optim.SGD, False), (torch.optim.SGD, True), (torch.optim.LBFGS, True)],
)
def test_the_batch_of_a_step_is_that_whose_gradient_is_stepped_with(
    before: Any, closure: bool, kind: Any
) -> None:
    model, criterion = network(), nn.CrossEntropyLoss()
    optimizer = kind(model.parameters(), lr=0.1)
    buffer = torch.empty_like(X[:4])

    def compute() -> Tensor:
        optimizer.zero_grad()
        buffer.copy_(X[:4])
        loss: Tensor = criterion(model(buffer), Y[:4])
        loss.backward()
        buffer.zero_()  # as who reads the next batch into the same memory
        return loss

    with lb.tap(optimizer, model=model, criterion=criterion, steps=range(9)) as tap:
        for _ in range(2):
            before(model, criterion, optimizer)
            if not closure:
                compute()
            optimizer.step(*[compute][: int(closure)])
    assert [release.step for release in tap.releases] == [0, 1]
    for release in tap.releases:
        assert torch.equal(release.inputs, X[:4]) and torch.equal(release.labels, Y[:4])
        for sent, own in zip(release.sent, gradient(release), strict=True):
            torch.testing.assert_close(sent, own)


def test_loss_scaling_that_the_optimiser_undoes_is_undone() -> None:
    model, criterion = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with lb.tap(optimizer, model=model, criterion=criterion) as tap:
        scaler.scale(criterion(model(X[:4]), Y[:4])).backward()
        scaler.step(optimizer)
    for sent, own in zip(tap.releases[0].sent, gradient(tap.releases[0]), strict=True):
        torch.testing.assert_close(sent, own)


class Words(nn.Module):
    """Takes a table, gives one, and has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, sparse=True)

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": self.table(given["words"]).mean(dim=1)}


def test_a_training_of_another_kind_goes_on_and_its_batch_is_not_recorded() -> None:
    model, criterion = Words(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lb.tap(optimizer, model=model, criterion=criterion, steps=range(9)) as tap:
        logits = model({"words": torch.tensor([[1, 2]])})["logits"]
        criterion(logits[0], torch.tensor(1)).backward()  # a label without an axis
        optimizer.step()
    (release,) = tap.releases
    assert release.inputs is None and release.labels is None
    assert release.sent[0].layout == torch.strided and (release.sent[0][1:3] != 0).all()


def test_a_tapped_model_is_copied_and_leaked_and_the_copy_records_nothing() -> None:
    model, criterion = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tap = lb.tap(optimizer, model=model, criterion=criterion, steps=range(9))
    criterion(model(X[:1]), Y[:1]).backward()
    optimizer.step()
    twin = copy.deepcopy(model)
    twin(X[:1]).sum().backward()
    assert torch.equal(tap.releases[0].leak(model).truth[0], X[:1])
    file = io.BytesIO()
    torch.save(model, file)
    assert len(file.getvalue()) < 200_000  # weights, and no recorded batch
    optimizer.zero_grad()
    criterion(model(X[1:2]), Y[1:2]).backward()
    optimizer.step()
    assert torch.equal(tap.releases[1].inputs, X[1:2]) and len(tap.releases) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": 3}, "model is int; allowed: an nn.Module"),
        ({"criterion": nn.functional.cross_entropy}, "criterion is function; allowed"),
        ({"steps": 3}, "steps are 3; allowed: a collection of whole numbers"),
        ({"steps": [-1]}, r"steps are \[-1\]"),
        ({"steps": iter([1])}, "steps are <list_iterator"),
    ],
)
def test_a_refused_tap_leaves_the_optimiser_alone(given: dict[str, Any], said: str) -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(LeakbenchError, match=said):
        lb.tap(optimizer, **given)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_what_cannot_be_tapped_is_refused() -> None:
    with pytest.raises(LeakbenchError, match="Linear is no optimiser"):
        lb.tap(nn.Linear(2, 2))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tap = lb.tap(optimizer)
    optimizer.step()
    with pytest.raises(LeakbenchError, match="batch of step 0 was not recorded"):
        tap.releases[0].leak(model)
    with pytest.raises(LeakbenchError, match="no example was drawn in step 0"):
        tap.releases[0].leak(model, X[:0], Y[:0])
    with pytest.raises(LeakbenchError, match="trained another module"):
        tap.releases[0].leak(network(), X[:1], Y[:1])
    with pytest.raises(LeakbenchError, match="model is int; allowed"):
        tap.releases[0].leak(3, X[:1], Y[:1])  # type: ignore[arg-type]
    with pytest.raises(LeakbenchError, match="weights are recorded; leave them out"):
        tap.releases[0].leak(model, X[:1], Y[:1], weights={})
