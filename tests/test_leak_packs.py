"""Leak packs: what is in them and what is not, answers of strangers, scores."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from skimage.metrics import peak_signal_noise_ratio

from leakbench import architectures, registry
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.leaderboard import leaks, making, packs, scores, scoring
from leakbench.leaderboard.files import Arrays
from leakbench.leaderboard.layers import layers_of
from leakbench.leaderboard.reference import PackedNetwork
from leakbench.suite import resolve

SUITE = Path(__file__).with_name("leak_pack.toml")
DOCS = Path(__file__).parent.parent / "docs" / "leaderboards.md"


def made(folder: Path, settings: list[str] | None = None) -> Path:
    plan = resolve(str(SUITE), "quick", settings=settings or [])
    making.make(plan, folder / "pack", folder / "answers.npz")
    return folder


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack, its answers, and the submission of the documentation's example."""
    folder = made(tmp_path_factory.mktemp("game"))
    (folder / "submission").mkdir()
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(block, {})
    return folder


@pytest.fixture
def submission(game: Path, tmp_path: Path) -> Path:
    """A copy of that submission, to be spoilt."""
    return Path(shutil.copytree(game / "submission", tmp_path / "submission"))


def truth(game: Path) -> Mapping[str, np.ndarray]:
    with np.load(game / "answers.npz") as archive:
        return dict(archive)


# ------------------------------------------------------------------------------ what is in it


def test_gradients_are_those_of_the_originals(game: Path) -> None:
    opened, answers = packs.read(game / "pack"), truth(game)
    for leak in opened.pack.leaks:
        network = opened.pack.network(leak.looks[0].network)
        assert network.layers is not None
        weights = {
            each.name: torch.from_numpy(opened.arrays.load(f"weights/{network.id}/{each.name}"))
            for each in network.weights
        }
        module = PackedNetwork(network.layers, weights, {})
        for victim in range(leak.victims):
            inputs = torch.from_numpy(answers[f"inputs/{leak.id}"][victim])
            labels = torch.from_numpy(answers[f"labels/{leak.id}"][victim])
            loss = functional.cross_entropy(module(inputs), labels)
            wanted = torch.autograd.grad(loss, list(module.parameters()))
            for each, gradient in zip(network.weights, wanted, strict=True):
                seen = opened.arrays.load(f"gradients/{leak.id}/{each.name}")[victim]
                if leak.defense.name == "none":
                    np.testing.assert_allclose(seen, gradient, rtol=1e-4, atol=1e-6)
                elif gradient.numel() > 1000:
                    clipped = gradient / max(1.0, float(gradient.norm()))
                    noise = seen - clipped.numpy()
                    assert leak.defense.noise_std is not None
                    assert leak.defense.noise_std[each.name] == pytest.approx(1.0)
                    assert noise.std() == pytest.approx(1.0, rel=0.05)


def test_nothing_in_a_pack_gives_the_victims_away(game: Path, tmp_path: Path) -> None:
    opened, answers = packs.read(game / "pack"), truth(game)
    numbers = [answers[f"numbers/{leak.id}"].flatten() for leak in opened.pack.leaks]
    together = np.concatenate(numbers)
    assert len(set(together.tolist())) == together.size == 2 * 2 * 3
    assert set(together.tolist()) != set(range(together.size))  # the suite's own
    images = load("mnist").candidates.flatten(1).numpy()
    listed = {image.tobytes() for image in images}
    with np.load(game / "pack" / "leaks.npz") as archive:
        assert not any(name.startswith(("inputs", "numbers")) for name in archive)
        for name in archive:
            rows = archive[name].reshape(len(archive[name]), -1)
            assert not listed & {row.astype(np.float32).tobytes() for row in rows}, name
    assert {path.name for path in (game / "pack").iterdir()} == {
        "pack.json", "leaks.npz", "network.py",
    }  # fmt: skip
    text = (game / "pack" / "pack.json").read_text()
    assert "seed" not in text and "nonce" not in text
    other = made(tmp_path)
    assert packs.read(other / "pack").pack.checksum != opened.pack.checksum
    again = np.concatenate([truth(other)[f"numbers/{leak.id}"] for leak in opened.pack.leaks])
    assert set(again.flatten().tolist()) != set(together.tolist())


def test_two_leaks_share_no_noise(game: Path) -> None:
    opened, answers = packs.read(game / "pack"), truth(game)
    noise = []
    for leak in opened.pack.leaks:
        if leak.defense.name == "none":
            continue
        view = leaks.leak_of(opened, leak)
        inputs = torch.from_numpy(answers[f"inputs/{leak.id}"])
        labels = torch.from_numpy(answers[f"labels/{leak.id}"])
        replayed = view.observations[0].simulate(inputs, labels, torch.arange(leak.victims))
        noise.append((view.observed.flatten() - replayed.flatten()).detach())
    draws = torch.cat(noise)
    assert len(draws) == 2 * 3
    angles = torch.corrcoef(draws) - torch.eye(len(draws))
    assert draws.std() == pytest.approx(1.0, rel=0.02)
    assert angles.abs().max() < 0.05


def test_answers_are_for_their_owner_only(game: Path) -> None:
    assert (game / "answers.npz").stat().st_mode & 0o777 == 0o600
    assert (game / "pack" / "leaks.npz").stat().st_mode & 0o400


def test_the_checksum_commits_to_the_answers(game: Path, tmp_path: Path) -> None:
    content = (game / "answers.npz").read_bytes()
    assert packs.read(game / "pack").pack.checksum == hashlib.sha256(content).hexdigest()
    arrays = truth(game)
    assert arrays["nonce"].size == 32 and len(set(arrays["nonce"].tolist())) > 8
    arrays["inputs/leak0"] = arrays["inputs/leak1"]
    np.savez_compressed(tmp_path / "other.npz", **arrays)
    with pytest.raises(LeakbenchError, match="is not the checksum of this pack"):
        scoring.score(game / "submission", tmp_path / "other.npz")


def test_rows_of_tables_are_packed_with_what_their_columns_mean(tmp_path: Path) -> None:
    text = SUITE.read_text(encoding="utf-8").replace("mnist", "breast_cancer")
    (tmp_path / "table.toml").write_text(text, encoding="utf-8")
    plan = resolve(str(tmp_path / "table.toml"), "quick")
    making.make(plan, tmp_path / "pack", tmp_path / "answers.npz")
    opened = packs.read(tmp_path / "pack")
    assert opened.pack.leaks[0].features == load("breast_cancer").features
    leaks.submit(
        opened, registry.load("attacks", "analytic")(), tmp_path / "own", name="a", method="m"
    )
    score = scoring.score(tmp_path / "own", tmp_path / "answers.npz")
    assert score.rows[0].rates["strict"].value == 1.0


@pytest.mark.parametrize("looks", [1, 2])
def test_updates_are_replayed_as_they_were_made(tmp_path: Path, looks: int) -> None:
    """Three local steps of a clipped training, seen at the server; one look, and two."""
    text = SUITE.read_text(encoding="utf-8")
    federated = '[training]\nmode = "federated"\nlocal_steps = 3\nlearning_rate = 0.2'
    text = text.replace("[training]", federated)
    text = text.replace("[attack]", f"[leak]\ntype = 1\nobservations = {looks}\n\n[attack]")
    text = text.replace('"analytic"', '"cpl"').replace(
        "noise_multiplier = 1.0", "noise_multiplier = 0.0"
    )
    (tmp_path / "updates.toml").write_text(text.replace("victims = 3", "victims = 24"))
    plan = resolve(str(tmp_path / "updates.toml"), "quick")
    making.make(plan, tmp_path / "pack", tmp_path / "answers.npz")
    opened, answers = packs.read(tmp_path / "pack"), truth(tmp_path)
    for leak in opened.pack.leaks:
        assert (leak.shape[:2], leak.local_steps, leak.learning_rate) == ((2, 12), 3, 0.2)
        assert len(leak.looks) == looks
        inputs = torch.from_numpy(answers[f"inputs/{leak.id}"])
        labels = torch.from_numpy(answers[f"labels/{leak.id}"])
        for seen in leaks.leak_of(opened, leak).observations:
            replayed = seen.simulate(inputs, labels, torch.arange(2))
            torch.testing.assert_close(replayed.flatten(), seen.gradients.flatten())


@pytest.mark.parametrize("name", ["cnn2", "cnn2_relu", "convnet", "bn_lenet5", "mlp"])
def test_layers_are_the_network(name: str) -> None:
    shape = (1, 28, 28)
    model = architectures.build(name, shape, 10, "default")
    weights = model.init(torch.Generator().manual_seed(3), torch.float32)
    found = layers_of(model, weights, shape)
    assert found is not None
    inputs = torch.rand(5, *shape, generator=torch.Generator().manual_seed(4))
    network = PackedNetwork(json.loads(json.dumps(found)), weights, {})
    torch.testing.assert_close(network(inputs), model.logits(weights, inputs))


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_what_is_no_chain_has_no_layers(name: str) -> None:
    model = architectures.build(name, (3, 32, 32), 10, "default")
    weights = model.init(torch.Generator().manual_seed(3), torch.float32)
    assert layers_of(model, weights, (3, 32, 32)) is None


def test_more_victims_than_candidates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakbenchError, match="no candidate of mnist is left, 800 of 1000"):
        made(tmp_path, ["profiles.quick.victims=400"])
    assert not list(tmp_path.iterdir())


def test_answers_are_not_written_into_the_pack(tmp_path: Path) -> None:
    plan = resolve(str(SUITE), "quick", settings=[])
    with pytest.raises(LeakbenchError, match="lies in the pack"):
        making.make(plan, tmp_path / "pack", tmp_path / "pack" / "answers.npz")


def test_answers_of_another_pack_are_kept_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "answers.npz").write_bytes(b"of another pack")
    with pytest.raises(LeakbenchError, match="is there already"):
        made(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.npz"]
    assert (tmp_path / "answers.npz").read_bytes() == b"of another pack"


def test_a_pack_needs_a_name(leakbench: Callable[..., Any], tmp_path: Path) -> None:
    done = leakbench("pack", SUITE, "--out", "", cwd=tmp_path)
    assert (done.code, done.errors.count("\n")) == (2, 1)
    assert "has no name" in done.errors


def test_a_changed_pack_is_noticed(game: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(game / "pack", tmp_path / "pack"))
    (folder / "leaks.npz").write_bytes((folder / "leaks.npz").read_bytes() + b" ")
    with pytest.raises(LeakbenchError, match=r"is not the file that pack\.json describes"):
        packs.read(folder)


# ------------------------------------------------------------------------------ scores


def test_the_example_of_the_documentation_recovers_what_is_not_defended(game: Path) -> None:
    score = scoring.score(game / "submission", game / "answers.npz")
    rates = {row.label: row.rates["strict"].value for row in score.rows}
    assert rates == {"no defense": 1.0, "clipping and noise": 0.0}
    opened = packs.read(game / "pack")
    answers, given = truth(game), np.load(game / "submission" / "reconstructions.npz")
    for row in score.rows:
        for victim in row.victims:
            image = answers[f"inputs/{victim.leak}"][victim.place, 0].astype(np.float64)
            guess = given[f"inputs/{victim.leak}"][victim.place, 0].clip(0, 1).astype(np.float64)
            if (image == guess).all():  # whole bytes do come back to the last bit
                assert victim.psnr is None
            else:
                wanted = peak_signal_noise_ratio(image, guess, data_range=1.0)
                assert victim.psnr == pytest.approx(wanted, rel=1e-4)
            assert victim.mse == pytest.approx(((image - guess) ** 2).mean(), rel=1e-3)
        assert row.networks == row.answered == 2 and row.inputs == 6
    open_row = score.rows[0]
    assert open_row.rates["strict"].low == pytest.approx(0.61, abs=0.005)  # Wilson's, 6 of 6
    assert {leak.row for leak in opened.pack.leaks} == {row.row for row in score.rows}


def test_attacks_of_leakbench_play_too(game: Path, tmp_path: Path) -> None:
    opened = packs.read(game / "pack")
    attack = registry.load("attacks", "analytic")()
    played = leaks.submit(opened, attack, tmp_path / "own", name="analytic", method="closed form")
    assert not played.skipped
    score = scoring.score(tmp_path / "own", game / "answers.npz")
    assert [row.rates["strict"].value for row in score.rows] == [1.0, 0.0]
    assert all(row.labels == 1.0 for row in score.rows)  # granted
    assert scores.read(write_score(tmp_path, score)) == score


def write_score(folder: Path, score: scores.Score) -> Path:
    path = folder / "score.json"
    path.write_text(json.dumps(scores.to_json(score), allow_nan=False), encoding="utf-8")
    return path


def test_the_truth_itself_has_no_infinite_score(game: Path, submission: Path) -> None:
    answers = truth(game)
    exact = {name: value for name, value in answers.items() if name.startswith("inputs/")}
    np.savez(submission / "reconstructions.npz", **exact)
    score = scoring.score(submission, game / "answers.npz")
    assert score.rows[0].psnr.value == scores.MOST_DECIBELS
    for said in (scores.to_markdown(score), scores.to_terminal(score)):
        assert "200.0" not in said and "inf [inf, inf]" in said and "PSNR inf dB" in said
    assert json.dumps(scores.to_json(score), allow_nan=False)


def test_a_batch_may_be_answered_in_any_order(tmp_path: Path) -> None:
    game = made(tmp_path, ["leak.view=batch", "attack.name=cpl", "profiles.quick.victims=8"])
    opened, answers = packs.read(game / "pack"), truth(game)
    assert {leak.shape for leak in opened.pack.leaks} == {(2, 4, 1, 28, 28)}
    about = json.loads((game / "pack" / "pack.json").read_text())
    (game / "submission").mkdir()
    turned = {
        f"inputs/{leak.id}": answers[f"inputs/{leak.id}"][:, ::-1] for leak in opened.pack.leaks
    }
    np.savez(game / "submission" / "reconstructions.npz", **turned)
    said = {"schema": 1, "name": "x", "method": "", "pack": about["checksum"]}
    (game / "submission" / "submission.json").write_text(json.dumps(said))
    score = scoring.score(game / "submission", game / "answers.npz")
    assert [row.rates["strict"].value for row in score.rows] == [1.0, 1.0]


def test_a_network_that_is_left_out_counts_as_failed(game: Path, submission: Path) -> None:
    given = dict(np.load(submission / "reconstructions.npz"))
    np.savez(submission / "reconstructions.npz", **{"inputs/leak0": given["inputs/leak0"]})
    (row,) = scoring.score(submission, game / "answers.npz").rows
    assert (row.answered, row.networks) == (1, 2)
    assert row.rates["strict"].value == 0.5


# ------------------------------------------------------------------------------ strangers


class Executed:
    """What must never be unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path("executed"),)


def with_array(name: str, value: np.ndarray) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        given = dict(np.load(folder / "reconstructions.npz"))
        given[name] = value
        np.savez(folder / "reconstructions.npz", **given)

    return spoil


def with_key(key: str, value: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "submission.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return spoil


def bomb(folder: Path) -> None:
    """64 MB of zeros in a few kilobytes, for an array of 9 kB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (3, 1, 1, 28, 28)}
    )
    content = header.getvalue() + bytes(2**26)
    with zipfile.ZipFile(folder / "reconstructions.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs/leak0.npy", content)


def packed_otherwise(folder: Path) -> None:
    """By a method whose pieces unpack as a whole: a few bytes become gigabytes."""
    with zipfile.ZipFile(folder / "reconstructions.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("inputs/leak0.npy", bytes(2**17))


def torn(folder: Path) -> None:
    path = folder / "reconstructions.npz"
    path.write_bytes(path.read_bytes()[:-100])


def twice(folder: Path) -> None:
    with zipfile.ZipFile(folder / "reconstructions.npz", "a") as archive:
        content = archive.read("inputs/leak0.npy")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("inputs/leak0.npy", content)


def text(content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "submission.json").write_text(content) and None


def linked(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return spoil


def piped(name: str) -> Callable[[Path], None]:
    """Who opens it waits for ever."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


SHAPE = (3, 1, 1, 28, 28)
SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "shape": (with_array("inputs/leak0", np.zeros((3, 1, 28, 28))), "shape (3, 1, 28, 28)"),
    "pickle": (with_array("inputs/leak0", np.array([Executed()] * 3)), "is of type object"),
    "text": (with_array("inputs/leak0", np.full(SHAPE, "a")), "is of type <U1"),
    "complex": (with_array("inputs/leak0", np.zeros(SHAPE, complex)), "is of type complex128"),
    "nan": (with_array("inputs/leak0", np.full(SHAPE, np.nan)), "holds nan or infinity"),
    "infinite": (with_array("inputs/leak1", np.full(SHAPE, -np.inf)), "holds nan or infinity"),
    "unknown": (with_array("inputs/leak99", np.zeros(1)), "unknown array 'inputs/leak99'"),
    "path": (with_array("../../inputs/leak0", np.zeros(1)), "unknown array '../../inputs/leak0'"),
    "labels": (with_array("labels/leak0", np.full((3, 1), 10)), "a label outside 0 to 9"),
    "soft": (with_array("labels/leak0", np.zeros((3, 1))), "float64; allowed: whole numbers"),
    "bomb": (bomb, "unpacks to"),
    "packed otherwise": (packed_otherwise, "is packed in another way"),
    "torn": (torn, "cannot be read"),
    "twice": (twice, "is there twice"),
    "none": (lambda folder: (folder / "reconstructions.npz").unlink(), "cannot be read"),
    "key": (with_key("trusted", True), "unknown key 'trusted'"),
    "kind": (with_key("name", ["a"]), "must be a text"),
    "schema": (with_key("schema", 2), "schema 2, this leakbench reads 1"),
    "pack": (with_key("pack", "0" * 64), "is not the checksum of this pack"),
    "script": (with_key("link", "javascript:alert(1)"), "allowed: https://"),
    "long": (with_key("name", "x" * 81), "has 81 letters"),
    "nameless": (with_key("name", " "), "key name: empty"),
    "budget": (with_key("budget", {"seconds": -1}), "key budget.seconds: -1"),
    "no json": (text("{"), "no JSON"),
    "no table": (text("[]"), "must hold a table"),
    "no number": (text('{"schema": NaN}'), "NaN is no number"),
    "deep": (text("[" * 50_000), "no JSON"),
    "half a letter": (text('{"schema": 1, "name": "\\ud800"}'), "surrogates not allowed"),
    "no float": (with_key("budget", {"seconds": 10**400}), "must be a number or null"),
    "link": (linked("submission.json"), "is no plain file"),
    "linked arrays": (linked("reconstructions.npz"), "is no plain file"),
    "pipe": (piped("submission.json"), "is no plain file"),
    "piped arrays": (piped("reconstructions.npz"), "is no plain file"),
    "large": (text('"' + "x" * 2**17 + '"'), "bytes; allowed: up to 65536"),
    "double": (text('{"schema": 1, "schema": 1}'), "a key is there twice"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_wrong_with_a_submission_is_one_sentence(
    how: str, game: Path, submission: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, words = SPOILT[how]
    spoil(submission)
    monkeypatch.chdir(submission)
    with pytest.raises(LeakbenchError) as raised:
        scoring.score(submission, game / "answers.npz")
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["score.json", "score.md"])
def test_a_link_in_a_submission_leads_to_nothing_that_is_written(
    game: Path, submission: Path, tmp_path: Path, leakbench: Callable[..., Any], name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    (submission / name).symlink_to(precious)
    done = leakbench("score", submission, "--answers", game / "answers.npz")
    assert done.code == 2
    assert f"{name}: is no plain file" in done.errors
    assert precious.read_text(encoding="utf-8") == "mine"


def test_an_npz_is_not_loaded_to_be_looked_at(submission: Path) -> None:
    bomb(submission)
    with pytest.raises(LeakbenchError, match="another size than its header says"):
        Arrays(submission / "reconstructions.npz")


def test_other_files_are_no_answers(game: Path, tmp_path: Path) -> None:
    for path in (game / "pack" / "leaks.npz", game / "submission" / "reconstructions.npz"):
        with pytest.raises(LeakbenchError, match="no answers of a leak pack"):
            scoring.score(game / "submission", path)
    with pytest.raises(LeakbenchError, match="cannot be read"):
        scoring.score(game / "submission", tmp_path / "nothing.npz")
