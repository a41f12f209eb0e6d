"""Derivatives of a sigmoid network's per-example gradient in many directions at once, by hand.

Names are those of `sigmoid_gradients`, and u. is the derivative of u along one direction x. of the
inputs. With f = a_L the features and p the softmax,

    up:    z._l = W_l * a._{l-1},     a._l = s'_l z._l,     a._0 = x.
    top:   d. = sum(y) p (z. - sum(p z.)),     G. = d. f + d f.
    down:  d._l = (W^_{l+1} d._{l+1}) s'_l + (W^_{l+1} d_{l+1}) (1 - 2 a_l) a._l
           G._l = d._l a_{l-1} + d_l a._{l-1},     g._l = sum d._l

What belongs to the example itself is computed once for all directions. Images are kept as
(n, channels, pixels), their patches as (n, 25 channels, pixels of the next image).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

SIDE, MARGIN = 5, 2  # of a kernel, and the zeros around an image

CACHED = 32
"""Directions that are computed together: what lies between two sweeps stays in a core's cache."""


def example_tangents(
    strides: Sequence[int],
    weights: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    tangents: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradient of each example's cross-entropy by every parameter, and its derivatives.

    strides, weights, inputs (n, channels, height, width), labels (n, classes): as in
    `sigmoid_gradients.example_gradients`. tangents (c, n, channels, height, width): directions of
    each example's own -> (n, *its shape) and (c, n, *its shape). Every example is computed alone.
    """
    count, n = tangents.shape[:2]
    plain = [weight.new_empty(n, *weight.shape) for weight in weights]
    moved = [weight.new_empty(n, count, *weight.shape) for weight in weights]
    for i in range(n):
        example = _Example(strides, weights, inputs[i : i + 1], labels[i])
        for whole, own in zip(plain, example.gradients, strict=True):
            whole[i] = own
        for start in range(0, count, CACHED):
            some = slice(start, start + CACHED)
            places = [whole[i, some] for whole in moved]
            if tangents[some, i].any():
                example.move(tangents[some, i], places)
            else:  # in a batch, many directions move another example
                for place in places:
                    place.zero_()
    return plain, [whole.transpose(0, 1) for whole in moved]


class _Example:
    """One example's sweeps up and down, and how they move with its inputs."""

    def __init__(
        self, strides: Sequence[int], weights: Sequence[Tensor], image: Tensor, label: Tensor
    ) -> None:
        (*kernels, self.head), (*biases, head_bias) = weights[::2], weights[1::2]
        self.kernels, self.strides = [kernel.flatten(1) for kernel in kernels], strides
        self.sides = [image.shape[2:]]  # of a_0 ...
        self.patches: list[Tensor] = []  # of a_0 ..., (25 channels, pixels)
        self.values: list[Tensor] = []  # a_1 ..., (channels, pixels)
        hidden = image
        for kernel, bias, stride in zip(self.kernels, biases, strides, strict=True):
            self.patches.append(_patches(hidden, stride)[0])
            self.values.append((kernel @ self.patches[-1] + bias[:, None]).sigmoid())
            self.sides.append(torch.Size(-(-side // stride) for side in self.sides[-1]))
            hidden = self.values[-1].unflatten(1, self.sides[-1])[None]
        self.features = self.values[-1].flatten()
        self.p = (self.head @ self.features + head_bias).softmax(dim=0)
        self.mass = label.sum()
        self.top = self.p * self.mass - label
        back = (self.top @ self.head).view_as(self.values[-1])
        gradients = [self.top, self.top[:, None] * self.features]
        self.slopes = [a * (1 - a) for a in self.values]
        self.bends: list[Tensor] = []  # (W^_{l+1} d_{l+1}) (1 - 2 a_l), of layers 1 ...
        self.deltas: list[Tensor] = []  # d_1 ...
        for layer in reversed(range(len(strides))):
            self.bends.insert(0, back * (1 - 2 * self.values[layer]))
            self.deltas.insert(0, back * self.slopes[layer])
            by_kernel = self.deltas[0] @ self.patches[layer].mT
            gradients += [self.deltas[0].sum(dim=1), by_kernel.view(kernels[layer].shape)]
            if layer:
                back = self._below(self.deltas[0][None], layer)[0]
        self.gradients = gradients[::-1]

    def move(self, directions: Tensor, places: Sequence[Tensor]) -> None:
        """Write the derivatives of `gradients` along directions (c, channels, height, width).

        places: where to, (c, *its shape) for each, contiguous.
        """
        (*by_kernel, by_head), (*by_bias, by_head_bias) = places[::2], places[1::2]
        count = len(directions)
        patches, ups = [], []  # of a._0 ..., and a._1 ...
        moving = directions
        for layer, kernel in enumerate(self.kernels):
            patches.append(_patches(moving, self.strides[layer]))
            ups.append((kernel @ patches[-1]).mul_(self.slopes[layer]))
            moving = ups[-1].unflatten(2, self.sides[layer + 1])
        features = moving.flatten(1)
        z = features @ self.head.mT
        top = torch.mul(self.mass * self.p, z - (z @ self.p)[:, None], out=by_head_bias)
        left = torch.stack([top, self.top.expand_as(top)], dim=2)
        right = torch.stack([self.features.expand_as(features), features], dim=1)
        torch.bmm(left, right, out=by_head)
        back = (top @ self.head).view_as(ups[-1])
        for layer in reversed(range(len(self.kernels))):
            delta = back * self.slopes[layer]
            delta.addcmul_(ups[layer], self.bends[layer])
            torch.sum(delta, dim=2, out=by_bias[layer])
            rows = by_kernel[layer].view(count, *self.kernels[layer].shape)
            torch.mm(delta.flatten(0, 1), self.patches[layer].mT, out=rows.flatten(0, 1))
            rows.baddbmm_(self.deltas[layer].expand_as(delta), patches[layer].mT)
            if layer:
                back = self._below(delta, layer)

    def _below(self, delta: Tensor, layer: int) -> Tensor:
        """W^_l d_l: (n, channels, pixels) of the image before `layer`."""
        image = functional.fold(
            self.kernels[layer].mT @ delta,
            tuple(self.sides[layer]), SIDE, padding=MARGIN, stride=self.strides[layer],
        )  # fmt: skip
        return image.flatten(2)


def _patches(images: Tensor, stride: int) -> Tensor:
    """(n, channels, height, width) -> (n, 25 channels, pixels of the next image)."""
    return functional.unfold(images, SIDE, padding=MARGIN, stride=stride)
