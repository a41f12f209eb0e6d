"""LPIPS against the package itself, with features that are put into both."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import lpips as package
import pytest
import torch
import torchvision
from torch import Tensor, nn

from leakbench.data import data_root, load
from leakbench.errors import LeakbenchError
from leakbench.judging import measure
from leakbench.metrics import lpips as metric
from leakbench.metrics.contract import NotMeasured
from leakbench.metrics.lpips import lpips
from leakbench.victims import Victims

Features = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def alexnet() -> nn.Module:
    """torchvision's AlexNet with seeded weights, large enough that all layers matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        network: nn.Module = torchvision.models.alexnet(weights=None)
    return network


@pytest.fixture(scope="module")
def features(alexnet: nn.Module) -> Features:
    return {k: v for k, v in alexnet.state_dict().items() if k.startswith("features.")}


@pytest.fixture(scope="module")
def network(features: Features) -> nn.Module:
    return metric.perceptual_network(features)


@pytest.fixture(scope="module")
def images() -> Tensor:
    """(8, 3, 32, 32) real photographs."""
    return load("cifar10").candidates[:8]


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of torch.hub's cache."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    metric.network_of.cache_clear()
    return tmp_path


def noisy(images: Tensor) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(3))
    return images + noise * torch.linspace(0.01, 1, len(images))[:, None, None, None]


# ------------------------------------------------------------------------------ the number


def test_distances_are_those_of_the_package(
    network: nn.Module, alexnet: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package takes AlexNet from torchvision: there it is handed the seeded one."""
    monkeypatch.setattr(torchvision.models, "alexnet", lambda pretrained: alexnet)
    direct = package.LPIPS(net="alex", verbose=False)
    guesses = noisy(images)
    pair = [
        nn.functional.interpolate(2 * x.clamp(0, 1) - 1, size=(64, 64), mode="bilinear")
        for x in (guesses, images)
    ]
    with torch.no_grad():
        expected = direct(*pair).flatten().tolist()
    found = lpips(guesses, images, network)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, abs=2e-6)
    assert max(expected) > 20 * min(expected) > 1e-4, "noise of all strengths is told apart"


def test_large_images_are_compared_as_they_are(network: nn.Module, images: Tensor) -> None:
    large = nn.functional.interpolate(images, size=(64, 96), mode="nearest")
    guesses = noisy(large)
    with torch.no_grad():
        expected = network(guesses.clamp(0, 1), large, normalize=True).flatten().tolist()
    assert lpips(guesses, large, network).tolist() == pytest.approx(expected, abs=2e-6)


def test_the_shorter_side_of_a_small_image_becomes_64(network: nn.Module, images: Tensor) -> None:
    narrow, guesses = images[..., 4:28], noisy(images)[..., 4:28]
    pair = [
        nn.functional.interpolate(x.clamp(0, 1), size=(85, 64), mode="bilinear")
        for x in (guesses, narrow)
    ]
    with torch.no_grad():
        expected = network(*pair, normalize=True).flatten().tolist()
    assert lpips(guesses, narrow, network).tolist() == pytest.approx(expected, abs=2e-6)


def test_an_image_is_no_distance_from_itself(network: nn.Module, images: Tensor) -> None:
    assert lpips(images, images, network).tolist() == [0.0] * 8
    assert lpips(images[:0], images[:0], network).shape == (0,)


def test_a_distance_does_not_depend_on_the_other_images(network: nn.Module, images: Tensor) -> None:
    guesses = noisy(images)
    alone = [lpips(g[None], x[None], network) for g, x in zip(guesses, images, strict=True)]
    assert torch.equal(torch.cat(alone), lpips(guesses, images, network))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_distance(
    network: nn.Module, images: Tensor, value: float
) -> None:
    broken = noisy(images)
    broken[2, 0, 5, 5] = value
    assert lpips(broken, images, network).isnan().tolist() == [i == 2 for i in range(8)]


def test_grey_images_are_refused(network: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"\(n, 3, h, w\)"):
        lpips(torch.zeros(2, 1, 28, 28), torch.zeros(2, 1, 28, 28), network)


def test_making_the_network_draws_nothing_from_the_common_generator(features: Features) -> None:
    before = torch.random.get_rng_state()
    metric.perceptual_network(features)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_features_of_another_network_are_refused(features: Features) -> None:
    fewer = {name: value for name, value in features.items() if name != "features.6.bias"}
    with pytest.raises(LeakbenchError, match=r"features\.6 must hold a tensor \(384,\)"):
        metric.perceptual_network(fewer)
    other = {**features, "features.0.weight": torch.zeros(64, 3, 3, 3)}
    with pytest.raises(LeakbenchError, match=r"features\.0 must hold a tensor \(64, 3, 11, 11\)"):
        metric.perceptual_network(other)


# ------------------------------------------------------------------------------ the file


def saved(features: Features, folder: Path) -> Path:
    """Features under a name that says how their file's SHA-256 starts."""
    folder.mkdir(parents=True)
    path = folder / "file.pth"
    torch.save(dict(features), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.rename(folder / f"alexnet-owt-{digest}.pth")


def test_features_are_read_from_the_data_root(
    no_cache: Path, features: Features, network: nn.Module, images: Tensor
) -> None:
    path = saved(features, no_cache / "root" / "lpips")
    found = metric.network_of(no_cache / "root")
    assert isinstance(found, nn.Module)
    assert torch.equal(lpips(noisy(images), images, found), lpips(noisy(images), images, network))
    assert metric.availability(no_cache / "root") == f"measured with {path}"


def test_features_are_read_from_the_cache_of_the_hub(
    no_cache: Path, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(features, no_cache / "hub" / "checkpoints")
    monkeypatch.setattr(metric, "HUB_FILE", path.name)
    assert metric.find_features(None) == path
    assert metric.find_features(no_cache / "root") == path
    assert isinstance(metric.network_of(None), nn.Module)


def test_a_file_that_is_not_what_its_name_says_is_not_used(
    no_cache: Path, features: Features
) -> None:
    path = saved(features, no_cache / "root" / "lpips")
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(LeakbenchError, match="SHA-256 does not start as its name says"):
        metric.load_features(path)
    found = metric.network_of(no_cache / "root")
    assert isinstance(found, NotMeasured) and str(path) in found.reason


def test_a_name_without_a_checksum_is_believed_for_the_known_features_only(
    no_cache: Path, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(features, no_cache / "lpips").rename(no_cache / "lpips" / "alexnet.pth")
    with pytest.raises(LeakbenchError, match="not torchvision's AlexNet features"):
        metric.load_features(path)
    monkeypatch.setattr(metric, "FEATURES_DIGEST", metric.digest_of_features(features))
    assert metric.load_features(path).keys() == features.keys()
    changed = {**features, "features.10.bias": features["features.10.bias"] + 1e-6}
    assert metric.digest_of_features(changed) != metric.FEATURES_DIGEST


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "alexnet.pth"
    path.write_bytes(content)
    with pytest.raises(LeakbenchError, match=r"alexnet\.pth: cannot be read"):
        metric.load_features(path)


def test_a_file_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "alexnet.pth")
    with pytest.raises(LeakbenchError, match="holds list, not named tensors"):
        metric.load_features(tmp_path / "alexnet.pth")


# ------------------------------------------------------------------------------ a record's number


def victims_of(dataset: str) -> Victims:
    data = load(dataset)
    return Victims(
        dataset=data,
        numbers=torch.arange(4),
        images=data.candidates[:4],
        labels=data.candidate_labels[:4],
    )


def test_colour_images_are_measured_where_the_features_are(
    no_cache: Path, features: Features, network: nn.Module
) -> None:
    saved(features, no_cache / "root" / "lpips")
    victims = victims_of("cifar10")
    guesses = noisy(victims.images)
    found = measure(guesses, victims, no_cache / "root")
    assert found.numbers["lpips"] == lpips(guesses, victims.images, network).tolist()
    assert found.unmeasured == {}


def test_without_features_nothing_is_measured_and_the_reason_is_said(no_cache: Path) -> None:
    victims = victims_of("cifar10")
    found = measure(victims.images, victims)
    assert all(math.isnan(value) for value in found.numbers["lpips"])
    assert "alexnet-owt-7be5be79.pth" in found.unmeasured["lpips"]
    assert metric.availability(None) == f"not measured: {found.unmeasured['lpips']}"


def test_grey_images_and_rows_are_not_measured(no_cache: Path, features: Features) -> None:
    saved(features, no_cache / "root" / "lpips")
    for dataset in ("mnist", "breast_cancer"):
        victims = victims_of(dataset)
        found = measure(victims.images, victims, no_cache / "root")
        assert found.unmeasured["lpips"] == "it is made for colour images"


@pytest.mark.data
def test_real_features_see_noise_and_forgive_a_little_light(images: Tensor) -> None:
    root = data_root()
    if root is None or metric.find_features(root) is None:
        pytest.skip("no AlexNet features in this data root")
    network = metric.network_of(root)
    assert isinstance(network, nn.Module), network
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(3))
    by_strength = torch.stack([lpips(images + s * noise, images, network) for s in (0.05, 0.2, 1)])
    assert (by_strength.diff(dim=0) > 0).all()
    # The same squared error, spent on brightness: people hardly see it, and neither does LPIPS.
    brighter = lpips(images + 0.05, images, network)
    assert (brighter < by_strength[0]).float().mean() > 0.8
