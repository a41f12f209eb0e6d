"""The attacker's own run of the path, where it must know the batch that the victim was in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from leakbench import data
from leakbench.architectures import build
from leakbench.contracts import Gradients, LeakPoint
from leakbench.defenses.batch_clipping import BatchClip
from leakbench.leaking import Look, Tap
from leakbench.streams import generator


@pytest.mark.parametrize(("size", "subset"), [(8, 0), (8, 4), (1, 0), (8, 1)])
def test_a_clip_of_subsets_reaches_single_examples_in_subsets_of_one(
    size: int, subset: int
) -> None:
    """Seen is one example's gradient: plain autograd's, and scaled to C where it is a subset."""
    digits = data.load("mnist")
    model = build("lenet_dlg", digits.input_shape, digits.classes)
    weights = model.init(generator(3, "weights"), torch.float64)
    images, labels = digits.candidates[:8].double(), digits.candidate_labels[:8]
    plain = []
    for image, label in zip(images, labels, strict=True):
        free = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = F.cross_entropy(model.logits(free, image[None]), label[None])
        plain.append(torch.autograd.grad(loss, list(free.values())))
    flat = torch.stack([torch.cat([part.flatten() for part in one]) for one in plain])
    norms = flat.norm(dim=1)
    bound = float(norms.median()) / 2  # most of them are longer

    defense = BatchClip(clip=bound, subset=subset)
    tap = Tap(model=model, point=LeakPoint(), batch_size=size)
    look = Look(weights=weights, state=defense.init(weights))
    nothing = Gradients({k: torch.zeros(8, *v.shape) for k, v in weights.items()}, ("client",))
    seen = tap.observation(weights, nothing, [tap.replay(defense, look)])
    found = seen.simulate(images[:, None], labels[:, None], torch.arange(8)).flatten()
    clipped = flat * (bound / norms).clamp(max=1.0)[:, None]
    assert float((clipped - flat).norm()) > bound
    torch.testing.assert_close(found, clipped if 1 in (size, subset) else flat)
