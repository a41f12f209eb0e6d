"""A user's `torch.nn.Module` as a model: draws, modes, frozen layers, and what is refused."""

import hashlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakbench import data
from leakbench.architectures import Architecture, assemble
from leakbench.breach import ContractBreach
from leakbench.defenses.batch_clipping import layers_of
from leakbench.errors import LeakbenchError
from leakbench.gradients import of_batch
from leakbench.model_checks import check_model
from leakbench.modules import ModuleModel, require_steady, settled
from leakbench.registry import discover, load
from leakbench.streams import generator
from leakbench.weights import Scheme

DIGIT = (1, 28, 28)


def layers(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), *between, nn.Flatten(), nn.LazyLinear(10))


def built(*between: nn.Module) -> nn.Sequential:
    module = layers(*between)
    with torch.no_grad():
        module(torch.zeros(2, *DIGIT))
    return module


def head_of(module: nn.Sequential) -> str:
    return f"{len(module) - 1}.weight"


def state_hash(module: nn.Module) -> str:
    sha = hashlib.sha256()
    for name, value in module.state_dict().items():
        sha.update(name.encode() + value.numpy().tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_users_module_is_as_it_was_after_use(mode: Any) -> None:
    module = built(nn.BatchNorm2d(4), nn.Dropout(0.0))
    before, training = state_hash(module), module.training
    model = ModuleModel(module=module, head=head_of(module), mode=mode, scheme="default")
    images = data.load("mnist").candidates[:8]
    random_state = torch.random.get_rng_state()
    weights = model.init(generator(0, "weights"), torch.float32)
    of_batch(model, weights, images.unflatten(0, (2, 4)), torch.arange(8).unflatten(0, (2, 4)))
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert state_hash(module) == before and module.training is training
    assert all(not value.grad_fn and value.grad is None for value in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modes_are_those_of_torch(dtype: torch.dtype) -> None:
    module = built(nn.BatchNorm2d(4))
    images = data.load("mnist").candidates[:8]
    module(images)  # running statistics of their own
    for mode in ("train", "eval"):
        model = ModuleModel(module=module, head=head_of(module), mode=mode)  # type: ignore[arg-type]
        weights = model.init(torch.Generator(), dtype)
        found = model.logits(weights, images.to(dtype))
        wanted = module.train(mode == "train")(images)
        torch.testing.assert_close(found.float(), wanted, rtol=1e-5, atol=1e-5)
        assert model.mixes_examples is (mode == "train")


@pytest.mark.parametrize("seen", [24, 27, 5])
def test_a_settled_network_is_torchs_after_its_running_statistics(seen: int) -> None:
    """Batches of 8: three of them, three and a rest that is left out, and one of five."""
    digits = data.load("mnist")
    module = built(nn.BatchNorm2d(4, momentum=None), nn.Tanh(), nn.BatchNorm2d(4, momentum=None))
    model = ModuleModel(module=module, head=head_of(module), mode="train")
    for layer in (module[1], module[3]):
        assert isinstance(layer, nn.BatchNorm2d)
        layer.reset_running_stats()
    with torch.no_grad():
        for batch in digits.public[: seen // 8 * 8 or seen].split(8):
            module.train()(batch)
        wanted = module.eval()(digits.candidates[:6])
    weights = model.init(torch.Generator(), torch.float32)
    used = settled(model, weights, digits.public[:seen], 8)
    assert not used.mixes_examples and model.mixes_examples
    found = used.logits(weights, digits.candidates[:6])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    alone = torch.cat([used.logits(weights, one) for one in digits.candidates[:6].split(1)])
    torch.testing.assert_close(alone, found, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model.logits(weights, digits.candidates[:6]), found, atol=1e-2)


def test_a_network_without_batch_statistics_is_settled_as_it_is() -> None:
    for module in (built(nn.GroupNorm(2, 4)), built(nn.BatchNorm2d(4))):
        model = ModuleModel(module=module, head=head_of(module), mode="eval")
        weights = model.init(torch.Generator(), torch.float32)
        assert settled(model, weights, data.load("mnist").public[:8], 4) is model


def test_default_weights_are_drawn_by_the_layers_themselves() -> None:
    module = built(nn.GroupNorm(2, 4))
    model = ModuleModel(module=module, head=head_of(module), scheme="default")
    one, same, other = (model.init(generator(seed, "w"), torch.float32) for seed in (1, 1, 2))
    for name, value in one.items():
        assert torch.equal(value, same[name])
        drawn = not name.startswith("1.")  # GroupNorm always begins with 1 and 0
        assert torch.equal(value, other[name]) is not drawn
        bound = {"0": 5, "3": 576**0.5}.get(name[0])  # of torch's layers: 1 / sqrt(fan in)
        assert bound is None or 0.9 / bound < float(value.abs().max()) <= 1 / bound
    assert one["1.weight"].tolist() == [1.0] * 4
    uniform = ModuleModel(module=module, head=head_of(module), scheme="uniform")
    drawn = uniform.init(generator(1, "w"), torch.float32)
    assert 0.48 < float(drawn[head_of(module)].abs().max()) <= 0.5
    assert not torch.equal(drawn["1.weight"], one["1.weight"])


class Scaled(nn.Module):
    """A parameter of its own, without a way to draw it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale


def test_a_parameter_that_nothing_draws_is_refused() -> None:
    module = built(Scaled())
    model = ModuleModel(module=module, head=head_of(module), scheme="default")
    with pytest.raises(LeakbenchError, match=r"parameter '1\.scale': no layer's reset_parameters"):
        model.init(generator(0, "w"), torch.float32)


def test_frozen_parameters_leak_nothing() -> None:
    module = built(nn.ReLU())
    module[0].requires_grad_(False)
    model = ModuleModel(module=module, head=head_of(module), scheme="default")
    weights = model.init(generator(0, "w"), torch.float32)
    assert list(weights) == ["3.weight", "3.bias"] and set(model.fixed) == {"0.weight", "0.bias"}
    images, labels = data.load("mnist").candidates[:4], torch.arange(4)
    found = of_batch(model, weights, images[None], labels[None])
    assert found.tensors.keys() == weights.keys()
    features = module[:3](images).detach()  # the frozen layer is the module's own
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    loss = F.cross_entropy(F.linear(features, leaves["3.weight"], leaves["3.bias"]), labels)
    loss.backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(found.tensors[name][0], leaf.grad, rtol=1e-5, atol=1e-6)
    with pytest.raises(LeakbenchError, match="no parameter has requires_grad"):
        ModuleModel(module=module.requires_grad_(False), head=None)


UNSTEADY = [
    (nn.Dropout(0.3), "Dropout draws at random"),
    (nn.Dropout2d(0.3), "Dropout2d draws at random"),
    (nn.RReLU(), "RReLU draws at random"),
    (nn.BatchNorm2d(4), "running statistics of BatchNorm2d"),
    (nn.InstanceNorm2d(4, track_running_stats=True), "running statistics of InstanceNorm2d"),
]


@pytest.mark.parametrize(("layer", "reason"), UNSTEADY, ids=lambda v: type(v).__name__)
def test_layers_that_would_give_another_gradient_are_refused(layer: nn.Module, reason: str) -> None:
    module = built(layer)
    with pytest.raises(LeakbenchError, match=rf"layer '1': {reason}.*mode \"eval\""):
        ModuleModel(module=module, head=head_of(module))
    model = ModuleModel(module=module, head=head_of(module), mode="eval")
    images = data.load("mnist").candidates[:3]
    weights = model.init(torch.Generator(), torch.float32)
    torch.testing.assert_close(model.logits(weights, images), module.eval()(images))


class Hidden(nn.Module):
    """What no layer tells."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.dense = nn.Linear(784, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        if self.kind == "random":
            features = F.dropout(features, 0.5, self.training)
        if self.kind == "counts":
            self.seen += 1
        return self.dense(features)[0] if self.kind == "shape" else self.dense(features)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("random", "gives two answers to one input"),
        ("counts", "changes its buffer 'seen'"),
        ("shape", r"outputs of shape \(10,\)"),
    ],
)
def test_what_no_layer_tells_is_tried_out(kind: str, text: str) -> None:
    model = ModuleModel(module=Hidden(kind), head="dense.weight")
    random_state = torch.random.get_rng_state()
    with pytest.raises(LeakbenchError, match=text):
        require_steady(model, DIGIT)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert require_steady(ModuleModel(module=Hidden(""), head="dense.weight"), DIGIT) == 10


# ------------------------------------------------------------------------------ plugins


class Mine(Architecture):
    """Builds what it is given."""

    name = "mine"

    def __init__(self, module: nn.Module, **declared: Any) -> None:
        self.module, self.declared = module, declared

    head = property(lambda self: self.declared.get("head"))  # type: ignore[assignment]
    loss = property(lambda self: self.declared.get("loss", "cross_entropy"))  # type: ignore[assignment]

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> nn.Module:
        return self.module


def test_one_output_under_cross_entropy_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 1))
    with pytest.raises(LeakbenchError, match=r"'mine': model: 1 outputs for 2 classes under cross"):
        assemble(Mine(module), DIGIT, 2, "default")
    model = assemble(Mine(module, loss="binary_cross_entropy"), DIGIT, 2, "default")
    assert model.loss == "binary_cross_entropy" and model.head is None


def test_a_network_for_other_inputs_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(30, 10))
    with pytest.raises(LeakbenchError, match=r"model 'mine': .*inputs of shape \(1, 28, 28\) fail"):
        assemble(Mine(module), DIGIT, 10, "default")


SMALL = [p.name for p in discover("models") if p.name not in ("resnet18", "vit_tiny")]


@pytest.mark.parametrize("name", SMALL)
def test_built_in_networks_keep_their_contract(name: str) -> None:
    check_model(load("models", name)())


@pytest.mark.parametrize("norm", ["group", "batch_train"])
def test_resnet18_keeps_its_contract(norm: str) -> None:
    check_model(load("models", "resnet18")(norm=norm), (3, 8, 8))


def test_vit_tiny_keeps_its_contract() -> None:
    check_model(load("models", "vit_tiny")(), (3, 8, 8))


def test_a_network_that_mixes_its_examples_in_silence_breaks_its_contract() -> None:
    from dataclasses import dataclass
    from typing import ClassVar

    class Centred(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images - images.mean(dim=0)

    @dataclass(frozen=True, kw_only=True)
    class Silent(Architecture):
        name: ClassVar[str] = "silent"

        def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> nn.Module:
            return nn.Sequential(Centred(), nn.Flatten(), nn.Linear(784, classes))

    with pytest.raises(ContractBreach, match="say mixes_examples"):
        check_model(Silent())


# By hand, from the papers' tables: weights, and biases and scales.
COUNTS = {
    # 3x3 convolutions 3-32-64-64-128 with biases, four BatchNorms, 128 x 10 + 10.
    "convnet": 864 + 18432 + 36864 + 73728 + 288 + 2 * 288 + 1290,
    # LeNet-5 of 61,706 for one channel, and three BatchNorms of 6, 16 and 120.
    "bn_lenet5": 61706 + 2 * 25 * 6 + 2 * 142,
    "cnn3x3": 3 * 32 * 9 + 32 * 64 * 9 + 64 * 36 * 10,
    "resnet18": 11_173_962,  # the ResNet-18 of CIFAR-10
}


# Of the batch-clipping paper: tensors of ResNet-18, layers of BN-LeNet-5 (appendices A.4 and B.1).
LAYERS = [("resnet18", "batch_train", "tensor", 62), ("bn_lenet5", None, "layer", 8),
          ("convnet", "batch_train", "layer", 9), ("convnet", "none", "layer", 5),
          ("resnet18", "none", "tensor", 22)]  # fmt: skip


@pytest.mark.parametrize(("name", "norm", "layer", "count"), LAYERS)
def test_layers_are_counted_as_in_the_paper(
    name: str, norm: str | None, layer: Any, count: int
) -> None:
    architecture = load("models", name)(**({} if norm is None else {"norm": norm}))
    model = assemble(architecture, (3, 32, 32), 10, "default")
    names = model.init(generator(0, "w"), torch.float32)
    assert len(layers_of(names, layer)) == count
    assert model.mixes_examples is (norm != "none")


@pytest.mark.parametrize(("name", "parameters"), COUNTS.items())
def test_sizes_are_the_papers(name: str, parameters: int) -> None:
    model = assemble(load("models", name)(), (3, 32, 32), 10, "default")
    weights = model.init(generator(0, "w"), torch.float32)
    assert sum(value.numel() for value in weights.values()) == parameters
    assert model.head is not None and weights[model.head].shape[0] == 10
