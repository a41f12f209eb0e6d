"""Modules as their owners have them: each leaks what torch's autograd says, or is refused."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18

import leakbench as lb
from leakbench import data
from leakbench.errors import LeakbenchError
from leakbench.modules import ModuleModel
from leakbench.user_models import OneColumn, as_model, loss_of, read_module, unwrapped

DIGITS = data.load("mnist")
X, Y = DIGITS.candidates[:4], DIGITS.candidate_labels[:4]
HALVES = Y % 2
"""Labels of two classes."""


@pytest.fixture(autouse=True)
def same_weights() -> Iterator[None]:
    """Layers are drawn by torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def convolutional(*behind: nn.Module, outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=4), *behind, nn.Tanh(), nn.Flatten(), nn.Linear(288, outputs)
    )


def by_hand(
    module: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor] = F.cross_entropy
) -> dict[str, Tensor]:
    """Parameter name -> gradient of the mean loss, by autograd on the module itself."""
    named = {k: v for k, v in module.named_parameters() if v.requires_grad}
    found = torch.autograd.grad(loss(module(x), y), list(named.values()))
    return dict(zip(named, found, strict=True))


def fingerprint(module: nn.Module) -> str:
    """Of everything that a module holds: numbers, modes, gradients, hooks."""
    sha = hashlib.sha256()
    for name, value in module.state_dict().items():
        sha.update(f"{name}{value.dtype}{value.device}".encode())
        sha.update(value.detach().cpu().numpy().tobytes())
    for name, layer in module.named_modules():
        hooks = {k: len(v) for k, v in vars(layer).items() if k.endswith("_hooks") and v}
        sha.update(f"{name}{type(layer)}{layer.training}{sorted(hooks.items())}".encode())
    for name, value in module.named_parameters():
        sha.update(f"{name}{value.requires_grad}".encode())
        sha.update(b"" if value.grad is None else value.grad.cpu().numpy().tobytes())
    return sha.hexdigest()


def require_same(found: Any, wanted: dict[str, Tensor], row: int = 0) -> None:
    assert list(found.tensors) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found.tensors[name][row], value, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------ what is left alone


def test_model_in_model_out_unchanged() -> None:
    """Weights, BatchNorm's buffers, mode, gradients, hooks, and torch's random numbers."""
    module = convolutional(nn.BatchNorm2d(8))
    F.cross_entropy(module(X), Y).backward()
    module[0].register_forward_hook(lambda *given: None)
    x, before, drawn = X.clone(), fingerprint(module), torch.get_rng_state()
    for mode in ("train", "eval"):
        leak = lb.leak(module, X, Y, observer="type1", mode=mode, public=DIGITS.public[:8])
        result = lb.attack(leak, {"gradinv": {"steps": 2}, "candidates": {}})
        result.score()
        result.show(most=1)
    assert fingerprint(module) == before and torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(X, x)


def test_the_leak_keeps_weights_of_its_own() -> None:
    """Training on changes nothing that leaked before."""
    module = convolutional()
    leak = lb.leak(module, X, Y, observer="type1")
    wanted = {k: v.clone() for k, v in module.named_parameters()}
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    for name, value in leak.views["naive"].observations[0].weights.items():
        assert torch.equal(value, wanted[name])


# ------------------------------------------------------------------------------ what is trained


def test_a_frozen_backbone_leaks_its_head_only() -> None:
    module = convolutional()
    module[0].requires_grad_(False)
    leak = lb.leak(module, X, Y, observer="type1")
    require_same(leak.gradients, by_hand(module, X, Y))
    assert list(leak.gradients.tensors) == ["3.weight", "3.bias"]
    assert "2 parameters are frozen" in leak.notes[0]


def test_a_frozen_head_is_no_head() -> None:
    module = convolutional()
    module[3].requires_grad_(False)
    model, weights = as_model(module, inputs=X)
    assert list(weights) == ["0.weight", "0.bias"] and model.head is None
    leak = lb.leak(module, X, Y, observer="type1")
    assert leak.views["naive"].classes == 10


def test_nothing_trained_is_refused() -> None:
    module = convolutional().requires_grad_(False)
    with pytest.raises(LeakbenchError, match="no parameter has requires_grad"):
        lb.leak(module, X, Y)


# ------------------------------------------------------------------------------ modes


def test_dropout_is_refused_in_training_and_off_in_evaluation() -> None:
    module = convolutional(nn.Dropout(0.5))
    with pytest.raises(LeakbenchError, match=r'Dropout draws at random.*mode "eval"'):
        lb.leak(module, X, Y)
    leak = lb.leak(module, X, Y, observer="type1", mode="eval")
    require_same(leak.gradients, by_hand(module.eval(), X, Y))
    require_same(lb.leak(module, X, Y, observer="type1").gradients, by_hand(module, X, Y))


def test_dropout_that_no_layer_tells_is_refused() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(784, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.dense(F.dropout(x.flatten(1), 0.5))  # type: ignore[no-any-return]

    with pytest.raises(LeakbenchError, match="gives two answers to one input"):
        lb.leak(Hidden(), X, Y)


def test_batchnorm_by_running_statistics() -> None:
    module = convolutional(nn.BatchNorm2d(8))
    module(DIGITS.public[:32])  # statistics of its own
    with pytest.raises(LeakbenchError, match="running statistics of BatchNorm2d in training mode"):
        lb.leak(module, X, Y)
    leak = lb.leak(module, X, Y, mode="eval")
    module.eval()
    for row in range(4):
        require_same(leak.gradients, by_hand(module, X[[row]], Y[[row]]), row)


def test_batchnorm_by_the_batch_at_hand() -> None:
    module = convolutional(nn.BatchNorm2d(8))
    wanted = by_hand(module, X, Y)
    leak = lb.leak(module, X, Y, mode="train", observer="type2_batch")
    require_same(leak.gradients, wanted)
    with pytest.raises(LeakbenchError, match="examples of a batch mix"):
        lb.leak(module, X, Y, mode="train")


@pytest.mark.parametrize("affine", [False, True])
def test_instancenorm_by_running_statistics(affine: bool) -> None:
    module = convolutional(nn.InstanceNorm2d(8, affine=affine, track_running_stats=True))
    module(DIGITS.public[:32])
    with pytest.raises(LeakbenchError, match="running statistics of InstanceNorm2d in training"):
        lb.leak(module, X, Y)
    module.eval()
    leak = lb.leak(module, X, Y)
    require_same(leak.gradients, by_hand(module, X[[2]], Y[[2]]), 2)
    assert isinstance(module[1], nn.InstanceNorm2d)


def test_instancenorm_in_training_mode() -> None:
    module = convolutional(nn.InstanceNorm2d(8, affine=True, track_running_stats=True))
    leak = lb.leak(module, X, Y, mode="train")
    require_same(leak.gradients, by_hand(module, X[[2]], Y[[2]]), 2)


def test_examples_that_mix_in_a_way_of_their_own() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(784, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.dense(x - x.mean(dim=0))  # type: ignore[no-any-return]

    module = Centred()
    leak = lb.leak(module, X, Y, observer="type1")
    require_same(leak.gradients, by_hand(module, X, Y))
    assert "mix" in leak.notes[0]
    with pytest.raises(LeakbenchError, match="examples of a batch mix"):
        lb.leak(module, X, Y)


# ------------------------------------------------------------------------------ outputs and losses


class Flat(nn.Module):
    """Outputs (b,), as many write a classifier of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convolutional(outputs=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).squeeze(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("loss", ["bce", "binary_cross_entropy", nn.BCEWithLogitsLoss()])
@pytest.mark.parametrize("column", [False, True])
def test_a_single_logit_under_bce(loss: Any, column: bool) -> None:
    module = convolutional(outputs=1)
    target = HALVES[:, None].float()
    leak = lb.leak(module, X, target if column else HALVES, loss=loss, observer="type1")
    require_same(leak.gradients, by_hand(module, X, target, F.binary_cross_entropy_with_logits))
    assert leak.views["naive"].classes == 2
    assert leak.views["naive"].model.head == "3.weight"


def test_a_squeezed_logit_under_bce() -> None:
    module = Flat()
    leak = lb.leak(module, X, HALVES.float(), loss="bce", observer="type1")
    wanted = by_hand(module, X, HALVES.float(), F.binary_cross_entropy_with_logits)
    require_same(leak.gradients, wanted)
    model = leak.views["naive"].model
    assert isinstance(model, OneColumn) and model.head == "inner.3.weight"
    found = lb.attack(leak, "candidates").score()
    assert found.strict.all() or found.mse_raw.eq(0).all()


def test_mean_squared_error_of_one_output() -> None:
    module = convolutional(outputs=1)
    leak = lb.leak(module, X, HALVES, loss="mse", observer="type1")
    require_same(leak.gradients, by_hand(module, X, HALVES[:, None].float(), F.mse_loss))


def test_log_softmax_at_the_end_is_the_same_loss() -> None:
    module = nn.Sequential(convolutional(), nn.LogSoftmax(dim=1))
    leak = lb.leak(module, X, Y, observer="type1")
    require_same(leak.gradients, by_hand(module, X, Y, F.nll_loss))


@pytest.mark.parametrize(
    ("module", "loss", "said"),
    [
        (lambda: nn.Sequential(convolutional(outputs=1), nn.Sigmoid()), "bce", "ends in a sigmoid"),
        (lambda: convolutional(outputs=1), "cross_entropy", "cross_entropy of a single output"),
        (lambda: nn.Conv2d(1, 2, 5), "cross_entropy", r"outputs of shape \(2, 2, 24, 24\)"),
        (lambda: nn.Linear(3, 2), "cross_entropy", r"inputs of shape \(1, 28, 28\) fail"),
        (convolutional, "hinge", "unknown loss 'hinge'"),
        (convolutional, nn.L1Loss(), "loss L1Loss is not known"),
        (convolutional, nn.CrossEntropyLoss(label_smoothing=0.1), "label_smoothing=0.1"),
        (convolutional, nn.CrossEntropyLoss(reduction="sum"), "reduction=sum"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "ce", "a lazy layer"),
    ],
)
def test_what_is_none_of_these_is_one_sentence(
    module: Callable[[], nn.Module], loss: Any, said: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about lazy layers
        own = module()
    with pytest.raises(LeakbenchError, match=said) as caught:
        lb.leak(own, X, HALVES, loss=loss, observer="type1")
    assert "\n" not in str(caught.value) and str(caught.value).count(". ") == 0


def test_a_weighted_loss_is_refused() -> None:
    with pytest.raises(LeakbenchError, match=re.escape("weight=")):
        loss_of(nn.CrossEntropyLoss(weight=torch.ones(10)))


def test_outputs_that_are_no_tensor_are_refused() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = convolutional()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x)}

    with pytest.raises(LeakbenchError, match="returns dict; allowed: a tensor"):
        lb.leak(Named(), X, Y)


# ------------------------------------------------------------------------------ kinds of numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_computed_with_in_float32(dtype: torch.dtype) -> None:
    module = convolutional().to(dtype)
    leak = lb.leak(module, X, Y, observer="type1")
    assert leak.gradients.tensors["3.bias"].dtype == torch.float32
    assert str(dtype).removeprefix("torch.") in leak.notes[0]
    assert module[0].weight.dtype == dtype
    require_same(leak.gradients, by_hand(module.float(), X, Y))


def test_double_weights_stay_double() -> None:
    module = convolutional().double()
    leak = lb.leak(module, X, Y, observer="type1")
    assert leak.gradients.tensors["3.bias"].dtype == torch.float64
    require_same(leak.gradients, by_hand(module, X.double(), Y))


@pytest.mark.gpu
def test_a_model_on_a_gpu_is_attacked_there() -> None:
    module = convolutional().cuda()
    before = fingerprint(module)
    leak = lb.leak(module, X, Y, observer="type1")
    assert leak.gradients.tensors["3.bias"].is_cuda
    require_same(leak.gradients, by_hand(module, X.cuda(), Y.cuda()))
    scores = lb.attack(leak, {"candidates": {}, "gradinv": {"steps": 3}}).score()
    assert scores.strict[:4].all() and fingerprint(module) == before
    on_cpu = lb.leak(module, X, Y, observer="type1", device="cpu")
    assert not on_cpu.gradients.tensors["3.bias"].is_cuda


def test_the_device_may_be_chosen() -> None:
    leak = lb.leak(convolutional(), X, Y, device="cpu")
    assert leak.gradients.tensors["3.bias"].device.type == "cpu"
    with pytest.raises(LeakbenchError, match="parameters lie on cpu, meta"):
        lb.leak(convolutional(nn.Linear(6, 6, device="meta")), X, Y)


# ------------------------------------------------------------------------------ wrappers


def test_wrappers_of_torch_come_off() -> None:
    module = convolutional()
    assert unwrapped(nn.DataParallel(module)) is module

    class Compiled(nn.Module):
        """As `torch.compile` wraps, without the seconds that it takes to import."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.DataParallel(module)

    assert unwrapped(Compiled()) is module
    leak = lb.leak(nn.DataParallel(module), X, Y, observer="type1")
    require_same(leak.gradients, by_hand(module, X, Y))


def test_distributed_data_parallel_comes_off(tmp_path: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        module = convolutional()
        wrapped = nn.parallel.DistributedDataParallel(module)
        require_same(lb.leak(wrapped, X, Y, observer="type1").gradients, by_hand(module, X, Y))
    finally:
        torch.distributed.destroy_process_group()


def test_what_opacus_hangs_on_a_module_comes_off() -> None:
    """In the middle of a training: with gradients of examples, and hooks that go on after."""
    grad_sample = pytest.importorskip("opacus.grad_sample")
    module = convolutional()
    plain = by_hand(module, X, Y)
    wrapped = grad_sample.GradSampleModule(module, loss_reduction="mean")
    F.cross_entropy(wrapped(X), Y).backward()
    before = fingerprint(wrapped)
    kept = {k: v.grad_sample.clone() for k, v in module.named_parameters()}
    leak = lb.leak(wrapped, X, Y)
    for row in range(4):
        wanted = {k: v[row] for k, v in kept.items()}
        require_same(leak.gradients, wanted, row)
    require_same(lb.leak(wrapped, X, Y, observer="type1").gradients, plain)
    assert fingerprint(wrapped) == before
    for name, value in module.named_parameters():
        assert torch.equal(value.grad_sample, kept[name])
    wrapped.zero_grad()
    F.cross_entropy(wrapped(X), Y).backward()
    assert torch.equal(module[0].weight.grad_sample, kept["0.weight"])


# ------------------------------------------------------------------------------ the head


def test_the_head_is_the_layer_whose_output_is_the_answer() -> None:
    class Two(nn.Module):
        """The head is registered first, and an auxiliary one last."""

        def __init__(self) -> None:
            super().__init__()
            self.answer = nn.Linear(16, 10)
            self.body = nn.Linear(784, 16)
            self.auxiliary = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.body(x.flatten(1)))
            self.auxiliary(hidden)
            return self.answer(hidden)  # type: ignore[no-any-return]

    assert as_model(Two(), inputs=X)[0].head == "answer.weight"
    assert as_model(convolutional())[0].head == "3.weight"
    assert as_model(nn.Linear(5, 2))[0].head == "weight"
    assert as_model(Two(), inputs=X, head="auxiliary.weight")[0].head == "auxiliary.weight"
    with pytest.raises(LeakbenchError, match=r"unknown head 'bodi.weight'"):
        as_model(Two(), inputs=X, head="bodi.weight")


def test_a_large_network_with_groupnorm() -> None:
    """ResNet-18 as in practice: the head is found, and the update is the gradient."""
    module = resnet18(num_classes=10, norm_layer=lambda width: nn.GroupNorm(32, width))
    x = DIGITS.candidates[:2].expand(-1, 3, -1, -1)
    leak = lb.leak(module, x, Y[:2], observer="type1")
    assert leak.views["naive"].model.head == "fc.weight"
    require_same(leak.gradients, by_hand(module, x, Y[:2]))


def test_read_module_without_inputs_tries_nothing() -> None:
    found = read_module(convolutional())
    assert isinstance(found.model, ModuleModel) and found.outputs is None and found.notes == ()


# ------------------------------------------------------------------------------ input ranges


def test_inputs_outside_the_unit_interval() -> None:
    """Normalised digits: the range is declared, or found and said; errors are in its units."""
    mean, std = 0.1307, 0.3081
    span = ((0 - mean) / std, (1 - mean) / std)
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    x, public = (X - mean) / std, (DIGITS.public[:20] - mean) / std
    declared = lb.leak(module, x, Y, input_range=span, public=public)
    found = lb.leak(module, x, Y, public=public)
    assert declared.notes == () and "input_range was not declared: [-0.4242, 2.8" in found.notes[0]
    scores = lb.attack(declared, "candidates").score()
    plain = lb.attack(lb.leak(module, X, Y, public=DIGITS.public[:20]), "candidates").score()
    for name in ("mse_clamped", "baselines.mean_image", "baselines.nearest_public"):
        torch.testing.assert_close(
            torch.tensor(scores[name].to_list()), torch.tensor(plain[name].to_list()),
            rtol=1e-5, atol=1e-6,
        )  # fmt: skip
    assert scores.strict.all() and (scores["rank"] == 1).all()
    exact = lb.attack(declared, "analytic").score()
    assert exact.strict.all() and exact.identified.all()


def test_inputs_outside_the_declared_range_are_refused() -> None:
    with pytest.raises(LeakbenchError, match=r"x lies in \[0, 1\], outside .* \[0, 0.5\]"):
        lb.leak(convolutional(), X, Y, input_range=(0.0, 0.5))
    with pytest.raises(LeakbenchError, match="public lies in"):
        lb.leak(convolutional(), X, Y, input_range=(0.0, 1.0), public=DIGITS.public[:3] * 2)
    with pytest.raises(LeakbenchError, match="two finite numbers"):
        lb.leak(convolutional(), X, Y, input_range=(1.0, 0.0))
    with pytest.raises(LeakbenchError, match="x holds nan or infinities"):
        lb.leak(convolutional(), X * torch.nan, Y)


# ------------------------------------------------------------------------------ odd modules


class Bent(nn.Module):
    """A dense network whose forward does something with its input and its answer."""

    def __init__(self, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        self.before, self.after = before, after

    def forward(self, inputs: Tensor) -> Any:
        if self.before is not None:
            self.before(inputs)
        answer = self.layers(inputs)
        return answer if self.after is None else self.after(answer)


def _broken(inputs: Tensor) -> None:
    raise KeyError("a\nkey")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Bent(_broken), "fail: KeyError"),
        (Bent(lambda x: x.mul_(2)), "changes its inputs in place"),
        (Bent(None, lambda out: out.detach()), "outputs have no gradient"),
        (Bent(None, lambda out: out * math.nan), "outputs hold nan"),
        (Bent().to("meta"), "device meta hold no values"),
    ],
    ids=["raises", "in place", "detached", "nan", "meta"],
)
def test_a_forward_that_cannot_be_told_is_one_sentence(module: nn.Module, said: str) -> None:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    with pytest.raises(LeakbenchError, match=said) as caught:
        lb.leak(module, x, torch.tensor([0, 2]))
    assert "\n" not in str(caught.value)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("device", ["nowhere", 1.5, "meta"])
def test_a_device_that_is_none(device: Any) -> None:
    with pytest.raises(LeakbenchError, match="device"):
        as_model(Bent(), device=device)


def test_weights_that_are_not_finite_are_named() -> None:
    module = Bent()
    with torch.no_grad():
        module.layers[1].weight[0, 0] = math.nan
    with pytest.raises(LeakbenchError, match=r"'layers\.1\.weight' holds nan"):
        as_model(module)


def test_a_head_must_give_the_outputs() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(
        LeakbenchError, match=r"head '0\.weight' has 5 outputs, and the model has 3"
    ):
        as_model(module, inputs=torch.rand(2, 4), head="0.weight")


def test_a_loss_that_ignores_a_class_is_refused() -> None:
    with pytest.raises(LeakbenchError, match="ignore_index=1 is another loss"):
        as_model(Bent(), loss=nn.CrossEntropyLoss(ignore_index=1))


def test_a_weight_that_layers_share_is_no_head() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    x, y = torch.rand(1, 4), torch.tensor([2])
    leak = lb.leak(module, x, y)
    nn.functional.cross_entropy(module(x), y).backward()
    assert leak.views["naive"].model.head is None
    for name, value in module.named_parameters():
        assert value.grad is not None
        torch.testing.assert_close(leak.gradients.tensors[name][0], value.grad)
    module.zero_grad()


def test_hooks_on_gradients_are_not_run_and_said() -> None:
    x, y = torch.rand(1, 1, 4, 4), torch.tensor([2])
    plain = Bent()
    hooked = copy.deepcopy(plain)
    hooked.layers[1].register_full_backward_hook(lambda *_: (None,))
    hooked.layers[1].weight.register_hook(torch.zeros_like)
    leak = lb.leak(hooked, x, y)
    assert any("hooks on gradients are not run" in note for note in leak.notes)
    for name, value in lb.leak(plain, x, y).gradients.tensors.items():
        assert torch.equal(leak.gradients.tensors[name], value)
    assert len(hooked.layers[1]._backward_hooks) == 1
