"""Perceptual distance: LPIPS of Zhang et al. (2018), by the package `lpips` with AlexNet features.

The package brings the weights of the distance, not those of AlexNet. They are read from a file that
is already here and never downloaded; without it nothing is measured. Random features also give
distances, which mean nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakbench.errors import LeakbenchError
from leakbench.metrics.contract import Comparison, Metric, NotMeasured, check_shapes

LPIPS_SIDE: int = 64
"""Smaller images are enlarged until their shorter side has this many pixels (bilinear).

AlexNet's first layers divide the side by 16: of a picture of 32 x 32 pixels the last feature map
would be a single point."""

HUB_FILE: str = "alexnet-owt-7be5be79.pth"
"""torchvision's own file of AlexNet, as the cache of torch.hub keeps it."""

FEATURES_DIGEST: str = "2b566cc3a4d6f0a7343701af22f461f1ac3dcd03a3ac28cce10968a1d3c85fdc"
"""`digest_of_features` of torchvision's weights, for files named without a checksum."""

_SHAPES: dict[str, tuple[int, ...]] = {
    "features.0": (64, 3, 11, 11),
    "features.3": (192, 64, 5, 5),
    "features.6": (384, 192, 3, 3),
    "features.8": (256, 384, 3, 3),
    "features.10": (256, 256, 3, 3),
}
"""AlexNet's convolutions in torchvision's names; each also has a bias."""

_DAMAGE = (EOFError, KeyError, OSError, RuntimeError, ValueError, pickle.UnpicklingError,
           zipfile.BadZipFile)  # fmt: skip


def lpips(images: Tensor, reference: Tensor, network: nn.Module) -> Tensor:
    """Perceptual distance of the clamped images, each pair by itself and in float32.

    Args:
        images: (n, 3, height, width), any values; clipped to [0, 1].
        reference: (n, 3, height, width), values in [0, 1].
        network: One of `perceptual_network`, on the CPU.

    Returns:
        (n,) float64 from 0 up, six decimals, on the device of `images`; NaN where an image has a
        non-finite pixel.

    Raises:
        ValueError: If the shapes differ or are not those of colour images.
    """
    check_shapes(images, reference)
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"lpips needs images of shape (n, 3, h, w), got {tuple(images.shape)}")
    values = []
    with torch.no_grad():
        # One by one: convolutions round by how many images there are.
        for image, target in zip(images.cpu(), reference.cpu(), strict=True):
            if not bool(image.isfinite().all()):
                values.append(math.nan)
                continue
            pair = [_enlarged(one[None].float().clamp(0.0, 1.0)) for one in (image, target)]
            # The last digits of float32 are the processor's.
            values.append(round(float(network(*pair, normalize=True)), 6))
    return torch.tensor(values, dtype=torch.float64, device=images.device)


def perceptual_network(features: Mapping[str, Tensor]) -> nn.Module:
    """The package's network with these AlexNet features.

    Args:
        features: "features.K.weight" and "features.K.bias" of AlexNet's five convolutions, in
            torchvision's names and shapes; other entries are not looked at.

    Returns:
        `lpips.LPIPS(net="alex")` in evaluation mode on the CPU.

    Raises:
        LeakbenchError: If the package is not installed, or a tensor is missing or has another
            shape.
    """
    if importlib.util.find_spec("lpips") is None:
        raise LeakbenchError("the package lpips is not installed: pip install 'leakbench[lpips]'")
    wanted = _convolutions(features)
    import lpips as package

    # The package draws random features first, which are then replaced.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's about an argument the package still uses
        network: nn.Module = package.LPIPS(net="alex", pnet_rand=True, verbose=False)
    parts = [
        network.get_submodule(f"net.slice{number}.{name.removeprefix('features.')}")
        for number, name in enumerate(_SHAPES, start=1)
    ]
    for part, (weight, bias) in zip(parts, wanted, strict=True):
        part.load_state_dict({"weight": weight, "bias": bias})
    return network.requires_grad_(False).eval()


def digest_of_features(features: Mapping[str, Tensor]) -> str:
    """SHA-256 of the five convolutions' float32 numbers, weight before bias, in their order.

    Raises:
        LeakbenchError: If a tensor is missing or has another shape.
    """
    sha = hashlib.sha256()
    for weight, bias in _convolutions(features):
        for tensor in (weight, bias):
            sha.update(tensor.float().contiguous().numpy().tobytes())
    return sha.hexdigest()


def find_features(root: Path | None) -> Path | None:
    """A file of AlexNet weights: `lpips/alexnet*.pth` of the data root, or the hub's cache."""
    places = sorted((root / "lpips").glob("alexnet*.pth")) if root is not None else []
    places.append(Path(torch.hub.get_dir()) / "checkpoints" / HUB_FILE)
    return next((path for path in places if path.is_file()), None)


def load_features(path: Path) -> dict[str, Tensor]:
    """AlexNet's weights from a file, once it is known to be torchvision's.

    A name that ends in "-" and eight or more hexadecimal digits promises that the file's SHA-256
    starts with them; under any other name the features must be those of `FEATURES_DIGEST`.

    Raises:
        LeakbenchError: If the file is something else, or cannot be read.
    """
    promised = re.search(r"-([0-9a-f]{8,64})\.pth$", path.name)
    try:
        if promised is not None:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if not found.startswith(promised.group(1)):
                raise LeakbenchError(f"{path}: its SHA-256 does not start as its name says")
        features = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(features, dict):
            raise LeakbenchError(f"{path}: holds {type(features).__name__}, not named tensors")
        if promised is None and digest_of_features(features) != FEATURES_DIGEST:
            raise LeakbenchError(f"{path}: these are not torchvision's AlexNet features")
    except _DAMAGE as error:
        raise LeakbenchError(f"{path}: cannot be read: {type(error).__name__}") from None
    return features


@cache
def network_of(root: Path | None) -> nn.Module | NotMeasured:
    """The network with the features that are here, or why there is none; kept for the process."""
    path = find_features(root)
    if path is None:
        return NotMeasured(
            f"AlexNet's weights are not here (lpips/{HUB_FILE} in the data root, or the cache of "
            "torch.hub)"
        )
    try:
        return perceptual_network(load_features(path))
    except LeakbenchError as error:
        return NotMeasured(str(error))


def availability(root: Path | None) -> str:
    """Whether colour images can be measured here, in words."""
    network = network_of(root)
    if isinstance(network, NotMeasured):
        return f"not measured: {network.reason}"
    return f"measured with {find_features(root)}"


def _convolutions(features: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    found = []
    for name, shape in _SHAPES.items():
        pair = features.get(f"{name}.weight"), features.get(f"{name}.bias")
        for tensor, wanted in zip(pair, (shape, shape[:1]), strict=True):
            if not isinstance(tensor, Tensor) or tuple(tensor.shape) != wanted:
                raise LeakbenchError(f"AlexNet features: {name} must hold a tensor {wanted}")
        found.append(pair)
    return found  # type: ignore[return-value]


def _enlarged(image: Tensor) -> Tensor:
    height, width = image.shape[2:]
    shorter = min(height, width)
    if shorter >= LPIPS_SIDE:
        return image
    size = [round(side * LPIPS_SIDE / shorter) for side in (height, width)]
    return F.interpolate(image, size=size, mode="bilinear", align_corners=False)


def _lpips(compared: Comparison) -> Tensor | NotMeasured:
    if compared.images.ndim != 4 or compared.images.shape[1] != 3:
        return NotMeasured("it is made for colour images")
    network = network_of(compared.data_root)
    if isinstance(network, NotMeasured):
        return network
    return lpips(compared.images, compared.reference, network)


METRICS: tuple[Metric, ...] = (Metric(name="lpips", function=_lpips, clamps=True, better="lower"),)
