"""One training with differential privacy, as its library has been told to run it.

    config = DPConfig.from_opacus(engine, optimizer, loader, epochs=3)
    print(config.describe(), *config.warnings, sep="\n")

`DPConfig` says what is clipped, where noise enters and how batches are drawn; it knows the defense
of leakbench that is this mechanism, and what an accountant must compose. The readers of Opacus,
Flower and NVFlare look at attributes only: none of them is needed to import this. Torch is not
imported here either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from leakbench import registry
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.parameters import check_kinds, require_in
from leakbench.privacy.events import PrivacyEvent, check_delta
from leakbench.suite.parameters import complete

if TYPE_CHECKING:
    from leakbench.contracts import Defense, Setting

Clipping = Literal["flat", "tensor", "layer", "group"]
NoiseOn = Literal["sum", "mean", "example", "update"]
DPSampling = Literal["poisson", "shuffle", "fixed_size", "none"]

MOST = 2**53
"""Largest whole number that is meant: beyond it floats have gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DPConfig:
    """What a training with differential privacy does; see `docs/dp-config.md`.

    Attributes:
        clip: C, the L2 bound of the whole gradient or update; with parts that are clipped apart a
            bound for each, in the model's order, and the whole is within their L2 norm. inf where
            nothing bounds the norm.
        noise_multiplier: sigma, as it is accounted: std of the noise where it enters / sensitivity
            there. 0 for no noise.
        batch_size: B of a local step, the expected size under Poisson sampling; what a mean is
            divided by.
        examples: N of the training set; of one client's, for the unit "client".
        steps: T of the whole training: optimiser steps, or rounds for the unit "client".
        clipping: what is scaled together: all of it ("flat"), each "tensor", each "layer" (weight
            and bias), or each of `groups` ("group").
        groups: parameter names that are clipped together.
        noise_on: where noise enters: the "sum" over a batch (std sigma C; DP-SGD), its "mean"
            (sigma C there), every "example", or a client's "update".
        noise_at: of "update": every "client" adds his own, or the "server" to the sum.
        sampling: how batches (or the clients of a round) are drawn: every one by itself
            ("poisson"), a "fixed_size" afresh without replacement, in turn from a "shuffle", or
            "none": all of them in every step.
        rate: chance of one example to be drawn in a step, where it is not B / N.
        epochs: of a "shuffle", how often it goes through the data; None: as `steps` need in full
            batches.
        delta: that epsilon is stated for.
        unit: whose presence is hidden.
        clients, clients_a_round: all, and those who take part in a round. weighted: whether they
            count by numbers of examples that differ.
        local_steps: L behind an update.
        noise_schedule, clip_schedule: sigma and C of every step from the first on, in place of
            `noise_multiplier` and `clip`; the last one holds on.
        count_std: of the noise on the count of unclipped ones, where the bound follows a quantile
            (Andrew et al. 2021); the gradients' noise is then larger than sigma, so that both
            together cost sigma. 0: the bound is fixed.
        learning_rate: of the local steps.
        mechanism, parameters: name and parameters of the defense, where it is no clipping with
            Gaussian noise.
        source: what it was read from.
        warnings: sentences about what was found there.

    Raises:
        LeakbenchError: a value out of its range, or fields that contradict each other.
    """

    clip: float | tuple[float, ...]
    noise_multiplier: float
    batch_size: int
    examples: int
    steps: int
    clipping: Clipping = "flat"
    groups: tuple[tuple[str, ...], ...] = ()
    noise_on: NoiseOn = "sum"
    noise_at: Literal["client", "server"] = "client"
    sampling: DPSampling = "poisson"
    rate: float | None = None
    epochs: int | None = None
    delta: float = 1e-5
    unit: Literal["example", "client"] = "example"
    clients: int = 1
    clients_a_round: int = 1
    weighted: bool = False
    local_steps: int = 1
    noise_schedule: tuple[float, ...] = ()
    clip_schedule: tuple[float, ...] = ()
    count_std: float = 0.0
    learning_rate: float | None = None
    mechanism: str = ""
    parameters: tuple[tuple[str, float | str], ...] = ()
    source: str = ""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _plain(field.name, getattr(self, field.name)))
        check_kinds(self)
        self._check_tuples()
        where = "DPConfig"
        require_at_least(
            where, 1, batch_size=self.batch_size, examples=self.examples, clients=self.clients,
            clients_a_round=self.clients_a_round, local_steps=self.local_steps,
        )  # fmt: skip
        require_at_least(where, 0, steps=self.steps)
        require_in(where, "[0, inf)", noise_multiplier=self.noise_multiplier)
        require_in(where, "[0, inf)", count_std=self.count_std)
        check_delta(self.delta)
        if self.rate is not None:
            require_in(where, "[0, 1]", rate=self.rate)
        if self.epochs is not None:
            require_at_least(where, 0, epochs=self.epochs)
        if self.learning_rate is not None:
            require_in(where, "(0, inf)", learning_rate=self.learning_rate)
        self._check_bounds()
        self._check_unit()

    def _check_tuples(self) -> None:
        for name in ("groups", "noise_schedule", "clip_schedule", "parameters", "warnings"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                raise LeakbenchError(f"DPConfig: {name} must be a tuple, got {value!r:.60}")
        if not all(isinstance(each, str) for each in self.warnings):
            raise LeakbenchError(f"DPConfig: warnings must be texts, got {self.warnings!r:.60}")
        groups: tuple[Any, ...] = self.groups
        named = all(isinstance(each, tuple) and each for each in groups)
        names = [one for each in groups if isinstance(each, tuple) for one in each]
        if (
            not named
            or not all(isinstance(one, str) for one in names)
            or (len(set(names)) < len(names))
        ):
            raise LeakbenchError(
                "DPConfig: groups must be tuples of names of parameters, each name in one, got "
                f"{groups!r:.60}"
            )
        pairs: tuple[Any, ...] = self.parameters
        if not all(
            isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)
            for each in pairs
        ):
            raise LeakbenchError(
                f"DPConfig: parameters must be pairs of a name and a value, got {pairs!r:.60}"
            )

    def _check_bounds(self) -> None:
        parts = isinstance(self.clip, tuple)
        if parts != (self.clipping != "flat"):
            raise LeakbenchError(
                f"DPConfig: clip must be {'one number' if parts else 'a tuple, one bound a part'} "
                f"for clipping '{self.clipping}', got {self.clip!r}"
            )
        if (self.clipping == "group") != bool(self.groups):
            raise LeakbenchError(
                "DPConfig: groups are given if and only if clipping is 'group', got clipping "
                f"'{self.clipping}' and {len(self.groups)} groups"
            )
        if self.groups and isinstance(self.clip, tuple) and len(self.clip) != len(self.groups):
            raise LeakbenchError(
                f"DPConfig: {len(self.clip)} bounds of {len(self.groups)} groups; allowed: one each"
            )
        for name, values in (
            ("clip", self.clip if isinstance(self.clip, tuple) else (self.clip,)),
            ("clip_schedule", self.clip_schedule),
        ):
            for value in values:
                if not (value == math.inf and self.noise_multiplier == 0):
                    require_in("DPConfig", "(0, inf)", **{name: value})
        for value in self.noise_schedule:
            require_in("DPConfig", "[0, inf)", noise_schedule=value)
        if not self.bound > 0:
            raise LeakbenchError("DPConfig: clip must have a bound for one part at least, got ()")
        largest = max((self.noise_multiplier, *self.noise_schedule))
        if largest and not math.isfinite(largest * self.bound):
            raise LeakbenchError(
                f"DPConfig: noise_multiplier {largest:g} times clip {self.bound:g} is no finite "
                "standard deviation"
            )
        if self.epochs == 0 and self.steps and self.sampling == "shuffle":
            raise LeakbenchError(f"DPConfig: {self.steps} steps in epochs 0; allowed: from 1 on")
        if self.count_std and 2 * self.count_std <= self.noise_multiplier:
            raise LeakbenchError(
                f"DPConfig: count_std must be above noise_multiplier / 2 = "
                f"{self.noise_multiplier / 2:g}, got {self.count_std:g}: the count alone costs more"
            )

    def _check_unit(self) -> None:
        scheduled = bool(self.noise_schedule or self.clip_schedule)
        of_update = self.noise_on == "update"
        if of_update != (self.unit == "client"):
            raise LeakbenchError(
                f"DPConfig: noise_on '{self.noise_on}' hides the presence of "
                f"{'a client' if of_update else 'an example'}, got unit '{self.unit}'"
            )
        if self.unit == "example" and self.clients != 1:
            raise LeakbenchError(
                "DPConfig: unit 'example' is about the data of one client, got "
                f"clients {self.clients}; allowed: 1"
            )
        if self.clients_a_round > self.clients:
            raise LeakbenchError(
                f"DPConfig: {self.clients_a_round} clients a round, of {self.clients}"
            )
        if self.unit == "client" and self.sampling == "shuffle":
            raise LeakbenchError(
                "DPConfig: clients are drawn by poisson, fixed_size or none, got 'shuffle'"
            )
        if scheduled and (of_update or self.local_steps > 1 or self.count_std):
            raise LeakbenchError(
                "DPConfig: schedules are for noise on gradients, one local step a round and a "
                "bound that does not adapt"
            )
        if of_update and self.clipping != "flat":
            raise LeakbenchError(
                f"DPConfig: updates are clipped as a whole, got clipping '{self.clipping}'; "
                "allowed: flat"
            )

    # ------------------------------------------------------------------------- what it is

    @property
    def bound(self) -> float:
        """C of the whole: L2 norm of the parts' bounds."""
        return math.hypot(*self.clip) if isinstance(self.clip, tuple) else float(self.clip)

    @property
    def sampling_rate(self) -> float:
        """Chance of one example (or client) to take part in a step that an observer does not see
        the members of; 1 where nothing is drawn afresh."""
        if self.sampling in ("none", "shuffle"):
            return 1.0
        if self.unit == "client":
            return self.clients_a_round / self.clients
        return min(self.batch_size / self.examples, 1.0) if self.rate is None else self.rate

    @property
    def gradient_noise_multiplier(self) -> float:
        """std of the noise on gradients / C, in the first step: sigma, or more where part of it
        pays for a count (Andrew et al. 2021, Theorem 1)."""
        sigma = self.noise_schedule[0] if self.noise_schedule else self.noise_multiplier
        if not self.count_std or not sigma:
            return sigma
        return 1 / math.sqrt(1 / sigma**2 - 1 / (2 * self.count_std) ** 2)

    @property
    def sensitivity(self) -> float:
        """How far adding or removing one (example, client) moves what is released in one step, the
        first of a schedule.

        What is released: the mean gradient over B; with noise on examples, one example's gradient;
        with noise on updates, dW in units of weights, of one client, or its mean over the clients
        of a round where the server adds the noise.
        """
        if self.noise_on in ("sum", "mean"):
            return self._first_bound / self.batch_size
        return self._first_bound / (self.clients_a_round if self._at_server else 1)

    @property
    def noise_std(self) -> float:
        """Of the noise on every coordinate of the same."""
        std = self.gradient_noise_multiplier * self._first_bound if self._noisy else 0.0
        if self.noise_on == "sum":
            return std / self.batch_size
        return std / (self.clients_a_round if self._at_server else 1)

    @property
    def _first_bound(self) -> float:
        return self.clip_schedule[0] if self.clip_schedule else self.bound

    @property
    def _noisy(self) -> bool:
        return self.gradient_noise_multiplier > 0

    @property
    def _at_server(self) -> bool:
        return self.noise_on == "update" and self.noise_at == "server"

    @property
    def uses(self) -> int:
        """Steps that one example (or client) is in at most, and so is released on."""
        if self.sampling != "shuffle":
            return self.steps
        if self.epochs is not None:
            return self.epochs
        return math.ceil(self.steps / max(self.examples // self.batch_size, 1))

    # ------------------------------------------------------------------------- in leakbench

    def defense(self) -> Defense:
        """The defense of leakbench that is this mechanism.

        Raises:
            LeakbenchError: what the defense refuses, such as a bound of inf.
        """
        if self.mechanism:
            kind = registry.load("defenses", self.mechanism)
            where = f"DPConfig: mechanism '{self.mechanism}'"
            made: Defense = kind(**complete(kind, dict(self.parameters), where))
            return made
        sigma = self.gradient_noise_multiplier
        given: dict[str, Any] = {"clip": self.bound, "noise_multiplier": sigma}
        if self._at_server:
            name = "central_dp"
            given["clients"] = self.clients_a_round
        elif self.noise_on == "update":
            name = "local_dp"
        else:
            name = "dp_sgd"
            given |= {
                "convention": "per_example" if self.noise_on == "example" else self.noise_on,
                "clipping": self.clipping, "groups": self.groups,
                "shares": self.clip if isinstance(self.clip, tuple) else (),
                "noise_schedule": self.noise_schedule, "clip_schedule": self.clip_schedule,
            }  # fmt: skip
        gaussian: Defense = registry.load("defenses", name)(**given)
        return gaussian

    def setting(self) -> Setting:
        """The public facts that a promise of `defense` depends on.

        A round is a step of central training; with a shuffle an epoch, in which every example is
        used once.
        """
        from leakbench.contracts import Setting  # needs torch

        if self.unit == "client":
            return Setting(
                batch_size=self.batch_size, local_steps=self.local_steps,
                clients=self.clients_a_round, all_clients=self.clients, examples=self.examples,
                rounds=self.steps, weighted=self.weighted,
                sampling="none" if self.sampling == "shuffle" else self.sampling,
            )  # fmt: skip
        if self.sampling == "shuffle":
            return Setting(
                batch_size=self.batch_size, examples=max(self.examples, self.batch_size),
                local_steps=max(self.examples // self.batch_size, 1), rounds=self.uses,
            )  # fmt: skip
        return Setting(
            batch_size=self.batch_size, examples=self.examples, local_steps=self.local_steps,
            rounds=math.ceil(self.steps / self.local_steps), sampling=self.sampling,
        )  # fmt: skip

    def events(self) -> tuple[PrivacyEvent, ...]:
        """All releases of the training, for accountants, as the final model's holder is promised
        them; () where nothing is promised.

        A shuffle amplifies nothing: every epoch has one release of each example, in batches that
        another example would fill. Noise on single examples promises nothing under Poisson
        sampling, which varies how much there is of it.
        """
        if self.mechanism or (self.noise_on == "example" and self.sampling == "poisson"):
            return ()
        sigmas = self.noise_schedule or (self.noise_multiplier,)
        if min(sigmas) == 0 or not self.steps:
            return ()
        sampling = "fixed_size" if self.sampling == "shuffle" else self.sampling
        steps = self._steps_by(sigmas)
        first = self._first_bound
        of_one = self.weighted and self.unit == "client"
        together = self.batch_size if self.unit == "example" else self.clients_a_round
        sensitivity = first / (1 if of_one else together)  # of the mean
        return tuple(
            PrivacyEvent(
                noise_multiplier=sigma * self._gain,
                sensitivity=sensitivity,
                sampling_rate=self.sampling_rate,
                sampling=sampling,
                steps=count,
            )
            for sigma, count in steps.items()
        )

    @property
    def _gain(self) -> float:
        """Noise multiplier of the release that a model's holder sees, as a multiple of sigma."""
        if self.unit == "example":
            size = self.batch_size
            return {"mean": float(size), "example": math.sqrt(size)}.get(self.noise_on, 1.0)
        clients = self.clients_a_round
        if self.noise_at == "client":  # each brings noise of his own
            return 1.0 if self.weighted else math.sqrt(clients)
        return 1.0 / clients if self.weighted else 1.0  # one client may have all of the mean

    def _steps_by(self, sigmas: tuple[float, ...]) -> Mapping[float, int]:
        """Distinct sigma -> steps that one example is released on with it, in order."""
        if len(sigmas) == 1:
            return {sigmas[0]: self.uses}
        used = [sigmas[min(step, len(sigmas) - 1)] for step in range(self.steps)]
        counts = Counter(used)
        if self.sampling != "shuffle":
            return counts
        share = self.uses / self.steps
        return {sigma: math.ceil(share * count) for sigma, count in counts.items()}

    def describe(self) -> str:
        """What is done, in one plain sentence."""
        if self.mechanism:
            shown = ", ".join(f"{name} {value}" for name, value in self.parameters)
            return f"{self._source}'{self.mechanism}' ({shown}): no noise that promises anything."
        whose = "client's update" if self.unit == "client" else "example's gradient"
        parts = "" if self.clipping == "flat" else f", each {self.clipping} apart"
        clipped = f"every {whose} is clipped to L2 norm {self._first_bound:g}{parts}"
        places = {
            "sum": "the sum of a batch", "mean": "the mean of a batch",
            "example": "every example's gradient",
            "update": "the sum of the updates at the server" if self._at_server else "each update",
        }  # fmt: skip
        if not self.noise_multiplier and not any(self.noise_schedule):
            return f"{self._source}{clipped}, and no noise is added."
        std = self.gradient_noise_multiplier * self._first_bound
        scheduled = (
            " at first, following a schedule" if self.noise_schedule or self.clip_schedule else ""
        )
        drawn = {
            "poisson": f"drawn one by one with chance {self.sampling_rate:.4g}",
            "fixed_size": f"a fixed number is drawn afresh, a share of {self.sampling_rate:.4g}",
            "shuffle": f"taken in turn from a shuffle, {self.uses} times each",
            "none": "all take part every time",
        }[self.sampling]
        who, times = ("clients", "rounds") if self.unit == "client" else ("examples", "steps")
        return (
            f"{self._source}{clipped}; noise of std {std:.4g} is added to {places[self.noise_on]}"
            f"{scheduled}; {who}: {drawn}, in {self.steps} {times}."
        )

    @property
    def _source(self) -> str:
        return f"{self.source}: " if self.source else ""

    # ------------------------------------------------------------------------- readers

    @classmethod
    def from_opacus(
        cls,
        engine: object | None,
        optimizer: object,
        loader: object,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        delta: float = 1e-5,
        noise_scheduler: object | None = None,
        clip_scheduler: object | None = None,
    ) -> DPConfig:
        """What `PrivacyEngine.make_private` of Opacus (1.6) has set up, or has already run.

        Args:
            engine: whose accountant knows the steps that were done; None without one.
            optimizer, loader: as `make_private` returned them.
            epochs, steps: planned, one of them; None: the accountant's, or one epoch.
            delta: that epsilon is stated for.
            noise_scheduler, clip_scheduler: of `opacus.schedulers`, before the first epoch; they
                are asked for their values epoch by epoch, and left as they were.

        Raises:
            LeakbenchError: an optimiser, loader or sampler that is not understood.
        """
        from leakbench.dp_libraries import opacus_settings

        return cls(
            delta=delta,
            **opacus_settings(
                engine, optimizer, loader, epochs=epochs, steps=steps,
                noise_scheduler=noise_scheduler, clip_scheduler=clip_scheduler,
            ),
        )  # fmt: skip

    @classmethod
    def from_flower(
        cls,
        mechanism: object,
        *,
        batch_size: int,
        examples: int,
        rounds: int,
        local_steps: int = 1,
        clients: int | None = None,
        clients_a_round: int | None = None,
        learning_rate: float | None = None,
        weighted: bool = False,
        delta: float | None = None,
    ) -> DPConfig:
        """What a client mod (`LocalDpMod`) or a DP strategy of Flower does, which knows no data.

        Args:
            mechanism: `LocalDpMod`, or one of `DifferentialPrivacy{Client,Server}Side{Fixed,
                Adaptive}Clipping` (whose mods only clip).
            batch_size, examples, local_steps, learning_rate: of one client.
            rounds: T.
            clients: all there are; None: those of a round, so that nothing is amplified.
            clients_a_round: None: the strategy's `num_sampled_clients`, or 1 for a mod.
            weighted: clients hold different numbers of examples, and FedAvg weighs by them.
            delta: None: the mod's own, or 1e-5.

        Raises:
            LeakbenchError: an object that is not understood.
        """
        from leakbench.dp_libraries import flower_settings

        given = flower_settings(
            mechanism, clients=clients, clients_a_round=clients_a_round, weighted=weighted
        )
        if delta is not None:
            given["delta"] = delta
        return cls(
            batch_size=batch_size, examples=examples, steps=rounds, local_steps=local_steps,
            learning_rate=learning_rate, **given,
        )  # fmt: skip

    @classmethod
    def from_nvflare(
        cls,
        filter: object,
        *,
        batch_size: int,
        examples: int,
        rounds: int,
        local_steps: int = 1,
        clients: int = 1,
        learning_rate: float | None = None,
    ) -> DPConfig:
        """What a privacy filter of NVFlare does to a client's update.

        Args:
            filter: `PercentilePrivacy`, or `SVTPrivacy` (of which `defense` is the nearest there
                is).
            batch_size, examples, local_steps, learning_rate: of one client.
            rounds, clients: of the training.

        Raises:
            LeakbenchError: a filter that is not understood.
        """
        from leakbench.dp_libraries import nvflare_settings

        return cls(
            batch_size=batch_size, examples=examples, steps=rounds, local_steps=local_steps,
            learning_rate=learning_rate, clients=clients, clients_a_round=clients,
            **nvflare_settings(filter, local_steps),
        )  # fmt: skip


def _plain(name: str, value: Any) -> Any:
    """Numbers of any library as Python's own, also in tuples: they are written down and hashed."""
    if isinstance(value, tuple):
        return tuple(_plain(name, each) for each in value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if not isinstance(value, Integral):
        return float(value)
    if abs(int(value)) > MOST:
        raise LeakbenchError(f"DPConfig: {name} must be at most 2^53, got a larger number")
    return int(value)
