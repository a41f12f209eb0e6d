"""A vision transformer for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from leakbench.architectures import Architecture, Takes
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.weights import Scheme

HEADS, WIDTH, DEPTH = 3, 192, 12
"""Of ViT-Tiny, as DeiT has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTTiny(Architecture):
    """ViT-Tiny: 12 blocks of width 192 with 3 heads, patches of 4x4 pixels, no dropout.

    5 million parameters. Blocks normalise first (LayerNorm); GELU is the exact one.

    Args:
        patch: side of a patch, which must divide the sides of an image.
    """

    name: ClassVar[str] = "vit_tiny"
    paper: ClassVar[str] = "Dosovitskiy et al., 2021; Touvron et al., 2021"
    takes: ClassVar[Takes] = "images"
    head: ClassVar[str] = "head.weight"
    patch: int = 4

    def __post_init__(self) -> None:
        Architecture.__post_init__(self)
        require_at_least(self.name, 1, patch=self.patch)

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> nn.Module:
        if any(side % self.patch for side in input_shape[1:]):
            raise LeakbenchError(
                f"{self.name}: patch must divide the sides of images {input_shape[1:]}, "
                f"got {self.patch}"
            )
        return _Transformer(input_shape, classes, self.patch)


class _Transformer(nn.Module):
    """(b, channels, height, width) -> (b, classes)."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, patch: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.patches = nn.Conv2d(channels, WIDTH, patch, stride=patch)
        self.token = nn.Parameter(torch.empty(1, 1, WIDTH))
        tokens = 1 + (height // patch) * (width // patch)
        self.positions = nn.Parameter(torch.empty(1, tokens, WIDTH))
        self.blocks = nn.Sequential(*(_Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def reset_parameters(self) -> None:
        """Of the class token and the positions, as the paper draws them."""
        nn.init.normal_(self.token, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1)
        shown: Tensor = self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])
        return shown


class _Block(nn.Module):
    """Attention, then two dense layers, each added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wider, self.narrower = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        three = self.query_key_value(self.before(tokens)).unflatten(-1, (3, HEADS, -1))
        query, key, value = three.movedim(-2, 1).unbind(dim=-2)  # (b, heads, tokens, width)
        # Written out: the fused kernel has no second derivative.
        scores = (query @ key.mT) * query.shape[-1] ** -0.5
        attended = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        tokens = tokens + self.out(attended)
        hidden = functional.gelu(self.wider(self.between(tokens)))
        shown: Tensor = tokens + self.narrower(hidden)
        return shown
