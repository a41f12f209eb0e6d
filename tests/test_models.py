"""The networks against torch.nn layers with the same weights, and their weight draws."""

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from leakbench import data
from leakbench.architectures import build
from leakbench.contracts import Defense
from leakbench.errors import LeakbenchError
from leakbench.federated import train
from leakbench.gradients import of_batch
from leakbench.models.mlp import DenseNet
from leakbench.models.relu import ReluNet
from leakbench.models.sigmoid import SigmoidNet
from leakbench.modules import ModuleModel
from leakbench.sampling import partition, sample
from leakbench.streams import NoiseStreams, generator
from leakbench.training_schedule import Schedule
from leakbench.weights import Scheme, digest

SHAPES = [(1, 28, 28), (3, 32, 32)]

# Channels and strides by hand, from the papers' notebooks.
LAYERS = {
    "lenet_cpl": [(12, 2), (12, 2), (12, 1), (12, 1)],
    "lenet_dlg": [(12, 2), (12, 2), (12, 1)],
    "cnn2": [(16, 2), (32, 2)],
}
CONVOLUTIONAL = tuple(LAYERS)
BUILT_IN = (*CONVOLUTIONAL, "cnn2_relu", "mlp")

# (model, channels) -> features of the dense layer, number of parameters.
SIZES = {
    ("lenet_cpl", 1): (588, 17_038),
    ("lenet_cpl", 3): (768, 19_438),
    ("lenet_dlg", 1): (588, 13_426),
    ("lenet_dlg", 3): (768, 15_826),
    ("cnn2", 1): (1568, 28_938),
    ("cnn2", 3): (2048, 34_538),
}


def draw(
    model: SigmoidNet | ReluNet | DenseNet, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    return model.init(generator(seed, "weights"), dtype)


def sequential(name: str, channels: int, features: int, weights: dict[str, Tensor]) -> nn.Module:
    """The same network of torch.nn modules, holding `weights`."""
    modules: list[nn.Module] = []
    for width, stride in LAYERS[name]:
        modules += [nn.Conv2d(channels, width, 5, padding=2, stride=stride), nn.Sigmoid()]
        channels = width
    network = nn.Sequential(*modules, nn.Flatten(), nn.Linear(features, 10))
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    return network


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_sizes(name: str, shape: tuple[int, ...]) -> None:
    weights = draw(build(name, shape, 10))
    features, parameters = SIZES[name, shape[0]]
    assert weights["dense.weight"].shape == (10, features)
    assert sum(value.numel() for value in weights.values()) == parameters
    assert len(weights) == 2 * len(LAYERS[name]) + 2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_forward_is_that_of_torch_layers(name: str, shape: tuple[int, ...]) -> None:
    images = data.load("mnist" if shape[0] == 1 else "cifar10").candidates[:6]
    model = build(name, shape, 10)
    weights = draw(model)
    expected = sequential(name, shape[0], SIZES[name, shape[0]][0], weights)(images)
    logits = model.logits(weights, images)
    assert logits.shape == (6, 10)
    torch.testing.assert_close(logits, expected.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "least"), [("cnn3x3", 10), ("cnn2_relu", 4)])
def test_pooling_must_leave_something(name: str, least: int) -> None:
    model = build(name, (1, least, least + 3), 10)
    assert model.logits(draw(model), torch.rand(2, 1, least, least + 3)).shape == (2, 10)
    with pytest.raises(LeakbenchError, match=rf"nothing .* allowed: {least} x {least} or more"):
        build(name, (1, least + 3, least - 1), 10)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [((30,), 30 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2), ((105,), 8930), ((1, 28, 28), 52_386)],
    ids=str,
)
def test_mlp_is_that_of_torch_layers(shape: tuple[int, ...], parameters: int) -> None:
    model = build("mlp", shape, 2)
    weights = draw(model)
    assert list(weights) == ["dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias",
                             "dense3.weight", "dense3.bias"]  # fmt: skip
    assert {key: value.shape for key, value in weights.items()} == model.shapes()
    assert sum(value.numel() for value in weights.values()) == parameters
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(),
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2),
    )  # fmt: skip
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    inputs = torch.rand(6, *shape, generator=generator(0, "inputs"))
    logits = model.logits(weights, inputs)
    assert logits.shape == (6, 2)
    torch.testing.assert_close(logits, network(inputs).detach(), rtol=1e-5, atol=1e-5)


def test_mlp_without_biases_is_that_of_the_released_code() -> None:
    model = build("mlp", (105,), 2, "default", {"widths": [600, 100], "bias": False})
    weights = draw(model)
    assert {key: tuple(value.shape) for key, value in weights.items()} == {
        "dense1.weight": (600, 105), "dense2.weight": (100, 600), "dense3.weight": (2, 100),
    }  # fmt: skip
    network = nn.Sequential(
        nn.Linear(105, 600, bias=False), nn.ReLU(),
        nn.Linear(600, 100, bias=False), nn.ReLU(), nn.Linear(100, 2, bias=False),
    )  # fmt: skip
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    rows = torch.rand(6, 105, generator=generator(0, "inputs"))
    expected = network(rows).detach()
    torch.testing.assert_close(model.logits(weights, rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("shape", [(30,), (28, 28), ()], ids=str)
def test_image_models_refuse_tables(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(LeakbenchError, match=rf"'{name}': takes images.*allowed for those: mlp"):
        build(name, shape, 2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_head_is_the_last_weight(name: str) -> None:
    model = build(name, (1, 28, 28), 7)
    weights = draw(model)
    dense = [key for key, value in weights.items() if value.ndim == 2]
    assert model.head == dense[-1]
    assert weights[model.head].shape[0] == 7


def fan_in(name: str, weights: dict[str, Tensor]) -> int:
    return weights[name.rpartition(".")[0] + ".weight"][0].numel()


@pytest.mark.parametrize("scheme", ["uniform", "default"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_weights_fill_their_range(name: str, scheme: Scheme) -> None:
    weights = draw(build(name, (1, 28, 28), 10, scheme))
    for key, value in weights.items():
        bound = 0.5 if scheme == "uniform" else 1 / math.sqrt(fan_in(key, weights))
        assert float(value.abs().max()) <= bound
        if value.numel() > 200:  # a uniform sample of that size comes near both ends
            assert float(value.min()) < -0.95 * bound
            assert float(value.max()) > 0.95 * bound


def test_default_scheme_has_the_ranges_of_torch_layers() -> None:
    """torch initialises weight and bias of a layer by the same bound."""
    weights = draw(build("cnn2", (3, 32, 32), 10, "default"))
    layer = nn.Conv2d(3, 16, 5)
    bound = 1 / math.sqrt(3 * 25)
    assert float(layer.weight.detach().abs().max()) <= bound
    ratio = float(layer.weight.detach().std() / weights["conv1.weight"].std())
    assert abs(ratio - 1) < 0.1


def test_draws_follow_the_seed() -> None:
    model = build("lenet_dlg", (1, 28, 28), 10)
    one, same, other = draw(model, 1), draw(model, 1), draw(model, 2)
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one)


def test_float32_weights_are_float64_weights_rounded() -> None:
    model = build("lenet_cpl", (1, 28, 28), 10)
    single, double = draw(model), draw(model, dtype=torch.float64)
    assert all(torch.equal(single[k], double[k].float()) for k in single)


def test_unknown_model_names_the_choices() -> None:
    with pytest.raises(LeakbenchError, match=r"did you mean 'lenet_cpl'.*cnn2"):
        build("lenet_clp", (1, 28, 28), 10)


def test_digest_sees_every_change() -> None:
    weights = draw(build("lenet_dlg", (1, 28, 28), 10))
    bias = weights["dense.bias"]
    nudged = bias.clone()
    nudged[3] = torch.nextafter(nudged[3], torch.tensor(1.0))
    rest = {k: v for k, v in weights.items() if k != "dense.bias"}
    variants = {
        "as it is": weights,
        "one bit": rest | {"dense.bias": nudged},
        "shape": rest | {"dense.bias": bias[:, None]},
        "name": rest | {"dense.offset": bias},
        "missing": rest,
        "type": rest | {"dense.bias": bias.double()},
    }
    assert len({digest(value) for value in variants.values()}) == len(variants)


def test_digest_ignores_order_and_memory_layout() -> None:
    weights = draw(build("lenet_dlg", (1, 28, 28), 10))
    reordered = dict(reversed(weights.items()))
    reordered["dense.weight"] = reordered["dense.weight"].t().contiguous().t()
    assert digest(reordered) == digest(weights)


def test_an_own_module_becomes_a_model() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    model = ModuleModel(module=module, head="1.weight")
    weights = model.init(torch.Generator(), torch.float32)
    images = data.load("mnist").candidates[:4]
    torch.testing.assert_close(model.logits(weights, images), module(images))
    weights["1.bias"] = weights["1.bias"] + 1  # an argument, not the module's own
    torch.testing.assert_close(model.logits(weights, images), module(images) + 1)


@pytest.mark.parametrize("head", ["2.weight", "1.bias"])
def test_a_module_without_that_head_is_refused(head: str) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    with pytest.raises(LeakbenchError, match=r"unknown head .* allowed: 1\.weight"):
        ModuleModel(module=module, head=head)


def test_running_statistics_that_nobody_updates_are_refused() -> None:
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(784, 10))
    with pytest.raises(LeakbenchError, match=r"layer '0': .* of BatchNorm2d in training") as caught:
        ModuleModel(module=module, head="2.weight")
    assert 'mode "train", which keeps none' in str(caught.value)
    module.eval()
    model = ModuleModel(module=module, head="2.weight")
    assert not model.mixes_examples
    images = data.load("mnist").candidates[:4]
    logits = model.logits(model.init(torch.Generator(), torch.float32), images)
    alone = model.logits(model.init(torch.Generator(), torch.float32), images[2:3])
    torch.testing.assert_close(logits[2:3], alone, rtol=1e-6, atol=1e-6)


def normalised(layer: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=2), layer, nn.Tanh(), nn.Flatten(), nn.Linear(576, 10)
    )


@pytest.mark.parametrize(
    ("layer", "mixes"),
    [
        (nn.BatchNorm2d(4, track_running_stats=False), True),
        (nn.GroupNorm(2, 4), False),
        (nn.InstanceNorm2d(4), False),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_says_whether_it_mixes_examples(
    layer: nn.Module, mixes: bool, training: bool
) -> None:
    model = ModuleModel(module=normalised(layer).train(training), head="4.weight")
    assert model.mixes_examples is mixes
    weights = model.init(torch.Generator(), torch.float32)
    images = data.load("mnist").candidates[:8]
    whole, part = model.logits(weights, images)[:4], model.logits(weights, images[:4])
    assert bool(((whole - part).abs() > 1e-3).any()) is mixes


@pytest.mark.parametrize("clients", [1, 3])
def test_batch_gradients_through_batch_norm_are_those_of_autograd(clients: int) -> None:
    """Of every client, each normalised by his own batch."""
    module = normalised(nn.BatchNorm2d(4, track_running_stats=False)).double()
    model = ModuleModel(module=module, head="4.weight")
    weights = model.init(torch.Generator(), torch.float64)
    images = data.load("mnist").candidates[: 8 * clients].double().unflatten(0, (clients, 8))
    labels = data.load("mnist").candidate_labels[: 8 * clients].unflatten(0, (clients, 8))
    found = of_batch(model, weights, images, labels)
    for client in range(clients):
        loss = nn.functional.cross_entropy(module(images[client]), labels[client])
        wanted = torch.autograd.grad(loss, list(module.parameters()))
        for (name, _), value in zip(module.named_parameters(), wanted, strict=True):
            torch.testing.assert_close(
                found.tensors[name][client], value, rtol=1e-10, atol=1e-12, msg=name
            )


class Batches(Defense):
    """Looks at whole batches only."""

    name: ClassVar[str] = "batches"

    @property
    def row(self) -> None:
        """No gradients of single examples."""


@pytest.mark.parametrize("clients", [1, 2])
def test_a_network_with_batch_norm_is_trained_on_batches(clients: int) -> None:
    """As torch.optim.SGD trains the module itself, and the loss falls."""
    module = normalised(nn.BatchNorm2d(4, track_running_stats=False))
    model = ModuleModel(module=module, head="4.weight")
    dataset = data.load("mnist")
    images, labels = dataset.train[:320], dataset.train_labels[:320]
    schedule = Schedule(
        rounds=15, batch_size=16, learning_rate=0.1, clients=clients, clients_a_round=clients
    )
    trained = train(
        model, model.init(torch.Generator(), torch.float32), images, labels, Batches(), schedule,
        seed=0, noise=NoiseStreams(0, ()),
        evaluate=lambda weights: float(
            nn.functional.cross_entropy(model.logits(weights, images), labels)
        ),
        evaluate_at=(0, 15),
    )  # fmt: skip
    assert trained.curve[1][1] < 0.7 * trained.curve[0][1]
    shares = partition(labels, schedule, 0, ())
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for number in range(15):
        steps = sample(shares, schedule, 0, (), number)[1]
        optimiser.zero_grad()
        for rows in steps[0].positions:
            loss = nn.functional.cross_entropy(module(images[rows]), labels[rows])
            (loss / clients).backward()
        optimiser.step()
    for name, value in module.named_parameters():
        torch.testing.assert_close(
            trained.weights[name], value.detach(), rtol=1e-5, atol=1e-5, msg=name
        )
