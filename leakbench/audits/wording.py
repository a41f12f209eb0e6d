"""An audit in sentences for a reader who knows nothing of differential privacy.

Nothing is decided here: numbers of `findings.AuditReport` are ordered and put into words. Upper
bounds are rounded up and lower bounds down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from leakbench.audits.findings import (
    Advice,
    AuditReport,
    ClaimFinding,
    MeasuredFinding,
    ObserverFinding,
    PanelFinding,
    Pictures,
    Rate,
)
from leakbench.spec import Observer

Status = Literal["leaks", "open", "above", "within"]

STATUS: dict[Status, str] = {
    "leaks": "leaks",
    "open": "not ruled out",
    "above": "bounded, but above the target",
    "within": "within the target",
}
"""In the order of their weight."""

THREATS: dict[Observer, str] = {"server": "A to E", "type1": "A to E"}
"""Threat models of Carletti et al.; theirs all see the updates of clients, and only those."""

_HOPELESS = 10.0  # epsilon from which on a coin toss may become 99.99 % sure
_OPEN = 0.5  # ceiling from which on it protects nobody

WORDS = (
    (
        "Release",
        "what an observer sees once: the final model, one update, or, inside the training, one "
        "gradient.",
    ),
    (
        "Recovered exactly",
        "computed back from a release so well that no eye tells them apart: mean squared "
        "error below 0.01, and less than a quarter of that of the best guess.",
    ),
    (
        "Named",
        "of a list of candidates, the right one was picked. The list stands for what somebody who "
        "suspects whose data they are may hold.",
    ),
    (
        "In brackets, of 100",
        "few were attacked, so the true rate is uncertain: with a chance of 95 % so many of 100 "
        "would be.",
    ),
    (
        "No attack can name more than",
        "a proof about every attack, known or not, however much it computes. Attacks that failed "
        "prove nothing of the kind.",
    ),
    (
        "Epsilon, delta",
        "the promise of differential privacy. What is released would have come out nearly as "
        "likely without you: its chances differ by a factor of e^epsilon at most, apart from "
        "events of chance delta. Small is good: 1 is strong, up to 3 usual for sensitive data, 8 "
        "weak, above 10 means little. The first number is for having taken part or not, the one "
        "in brackets for having been one person or another.",
    ),
    (
        "Mu",
        "how far one contribution moves one release, in units of its noise: below 0.5 it is hidden "
        "there, above 5 in plain sight. Over many releases it adds up, which epsilon counts and mu "
        "does not.",
    ),
    (
        "Clipping, noise multiplier",
        "a contribution is shortened to a fixed length, then random numbers are added; the "
        "multiplier is their size in units of that length.",
    ),
    (
        "Letters",
        "threat models of Carletti et al. (SoK, USENIX Security 2025), who all see updates: A to E "
        "only watch and know ever more of model, training and data; F to H also change what they "
        "send, and were not tried. Attackers here know model, training and mechanism, and those "
        "with a list know more than E.",
    ),
)
"""What the words of the page mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Victims and what the best attacker at one checkpoint made of them."""

    caption: str
    pictures: Pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one observer can get, in sentences. attacks: (attacker, network, then rates) a row."""

    name: str
    who: str
    threat: str
    status: Status
    sentences: tuple[str, ...]
    attacks: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    galleries: tuple[Gallery, ...]

    @property
    def label(self) -> str:
        """Its status in words."""
        return STATUS[self.status]


ATTACK_HEADER = ("attacker", "network", "recovered exactly", "named")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a reader wants to know first. tone: "bad", "good" or "open".

    audience: the status and who they are, the worst first. target: what `changes` are to meet.
    """

    tone: str
    headline: str
    leaks: str
    audience: tuple[tuple[Status, str, str], ...]
    target: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An audit, ready to be laid out."""

    question: str
    setting: str
    answer: Answer
    picture: Gallery | None
    views: tuple[View, ...]
    claims: tuple[ClaimFinding, ...]
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]
    not_tried: tuple[str, ...]
    footer: str


def document(report: AuditReport) -> Document:
    """The report in the order in which it is read."""
    thing = _thing(report)
    views = tuple(_view(found, report, thing) for found in report.observers)
    worst = _worst(report.observers)
    return Document(
        question=report.question,
        setting=sentence(report.setting),
        answer=_answer(report, views, thing),
        picture=None if worst is None else _gallery(worst[1], thing),
        views=views,
        claims=report.claims,
        advice=report.advice,
        warnings=report.warnings,
        not_tried=report.not_tried,
        footer=_footer(report),
    )


# ---------------------------------------------------------------------------- the answer


def _answer(report: AuditReport, views: Sequence[View], thing: str) -> Answer:
    tone, headline = _headline(report, views)
    audience = [(view.status, view.label, view.who) for view in views]
    return Answer(
        tone=tone,
        headline=headline,
        leaks=_leaks(report.observers, thing),
        audience=tuple(sorted(audience, key=lambda row: list(STATUS).index(row[0]))),
        target=_target(report),
        changes=_changes(report, views),
    )


def _target(report: AuditReport) -> str:
    """What was asked for, "" without."""
    asked = report.target
    parts = [f"epsilon at most {number(asked['epsilon'])}"] if "epsilon" in asked else []
    if "identified" in asked and "candidates" in asked:
        count = round(asked["candidates"])
        parts.append(f"at most {of_list(asked['identified'], count)} named")
    return f"Asked for: {' and '.join(parts)}." if parts else ""


def _headline(report: AuditReport, views: Sequence[View]) -> tuple[str, str]:
    """Tone and verdict in a sentence: the claim first, else code, else the worst observer."""
    wrong = [one for one in report.claims if one.verdict.startswith("contradicted")]
    if wrong:
        first = min(wrong, key=lambda one: one.verdict != "contradicted by a proof")
        more = f" (and {counted(len(wrong) - 1, 'further point')})" if len(wrong) > 1 else ""
        return (
            "bad",
            f"The claim is wrong. {sentence(first.statement)[:-1]}: {first.verdict}{more}.",
        )
    if report.contradicted:
        return "bad", "The code protects less than its configuration says: this was measured."
    if report.claims:
        leaking = [view for view in views if view.status == "leaks"]
        if all(one.verdict == "holds" for one in report.claims) and leaking:
            return (
                "bad",
                f"It leaks to {leaking[0].who}, of whom the claim says nothing. The claim itself "
                "holds: there is a proof.",
            )
        if all(one.verdict == "holds" for one in report.claims):
            return "good", "The claim holds: there is a proof."
        return "open", "The claim was not contradicted, and not proved."
    if any(view.status == "leaks" for view in views):
        return "bad", "It leaks."
    if views and all(view.status == "within" for view in views):
        return "good", "All observers are kept within the target, by a proof."
    if any(found.panel for found in report.observers):
        return "open", "Nothing was recovered; not everything is ruled out."
    return "open", "No attack was run; not everything is ruled out by a proof."


def _leaks(observers: Sequence[ObserverFinding], thing: str) -> str:
    """The worst that was seen, by whom."""
    worst = _worst(observers)
    if worst is None:
        return "No attack was run: only what can be proved is said below."
    found, attack = worst
    return f"{sentence(_seen(attack, found.candidates, thing))} By {found.who}."


def _changes(report: AuditReport, views: Sequence[View]) -> tuple[str, ...]:
    """What meets the target, and where noise comes too late or not at all."""
    meeting = [one for one in report.advice if one.needed is not None]
    changes = [one.sentence for one in meeting[:1]]
    if len(meeting) > 1:
        others = " or ".join(_ALONE[one.change] for one in meeting[1:])
        changes = [f"{changes[0]} Instead of that, {others} does it alone: see below."]
    changes += [one.sentence for one in report.advice if one.needed is None and not changes]
    for found, view in zip(report.observers, views, strict=True):
        if found.level == "none" and view.status == "leaks":
            changes.append(
                f"Keep out {found.who}, or add noise before that point: nothing protects there. "
                f"{reason(found)}"
            )
    if any(one.verdict.startswith("contradicted") for one in report.claims):
        changes.append("Do not repeat the claim: see the arithmetic below.")
    return tuple(changes) or ("Nothing was found that must change.",)


_ALONE = {"noise_multiplier": "more noise", "batch_size": "a smaller batch",
          "steps": "a shorter training"}  # fmt: skip


# ---------------------------------------------------------------------------- an observer


def _view(found: ObserverFinding, report: AuditReport, thing: str) -> View:
    attacks = sorted(found.panel, key=_strength, reverse=True)
    sentences = [_worst_case(found, attacks, thing), ceiling(found), _epsilon(found, thing)]
    if found.measured is not None:
        sentences.append(_measured(found.measured))
    best = {one.checkpoint: one for one in reversed(attacks) if one.pictures is not None}
    return View(
        name={"model": "The final model", "server": "The server", "type1": "On the way",
              "type2": "Inside the training"}.get(found.observer, found.observer),
        who=found.who,
        threat=found.threat or THREATS.get(found.observer, ""),
        status=_status(found, report),
        sentences=tuple(filter(None, sentences)),
        attacks=tuple(
            (one.attack, NETWORKS[one.checkpoint], _cell(one.exact),
             _cell(one.identified or one.matched))
            for one in attacks
        ),
        notes=tuple(dict.fromkeys(one.note for one in attacks if one.note)),
        galleries=tuple(
            filter(None, (_gallery(best[key], thing) for key in NETWORKS if key in best))
        ),
    )  # fmt: skip


NETWORKS = {"first": "as handed over", "last": "after training"}


def _status(found: ObserverFinding, report: AuditReport) -> Status:
    """Leaks: an attack did better than guessing can, or the code does less than it says."""
    prior = 1 / found.candidates
    above = found.measured is not None and found.measured.verdict == "above"
    if above or any(_beats(one, prior) for one in found.panel):
        return "leaks"
    if found.level == "none" or found.ceiling >= _OPEN:
        return "open"
    epsilon, target = found.epsilon_add_remove, report.target
    met = epsilon is None or epsilon <= target.get("epsilon", math.inf)
    return "within" if met and found.ceiling <= target.get("identified", 1.0) else "above"


def _beats(attack: PanelFinding, prior: float) -> bool:
    named = [one for one in (attack.identified, attack.matched) if one is not None]
    recovered = attack.exact is not None and attack.exact.count > 0
    return recovered or any(one.low > prior for one in named)


def _strength(attack: PanelFinding) -> tuple[float, float, bool]:
    """Orders attacks: recovered, then named, then the later network."""
    return (
        _share(attack.exact),
        max(_share(attack.identified), _share(attack.matched)),
        attack.checkpoint == "last",
    )


def _share(rate: Rate | None) -> float:
    return 0.0 if rate is None else rate.count / max(rate.trials, 1)


def _worst(observers: Iterable[ObserverFinding]) -> tuple[ObserverFinding, PanelFinding] | None:
    pairs = [(found, attack) for found in observers for attack in found.panel]
    return max(pairs, key=lambda pair: _strength(pair[1]), default=None)


def _worst_case(found: ObserverFinding, attacks: Sequence[PanelFinding], thing: str) -> str:
    """What the best attack got from one release."""
    if not attacks:
        return "No attack on single contributions was run here."
    return sentence(_seen(attacks[0], found.candidates, thing))


def _seen(attack: PanelFinding, candidates: int, thing: str) -> str:
    """A rate with its interval, in words."""
    named = attack.identified or attack.matched
    kind, rate = (
        ("recovered exactly", attack.exact)
        if attack.exact is not None and (attack.exact.count or named is None)
        else (f"named among {candidates:,}", named)
    )
    if rate is None:
        return f"{attack.attack} was run, and nothing of it can be counted"
    low, high = math.floor(100 * rate.low), math.ceil(100 * rate.high)
    return (
        f"{rate.count} of {rate.trials} {thing}s were {kind} from a single release (of 100, {low} "
        f"to {high})"
    )


def in_short(found: ObserverFinding) -> str:
    """The worst of what was seen, and the most that is possible."""
    attacks = sorted(found.panel, key=_strength, reverse=True)
    seen = [sentence(_seen(attacks[0], found.candidates, "example"))] if attacks else []
    return " ".join([*seen, ceiling(found)])


def ceiling(found: ObserverFinding) -> str:
    """What no attack can exceed, and what guessing gives."""
    looks = "the whole training" if found.looks is None else counted(found.looks, "release")
    if found.level == "none":
        return f"Nothing is promised. {reason(found)}"
    guess = f"guessing names 1 of {found.candidates:,}"
    if found.ceiling > 0.995:
        return f"From {looks} nothing rules out that everybody is named ({guess})."
    text = f"No attack can name more than {of_list(found.ceiling, found.candidates)} from {looks}"
    if found.looks is not None and found.looks > 1:
        text += f", and {of_list(found.one_look_ceiling, found.candidates)} from one"
    return f"{text} ({guess})."


def reason(found: ObserverFinding) -> str:
    """Why nothing is promised, in plain words where they are known."""
    if found.reason.startswith("noise enters after the tap"):
        return (
            "The noise is added only later, to what is made of many; what is seen here is "
            "shortened to a fixed length (clipped) and no more."
        )
    return sentence(found.reason)


def _epsilon(found: ObserverFinding, thing: str) -> str:
    """Epsilon with what it means for somebody who wonders about one contribution."""
    epsilon = found.epsilon_add_remove
    if epsilon is None:
        return ""
    text = f"Epsilon is {number(epsilon)} at delta {found.delta:g}"
    if found.epsilon_replace_one is not None:
        text += f" ({number(found.epsilon_replace_one)} if one is replaced by another)"
    if epsilon >= _HOPELESS:
        return (
            f"{text}: too large to promise anything. Somebody who holds it for a coin toss whether "
            f"a certain {thing} took part may become certain."
        )
    sure = math.ceil(1000 / (1 + math.exp(-epsilon))) / 10
    return (
        f"{text}: somebody who holds it for a coin toss whether a certain {thing} took part is at "
        f"most {sure:g} % sure after looking, apart from a chance of {found.delta:g}."
    )


def _measured(found: MeasuredFinding) -> str:
    text = (
        f"Measured in {found.trials:,} runs with and as many without a test contribution "
        f"({plain(found.canary)}): mu is at least {number(found.mu)}"
    )
    if found.claimed_mu is not None:
        text += f"; configured is {number(found.claimed_mu)}"
    means = {
        "within": "The code does not do worse than it is configured to, as far as this shows.",
        "above": "So the code protects less than it says.",
        "no promise": "Nothing was promised.",
    }
    return f"{text}. {means[found.verdict]}"


def _gallery(attack: PanelFinding, thing: str) -> Gallery | None:
    if attack.pictures is None:
        return None
    how = "picked from a list" if attack.matched is not None else "computed from a single release"
    return Gallery(
        caption=f"Above what was private, below what the attacker “{plain(attack.attack)}” has, "
        f"{how} (network {NETWORKS[attack.checkpoint]}).",
        pictures=attack.pictures,
    )


# ---------------------------------------------------------------------------- words


def _thing(report: AuditReport) -> str:
    """What a victim is."""
    if report.config.get("unit") == "client":
        return "client"
    shown = any(one.pictures is not None for found in report.observers for one in found.panel)
    return "image" if shown else "example"


def _cell(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    low, high = math.floor(100 * rate.low), math.ceil(100 * rate.high)
    return f"{rate.count} of {rate.trials} ({low} to {high} %)"


def of_list(share: float, candidates: int) -> str:
    """A share rounded up, as "18 of 1,000": of a list as long as this one, or of 100 if longer."""
    base = max(candidates, 100)
    scaled = min(share * base, float(base))
    shown = math.ceil(scaled * 10) / 10 if scaled < 10 else float(math.ceil(scaled))
    return f"{max(shown, 0.1):g} of {base:,}" if shown < 1000 else f"{shown:,.0f} of {base:,}"


def number(value: float) -> str:
    """Three digits, with commas up to a million."""
    if math.isinf(value):
        return "infinite"
    if 1000 <= value < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def counted(count: int, noun: str) -> str:
    """ "1 release", "13 releases"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plain(text: str) -> str:
    """One line: what others wrote may hold line breaks."""
    return " ".join(text.split())


def sentence(text: str, *, capital: bool = True) -> str:
    """One line with a full stop, and a capital letter if wanted."""
    text = plain(text)
    if not text:
        return ""
    text = text[0].upper() + text[1:] if capital else text
    return text if text[-1] in ".!?" else f"{text}."


def _footer(report: AuditReport) -> str:
    def parts() -> Iterator[str]:
        yield from (f"{name} {value}" for name, value in report.versions.items())
        yield f"{report.seconds:,.0f} seconds"

    return plain(f"Audit: {', '.join(parts())}.")
