"""Per-example gradients of ReLU networks by hand, as operations that autograd can follow.

A layer is a 5x5 convolution with padding 2, then ReLU, then 2x2 max-pooling; one dense layer z on
top, p = softmax(z); no biases. The loss of an example is -sum_c y_c log p_c. With d = dloss/dz,
W^ for the transpose, a_0 = x, z_l = W_l * a_{l-1}, and M the places that pooling and ReLU let
through, the gradients are

    d = p sum(y) - y,     d_l = M^_l (W^_{l+1} d_{l+1}),     G_l = d_l a_{l-1}.

Products with W are convolutions; clients with a W of their own are groups of channels. G is a
matrix product of each example, over the patches of a_{l-1}: only the five columns of patches are
laid side by side, and what meets a row of the kernel is a shifted view of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

SIDE, MARGIN = 5, 2  # of a kernel, and the zeros around an image


def example_gradients(
    weights: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> tuple[Tensor, ...]:
    """Gradient of each example's cross-entropy in nats by every weight: (clients, b, *its shape).

    weights: of every convolution, then of the dense layer, with a leading client axis; a single
    client's are shared by all examples, and then a row's bits do not depend on the other rows.
    inputs (clients, b, channels, height, width); labels (clients, b, classes) probabilities.
    Differentiable in everything.
    """
    (*kernels, head), (clients, b) = weights, inputs.shape[:2]
    image = _channels(inputs.transpose(0, 1))
    images, patches, places = [], [], []
    for kernel in kernels:
        patches.append(_patches(image, clients))
        z = functional.conv2d(image, kernel.flatten(0, 1), padding=MARGIN, groups=clients)
        z = z.contiguous(memory_format=torch.channels_last)
        largest, where = functional.max_pool2d(z, 2, return_indices=True)
        image = largest.relu()  # as good as ReLU before pooling, and a quarter of the work
        images.append(image)
        places.append((where, z.shape[2:]))
    features = image.reshape(b, clients, -1)
    shared = clients == 1  # one product of all rows that share a head would round by their number
    rows = features if shared else features.transpose(0, 1)
    every = head.expand(b, -1, -1) if shared else head
    p = (rows @ every.mT).softmax(dim=-1)
    y = labels.reshape(p.shape)
    top = p * y.sum(dim=-1, keepdim=True) - y
    found = [(top[..., None] * rows[..., None, :]).reshape(clients, b, *head.shape[1:])]
    back = top @ every
    back = (back if shared else back.transpose(0, 1)).reshape(image.shape)
    back = back.contiguous(memory_format=torch.channels_last)
    for layer in reversed(range(len(kernels))):
        where, sides = places[layer]
        delta = functional.max_unpool2d(back * images[layer].sign(), where, 2, output_size=sides)
        pixels = (
            delta.unflatten(1, (clients, -1)).permute(0, 1, 3, 4, 2).flatten(2, 3).flatten(0, 1)
        )
        products = [_row(patches[layer], k) @ pixels for k in range(SIDE)]
        gradient = torch.stack(products, dim=1).unflatten(2, (-1, SIDE))  # n, ky, in, kx, out
        gradient = gradient.permute(0, 4, 2, 1, 3).unflatten(0, (b, clients))
        found.append(gradient.transpose(0, 1))
        if layer:
            kernel = kernels[layer].flatten(0, 1)
            back = functional.conv_transpose2d(delta, kernel, padding=MARGIN, groups=clients)
    return tuple(found[::-1])


def _channels(images: Tensor) -> Tensor:
    """(b, clients, channels, height, width) -> clients side by side as channels."""
    return images.flatten(1, 2)


def _patches(image: Tensor, clients: int) -> Tensor:
    """(b * clients, channels, 5, height + 4, width): all columns of patches, zeros around."""
    padded = functional.pad(image.contiguous(), [MARGIN] * 4)
    columns = padded.unfold(3, SIDE, 1).movedim(-1, 2).contiguous()
    return columns.view(-1, image.shape[1] // clients, *columns.shape[2:])


def _row(patches: Tensor, k: int) -> Tensor:
    """What row k of a kernel meets: (n, 5 channels, pixels), a view."""
    height = patches.shape[3] - 2 * MARGIN
    row: Tensor = patches[:, :, :, k : k + height].flatten(1, 2).flatten(2)
    return row
