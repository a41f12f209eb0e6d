"""Kinds of figures and of galleries, known before anything that draws them is imported."""

from __future__ import annotations

from enum import StrEnum


class FigureKind(StrEnum):
    """What a figure is of."""

    threshold = "threshold"
    effort = "effort"
    traces = "traces"
    printed = "printed"
    frontier = "frontier"
    epsilon = "epsilon"
    ladder = "ladder"
    training = "training"


class Pick(StrEnum):
    """Which victims: those at the suite's quantiles of the raw MSE in its reference cell, the best
    or the worst reconstructed there, or those of given numbers, of every network."""

    quantiles = "quantiles"
    best = "best"
    worst = "worst"
    ids = "ids"


FIGURES = {
    FigureKind.threshold: "Success against threshold, in every reading of a printed MSE",
    FigureKind.effort: "Success against gradient evaluations",
    FigureKind.traces: "Loss and error, step by step",
    FigureKind.printed: "Printed numbers against ours",
    FigureKind.frontier: "Leakage against accuracy, with epsilon",
    FigureKind.epsilon: "Epsilon over the rounds, by accountant",
    FigureKind.ladder: "Rates, errors and their bounds against the noise",
    FigureKind.training: "Accuracy, norms, scales of the mechanism and updates over the training",
}
"""What each figure shows."""
