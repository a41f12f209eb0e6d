"""The library as a notebook uses it: leak, attack, score, show; and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor, nn

import leakbench as lb
from leakbench import attacking, data
from leakbench.api import resolved
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.cpl import CPL
from leakbench.breach import ContractBreach
from leakbench.captured import CapturedLeak
from leakbench.capturing import capture_leak
from leakbench.contracts import Attack, Defense, Leak, LeakPoint, Reconstruction, Streams, Watch
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.errors import LeakbenchError
from leakbench.modules import ModuleModel
from leakbench.report.drawing import Sheet

DOC = Path(__file__).resolve().parents[1] / "docs" / "api.md"
DIGITS = data.load("mnist")
X, Y = DIGITS.candidates[:4], DIGITS.candidate_labels[:4]
PUBLIC = (DIGITS.public[:60], DIGITS.public_labels[:60])
CLIPPED = {"name": "dp_baseline", "parameters": {"clip": 0.5, "noise_multiplier": 0.0}}


def dense() -> nn.Sequential:
    """Its first layer is dense, so that closed forms hold."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Sigmoid(), nn.Linear(24, 10))


MODULE = dense()


@pytest.fixture(scope="module")
def leak() -> CapturedLeak:
    return lb.leak(MODULE, X, Y, defense=CLIPPED, public=PUBLIC)


def weights() -> dict[str, Tensor]:
    return {k: v.detach() for k, v in MODULE.named_parameters()}


# ------------------------------------------------------------------------------ the package


def test_importing_the_package_loads_no_torch() -> None:
    code = (
        "import sys, leakbench as lb; names = dir(lb); "
        "assert 'torch' not in sys.modules; "
        "assert set(lb.__all__) <= set(names)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", lb.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(lb, name) is not None


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'leek'"):
        _ = lb.leek  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------ leaks


def test_both_attackers_are_given_the_same_gradients(leak: CapturedLeak) -> None:
    """The very ones that trials make, and views that differ in the replay only."""
    model = ModuleModel(module=MODULE, head="3.weight")
    defense = DPBaseline(clip=0.5, noise_multiplier=0.0)
    rows = torch.arange(4)
    for knowledge in ("naive", "adaptive"):
        wanted = capture_leak(model, X, Y, weights=weights(), defense=defense, knowledge=knowledge)
        view = leak.seen_by(knowledge)
        for name, value in wanted.observed.tensors.items():
            assert torch.equal(view.observed.tensors[name], value)
        one, two = (
            each.observations[0].simulate(X[:, None], Y[:, None], rows).flatten()
            for each in (view, wanted)
        )
        assert torch.equal(one, two)
    assert leak.seen_by("naive").noise_std is None
    assert leak.seen_by("adaptive").noise_std is not None


def test_no_view_holds_the_truth(leak: CapturedLeak) -> None:
    """Neither images nor labels, unless granted."""
    view = leak.seen_by("adaptive")
    assert view.labels is None and view.candidates is None
    assert view.public is not None and torch.equal(view.public, PUBLIC[0])
    assert not any(bool((view.public == image).flatten(1).all(1).any()) for image in X)
    told = lb.leak(MODULE, X, Y, labels_known=True).seen_by("naive")
    assert told.labels is not None and told.labels[:, 0].tolist() == Y.tolist()


def test_an_own_list_of_candidates_does_not_tell_who_is_who(leak: CapturedLeak) -> None:
    view = leak.seen_by("adaptive", ("candidates",))
    assert view.candidates is not None and len(view.candidates) == 64
    places = [int((view.candidates == image).flatten(1).all(1).nonzero()) for image in X]
    assert places != sorted(places) and max(places) > 4


@pytest.mark.parametrize(
    "defense",
    [
        CLIPPED,
        DPBaseline(clip=0.5, noise_multiplier=0.0),
    ],
)
def test_defenses_may_be_given_in_several_ways(defense: Any) -> None:
    assert resolved(defense) == DPBaseline(clip=0.5, noise_multiplier=0.0)


def test_defenses_by_name_class_and_description() -> None:
    class Described:
        def defense(self) -> Defense:
            return DPBaseline(clip=2.0)

    assert resolved("dp_baseline") == resolved(DPBaseline) == DPBaseline()
    assert resolved(Described()) == DPBaseline(clip=2.0)
    assert type(resolved(None)) is Defense
    assert resolved("prune + fed_cdp").name == "prune + fed_cdp"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"defense": "dp_baselin"}, "unknown defense 'dp_baselin' .did you mean 'dp_baseline'"),
        ({"defense": {"name": "dp_baseline", "parameters": {"clipp": 1}}}, "parameter 'clipp'"),
        ({"defense": {"nam": "dp_baseline"}}, "unknown key 'nam'"),
        ({"defense": {"parameters": {}}}, "must have a key 'name'"),
        ({"defense": 3}, "defense: 3 is none; allowed"),
        ({"observer": "type3"}, "unknown observer 'type3'"),
        ({"y": Y + 10}, "y are from 10 to 13; allowed with 10 classes: 0 to 9"),
        ({"y": Y + 0.5}, "y holds fractions"),
        ({"y": Y[:3]}, "do not belong together"),
        ({"x": (X * 255).to(torch.uint8)}, "x is torch.uint8; allowed: floating point"),
        ({"candidates": (X, Y[:2])}, "candidates .4, 1, 28, 28. and labels .2,. do not belong"),
        ({"public": (X, Y + 90)}, "labels of public are from 90"),
        ({"weights": {"1.weight": torch.ones(24, 784)}}, "weights are missing '1.bias'"),
        ({"model": ModuleModel(module=MODULE, head=None)}, "a Model holds no weights"),
        ({"mode": "training"}, "unknown mode 'training'"),
    ],
)
def test_a_leak_that_cannot_be_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"model": MODULE, "x": X, "y": Y} | changes
    with pytest.raises(LeakbenchError, match=said) as caught:
        lb.leak(given.pop("model"), given.pop("x"), given.pop("y"), **given)
    assert "\n" not in str(caught.value)


def test_clients_and_steps() -> None:
    """Two clients with two steps of one example: updates by hand."""
    rate = 0.5
    leak = lb.leak(
        MODULE, X.unflatten(0, (2, 2)), Y.unflatten(0, (2, 2)), observer="type1",
        local_steps=2, learning_rate=rate,
    )  # fmt: skip
    assert (leak.n, leak.batch_size, leak.point) == (2, 2, LeakPoint(type=1))
    for client in range(2):
        local = dense()
        for step in range(2):
            row = slice(2 * client + step, 2 * client + step + 1)
            loss = nn.functional.cross_entropy(local(X[row]), Y[row])
            slopes = torch.autograd.grad(loss, list(local.parameters()))
            with torch.no_grad():
                for value, slope in zip(local.parameters(), slopes, strict=True):
                    value -= rate * slope
        for name, after in local.named_parameters():
            wanted = (dict(MODULE.named_parameters())[name] - after) / (2 * rate)
            torch.testing.assert_close(leak.gradients.tensors[name][client], wanted.detach())


def test_what_was_really_sent_is_what_is_attacked() -> None:
    """Gradients that a training of one's own recorded."""
    loss = nn.functional.cross_entropy(MODULE(X[:1]), Y[:1])
    sent = dict(zip(weights(), torch.autograd.grad(loss, list(MODULE.parameters())), strict=True))
    leak = lb.leak(MODULE, X[:1], Y[:1], sent={k: v[None] for k, v in sent.items()})
    assert torch.equal(leak.gradients.tensors["1.weight"][0], sent["1.weight"])
    assert lb.attack(leak, "analytic").score(candidates=PUBLIC).strict.all()
    twice = {k: 2 * v[None] for k, v in sent.items()}
    other = lb.leak(MODULE, X[:1], Y[:1], sent=twice)
    assert torch.equal(other.gradients.tensors["1.weight"][0], 2 * sent["1.weight"])
    with pytest.raises(LeakbenchError, match=r"has no parameter '1\.bias'"):
        lb.leak(MODULE, X[:1], Y[:1], sent={k: v for k, v in twice.items() if k != "1.bias"})


def test_several_weights_are_looks() -> None:
    second = {k: 1.1 * v for k, v in weights().items()}
    leak = lb.leak(MODULE, X, Y, weights=[weights(), second])
    assert len(leak.seen_by("naive").observations) == 2
    torch.testing.assert_close(
        leak.seen_by("naive").observations[1].weights["1.bias"], second["1.bias"]
    )


# ------------------------------------------------------------------------------ attacks


def test_attacks_by_name_class_and_object(leak: CapturedLeak) -> None:
    made = attacking.made(["analytic", Analytic, Analytic(), "cpl"], {})
    assert [each.name for each in made] == ["analytic", "analytic", "analytic", "cpl"]
    (one,) = attacking.made("cpl", {"restarts": 4})
    assert one == CPL(restarts=4)
    assert attacking.made(CPL(steps=3), {"restarts": 4}) == [CPL(steps=3, restarts=4)]
    assert attacking.made({"cpl": {"steps": 2}, "analytic": {}}, {}) == [CPL(steps=2), Analytic()]


@pytest.mark.parametrize(
    ("attacks", "parameters", "said"),
    [
        ("cpll", {}, "unknown attack 'cpll' .did you mean 'cpl'"),
        ("cpl", {"restart": 4}, "unknown parameter 'restart' .did you mean 'restarts'"),
        ("cpl", {"restarts": 0}, "restarts must be at least 1"),
        (["cpl", "dlg"], {"restarts": 4}, "parameters of several attacks"),
        ([], {}, "none is named"),
        (Defense, {}, "is none; allowed: a name, a class or an object"),
        ("cpl", {"knowledge": "adaptiv"}, "unknown knowledge 'adaptiv'"),
        ("cpl", {"seconds": 0}, "seconds must be in .0, inf., got 0"),
        ("cpl", {"seconds": "1"}, "seconds must be in .0, inf., got '1'"),
        (3, {}, "attack: 3 is none; allowed: a name"),
        ([["cpl"]], {}, "is none; allowed: a name"),
        (Attack, {}, "Attack'> is none; allowed: a name"),
        ({"cpl": 3}, {}, "parameters are int; allowed: a mapping"),
    ],
)
def test_an_attack_that_cannot_be_is_one_sentence(
    leak: CapturedLeak, attacks: Any, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(LeakbenchError, match=said):
        lb.attack(leak, attacks, **parameters)


def test_clipping_protects_from_the_naive_only() -> None:
    """Whole gradients are clipped, so that matching lengths misleads who ignores it."""
    leak = lb.leak(MODULE, X[:2], Y[:2], defense=CLIPPED)
    errors = {
        knowledge: lb.attack(leak, "cpl", knowledge=knowledge, steps=14, line_search=True)
        .score()["mse_clamped"]
        .max()
        for knowledge in ("naive", "adaptive")
    }
    assert errors["adaptive"] < 1e-3 < errors["naive"]


def test_the_seed_names_the_starts() -> None:
    found = [
        lb.attack(lb.leak(MODULE, X[:1], Y[:1], seed=seed), "gradinv", steps=1)["gradinv"].start
        for seed in (0, 0, 1)
    ]
    assert found[0] is not None and found[2] is not None
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_what_does_not_suit_is_a_row_and_a_note(leak: CapturedLeak) -> None:
    batch = lb.leak(MODULE, X, Y, observer="type1")
    result = lb.attack(batch, ["analytic", "candidates"])
    assert any("analytic did not run: batch_size must be 1" in note for note in result.notes)
    table = result.score()
    assert table.status.tolist() == ["skipped"] * 4 + ["ok"] * 4
    assert table[table.attack == "candidates"].mse_raw.eq(0).all()
    assert "4 victims' own examples and 0 public" in " ".join(result.notes)
    with pytest.raises(LeakbenchError, match="unknown attack 'cpl'"):
        _ = result["cpl"]


def test_a_time_limit_cuts_steps_and_says_so() -> None:
    leak = lb.leak(MODULE, X[:1], Y[:1])
    result = lb.attack(leak, "gradinv", seconds=0.5)
    ran = result["gradinv"].attack
    assert 1 <= ran.steps < 24000  # type: ignore[attr-defined]
    assert f"steps 24000 -> {ran.steps}" in result.notes[-1]  # type: ignore[attr-defined]
    assert "cut" in result.score()["flags"][0]
    free = lb.attack(leak, "gradinv", seconds=1e9, steps=4)
    assert free["gradinv"].attack.steps == 4 and not free.notes  # type: ignore[attr-defined]
    assert "cut" not in free.score()["flags"][0]


def test_progress_is_shown_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leak = lb.leak(MODULE, X[:1], Y[:1])
    lb.attack(leak, "gradinv", steps=3)
    assert capsys.readouterr().out == ""
    lb.attack(leak, "gradinv", steps=3, progress=True)
    assert "gradinv" in capsys.readouterr().out


@dataclass(frozen=True, kw_only=True)
class Broken(Attack):
    """Returns labels that are no classes."""

    name: ClassVar[str] = "broken"

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        nothing = torch.zeros(leak.n, dtype=leak.dtype)
        none = torch.zeros(leak.n, dtype=torch.int64)
        inputs = torch.zeros(leak.n, 1, *leak.input_shape)
        return Reconstruction(
            inputs=inputs, labels=none[:, None] + 99, loss=nothing, start_inputs=inputs,
            start_loss=nothing, steps=none, evaluations=none, status=("steps",) * leak.n,
        )  # fmt: skip


def test_an_attack_of_ones_own_is_held_to_its_contract(leak: CapturedLeak) -> None:
    with pytest.raises(LeakbenchError, match="'broken': labels must be from 0 to 9"):
        lb.attack(leak, Broken())
    with pytest.raises(ContractBreach):
        lb.check_attack(Broken)
    lb.check_attack(Analytic)


@dataclass(frozen=True, kw_only=True)
class Undeclared(Defense):
    """Promises what it cannot keep: a name that no defense may lack."""

    clip: float = 1.0


def test_a_defense_of_ones_own_is_checked() -> None:
    with pytest.raises((ContractBreach, AttributeError)):
        lb.check_defense(Undeclared)


# ------------------------------------------------------------------------------ scores


@pytest.fixture(scope="module")
def scored(leak: CapturedLeak) -> Iterator[pandas.DataFrame]:
    result = lb.attack(leak, {"analytic": {}, "gradinv": {"steps": 30}})
    yield result.score()


def test_metrics_are_those_of_other_libraries(leak: CapturedLeak, scored: pandas.DataFrame) -> None:
    """Error and similarity by scikit-image, rank and baselines by counting."""
    found = lb.attack(leak, "gradinv", steps=30)["gradinv"].inputs
    assert found is not None
    table = scored[scored.attack == "gradinv"].reset_index()
    others = [image.double() for image in PUBLIC[0]]
    for row in range(4):
        image, truth = found[row, 0].double(), X[row].double()
        error = float((image - truth).square().mean())
        assert table.mse_raw[row] == pytest.approx(error, rel=1e-6)
        clamped = image.clamp(0, 1)
        assert table.psnr[row] == pytest.approx(
            peak_signal_noise_ratio(truth.numpy(), clamped.numpy(), data_range=1.0), rel=1e-6
        )
        similar = structural_similarity(
            truth[0].numpy(), clamped[0].numpy(), data_range=1.0, gaussian_weights=True,
            sigma=1.5, use_sample_covariance=False,
        )  # fmt: skip
        assert table.ssim[row] == pytest.approx(similar, abs=0.02)
        own = float((clamped - truth).square().sum())
        rivals = [*others, *(X[k].double() for k in range(4) if k != row)]
        nearer = sum(float((clamped - rival).square().sum()) <= own for rival in rivals)
        assert table["rank"][row] == 1 + nearer
        assert table.identified[row] == (nearer == 0)
        mean = torch.stack(others).mean(dim=0)
        assert table["baselines.mean_image"][row] == pytest.approx(
            float((mean - truth).square().mean()), rel=1e-5
        )
        nearest = min(float((each - truth).square().mean()) for each in others)
        assert table["baselines.nearest_public"][row] == pytest.approx(nearest, rel=1e-5)
        same = [each for each, label in zip(others, PUBLIC[1], strict=True) if label == Y[row]]
        of_class = torch.stack(same).mean(dim=0)
        assert table["baselines.class_mean"][row] == pytest.approx(
            float((of_class - truth).square().mean()), rel=1e-5
        )


def test_the_columns_are_those_of_a_report(scored: pandas.DataFrame) -> None:
    from leakbench.metrics.registry import all_metrics

    wanted = {
        "attack", "knowledge", "batch", "victim", "status", "reason", "ended", "steps",
        "evaluations", "loss", "loss_start", "loss_true", "blame", "label", "label_guess",
        "labels_found", "flags", "strict", "identified", "baselines.start_image",
    } | set(all_metrics())  # fmt: skip
    assert wanted <= set(scored.columns) and len(scored) == 8


def test_scores_may_be_of_other_examples(leak: CapturedLeak) -> None:
    result = lb.attack(leak, "analytic")
    moved = result.score(X.flip(0))
    assert (moved.mse_raw > 0.01).all()
    assert result.score(X).equals(result.score())
    with pytest.raises(LeakbenchError, match="not of the shape of what leaked"):
        result.score(X[:3])
    with pytest.raises(LeakbenchError, match=r"candidates \(5, 3\)"):
        result.score(candidates=torch.zeros(5, 3))


def test_without_others_there_is_no_rank() -> None:
    table = lb.attack(lb.leak(MODULE, X, Y), "analytic").score()
    assert table["rank"].isna().all() and table.identified.isna().all()
    assert not table.strict.any()  # nothing to beat: no baseline
    assert lb.attack(lb.leak(MODULE, X, Y), "analytic").score(candidates=PUBLIC).strict.all()


def test_a_batch_is_paired_with_what_is_nearest() -> None:
    """Candidates come back in the list's order; each is compared with its own."""
    leak = lb.leak(MODULE, X, Y, observer="type2_batch", public=PUBLIC)
    table = lb.attack(leak, "candidates").score()
    assert table.mse_raw.eq(0).all() and (table.label_guess == table.label).all()


def test_a_table_row_is_scored() -> None:
    rows = data.load("breast_cancer")
    module = nn.Sequential(nn.Linear(rows.input_shape[0], 16), nn.ReLU(), nn.Linear(16, 1))
    leak = lb.leak(
        module, rows.candidates[:3], rows.candidate_labels[:3], loss="bce",
        public=(rows.public[:50], rows.public_labels[:50]),
    )  # fmt: skip
    result = lb.attack(leak, "analytic")
    assert result.score().strict.any() and result.score().ssim.isna().all()
    assert isinstance(result.show(), Sheet)


def test_the_gallery_is_a_figure(leak: CapturedLeak) -> None:
    result = lb.attack(leak, ["analytic", "candidates"])
    sheet = result.show(most=2)
    assert isinstance(sheet, Sheet) and sheet._repr_png_()[:4] == b"\x89PNG"
    texts = [text.get_text() for text in sheet.texts]
    assert "original" in texts and "analytic" in texts and "candidates" in texts
    assert sum(text.startswith("no. ") for text in texts) == 2


def test_what_a_notebook_shows_is_short(leak: CapturedLeak) -> None:
    assert "4 gradients at type2/example" in repr(leak)
    shown = repr(lb.attack(leak, "analytic"))
    assert "analytic, adaptive: 4 converged" in shown and len(shown) < 400


# ------------------------------------------------------------------------------ large networks


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network is a large one, and attacks may take two seconds."""
    monkeypatch.setattr("leakbench.weights.LARGE", 0)
    monkeypatch.setattr(attacking, "LARGE_SECONDS", 2.0)


@pytest.mark.usefixtures("large")
def test_attacks_on_large_networks_end_in_time_or_say_why() -> None:
    """Steps are cut, the own list too; a list that is given is refused or run, never cut."""
    batch = lb.leak(MODULE, X, Y, observer="type1", public=(DIGITS.public, DIGITS.public_labels))
    result = lb.attack(batch, ["candidates", "analytic_head", "gradinv"])
    assert [each.reason for each in result.answers] == ["", "", ""]
    assert "gradinv was cut to fit into 2 seconds: steps 24000 ->" in " ".join(result.notes)
    table = result.score()
    assert table[table.attack == "candidates"].mse_raw.eq(0).all()
    assert table[table.attack == "analytic_head"].labels_found.eq(1).all()
    given = lb.leak(
        MODULE, X, Y, observer="type1",
        candidates=(DIGITS.candidates, DIGITS.candidate_labels),
    )  # fmt: skip
    (answer,) = lb.attack(given, "candidates", seconds=0.01).answers
    assert answer.reason.startswith("1000 candidates would take") and answer.result is None
    (answer,) = lb.attack(given, "candidates", seconds=1e6).answers
    assert answer.reason == ""


def test_an_attack_that_refuses_is_a_row() -> None:
    """Labels of a batch cannot be read off under this loss; another attack goes on."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 1))
    leak = lb.leak(module, X, Y % 2, loss="bce", observer="type1")
    result = lb.attack(leak, ["gradinv", "candidates"])
    assert result["gradinv"].reason and "cross_entropy" in result["gradinv"].reason
    assert result.score().status.tolist() == ["skipped"] * 4 + ["ok"] * 4


def test_the_example_of_the_documentation_runs() -> None:
    codes = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    assert len(codes) == 2
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        for code in codes:
            torch.manual_seed(0)
            exec(code, names)
            if "figure" in code:
                table = names["table"]
    # The second is of rows.
    assert names["right"].mean() >= 0.9
    assert table[table.attack == "analytic"].strict.all() and isinstance(names["figure"], Sheet)


def test_what_is_no_leak_is_not_attacked(leak: CapturedLeak) -> None:
    with pytest.raises(LeakbenchError, match="Leak is no captured leak; allowed: what `leak`"):
        lb.attack(leak.views["naive"], "analytic")  # type: ignore[arg-type]


def test_names_may_come_from_anything_that_lists_them() -> None:
    assert attacking.made((name for name in ["cpl"]), {"steps": 2}) == [CPL(steps=2)]  # type: ignore[arg-type]


def test_no_limit_at_all_lets_an_attack_run() -> None:
    """Infinitely many seconds, as the documentation has it for large networks."""
    leak = lb.leak(MODULE, X[:1], Y[:1])
    result = lb.attack(leak, "cpl", steps=2, seconds=float("inf"))
    assert (result["cpl"].attack, result.notes) == (CPL(steps=2), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Falling(Attack):
    """Divides by zero."""

    name: ClassVar[str] = "falling"

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        raise ZeroDivisionError("not\ntoday")


def test_an_attack_that_fails_is_named(leak: CapturedLeak) -> None:
    with pytest.raises(LeakbenchError, match=r"attack 'falling': fails: .* not today"):
        lb.attack(leak, Falling())
    for plugin in (Falling, Falling()):
        with pytest.raises(ContractBreach, match="Falling fails: ZeroDivisionError: not today"):
            lb.check_attack(plugin)
    with pytest.raises(ContractBreach, match="Attack fails: TypeError"):
        lb.check_attack(Attack)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": X * float("nan")}, "x holds nan"),
        ({"x": "digits"}, "x is str and no tensor"),
        ({"candidates": (PUBLIC[0], PUBLIC[1][:3])}, "labels .3,. do not belong together"),
        ({"candidates": (PUBLIC[0] * 255).to(torch.uint8)}, "candidates is torch.uint8"),
        ({"candidates": PUBLIC[0][:, :, :9]}, "allowed: .N, 1, 28, 28."),
        ({"candidates": (PUBLIC[0],)}, "allowed: inputs, or .inputs, labels."),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(given: dict[str, Any], said: str) -> None:
    result = lb.attack(lb.leak(MODULE, X, Y), "analytic")
    with pytest.raises(LeakbenchError, match=said):
        result.score(**given)
    with pytest.raises(LeakbenchError, match="most must be at least 1, got 0"):
        result.show(most=0)
    arrays = result.score(X.numpy(), [part.numpy() for part in PUBLIC])  # type: ignore[arg-type]
    assert arrays.drop(columns="seconds").equals(result.score(X, PUBLIC).drop(columns="seconds"))
