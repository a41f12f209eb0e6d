"""Claims about a mechanism against what can be proved of it, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leakbench.audits.findings import Claim, ClaimFinding, MeasuredFinding, Verdict
from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent, Relation
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.privacy.inverse import first_steps
from leakbench.privacy.shown import least_epsilon
from leakbench.spec import Observer

if TYPE_CHECKING:
    from leakbench.dp_config import DPConfig

SLACK = 1e-3
"""Relative: claims are rounded numbers."""

_CONFIGURED: Verdict = "contradicted by a proof"
_RELATION: dict[Relation, str] = {
    "add_remove": "adding or removing one",
    "replace_one": "replacing one",
}
WHOM: dict[Observer, str] = {
    "model": "who holds the final model",
    "server": "the server",
    "type1": "who reads what is sent",
    "type2": "who reads the gradients of single examples",
}


def judge(
    claim: Claim,
    config: DPConfig | None = None,
    measured: MeasuredFinding | None = None,
    *,
    foreign: bool = False,
) -> tuple[ClaimFinding, ...]:
    """A verdict on each thing that is claimed: sensitivity, noise, (epsilon, delta).

    Args:
        config: what the mechanism is; None: what the claim itself says, a release of one
            contribution clipped to `clip`, with Gaussian noise.
        measured: of the mechanism (`audits.blackbox`, `audits.canary`).
        foreign: whether what runs is code that nobody proved to be `config`: then nothing "holds".

    Raises:
        LeakbenchError: epsilon of a mechanism of which neither noise nor sensitivity is known.
    """
    found = []
    if claim.sensitivity is not None and (bound := _bound(claim, config)) is not None:
        found.append(_of_sensitivity(claim, bound, config))
    if claim.noise_std is not None and config is not None:
        found.append(_of_noise(claim, claim.noise_std, config))
    if claim.epsilon is not None:
        found.append(_of_epsilon(claim, claim.epsilon, config, measured))
    if measured is not None and (config is None or claim.relation == "add_remove"):
        found += _of_ratio(claim, measured)
    if not found:
        raise LeakbenchError(
            "claim: nothing there can be checked; give epsilon and delta, or clip beside "
            "sensitivity, or a configuration"
        )
    return tuple(_tempered(one, measured, foreign) for one in found)


def _tempered(
    finding: ClaimFinding, measured: MeasuredFinding | None, foreign: bool
) -> ClaimFinding:
    """What is proved of a configuration is not proved of code."""
    if finding.verdict != "holds":
        return finding
    if measured is not None and measured.verdict == "above":
        line = "What runs is not what is configured (see the measurement): the proof is not of it."
        verdict: Verdict = "not contradicted"
    elif foreign:
        line = "Proved of the configuration; of the code that runs only the measurement speaks."
        if measured is not None:
            line += f" {measured.trials:,} trials of each canary show nothing against it."
        verdict = "not contradicted"
    else:
        return finding
    return replace(finding, verdict=verdict, arithmetic=(*finding.arithmetic, line))


def _bound(claim: Claim, config: DPConfig | None) -> float | None:
    return claim.clip if config is None else config.sensitivity


def _of_sensitivity(claim: Claim, bound: float, config: DPConfig | None) -> ClaimFinding:
    assert claim.sensitivity is not None
    factor = _factor(claim)
    moved = factor * bound
    if config is None:
        why = f"What is released is clipped to L2 norm {bound:g}"
    else:
        why = f"{config.describe()} What is released moves by {bound:.6g} for adding one"
    lines = [
        f"{why}; {_RELATION[claim.relation]} moves it by {moved:.6g}, which a contribution at the "
        "bound attains.",
        f"Claimed sensitivity: {claim.sensitivity:.6g}"
        + (f", {moved / claim.sensitivity:,.4g} times too small." if _less(claim.sensitivity, moved)
           and claim.sensitivity > 0 else "."),
    ]  # fmt: skip
    if config is None and _less(claim.sensitivity, moved) and claim.sensitivity > 0:
        share = math.ceil(moved / claim.sensitivity)
        lines.append(
            f"It would be right of an average over {share:,} or more of them, noise on the average."
        )
    return ClaimFinding(
        claim=claim,
        statement=f"sensitivity {claim.sensitivity:.6g} ({_RELATION[claim.relation]})",
        verdict=_CONFIGURED if _less(claim.sensitivity, moved) else "holds",
        arithmetic=tuple(lines),
    )


def _of_noise(claim: Claim, std: float, config: DPConfig) -> ClaimFinding:
    line = f"Configured: {config.describe()} That is a std of {config.noise_std:.6g} on the release"
    return ClaimFinding(
        claim=claim,
        statement=f"noise of standard deviation {std:.6g}",
        verdict=_CONFIGURED if _less(config.noise_std, std) else "holds",
        arithmetic=(f"{line}; claimed: {std:.6g}.",),
    )


def _of_ratio(claim: Claim, measured: MeasuredFinding) -> list[ClaimFinding]:
    """Sensitivity and noise together, where what was measured is more than their ratio."""
    if claim.sensitivity is None or not claim.noise_std:
        return []
    ratio = claim.sensitivity / claim.noise_std
    if not measured.mu > ratio:
        return []
    shown = (
        "has no bound (a release without noise, or with old noise)" if measured.mu == math.inf
        else f"is at least {measured.mu:.4g}"
    )  # fmt: skip
    return [
        ClaimFinding(
            claim=claim,
            statement=f"sensitivity {claim.sensitivity:.6g} and noise of standard deviation "
            f"{claim.noise_std:.6g} together",
            verdict="contradicted by measurement",
            arithmetic=(
                f"mu = {claim.sensitivity:.6g} / {claim.noise_std:.6g} = {ratio:.4g} a release.",
                f"Measured ({measured.trials:,} trials, canary {measured.canary}): mu {shown}, "
                f"with confidence {measured.confidence:.4%}.",
            ),
            trials=measured.trials,
        )
    ]


def _of_epsilon(
    claim: Claim, claimed: float, config: DPConfig | None, measured: MeasuredFinding | None
) -> ClaimFinding:
    assert claim.delta is not None
    events = events_of(claim, config)
    steps = sum(event.steps for event in events)
    whose = WHOM.get(claim.observer, claim.observer)
    releases = "one release" if steps == 1 else f"{steps:,} releases"
    statement = (
        f"({claimed:g}, {claim.delta:g})-DP for {_RELATION[claim.relation]}, against {whose}, "
        f"of {releases}"
    )
    verdict: Verdict = "not contradicted"
    if not events or min(event.noise_multiplier for event in events) == 0:
        lines = ["No noise that promises anything is added: epsilon is infinite."]
        return ClaimFinding(
            claim=claim, statement=statement, verdict=_CONFIGURED, arithmetic=tuple(lines)
        )
    least = least_epsilon(events, claim.delta, claim.relation)
    most = epsilon(events, claim.delta, relation=claim.relation).epsilon
    assert most is not None  # the accountant has a bound for all of these
    lines = [*_mu_lines(claim, config, events), *_epsilon_lines(claim, least, most, steps)]
    trials = None
    if _less(claimed, least):
        verdict = _CONFIGURED
    elif not _less(claimed, most):
        verdict = "holds"
    if verdict != _CONFIGURED and measured is not None and measured.verdict == "above":
        shown, line = _shown_by(measured, events, claim)
        lines.append(line)
        if _less(claimed, shown):
            verdict, trials = "contradicted by measurement", measured.trials
    lines += _if_believed(claim, config)
    return ClaimFinding(
        claim=claim, statement=statement, verdict=verdict, arithmetic=tuple(lines), trials=trials
    )


def events_of(claim: Claim, config: DPConfig | None) -> tuple[PrivacyEvent, ...]:
    """The releases that a claimed epsilon is about.

    Who sees every release sees who takes part: before a server nothing is amplified, and the claim
    is about as many releases as one example takes part in, `steps` or all.
    """
    if config is None:
        sensitivity = claim.sensitivity if claim.clip is None else claim.clip
        if sensitivity is None or claim.noise_std is None:
            raise LeakbenchError(
                "claim: epsilon is to be checked, and the mechanism is not known; give clip (or "
                "sensitivity) and noise_std, or a configuration"
            )
        return (
            PrivacyEvent(
                noise_multiplier=claim.noise_std / sensitivity if sensitivity else math.inf,
                sensitivity=sensitivity,
                sampling="none",
                steps=claim.steps or 1,
            ),
        )
    events = config.events()
    if claim.observer != "model":
        events = seen_events(events, config.uses if claim.steps is None else claim.steps)
    elif claim.steps is not None:
        events = first_steps(events, claim.steps)
    return events


def seen_events(events: Sequence[PrivacyEvent], looks: int) -> tuple[PrivacyEvent, ...]:
    """The same releases before somebody who sees who takes part, so many of one example."""
    anew = [
        replace(one, sampling="fixed_size" if one.sampling == "fixed_size" else "none",
                sampling_rate=1.0)
        for one in events
    ]  # fmt: skip
    return first_steps(anew, looks)


def _mu_lines(
    claim: Claim, config: DPConfig | None, events: Sequence[PrivacyEvent]
) -> Iterator[str]:
    for event in events:
        rate = ""
        if event.sampling_rate < 1 and event.sampling != "none":
            rate = f", drawn with chance {event.sampling_rate:.4g}"
        if config is None:
            std = claim.noise_std
            apart = f"sensitivity {event.sensitivity:g} / noise std {std:.6g}"
        else:
            apart = f"1 / noise multiplier {event.noise_multiplier:.6g}"
        yield (
            f"mu = {apart} = {1 / event.noise_multiplier:,.6g} a release"
            f"{rate}, {event.steps:,} of them."
        )


def _epsilon_lines(claim: Claim, least: float, most: float, steps: int) -> Iterator[str]:
    place = f"at delta {claim.delta:g}, {_RELATION[claim.relation]}"
    if math.isclose(least, most, rel_tol=SLACK):
        yield f"Epsilon {place}: {_shown_number(most)} (exact for Gaussian noise)."
    else:
        yield (
            f"Epsilon {place}: at least {_shown_number(least)} (a test on the sum of all releases "
            f"attains it), at most {_shown_number(most)} (privacy loss distribution)."
        )
    yield f"Claimed: {claim.epsilon:g}."


def _if_believed(claim: Claim, config: DPConfig | None) -> Iterator[str]:
    """What would follow if the claimed sensitivity were right; the classical formula's limit."""
    if config is not None or claim.clip is None or not claim.sensitivity or not claim.noise_std:
        return
    assert claim.delta is not None and claim.epsilon is not None
    mu = claim.sensitivity / claim.noise_std
    if mu == 0 or not _less(claim.sensitivity, claim.clip):
        return
    one, replaced = (epsilon_of_mu(k * mu, claim.delta) for k in (1, 2))
    hundred = epsilon_of_mu(10 * mu, claim.delta)
    yield (
        f"With noise that belongs to a sensitivity of {claim.clip:g}, std "
        f"{claim.noise_std * claim.clip / claim.sensitivity:.4g}, epsilon would be "
        f"{_shown_number(one)} a release (adding or removing one), {_shown_number(replaced)} "
        f"(replacing one), and {_shown_number(hundred)} after 100 releases."
    )
    classical = claim.sensitivity * math.sqrt(2 * math.log(1.25 / claim.delta)) / claim.noise_std
    if claim.epsilon > 1 and math.isclose(classical, claim.epsilon, rel_tol=0.01):
        yield (
            f"The std is sensitivity sqrt(2 ln(1.25 / delta)) / {claim.epsilon:g}, a formula that "
            "is proved for epsilon up to 1 only."
        )


def _shown_by(
    measured: MeasuredFinding, events: Sequence[PrivacyEvent], claim: Claim
) -> tuple[float, str]:
    """Epsilon that a measured mu proves for the claim's releases, and the line that says so."""
    assert claim.delta is not None
    where = f"{measured.trials:,} trials, canary {measured.canary}"
    if measured.claimed_mu is not None and measured.mu <= measured.claimed_mu:
        return math.inf, f"Measured ({where}): {measured.note}."
    noise = 1 / measured.mu if measured.mu < math.inf else 0.0
    shown = least_epsilon(
        [replace(event, noise_multiplier=noise) for event in events], claim.delta, claim.relation
    )
    return shown, (
        f"Measured ({where}): mu is at least {measured.mu:.4g} a release, with confidence "
        f"{measured.confidence:.4%}; epsilon is at least {_shown_number(shown)}."
    )


def _factor(claim: Claim) -> float:
    return 2.0 if claim.relation == "replace_one" else 1.0


def _less(one: float, other: float) -> bool:
    """Whether it is smaller by more than the rounding of a printed number."""
    return one < other * (1 - SLACK)


def _shown_number(value: float) -> str:
    return f"{value:.4g}" if value < 1e6 else f"{value:.2e}"
