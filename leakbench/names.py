"""Closed vocabularies shared by the parts that must not import torch."""

from __future__ import annotations

MODELS: dict[str, str] = {
    "lenet_cpl": "four sigmoid convolutions of 12 channels, one dense layer (CPL notebooks)",
    "lenet_dlg": "three sigmoid convolutions of 12 channels, one dense layer (DLG, iDLG)",
    "cnn2": "two sigmoid convolutions of 16 and 32 channels, one dense layer (TIFS section VI)",
    "cnn2_relu": "two ReLU convolutions of 16 and 32 channels with max-pooling, one dense layer, "
    "no biases; to train",
    "mlp": "two hidden dense ReLU layers of 64 and 32 units, one dense head; also for tables",
}
"""Networks by name (`models.build` makes them)."""

IMAGE_MODELS = frozenset({"lenet_cpl", "lenet_dlg", "cnn2", "cnn2_relu"})
"""Networks that take images only."""
