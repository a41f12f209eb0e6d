"""A leak in the hands of the one who audits it: what attackers are given, and the truth, apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakbench.contracts import Gradients, Leak, LeakPoint
from leakbench.data.features import Feature
from leakbench.head_inversion import features_of, invert_head
from leakbench.spec import Grant, Knowledge
from leakbench.streams import VictimStreams, generator

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Inputs (n, *input shape), and labels (n,) where they are known."""

    inputs: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedLeak:
    """What a training gave away of known examples; see `api.leak`.

    Attributes:
        views: what a naive and an adaptive attacker are given: the same gradients.
        truth, truth_labels: (n, B, *input shape) and (n, B) behind the n gradients; no attack sees
            them, but in a list of candidates, and labels where they are granted.
        candidates: the list that holds the victims, where one is given.
        public: inputs of the same kind, where there are some.
        labels_known: whether attackers are told the labels.
        seed: names the attackers' random numbers.
        notes: what a reader of results should know, one sentence each.
    """

    views: Mapping[Knowledge, Leak]
    truth: Tensor
    truth_labels: Tensor
    candidates: Examples | None = None
    public: Examples | None = None
    labels_known: bool = False
    seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of gradients; each was made of one example, or of a client's."""
        return len(self.truth)

    @property
    def batch_size(self) -> int:
        """Examples behind each gradient."""
        return self.truth.shape[1]

    @property
    def point(self) -> LeakPoint:
        """Where it was read."""
        return self.views["naive"].point

    @property
    def gradients(self) -> Gradients:
        """What leaked: parameter name -> (n, *its shape), updates in the units of a gradient."""
        return self.views["naive"].observed

    @property
    def input_range(self) -> tuple[float, float]:
        """Least and greatest value of an input."""
        return self.views["naive"].input_range

    @property
    def features(self) -> tuple[Feature, ...]:
        """What the columns of a row mean; () where that was not declared."""
        return self.views["naive"].features

    def seen_by(
        self, knowledge: Knowledge, requires: Collection[Grant] = (), most: int | None = None
    ) -> Leak:
        """All that an attack is given, which `requires` grants.

        An attack that needs a list of candidates, where none was given, gets the victims' own
        examples and the labelled public ones, `most` of these at most, in an order that does not
        tell which are which.
        """
        leak = self.views[knowledge]
        if self.labels_known:
            leak = replace(leak, labels=self.truth_labels.clone())
        if self.public is not None:
            leak = replace(leak, public=self.public.inputs.clone())
        listed = self.candidates
        if listed is None and "candidates" in requires:
            listed = self._own_list(most)
        if listed is not None:
            assert listed.labels is not None  # `api.leak` asks for them
            leak = replace(
                leak,
                candidates=listed.inputs.clone(),
                candidate_labels=listed.labels.clone(),
            )
        return leak

    def head(self) -> pandas.DataFrame:
        """What the last layer's gradient gives away, without any attack: labels and features.

        One row a class that is in a batch, or is thought to be: batch, label, how many examples of
        it there are (count) and are found (count_found), and the cosine between their mean feature
        and the one found (feature_cosine, missing where either has none).

        Raises:
            LeakbenchError: a model without a dense head, or under another loss than cross-entropy.
        """
        import pandas

        leak = self.views["naive"]
        found = invert_head(leak, VictimStreams(0, tuple((row,) for row in range(self.n))))
        weights = leak.observations[0].weights
        rows = []
        for batch in range(self.n):
            labels, guesses = self.truth_labels[batch], found.labels[batch]
            features = features_of(leak.model, weights, self.truth[batch])
            for label in sorted({*labels.tolist(), *guesses.tolist()}):
                own, thought = features[labels == label], found.features[batch][guesses == label]
                cosine = math.nan
                if len(own) and len(thought):
                    pair = own.mean(dim=0), thought.mean(dim=0)
                    cosine = float(torch.cosine_similarity(*pair, dim=0))
                rows.append(
                    {
                        "batch": batch, "label": label, "count": len(own),
                        "count_found": len(thought), "feature_cosine": cosine,
                    }
                )  # fmt: skip
        return pandas.DataFrame(rows)

    def _own_list(self, most: int | None) -> Examples:
        inputs, labels = self.truth.flatten(0, 1), self.truth_labels.flatten()
        if self.public is not None and self.public.labels is not None:
            inputs = torch.cat([inputs, self.public.inputs[:most]])
            labels = torch.cat([labels, self.public.labels[:most]])
        order = torch.randperm(len(inputs), generator=generator(self.seed, "candidate list"))
        order = order.to(inputs.device)
        return Examples(inputs=inputs[order], labels=labels[order])

    def __repr__(self) -> str:
        """What a notebook shows: sizes, not tensors."""
        parameters = sum(value[0].numel() for value in self.gradients.tensors.values())
        lines = [
            f"Leak of {self.n} gradient{'s' * (self.n > 1)} at {self.point}, "
            f"{self.batch_size} example{'s' * (self.batch_size > 1)} each, "
            f"{parameters:,} numbers a gradient"
        ]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])
