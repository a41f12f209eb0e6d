"""`lb.audit` end to end: a configuration, a black box, both, an optimiser of Opacus."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakbench as lb
from leakbench.audits.findings import AuditReport, without_pictures
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon

Data = tuple[Tensor, Tensor]
CONFIG = {
    "clip": 1.0, "noise_multiplier": 1.0, "batch_size": 8, "examples": 40, "steps": 20,
    "learning_rate": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Data:
    digits = load("mnist")
    return digits.candidates[:40, :, ::4, ::4].contiguous(), digits.candidate_labels[:40]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 8), nn.Sigmoid(), nn.Linear(8, 10))


def mechanism(std: float, forgotten: str = "") -> Any:
    """Flat clipping to 1, noise on the sum, but not on one tensor."""

    def release(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = torch.cat([value.flatten(1) for value in gradients.values()], dim=1)
        factors = (1 / torch.linalg.vector_norm(flat, dim=1).clamp(min=1e-12)).clamp(max=1)
        return {
            name: torch.tensordot(factors, value, dims=1)
            + (0 if name == forgotten else std) * torch.randn(value.shape[1:])
            for name, value in gradients.items()
        }

    return release


def test_a_configuration_is_accounted_measured_attacked_and_advised_on(
    model: nn.Module, data: Data
) -> None:
    config = lb.DPConfig(**CONFIG)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    report = lb.audit(
        model, data, config, claim=lb.Claim(epsilon=0.1, delta=1e-5), trials=100, victims=3,
        attacks=["candidates"],
    )  # fmt: skip
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())

    seen = {one.observer: one for one in report.observers}
    assert list(seen) == ["model", "server", "type1", "type2"]
    exact = epsilon(config.events(), 1e-5, relation="add_remove").epsilon
    assert seen["model"].epsilon_add_remove == exact
    assert seen["type2"].level == "none" and seen["type2"].ceiling == 1
    assert seen["server"].measured is not None and seen["server"].measured.verdict == "within"
    assert seen["server"].one_look_ceiling < seen["server"].ceiling < 1
    # Nothing but clipping stands before the nearest observer: the list names every victim.
    (attack,) = seen["type2"].panel
    assert attack.matched is not None and attack.matched.count == attack.matched.trials == 3

    assert report.contradicted and report.claims[0].verdict == "contradicted by a proof"
    noise = report.advice[0]
    assert noise.change == "noise_multiplier" and noise.needed is not None
    stronger = lb.DPConfig(**CONFIG | {"noise_multiplier": noise.needed})
    met = epsilon(stronger.events(), 1e-5, relation="add_remove").epsilon
    assert met is not None and met <= 8 and noise.ceiling is not None and noise.ceiling <= 0.25
    assert AuditReport.from_json(report.to_json()) == without_pictures(report)


def test_what_runs_is_held_against_its_configuration(model: nn.Module, data: Data) -> None:
    def audited(code: Any) -> AuditReport:
        return lb.audit(model, data, lb.DPConfig(**CONFIG), mechanism=code, attacks=(), trials=100)

    assert not audited(mechanism(1.0)).contradicted
    assert audited(mechanism(1.0, forgotten="1.bias")).contradicted
    assert audited(mechanism(0.25)).contradicted


def test_a_black_box_alone_is_held_against_the_claim(model: nn.Module, data: Data) -> None:
    claim = lb.Claim(clip=1.0, sensitivity=1.0, noise_std=1.0)
    right = lb.audit(model, data, mechanism(1.0), claim=claim, trials=100)
    wrong = lb.audit(model, data, mechanism(0.0), claim=claim, trials=100)
    assert not right.contradicted and [one.verdict for one in right.claims] == ["not contradicted"]
    assert wrong.contradicted and wrong.claims[-1].verdict == "contradicted by measurement"
    assert wrong.claims[-1].trials == 100  # the first stage
    with pytest.raises(LeakbenchError, match="claim must say clip and noise_std"):
        lb.audit(model, data, mechanism(1.0))


def test_an_optimiser_of_opacus_is_measured_and_left_as_it_is(model: nn.Module, data: Data) -> None:
    opacus = pytest.importorskip("opacus.optimizers")

    class Half(opacus.DPOptimizer):  # type: ignore[misc, name-defined]
        def add_noise(self) -> None:
            std = self.noise_multiplier * self.max_grad_norm / 4
            for p in self.params:
                p.grad = p.summed_grad + std * torch.randn_like(p)

    def audited(kind: Any) -> AuditReport:
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = kind(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
        report = lb.audit(model, data, optimizer, trials=100)
        assert all(p.grad is None for p in model.parameters())
        return report

    assert not audited(opacus.DPOptimizer).contradicted
    assert audited(Half).contradicted


def test_an_optimiser_of_a_large_network_is_measured_on_a_part_of_each_tensor(data: Data) -> None:
    opacus = pytest.importorskip("opacus.optimizers")
    model = nn.Sequential(nn.Flatten(), nn.Linear(49, 5000), nn.ReLU(), nn.Linear(5000, 10))

    class NoneOnTheHead(opacus.DPOptimizer):  # type: ignore[misc, name-defined]
        def add_noise(self) -> None:
            super().add_noise()
            self.params[-1].grad = self.params[-1].summed_grad.clone()

    def audited(kind: Any) -> AuditReport:
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        drawn = torch.Generator().manual_seed(3)
        before = drawn.get_state()
        optimizer = kind(
            inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1, generator=drawn
        )
        report = lb.audit(model, data, optimizer, trials=100)
        assert torch.equal(before, drawn.get_state())
        assert optimizer.params[0] is model[1].weight
        return report

    right, wrong = audited(opacus.DPOptimizer), audited(NoneOnTheHead)
    assert not right.contradicted and wrong.contradicted
    measured = right.observers[0].measured
    assert measured is not None and measured.trials == 100 and measured.mu > 0


def test_epsilon_is_that_of_the_engines_own_accountant(model: nn.Module, data: Data) -> None:
    """Opacus' `prv`, on what its engine has set up and run for two epochs."""
    opacus = pytest.importorskip("opacus")
    own = torch.utils.data.TensorDataset(*data)
    engine = opacus.PrivacyEngine(accountant="prv")
    private, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(own, batch_size=8),
        noise_multiplier=1.1, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(x), y).backward()
            optimizer.step()
    config = lb.DPConfig.from_opacus(engine, optimizer, loader)
    report = lb.audit(private, loader, config, mechanism=optimizer, attacks=(), trials=100)
    found = report.observers[0]
    assert found.observer == "model" and found.epsilon_add_remove is not None
    assert found.epsilon_add_remove == pytest.approx(engine.get_epsilon(1e-5), abs=0.02)
    assert not report.contradicted


def no_noise(gradients: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.sum(dim=0).tolist() for name, value in gradients.items()}


class Picture:
    """As of PIL: no tensor, and torch cannot make one of it."""


REFUSED: dict[str, tuple[Any, str]] = {
    "no mechanism": (lambda m, x, y: lb.audit(m, (x, y), 3), "int is no mechanism; allowed: a DP"),
    "nothing": (lambda m, x, y: lb.audit(m, (x, y), None), "config is None"),
    "two": (lambda m, x, y: lb.audit(m, (x, y), no_noise, mechanism=no_noise), "be a DPConfig"),
    "no clip": (
        lambda m, x, y: lb.audit(m, (x, y), config(clip=math.inf, noise_multiplier=0.0)),
        "clip must be positive and finite",
    ),
    "empty": (lambda m, x, y: lb.audit(m, [], config()), "the data are empty"),
    "no data": (lambda m, x, y: lb.audit(m, None, config()), "data are NoneType; allowed"),
    "inputs alone": (lambda m, x, y: lb.audit(m, x, config()), r"pairs \(inputs, labels\)"),
    "table": (lambda m, x, y: lb.audit(m, {"x": x}, config()), "data are dict; allowed"),
    "no labels": (lambda m, x, y: lb.audit(m, (x, None), config()), "labels are NoneType; allowed"),
    "words": (lambda m, x, y: lb.audit(m, (x, ["a"] * 40), config()), "labels are list; allowed"),
    "pictures": (
        lambda m, x, y: lb.audit(m, [(Picture(), 1), (Picture(), 2)], config()),
        "inputs are Picture; allowed: tensors, or arrays",
    ),
    "ragged": (
        lambda m, x, y: lb.audit(m, [(x, y), (x[..., :3], y)], config()),
        r"inputs of one shape are needed, got \(1, 7, 3\) and \(1, 7, 7\)",
    ),
    "shape": (lambda m, x, y: lb.audit(m, (x[..., :3], y), config()), r"shape \(1, 7, 3\) fail"),
    "labels": (lambda m, x, y: lb.audit(m, (x, y[:9]), config()), r"shape \(40,\).*got \(9,\)"),
    "classes": (lambda m, x, y: lb.audit(m, (x, y + 5), config()), "from 5 to 14; allowed"),
    "fractions": (lambda m, x, y: lb.audit(m, (x, y + 0.5), config()), "labels hold fractions"),
    "bytes": (lambda m, x, y: lb.audit(m, (x.byte(), y), config()), "inputs are torch.uint8"),
    "nan": (lambda m, x, y: lb.audit(m, (x * math.nan, y), config()), "nan or infinity"),
    "no model": (lambda m, x, y: lb.audit(None, (x, y), config()), "give `weights`"),
    "frozen": (
        lambda m, x, y: lb.audit(m.requires_grad_(False), (x, y), config()),
        "no parameter has requires_grad",
    ),
    "weights": (
        lambda m, x, y: lb.audit(m, (x, y), config(), trained={}),
        r"trained\['1.weight'\] must have shape \(8, 49\)",
    ),
    "attack": (
        lambda m, x, y: lb.audit(m, (x, y), config(), attacks=["cplx"]), "unknown attack 'cplx'"
    ),
    "claim": (
        lambda m, x, y: lb.audit(m, (x, y), config(), claim={"epsilon": 8}), "claim is dict"
    ),
    "attacks": (
        lambda m, x, y: lb.audit(m, (x, y), config(), attacks=None), "attacks are NoneType"
    ),
    "target": (
        lambda m, x, y: lb.audit(m, (x, y), config(), target={"epsilon": 8}), "target is dict"
    ),
    "number": (lambda m, x, y: lb.Claim(epsilon="8", delta=1e-5), "claim: epsilon is str; allowed"),
    "no weight": (
        lambda m, x, y: lb.audit(
            m, (x, y), config(), trained={name: None for name, _ in m.named_parameters()}
        ),
        r"trained\['1.weight'\] must have shape \(8, 49\), got None",
    ),
    "optimiser": (
        lambda m, x, y: lb.audit(m, (x, y), torch.optim.SGD(m.parameters(), lr=0.1)),
        "SGD is no mechanism",
    ),
    "seconds": (
        lambda m, x, y: lb.audit(m, (x, y), config(), attack_seconds=-1), "attack_seconds must be"
    ),
    "guessing": (
        lambda m, x, y: lb.audit(m, (x, y), config(), target=lb.Target(identified=0.01)),
        "guessing alone names 1 of 40",
    ),
    "release": (
        lambda m, x, y: lb.audit(m, (x, y), config(), mechanism=no_noise, attacks=()),
        "the release of '1.weight' is list; allowed: a tensor",
    ),
}  # fmt: skip


def config(**changed: Any) -> lb.DPConfig:
    return lb.DPConfig(**CONFIG | changed)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_audited_is_said(case: str, model: nn.Module, data: Data) -> None:
    asked, said = REFUSED[case]
    with pytest.raises(LeakbenchError, match=said) as caught:
        asked(model, *data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "observer", "level"),
    [
        ({"noise_multiplier": 0.0}, "server", "none"),
        ({"batch_size": 1}, "server", "instance"),
        ({"batch_size": 80}, "model", "instance"),
        ({"steps": 0}, "model", "none"),
        (
            {"unit": "client", "noise_on": "update", "sampling": "none", "clients": 5,
             "clients_a_round": 5},
            "type1", "client",
        ),
    ],
)  # fmt: skip
def test_unusual_configurations_are_audited(
    given: dict[str, Any], observer: str, level: str, model: nn.Module, data: Data
) -> None:
    report = lb.audit(
        model.bfloat16(), data, config(**given), trials=100, victims=2, attacks=["candidates"]
    )
    assert {one.observer: one.level for one in report.observers}[observer] == level
    assert any("bfloat16" in line for line in report.warnings)
    assert AuditReport.from_json(report.to_json()) == without_pictures(report)


class Endless(torch.utils.data.IterableDataset[Any]):
    """Has `__getitem__` by its base, and no length."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __iter__(self) -> Any:
        while True:
            yield from zip(*self.data, strict=True)


class Indexed:
    """Ends with an IndexError, as lists do that are iterated by their places."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __getitem__(self, place: int) -> Any:
        return self.data[0][place], self.data[1][place]


@pytest.mark.parametrize(
    "kind", [Endless, Indexed, lambda data: tuple(part.numpy() for part in data)]
)
def test_data_of_every_kind_are_taken(kind: Any, model: nn.Module, data: Data) -> None:
    given = {"trials": 100, "attacks": (), "candidates": 40, "seed": 3}
    expected = lb.audit(model, data, config(), **given)
    found = lb.audit(model, kind(data), config(), **given)
    assert [one.measured for one in found.observers] == [one.measured for one in expected.observers]
    assert found.target == expected.target and found.target["candidates"] == 40


def test_one_logit_with_labels_as_a_column_of_floats(data: Data) -> None:
    x, y = data
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(49, 1))
    report = lb.audit(
        model, (x, (y > 4).float()[:, None]), config(), loss="bce", trials=100, victims=2,
        attacks=["candidates"],
    )  # fmt: skip
    seen = {one.observer: one for one in report.observers}
    assert seen["type2"].panel[0].matched is not None
    assert seen["type2"].panel[0].matched.count == 2


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, None, "[]", '{"schema": 1}', '{"schema": 1, "observers": [3]}'],
    ids=["empty", "deep", "none", "list", "bare", "numbers"],
)
def test_what_is_no_report_is_refused(text: Any) -> None:
    with pytest.raises(LeakbenchError, match=r"^audit report: "):
        AuditReport.from_json(text)
    with pytest.raises(LeakbenchError, match="cannot write: embedded null byte"):
        AuditReport(question="", setting="", config={}, observers=()).save("a\0.json")
