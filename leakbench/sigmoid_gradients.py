"""Per-example gradients of sigmoid networks by hand, and their derivative in the inputs.

Shared weights W_l, b_l: z_l = W_l * a_{l-1} + b_l is a 5x5 convolution with padding 2,
a_l = sigmoid(z_l), a_0 = x; one dense layer z on top, p = softmax(z). The loss of an example is
-sum_c y_c log p_c. With d = dloss/dz, s' = a (1 - a) and W^ for the transpose, the gradients are

    d = p sum(y) - y,     d_{l-1} = (W^_l d_l) s'_{l-1},     G_l = d_l a_{l-1},     g_l = sum d_l.

Let G'_l, g'_l be given, the derivatives of anything by G_l, g_l. Its derivative by x is a'_0 after
one more sweep up and one down:

    up:    d'_l = G'_l * a_{l-1} + g'_l + W_l * (d'_{l-1} s'_{l-1}),     d'_0 = 0
    top:   z' = sum(y) p (d' - sum(p d')),     y' = sum(p d') - d'
    down:  a'_{l-1} = W^_l z'_l + G'^_l d_l,     z'_l = a'_l s'_l + d'_l d_l (1 - 2 a_l)

where the last term is s'_l inside d_l differentiated, for s'' = s' (1 - 2 a). Products with the
shared W are convolutions; those with an example's own G' are matrix products over its patches.
Images are kept as (n, height, width, channels), and d_l also as (n, pixels, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Size, Tensor

from leakbench import native

SIDE, MARGIN = 5, 2  # of a kernel, and the zeros around an image


def example_gradients(
    strides: Sequence[int], weights: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> tuple[Tensor, ...]:
    """Gradient of each example's cross-entropy in nats by every parameter, (n, *its shape).

    strides: of the convolutions. weights: weight and bias of every convolution, then of the dense
    layer; no derivative flows to them. inputs (n, channels, height, width); labels (n, classes)
    probabilities. Differentiable once in inputs and labels.
    """
    fixed = [weight.detach() for weight in weights]
    kind = _Compiled if is_compiled(inputs, labels, *fixed) else _ExampleGradients
    found: tuple[Tensor, ...] = kind.apply(tuple(strides), inputs, labels, *fixed)
    return found


def is_compiled(*values: Tensor) -> bool:
    """Whether the sweeps over these tensors are those of `leakbench.native`."""
    alike = all(value.is_cpu and value.dtype == torch.float32 for value in values)
    return alike and len(values) <= 2 * native.MOST_LAYERS and native.lanes() > 0


def client_gradients(
    strides: Sequence[int], weights: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> tuple[Tensor, ...]:
    """`example_gradients` of clients with weights of their own, where `is_compiled` and nobody
    wants a derivative: weights (clients, ...), inputs and labels (clients, b, ...)."""
    inputs, labels = inputs.contiguous(), labels.contiguous()
    weights = [weight.contiguous() for weight in weights]
    found = tuple(inputs.new_empty(*inputs.shape[:2], *weight.shape[1:]) for weight in weights)
    kept = None
    for client in range(len(inputs)):
        sweeps = _sweeps(strides, [weight[client] for weight in weights], inputs.shape[2:])
        if kept is None:
            kept = inputs.new_empty(inputs.shape[1], sweeps.kept)
        sweeps.gradients(
            inputs.shape[1], inputs[client].data_ptr(), labels[client].data_ptr(),
            kept.data_ptr(), [value[client].data_ptr() for value in found],
        )  # fmt: skip
    return found


def _sweeps(
    strides: Sequence[int], weights: Sequence[Tensor], shape: Sequence[int]
) -> native.SigmoidSweeps:
    """Of these weights, which are contiguous, over inputs of this shape."""
    return native.SigmoidSweeps(
        shape,
        len(weights[-1]),
        [(len(kernel), by) for kernel, by in zip(weights[:-2:2], strides, strict=True)],
        [weight.data_ptr() for weight in weights],
        native.lanes(),
    )


class _Compiled(torch.autograd.Function):
    """The same sweeps in C, one example after another."""

    @staticmethod
    def forward(
        ctx: Any, strides: tuple[int, ...], inputs: Tensor, labels: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        inputs, labels = inputs.contiguous(), labels.contiguous()
        weights = tuple(weight.contiguous() for weight in weights)
        sweeps = _sweeps(strides, weights, inputs.shape[1:])
        kept = inputs.new_empty(len(inputs), sweeps.kept)
        found = tuple(inputs.new_empty(len(inputs), *weight.shape) for weight in weights)
        sweeps.gradients(
            len(inputs), inputs.data_ptr(), labels.data_ptr(), kept.data_ptr(),
            [value.data_ptr() for value in found],
        )  # fmt: skip
        ctx.sweeps, ctx.kept, ctx.weights = sweeps, kept, weights
        ctx.shapes = inputs.shape, labels.shape
        return found

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        _require_once()
        given = tuple(value.contiguous() for value in given)
        by_inputs, by_labels = (ctx.kept.new_empty(shape) for shape in ctx.shapes)
        wanted = ctx.needs_input_grad[2]
        ctx.sweeps.derivative(
            len(by_inputs), ctx.kept.data_ptr(), [value.data_ptr() for value in given],
            by_inputs.data_ptr(), by_labels.data_ptr() if wanted else 0,
        )  # fmt: skip
        return (None, by_inputs, by_labels if wanted else None, *[None] * len(given))


def _require_once() -> None:
    if torch.is_grad_enabled():  # create_graph: a path through here would be missing from it
        raise RuntimeError("per-example gradients written by hand can be differentiated once")


class _ExampleGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, strides: tuple[int, ...], inputs: Tensor, labels: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        (*kernels, head), (*biases, head_bias) = weights[::2], weights[1::2]
        images, slopes, patches = [_last(inputs)], [], []  # a_0 ..., s'_1 ..., patches of a_0 ...
        for kernel, bias, stride in zip(kernels, biases, strides, strict=True):
            patches.append(_patches(images[-1], stride))
            z = functional.conv2d(_first(images[-1]), kernel, bias, stride, MARGIN)
            images.append(_last(z).contiguous().sigmoid_())
            slopes.append(images[-1] * (1 - images[-1]))
        features = _first(images[-1]).flatten(1)[:, None]
        every = head.expand(len(inputs), -1, -1)  # a GEMM of all rows would round by their number
        p = (features @ every.mT + head_bias).softmax(dim=-1)
        mass = labels.sum(dim=-1)[:, None, None]
        top = p * mass - labels[:, None]
        gradients = [top[:, 0], top.mT * features]
        back = _last((top @ every).reshape(_first(images[-1]).shape))
        deltas = []  # d_L ... d_1
        for layer in reversed(range(len(strides))):
            delta = back * slopes[layer]
            deltas.append(delta.flatten(1, 2))
            gradient = deltas[-1].mT @ patches[layer]
            gradients += [deltas[-1].sum(dim=1), _kernels(gradient, kernels[layer].shape)]
            if layer:
                extra = [(side - 1) % strides[layer] for side in images[layer].shape[1:3]]
                back = _last(
                    functional.conv_transpose2d(
                        _first(delta), kernels[layer], None, strides[layer], MARGIN, extra
                    )
                )
        ctx.strides, ctx.kernels, ctx.every, ctx.features = strides, kernels, every, features
        ctx.images, ctx.slopes, ctx.patches, ctx.deltas = images, slopes, patches, deltas[::-1]
        ctx.p, ctx.mass, ctx.top = p, mass, top
        return tuple(gradients[::-1])

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        _require_once()
        (*by_kernel, by_head), (*by_bias, by_head_bias) = given[::2], given[1::2]
        up, rows = [], []  # d'_1 ..., and G' above W as matrices
        below: Tensor | None = None  # d'_l s'_l of the layer before
        for layer, (kernel, slope) in enumerate(zip(ctx.kernels, ctx.slopes, strict=True)):
            own = _rows(by_kernel[layer])
            rows.append(torch.cat([own, _rows(kernel).expand(len(own), -1, -1)], dim=1))
            total = ctx.patches[layer] @ own.mT + by_bias[layer][:, None]
            if below is not None:
                shared = functional.conv2d(_first(below), kernel, None, ctx.strides[layer], MARGIN)
                total += _last(shared).flatten(1, 2)
            up.append(total)
            below = total.view_as(slope) * slope
        assert below is not None
        d = by_head @ ctx.features.mT + by_head_bias[..., None]
        d = (d + ctx.every @ _first(below).flatten(1)[..., None]).mT
        expected = (ctx.p * d).sum(dim=-1, keepdim=True)
        z = ctx.mass * ctx.p * (d - expected)
        image = (z @ ctx.every + ctx.top @ by_head).reshape(_first(below).shape)
        down = _last(image)
        for layer in reversed(range(len(rows))):
            a, delta = ctx.images[layer + 1].flatten(1, 2), ctx.deltas[layer]
            z = down.flatten(1, 2) * ctx.slopes[layer].flatten(1, 2)
            z += up[layer] * delta * (1 - 2 * a)
            both, shape = torch.cat([delta, z], dim=-1), ctx.images[layer].shape
            down = _transposed(both, rows[layer], ctx.strides[layer], shape)
        soft = (expected - d)[:, 0] if ctx.needs_input_grad[2] else None
        return (None, _first(down), soft, *[None] * (2 * len(rows) + 2))


def _first(image: Tensor) -> Tensor:
    """Channels first, a view."""
    return image.movedim(-1, 1)


def _last(image: Tensor) -> Tensor:
    """Channels last, a view."""
    return image.movedim(1, -1)


def _patches(image: Tensor, stride: int) -> Tensor:
    """(n, pixels of the next image, 25 channels): what each of those pixels is made of."""
    padded = functional.pad(image, (0, 0, *[MARGIN] * 4))
    windows = padded.unfold(1, SIDE, stride).unfold(2, SIDE, stride)  # n, y, x, channel, ky, kx
    patches: Tensor = windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
    return patches


def _rows(kernel: Tensor) -> Tensor:
    """(..., out, in, 5, 5) -> (..., out, 25 in), a row ordered like a patch."""
    rows: Tensor = kernel.flatten(-2).mT.flatten(-2)
    return rows


def _kernels(rows: Tensor, shape: Size) -> Tensor:
    """Undo `_rows`: (n, out, 25 in) -> (n, *shape)."""
    kernels: Tensor = rows.unflatten(-1, (SIDE * SIDE, -1)).mT.reshape(-1, *shape)
    return kernels


def _transposed(pixels: Tensor, rows: Tensor, stride: int, shape: Size) -> Tensor:
    """Transposed convolutions of `pixels` (n, pixels, k) with each example's own `rows`
    (n, k, 25 channels), summed up in an image of `shape`."""
    n, height, width, channels = shape
    y, x = -(-height // stride), -(-width // stride)
    tall = pixels.new_zeros(n, height + 2 * MARGIN, x, SIDE * channels)
    for k, own in enumerate(rows.chunk(SIDE, dim=-1)):
        tall[:, k : k + stride * y : stride][:, :y].add_((pixels @ own).unflatten(1, (y, x)))
    tall = tall[:, MARGIN : MARGIN + height].unflatten(-1, (SIDE, channels))
    wide = pixels.new_zeros(n, height, width + 2 * MARGIN, channels)
    for k in range(SIDE):
        wide[:, :, k : k + stride * x : stride][:, :, :x].add_(tall[..., k, :])
    return wide[:, :, MARGIN : MARGIN + width]
