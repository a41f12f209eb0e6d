"""Gradients of ReLU networks by hand, of single examples and of clients with weights of their own.

A layer is a convolution with padding, then ReLU, then 2x2 max-pooling; one dense layer z on top,
p = softmax(z); no biases. The loss of an example is -sum_c y_c log p_c. With d = dloss/dz, W^ for
the transpose, a_0 = x, z_l = W_l * a_{l-1}, and M the places that pooling and ReLU let through, the
gradients are

    d = p sum(y) - y,     d_l = M^_l (W^_{l+1} d_{l+1}),     G_l = d_l a_{l-1}.

In float32 on a CPU, where `leakbench.native` is built, that is done in C, one example after
another. Elsewhere products with W are convolutions, and so is the sum of G over the examples of a
client; clients are groups of channels. So are examples for the G of each: on a CPU such
convolutions go through oneDNN, which is several times as fast as the matrix products that other
devices take.

weights below are those of every convolution, then of the dense layer, each with a leading client
axis. inputs (clients, b, channels, height, width); labels (clients, b, classes), of any sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.grad import conv2d_weight

from leakbench import native
from leakbench.dense_gradients import product
from leakbench.sigmoid_gradients import is_compiled


def example_gradients(
    weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, *, padding: int
) -> tuple[Tensor, ...]:
    """Gradient of each example's loss in nats by every weight, (clients, b, *its shape).

    A single client's rows do not depend on each other, bit for bit.
    """
    if is_compiled(*weights, inputs, labels):
        return _sums(weights, inputs, labels, padding, group=1)
    images, deltas, features, top = _sweeps(weights, inputs, labels, padding)
    clients, b = inputs.shape[:2]
    of_each = _grouped if inputs.is_cpu else _by_rows
    found = []
    for image, kernel, delta in zip(images, weights[:-1], deltas, strict=True):
        pair = (v.reshape(b * clients, -1, *v.shape[2:]) for v in (image, delta))
        gradient = of_each(*pair, side=kernel.shape[-1], padding=padding)
        found.append(gradient.unflatten(0, (b, clients)).transpose(0, 1))
    return (*found, top[..., None] * features[..., None, :])


def _grouped(image: Tensor, delta: Tensor, *, side: int, padding: int) -> Tensor:
    """G of single examples (n, out, in, side, side) from a (n, in, height, width) and d (n, out,
    ...), by a convolution whose groups are the examples."""
    if len(image) == 1:  # one group alone would go through another kernel, which rounds otherwise
        image, delta = image.repeat(2, 1, 1, 1), delta.repeat(2, 1, 1, 1)
        return _grouped(image, delta, side=side, padding=padding)[:1]
    n, channels, out = *image.shape[:2], delta.shape[1]
    flat, above = (v.reshape(1, -1, *v.shape[2:]) for v in (image, delta))
    shape = (n * out, channels, side, side)
    found: Tensor = conv2d_weight(flat, shape, above, padding=padding, groups=n)
    return found.view(n, out, *shape[1:])


def _by_rows(image: Tensor, delta: Tensor, *, side: int, padding: int) -> Tensor:
    """The same by matrix products over patches: only the columns of a patch are laid side by side,
    and what meets a row of the kernel is a shifted view of them."""
    columns = functional.pad(image, [padding] * 4).unfold(3, side, 1).movedim(-1, 2).contiguous()
    pixels, height = delta.flatten(2).mT, delta.shape[2]
    rows = [
        torch.bmm(columns[:, :, :, k : k + height].flatten(1, 2).flatten(2), pixels)
        for k in range(side)
    ]
    found: Tensor = torch.stack(rows, dim=1).unflatten(2, (-1, side))  # n, ky, in, kx, out
    return found.permute(0, 4, 2, 1, 3)


def client_gradients(
    weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, *, padding: int
) -> tuple[Tensor, ...]:
    """Gradient of the sum of a client's losses in nats by every weight, (clients, *its shape)."""
    if inputs.shape[1] and is_compiled(*weights, inputs, labels):
        sums = _sums(weights, inputs, labels, padding, group=inputs.shape[1])
        return tuple(value[:, 0] for value in sums)
    images, deltas, features, top = _sweeps(weights, inputs, labels, padding)
    found = [
        conv2d_weight(
            image, kernel.flatten(0, 1).shape, delta, padding=padding, groups=len(kernel)
        ).view_as(kernel)
        for image, kernel, delta in zip(images, weights[:-1], deltas, strict=True)
    ]
    return (*found, top.mT @ features)


def logits(weights: Sequence[Tensor], inputs: Tensor, *, padding: int) -> Tensor:
    """(b, classes) of inputs (b, ...) and one client's weights (1, ...), where `is_compiled` and
    nobody wants a derivative; an example's bits do not depend on the others."""
    inputs, weights = inputs.contiguous(), [value.contiguous() for value in weights]
    found = inputs.new_empty(len(inputs), weights[-1].shape[1])
    sweeps = _compiled(weights, inputs.shape[1:], padding)
    sweeps.logits(len(inputs), inputs.data_ptr(), found.data_ptr())
    return found


def _sums(
    weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, padding: int, *, group: int
) -> tuple[Tensor, ...]:
    """Gradients of the sums of every `group` losses of a client, (clients, b / group, *shape)."""
    inputs, labels = inputs.contiguous(), labels.contiguous()
    weights = [value.contiguous() for value in weights]
    clients, b = inputs.shape[:2]
    found = tuple(inputs.new_empty(clients, b // group, *value.shape[1:]) for value in weights)
    _compiled(weights, inputs.shape[2:], padding).gradients(
        (clients, b, group), inputs.data_ptr(), labels.data_ptr(),
        [value.data_ptr() for value in found],
    )  # fmt: skip
    return found


def _compiled(weights: Sequence[Tensor], shape: Sequence[int], padding: int) -> native.ReluSweeps:
    """The weights must be contiguous, and live as long as this."""
    *kernels, head = weights
    return native.ReluSweeps(
        shape=shape, classes=head.shape[1], kernel=(kernels[0].shape[-1], padding),
        channels=[kernel.shape[1] for kernel in kernels],
        weights=[value.data_ptr() for value in weights], width=native.lanes(),
    )  # fmt: skip


def _sweeps(
    weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, padding: int
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """a_0 ... and d_1 ..., clients side by side as channels (b, clients * channels, height,
    width); what the dense layer meets, and d, (clients, b, features or classes)."""
    (*kernels, head), (clients, b) = weights, inputs.shape[:2]
    images, places, deltas = [inputs.transpose(0, 1).flatten(1, 2)], [], []
    for kernel in kernels:
        z = functional.conv2d(images[-1], kernel.flatten(0, 1), padding=padding, groups=clients)
        # Pooling is fast where the channels are the innermost axis.
        z = z.contiguous(memory_format=torch.channels_last)
        largest, where = functional.max_pool2d(z, 2, return_indices=True)
        images.append(largest.relu())  # as good as ReLU before pooling, and a quarter of the work
        places.append((where, list(z.shape[2:])))
    features = images[-1].reshape(b, clients, -1).transpose(0, 1)
    p = product(features, head.mT).softmax(dim=-1)
    top = p * labels.sum(dim=-1, keepdim=True) - labels
    back = product(top, head).transpose(0, 1).reshape(images[-1].shape)
    back = back.contiguous(memory_format=torch.channels_last)
    for layer in reversed(range(len(kernels))):
        where, sides = places[layer]
        back = back * images[layer + 1].sign()
        deltas.append(functional.max_unpool2d(back, where, [2, 2], output_size=sides))
        if layer:
            kernel = kernels[layer].flatten(0, 1)
            back = functional.conv_transpose2d(deltas[-1], kernel, padding=padding, groups=clients)
    return images[:-1], deltas[::-1], features, top
