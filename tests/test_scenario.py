"""`leakbench audit`: scenario files read, audited, and refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from leakbench.audits import scenario
from leakbench.audits.findings import AuditReport
from leakbench.commands.application import app
from leakbench.errors import LeakbenchError

SHIPPED = Path(__file__).parents[1] / "docs" / "scenarios"
NETWORK = """
schema = 1
[model]
name = "mlp"
parameters = { widths = [4] }
[data]
dataset = "mnist"
[dp]
clip = 1.0
noise_multiplier = 2.0
batch_size = 8
examples = 40
steps = 10
learning_rate = 0.1
[claim]
epsilon = 8.0
delta = 1e-5
[target]
epsilon = 1.0
identified = 0.5
[audit]
candidates = 40
victims = 2
attacks = ["candidates"]
trials = 200
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def test_the_public_case_is_contradicted_with_both_epsilons(tmp_path: Path) -> None:
    """Noise of 4.845e-5 on an update clipped to 1, said to give epsilon 10."""
    result = CliRunner().invoke(
        app, ["audit", str(SHIPPED / "local_dp.toml"), "--out", str(tmp_path / "new" / "out")]
    )
    assert result.exit_code == 1, result.output
    assert "Claimed: 10." in result.output and "2.13e+08" in result.output
    assert result.stdout.count(": contradicted by a proof**") == 2
    assert (tmp_path / "new" / "out" / "report.md").read_text() == result.stdout
    assert "contradicted by a proof" in (tmp_path / "new" / "out" / "page.html").read_text()
    saved = AuditReport.from_json((tmp_path / "new" / "out" / "report.json").read_text())
    assert saved.contradicted and saved.observers == () and saved.target == {}


def test_a_network_is_audited_and_a_true_claim_ends_with_0(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(written(tmp_path, NETWORK))])
    assert result.exit_code == 0, result.output
    assert "of 10 releases: holds" in result.output
    assert not (tmp_path / "report.json").exists()  # nothing is written without --out


def test_weights_come_from_state_dicts(tmp_path: Path) -> None:
    plain = scenario.run(written(tmp_path, NETWORK))
    table = 'name = "mlp"\nfirst = "first.pt"\ntrained = "last.pt"\n'
    text = NETWORK.replace('name = "mlp"\n', table)
    from leakbench import architectures, data

    mnist = data.load("mnist")
    model = architectures.build("mlp", mnist.input_shape, mnist.classes, "default", {"widths": [4]})
    weights = model.init(torch.Generator().manual_seed(1), torch.float32)
    torch.save(dict(weights), tmp_path / "first.pt")
    with pytest.raises(LeakbenchError, match=r"\[model\]: .*last.pt: No such file"):
        scenario.run(written(tmp_path, text))
    torch.save({name: 2 * value for name, value in weights.items()}, tmp_path / "last.pt")
    found = scenario.run(written(tmp_path, text))
    server = {one.observer: one for one in found.observers}["server"]
    assert {attack.checkpoint for attack in server.panel} == {"first", "last"}
    assert not any("last checkpoint" in line for line in found.not_tried)
    assert any("last checkpoint" in line for line in plain.not_tried)
    torch.save({name: value[:1] for name, value in weights.items()}, tmp_path / "last.pt")
    with pytest.raises(LeakbenchError, match="must have shape"):
        scenario.run(written(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("schema = 1", "schema = 2"), "key schema: input should be 1, got 2"),
        (("clip = 1.0", "clips = 1.0"), r"\[dp\]: unknown parameter 'clips'.*clip"),
        (("clip = 1.0", 'clip = "one"'), r"\[dp\]: key clip"),
        (("epsilon = 8.0\n", "epsilon = 8.0\nobserver = 'me'\n"), r"\[claim\]: key observer"),
        (("delta = 1e-5", ""), r"\[claim\].*delta"),
        (("identified = 0.5", "identified = 2.0"), r"\[target\]: .*identified must be in"),
        (("victims = 2", "victims = 0"), "key audit.victims"),
        (('dataset = "mnist"', 'dataset = "./nothing"'), r"\[data\]: .*is not there"),
        (('name = "mlp"', 'name = "mlq"'), r"\[model\]: unknown model 'mlq'.*mlp"),
        (('[data]\ndataset = "mnist"\n', ""), "key data: missing"),
        (("schema = 1", "schema = 1\nschema = 1"), "not valid TOML"),
        (("clip = 1.0", "clip = 2020-01-01"), r"\[dp\]: key clip: date is not allowed; allowed: n"),
        (('"mnist"', '"mnist"\nsize = 8'), r"\[data\]: size and seed belong to a path; 'mnist'"),
        (('"mlp"', '"mlp"\nfirst = "."'), r"\[model\]: .*: Is a directory"),
    ],
)
def test_mistakes_are_said_with_their_place(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    assert change[0] in NETWORK
    path = written(tmp_path, NETWORK.replace(*change))
    with pytest.raises(LeakbenchError, match=said) as caught:
        scenario.run(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


class Code:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("this ran",)


def test_weights_with_code_in_them_are_refused_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Code(), tmp_path / "first.pt")
    path = written(tmp_path, NETWORK.replace('"mlp"', '"mlp"\nfirst = "first.pt"'))
    with pytest.raises(LeakbenchError) as caught:
        scenario.run(path)
    said = "first.pt: no state dict; allowed: tensors by name, and no other objects"
    assert str(caught.value).endswith(said)
    assert "ran" not in capsys.readouterr().out


def test_nothing_to_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakbenchError, match=r"nothing to audit; give \[claim\]"):
        scenario.run(written(tmp_path, "schema = 1\n"))
    with pytest.raises(LeakbenchError, match=r"^scenario .*No such file"):
        scenario.run(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_scenarios_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(scenario, "audit", lambda *_, **given: asked.append(given))
    monkeypatch.setattr(scenario, "audit_claim", lambda claim, _: asked.append(claim))
    scenario.run(path)
    assert len(asked) == 1
