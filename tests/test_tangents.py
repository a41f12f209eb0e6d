"""Derivatives of gradients along the inputs against `torch.func.jacfwd` and differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jvp

from leakbench import data, registry
from leakbench.architectures import build
from leakbench.contracts import Defense, Gradients, LeakPoint, LocalSteps, Observation
from leakbench.leaking import Tap
from leakbench.losses import mean_loss
from leakbench.streams import generator
from leakbench.tangents import Plain

EXAMPLES, BATCHES = LeakPoint(), LeakPoint(view="batch")


def _seen(
    model_name: str,
    defense: Defense,
    *,
    victims: int = 1,
    batch_size: int = 1,
    local_steps: int = 1,
    point: LeakPoint = EXAMPLES,
    dataset: str = "mnist",
    dtype: torch.dtype = torch.float64,
) -> tuple[Observation, Tensor, Tensor]:
    """A look at the first candidates, adaptive, and what the victims are."""
    source = data.load(dataset)
    model = build(model_name, source.input_shape, source.classes)
    weights = model.init(generator(3, "weights"), dtype)
    tap = Tap(model=model, point=point, batch_size=batch_size, local_steps=local_steps)
    look = tap.look(defense, weights, tap.begin(defense, weights))
    every = victims * batch_size * local_steps
    images = source.candidates[:every].to(dtype).unflatten(0, (victims, -1))
    labels = source.candidate_labels[:every].unflatten(0, (victims, -1))
    draws = generator(4, "seen")
    noise = {k: torch.randn(victims, *v.shape, generator=draws) for k, v in weights.items()}
    observed = Gradients({k: v.to(dtype) for k, v in noise.items()}, ("client",))
    return tap.observation(weights, observed, [tap.replay(defense, look)]), images, labels


def _directions(images: Tensor, count: int) -> Tensor:
    shape = (len(images), count, *images.shape[1:])
    return torch.randn(shape, generator=generator(5, "tangents"), dtype=images.dtype)


def _close(found: Tensor, wanted: Tensor, bound: float) -> None:
    assert float(wanted.norm()) > 0
    assert float((found - wanted).norm() / wanted.norm()) < bound


def _reference(seen: Observation, labels: Tensor, clip: float) -> Callable[[Tensor], Tensor]:
    """One victim's batch gradient, every tensor of every example clipped: written down anew."""
    model, weights = seen.run.model, seen.weights  # type: ignore[attr-defined]

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return mean_loss("cross_entropy", model.logits(weights, image[None]), label[None])

    def gradient(images: Tensor) -> Tensor:
        total: list[Tensor] = []
        for image, label in zip(images, labels, strict=True):
            one = grad(loss)(weights, image, label).values()
            total.append(torch.cat([(v / (v.norm() / clip).clamp(min=1)).flatten() for v in one]))
        return torch.stack(total).mean(dim=0)

    return gradient


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
@pytest.mark.parametrize("model", ["cnn2", "lenet_cpl", "lenet_dlg"])
@pytest.mark.parametrize("clip", [1e9, 0.5])
def test_columns_by_hand_are_those_of_forward_differentiation(
    model: str, dataset: str, clip: float
) -> None:
    """A batch of two, grey and in colour, plain and through a clip of every tensor."""
    dp = registry.load("defenses", "dp_baseline")
    defense = dp(clip=clip, noise_multiplier=0.1)
    seen, images, labels = _seen(model, defense, batch_size=2, point=BATCHES, dataset=dataset)
    reference = _reference(seen, labels[0], clip)
    directions = _directions(images, 5)
    plain, pushed = seen.push(images, labels, torch.arange(1), directions)
    assert pushed.axes == ("client", "column") and pushed.leading == (1, 5)
    _close(plain.flatten()[0], reference(images[0]), 1e-12)
    wanted = [jvp(reference, (images[0],), (one,))[1] for one in directions[0]]
    _close(pushed.flatten()[0], torch.stack(wanted), 1e-10)


@pytest.mark.parametrize("model", ["cnn2", "lenet_cpl", "lenet_dlg"])
def test_unit_directions_give_the_jacobian(model: str) -> None:
    """Of five rows of pixels in the middle."""
    seen, images, labels = _seen(model, Defense())
    units = torch.eye(784, dtype=torch.float64).reshape(1, 784, 1, 1, 28, 28)[:, 280:420]
    _, pushed = seen.push(images, labels, torch.arange(1), units)
    reference, image = _reference(seen, labels[0], 1e9), images[0]

    def gradient(middle: Tensor) -> Tensor:
        return reference(torch.cat([image[:, :, :10], middle, image[:, :, 15:]], dim=2))

    wanted = jacfwd(gradient)(image[:, :, 10:15])
    _close(pushed.flatten()[0].mT, wanted.flatten(1), 1e-10)


def test_units_of_a_batch_move_one_example_each() -> None:
    """Directions that leave an example alone are not computed for it, and are zeros there."""
    seen, images, labels = _seen("lenet_dlg", Defense(), batch_size=2, point=BATCHES)
    units = torch.eye(2 * 784, dtype=torch.float64).reshape(1, -1, 2, 1, 28, 28)[:, 700:900]
    _, pushed = seen.push(images, labels, torch.arange(1), units)
    reference = _reference(seen, labels[0], 1e9)
    for column in (0, 83, 84, 199):
        wanted = jvp(reference, (images[0],), (units[0, column],))[1]
        _close(pushed.flatten()[0, column], wanted, 1e-10)


DP = ("dp_baseline", {"clip": 0.5, "noise_multiplier": 0.1})


@pytest.mark.parametrize(
    ("model", "defense", "point", "sizes"),
    [
        ("cnn2", ("prune", {}), EXAMPLES, (1, 1)),
        ("lenet_dlg", ("dssgd", {}), LeakPoint(type=1), (2, 1)),
        ("cnn2", DP, LeakPoint(type=1), (2, 3)),
        ("lenet_dlg", ("fed_sdp_server", {}), LeakPoint(type=0), (1, 2)),
        ("lenet_cpl", ("batch_clip", {"clip": 0.5}), BATCHES, (2, 1)),
        ("mlp", DP, EXAMPLES, (1, 1)),
    ],
)
@pytest.mark.parametrize("local_steps", ["unroll", "average"])
def test_directions_go_through_whatever_stands_on_the_path(
    model: str,
    defense: tuple[str, dict[str, float]],
    point: LeakPoint,
    sizes: tuple[int, int],
    local_steps: LocalSteps,
) -> None:
    """Against central differences of `simulate`, whose own gradients other tests check."""
    built = registry.load("defenses", defense[0])(**defense[1])
    seen, images, labels = _seen(
        model, built, victims=2, batch_size=sizes[0], local_steps=sizes[1], point=point
    )
    rows, directions, step = torch.arange(2), _directions(images, 2), 1e-5
    plain, pushed = seen.push(images, labels, rows, directions, local_steps=local_steps)

    def at(shift: Tensor) -> Tensor:
        return seen.simulate(images + shift, labels, rows, local_steps=local_steps).flatten()

    _close(plain.flatten(), at(torch.zeros_like(images)), 1e-12)
    for column in range(2):
        shift = step * directions[:, column]
        _close(pushed.flatten()[:, column], (at(shift) - at(-shift)) / (2 * step), 1e-6)


def test_relu_networks_are_differentiated_where_they_are_smooth() -> None:
    """Against the general route, which knows nothing by hand."""
    seen, images, labels = _seen("cnn2_relu", Defense())
    directions = _directions(images, 3)
    _, pushed = seen.push(images, labels, torch.arange(1), directions)
    wanted = [jvp(_reference(seen, labels[0], 1e9), (images[0],), (v,))[1] for v in directions[0]]
    _close(pushed.flatten()[0], torch.stack(wanted), 1e-10)


def test_a_large_network_is_differentiated_backwards_twice() -> None:
    """The route of networks that are computed alone gives what the other one gives."""
    from leakbench import tangents

    seen, images, labels = _seen("lenet_dlg", Defense(), batch_size=2, point=BATCHES)
    general = dataclasses.replace(seen.run, model=Plain(seen.run.model))  # type: ignore[type-var,attr-defined]
    directions = _directions(images, 3)
    _, wanted = seen.push(images, labels, torch.arange(1), directions)

    def path(values: Tensor) -> Gradients:
        return general(seen, values, labels, torch.arange(1), "unroll")

    _, found = tangents.of_large(path, images, directions[0])
    for name, value in found.items():
        _close(value, wanted.tensors[name][0], 1e-10)


def test_inputs_in_float64_mean_float64_arithmetic() -> None:
    """Also where weights, observation and a pruning defense's masks are in float32."""
    prune = registry.load("defenses", "prune")()
    seen, images, labels = _seen("cnn2", prune, dtype=torch.float32)
    rows, exact = torch.arange(1), images.double()
    directions = _directions(exact, 2)
    found = seen.simulate(exact, labels, rows).flatten()
    plain, pushed = seen.push(exact, labels, rows, directions)
    assert found.dtype == pushed.flatten().dtype == torch.float64
    wide = dataclasses.replace(
        seen,
        weights={k: v.double() for k, v in seen.weights.items()},
        gradients=seen.gradients.map(lambda _, v: v.double()),
    )
    assert torch.equal(found, wide.simulate(exact, labels, rows).flatten())
    _close(plain.flatten(), found, 1e-12)
    assert torch.equal(pushed.flatten(), wide.push(exact, labels, rows, directions)[1].flatten())
    _close(found.float(), seen.simulate(images, labels, rows).flatten(), 1e-5)


@pytest.mark.independent_rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_victims_columns_do_not_depend_on_the_others(dtype: torch.dtype) -> None:
    defense = registry.load("defenses", "dp_baseline")(clip=0.5, noise_multiplier=0.1)
    seen, images, labels = _seen("cnn2", defense, victims=3, dtype=dtype)
    directions = _directions(images, 40)
    _, together = seen.push(images, labels, torch.arange(3), directions)
    last = torch.tensor([2])
    _, alone = seen.push(images[last], labels[last], last, directions[last])
    assert torch.equal(alone.flatten()[0], together.flatten()[2])
