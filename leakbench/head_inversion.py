"""What the last layer's gradient gives away of a batch, in closed form: labels, and features.

With cross-entropy, probabilities p_i and features f_i that enter the head, a batch's gradient of
the head is dW_c = mean_i (p_ic - [y_i = c]) f_i and db_c = mean_i (p_ic - [y_i = c]). Classes that
are not in the batch give the mean feature, weighted by p_ia; where p_ic varies little from example
to example, as in a network that is not yet sure, what is left of dW_c is the mean feature of the
examples of class c. With one example of a class that is its own feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from leakbench.contracts import Leak, Model, Streams, Weights
from leakbench.gradients import loss_function
from leakbench.labels import labels_of
from leakbench.matching import require_head

TOGETHER = 32
"""Examples whose features are computed in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLeak:
    """What the heads of n gradients say.

    labels: (n, B) class indices, in ascending order where they were not granted. features:
    (n, B, F) an estimate for each of them: the mean of those of its class, up to noise.
    """

    labels: Tensor
    features: Tensor


def invert_head(leak: Leak, streams: Streams) -> HeadLeak:
    """Labels and features from the first look's gradient of the head.

    A head without a bias gives the labels by `labels.infer`, and features up to a factor. Clipping
    a whole gradient scales both and spoils counts; noise is added to the features as it is.

    Raises:
        LeakbenchError: a model without a head or under another loss than cross-entropy.
    """
    head = require_head(leak.model, "cross_entropy")
    labels = labels_of(leak, streams)
    tensors = leak.observed.tensors
    weight, bias = tensors[head], tensors.get(head.removesuffix("weight") + "bias")
    classes = torch.arange(leak.classes, device=leak.device)
    counts = (labels[:, :, None] == classes).sum(dim=1)
    features = [
        _features(weight[row], None if bias is None else bias[row], counts[row], leak.batch_size)
        for row in range(leak.n)
    ]
    rows = torch.arange(leak.n, device=leak.device)[:, None]
    return HeadLeak(labels=labels, features=torch.stack(features)[rows, labels])


def _features(weight: Tensor, bias: Tensor | None, counts: Tensor, size: int) -> Tensor:
    """(classes, F) mean feature of each class that is in the batch; what it is elsewhere, nobody
    asks."""
    absent = counts == 0
    if bias is None or not bool(absent.any()):
        return -weight
    mean = weight[absent].sum(dim=0) / bias[absent].sum()
    shares = counts / size
    probabilities = bias + shares
    return (probabilities[:, None] * mean - weight) / shares.clamp(min=1 / size)[:, None]


def features_of(model: Model, weights: Weights, inputs: Tensor) -> Tensor:
    """(b, *input shape) -> (b, F): what enters the head, read off its gradient alone.

    Of an example under label c, row c of the head's gradient is p_c - 1 times its feature; taken
    under the label with the least p_c. Behind it nothing is differentiated.

    Raises:
        LeakbenchError: a model without a head or under another loss than cross-entropy.
    """
    head = require_head(model, "cross_entropy")
    fixed: Mapping[str, Tensor] = {k: v.detach() for k, v in weights.items()}
    loss = loss_function(model)
    found = []
    for some in inputs.detach().split(TOGETHER):
        with torch.no_grad():
            least_probability, least = model.logits(fixed, some).softmax(dim=-1).min(dim=-1)

        def of_head(own: Tensor, one: Tensor, label: Tensor) -> Tensor:
            return loss({**fixed, head: own}, one[None], label[None])

        slopes = vmap(grad(of_head), in_dims=(None, 0, 0))(fixed[head], some, least)
        rows = slopes[torch.arange(len(some), device=some.device), least]
        found.append((rows / (least_probability - 1)[:, None]).detach())
    return torch.cat(found)
