"""Contract tests of models (`leakbench.testing.check_model`)."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.architectures import Architecture, assemble
from leakbench.breach import ContractBreach, check_class, require
from leakbench.contracts import Model, Weights
from leakbench.errors import LeakbenchError
from leakbench.gradients import of_batch
from leakbench.losses import mean_loss, require_classes
from leakbench.modules import fixed_of
from leakbench.streams import generator
from leakbench.weights import digest

SEED = 7


def check_model(
    architecture: Architecture, input_shape: tuple[int, ...] | None = None, classes: int = 10
) -> None:
    """Weights follow their generator alone; logits are (b, outputs), the same every time, and those
    of an example alone unless it says otherwise; batch gradients are those of a loop of autograd,
    in a batch of clients too; the head is there; nothing is changed.

    input_shape: what to build it for, else digits, or rows where it takes no images.

    Raises:
        ContractBreach: a promise is broken.
        LeakbenchError: the network cannot be built.
    """
    check_class(architecture, Architecture)
    shape = input_shape or ((30,) if architecture.takes == "rows" else (1, 28, 28))
    random_state = torch.random.get_rng_state()
    model = assemble(architecture, shape, classes, "default")
    seeds = (generator(SEED, "weights"), generator(SEED, "weights"), generator(SEED, "others"))
    weights, again, others = (model.init(seed, torch.float32) for seed in seeds)
    require(
        torch.equal(random_state, torch.random.get_rng_state()),
        "build or init draws from torch's global generator; draw from the given one",
    )
    require(
        weights.keys() == again.keys()
        and all(torch.equal(v, again[k]) for k, v in weights.items()),
        "init draws other weights from the same generator",
    )
    require(
        any(not torch.equal(v, others[k]) for k, v in weights.items()),
        "init does not draw from the generator",
    )
    require(
        model.head is None or (model.head in weights and weights[model.head].ndim == 2),
        f"head '{model.head}' is no weight (outputs, features) among {list(weights)}",
    )
    before = digest({**weights, **fixed_of(model)})
    inputs = torch.rand(8, *shape, generator=generator(SEED, "inputs"))
    labels = torch.arange(8) % classes
    _check_logits(model, weights, inputs, classes)
    _check_gradients(model, weights, inputs, labels)
    require(
        digest({**weights, **fixed_of(model)}) == before, "the model changes weights or buffers"
    )


def _check_logits(model: Model, weights: Weights, inputs: Tensor, classes: int) -> None:
    with torch.no_grad():
        logits, again = model.logits(weights, inputs), model.logits(weights, inputs)
        part = model.logits(weights, inputs[:4])
    require(
        logits.ndim == 2 and len(logits) == len(inputs),
        f"logits of {len(inputs)} inputs have shape {tuple(logits.shape)}, not (b, outputs)",
    )
    try:
        require_classes(model.loss, logits.shape[1], classes)
    except LeakbenchError as error:
        raise ContractBreach(str(error)) from None
    require(torch.equal(logits, again), "logits give two answers to one question")
    apart = torch.allclose(part, logits[:4], rtol=1e-3, atol=1e-3 * float(logits.abs().amax()))
    require(
        model.mixes_examples or apart,
        "logits of an example depend on the others of its batch; say mixes_examples",
    )


def _check_gradients(model: Model, weights: Weights, inputs: Tensor, labels: Tensor) -> None:
    """Of two clients with four examples each, by the machinery and by plain autograd."""
    batches = (inputs.unflatten(0, (2, 4)), labels.unflatten(0, (2, 4)))
    found = of_batch(model, weights, *batches)
    require(found.tensors.keys() == weights.keys(), "gradients name other parameters than init")
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    for client, (images, classes) in enumerate(zip(*batches, strict=True)):
        loss = mean_loss(model.loss, model.logits(leaves, images), classes)
        wanted = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for name, value in zip(leaves, wanted, strict=True):
            scale = float(value.abs().amax())
            require(
                torch.allclose(found.tensors[name][client], value, rtol=1e-3, atol=1e-3 * scale),
                f"the gradient of '{name}' in a batch of clients is not that of autograd",
            )
    dummy = batches[0].clone().requires_grad_()
    slopes = of_batch(model, weights, dummy, batches[1]).flatten()
    require(slopes.requires_grad, "gradients are not differentiable in the inputs")
    second = torch.autograd.grad(slopes.square().sum(), dummy)[0]
    require(bool(torch.isfinite(second).all()), "gradients have a derivative that is not finite")
