"""Code of plugins, kept from changing what others see: the process's state and what it is given.

Plugins of one run share a process with each other and with the machinery. What they change of it
is put back behind each call; what would change numbers, theirs or others', is their error.
"""

from __future__ import annotations

import dataclasses
import locale
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakbench.errors import PluginBroken
from leakbench.foreign import without_exit
from leakbench.plugin_files import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One piece of a process's state.

    name: as an error says it. harms: whether it decides numbers, so that changing it is an error;
    others are put back and nobody is told.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    harms: bool


def _flag(path: str, said: str) -> Setting:
    """A switch of one of torch's backends, below `torch.backends`."""
    folder, _, name = path.rpartition(".")
    of = attrgetter(folder)(torch.backends) if folder else torch.backends
    return Setting(
        name=f"torch's {said}",
        read=partial(_legacy, partial(getattr, of, name)),
        write=partial(setattr, of, name),
        harms=True,
    )


def _legacy(read: Callable[[], Any]) -> Any:
    """A switch that torch refuses to read while a newer one says something else."""
    try:
        return read()
    except RuntimeError:
        return _MIXED


_MIXED = "mixed"


def _matmul_precision(precision: str) -> None:
    if precision != _MIXED:
        torch.set_float32_matmul_precision(precision)


def _default_device(device: torch.device) -> None:
    # The processor is what torch starts with; named, it would slow down every call.
    torch.set_default_device(None if device.type == "cpu" else device)


def _inference(on: bool) -> None:
    # Whoever entered it holds the way out; another one, entered inside and kept, stands for it.
    mode = torch.inference_mode(on)
    mode.__enter__()
    _ENTERED.append(mode)


_ENTERED: list[torch.inference_mode] = []
"""Leaving them ends what they stand for."""


def _flushes() -> bool:
    """Whether numbers too small to be normal count as 0: torch does not say, but its switch is the
    processor's, and holds for Python's arithmetic on this thread too."""
    return _DENORMAL[0] * 1.0 == 0.0


_DENORMAL = [1e-310]
"""Out of sight of Python's compiler, which would multiply once and for all."""


def _handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in _SIGNALS}


_SIGNALS = [
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGQUIT")
    if (number := getattr(signal, name, None)) is not None
]
"""Those that plugins' libraries like to handle; asking for all takes long."""


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # somebody has removed it
        return ""


def _set_filters(filters: Iterable[Any]) -> None:
    warnings.resetwarnings()  # also forgets what was decided by the filters in force
    warnings.filters.extend(filters)  # type: ignore[attr-defined]


def _numpy_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(keys).tobytes(), *rest)


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))


def _set_streams(streams: tuple[Any, Any, Any]) -> None:
    sys.stdin, sys.stdout, sys.stderr = streams


def _anomaly(asked: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*asked)


_PRECISION = "precision of float32 arithmetic"

SETTINGS = (
    Setting(
        name="torch's default dtype", read=torch.get_default_dtype,
        write=torch.set_default_dtype, harms=True,
    ),
    Setting(
        name="torch's default device", read=torch.get_default_device, write=_default_device,
        harms=True,
    ),
    Setting(
        name="torch's inference mode", read=torch.is_inference_mode_enabled, write=_inference,
        harms=True,
    ),
    Setting(
        name="whether torch records gradients (set_grad_enabled)", read=torch.is_grad_enabled,
        write=torch.set_grad_enabled, harms=True,
    ),
    Setting(
        name="torch's autocast", read=lambda: torch.is_autocast_enabled("cpu"),
        write=lambda on: torch.set_autocast_enabled("cpu", on), harms=True,
    ),
    Setting(
        name="torch's use of deterministic algorithms",
        read=lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        write=lambda asked: torch.use_deterministic_algorithms(asked[0], warn_only=asked[1]),
        harms=True,
    ),
    # The older switch of each precision comes first: it sets the newer ones.
    Setting(
        name=f"torch's {_PRECISION}", read=partial(_legacy, torch.get_float32_matmul_precision),
        write=_matmul_precision, harms=True,
    ),
    *(
        _flag(path, _PRECISION)
        for path in (
            "cudnn.allow_tf32", "fp32_precision", "mkldnn.fp32_precision",
            "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision",
            "mkldnn.rnn.fp32_precision", "cuda.matmul.fp32_precision", "cudnn.fp32_precision",
            "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision",
        )
    ),
    Setting(
        name="torch's treatment of denormal numbers", read=_flushes,
        write=torch.set_flush_denormal, harms=True,
    ),
    _flag("mkldnn.enabled", "use of oneDNN"),
    _flag("cudnn.enabled", "use of cuDNN"),
    _flag("cudnn.benchmark", "choice of kernels by cuDNN"),
    _flag("cudnn.deterministic", "choice of kernels by cuDNN"),
    _flag("opt_einsum.enabled", "order of einsum"),
    # From here on: what decides no number, or only those of who changes it.
    Setting(
        name="torch's number of threads", read=torch.get_num_threads, write=torch.set_num_threads,
        harms=False,
    ),
    Setting(
        name="torch's detection of anomalies",
        read=lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        write=_anomaly, harms=False,
    ),
    Setting(
        name="torch's random numbers", read=lambda: torch.get_rng_state().numpy().tobytes(),
        write=lambda state: torch.set_rng_state(
            torch.frombuffer(bytearray(state), dtype=torch.uint8)
        ),
        harms=False,
    ),
    Setting(
        name="numpy's random numbers", read=_numpy_state, write=_set_numpy_state, harms=False
    ),
    Setting(
        name="Python's random numbers", read=random.getstate, write=random.setstate, harms=False
    ),
    Setting(
        name="numpy's treatment of errors", read=np.geterr, write=lambda how: np.seterr(**how),
        harms=False,
    ),
    Setting(
        name="the environment", read=lambda: dict(os.environ), write=_set_environment, harms=False
    ),
    Setting(
        name="sys.path", read=lambda: list(sys.path),
        write=lambda folders: sys.path.__setitem__(slice(None), folders), harms=False,
    ),
    Setting(name="the working folder", read=_folder, write=os.chdir, harms=False),
    Setting(
        name="the limit of recursion", read=sys.getrecursionlimit, write=sys.setrecursionlimit,
        harms=False,
    ),
    Setting(name="handlers of signals", read=_handlers, write=_set_handlers, harms=False),
    Setting(
        name="filters of warnings",
        read=lambda: list(warnings.filters),
        write=_set_filters, harms=False,
    ),
    Setting(
        name="the locale", read=lambda: locale.setlocale(locale.LC_ALL),
        write=lambda name: locale.setlocale(locale.LC_ALL, name), harms=False,
    ),
    Setting(
        name="the standard streams", read=lambda: (sys.stdin, sys.stdout, sys.stderr),
        write=_set_streams, harms=False,
    ),
)  # fmt: skip
"""All that is put back, in the order in which it is."""

HARMFUL = tuple(setting for setting in SETTINGS if setting.harms)
"""Where all of them would take too long."""

SETTLED: Mapping[str, Any] = {
    "torch's default dtype": torch.float32,
    "torch's default device": torch.device("cpu"),
    "torch's inference mode": False,
    "whether torch records gradients (set_grad_enabled)": True,
    "torch's autocast": False,
    "torch's treatment of denormal numbers": False,
}
"""What the machinery computes with, whatever it finds: numbers must not depend on who calls it."""


Found = Sequence[tuple[Setting, Any]]
"""Settings, and what each of them was."""


def found_now(settings: Sequence[Setting] = SETTINGS) -> Found:
    """What these settings are."""
    return [(setting, setting.read()) for setting in settings]


def _put_back(before: Found) -> list[Setting]:
    """Make everything what it was; says what was something else."""
    changed = []
    for setting, was in before:
        if setting.read() != was:
            setting.write(was)
            changed.append(setting)
    return changed


@contextmanager
def contained(
    who: str, settings: Sequence[Setting] = SETTINGS, before: Found | None = None
) -> Iterator[None]:
    """Run code of a plugin, and put back behind it what it has changed of the process.

    who: as an error names it, e.g. "attack 'mine'"; "" where whoever catches it does.
    settings: to look after. before: these as `found_now` has read them, by a caller who runs much
        code of plugins and nothing else that changes any of them; None: read here.

    Raises:
        PluginBroken: it has changed what decides numbers; or it has raised what is not an
            `Exception`, which is for the process and not for a plugin to say. Its own errors come
            through, and so does an interrupt by a signal.
    """
    before = found_now(settings) if before is None else before
    failure: Exception | None = None
    changed: list[Setting] = []
    try:
        with without_exit(who):
            yield
    except Exception as error:  # noqa: BLE001  it comes through, below
        failure = error
    finally:
        changed = _put_back(before)
    _tell(who, [setting.name for setting in changed if setting.harms], failure)


def _tell(who: str, changed: Sequence[str], failure: Exception | None) -> None:
    """Raise what a plugin has done: changed something, failed, or failed because of it."""
    if failure is not None and (not changed or isinstance(failure, torch.OutOfMemoryError)):
        raise failure
    if changed:
        then = "" if failure is None else f", and then fails: {one_line(failure)}"
        place = f"{who}: " if who else ""
        raise PluginBroken(f"{place}changes {changed[0]}{then}") from failure


@contextmanager
def settled() -> Iterator[None]:
    """Compute in the state of `SETTLED`, whatever the caller has set, which is put back."""
    ours = [setting for setting in SETTINGS if setting.name in SETTLED]
    before = found_now(ours)
    for setting, was in before:
        if was != SETTLED[setting.name]:
            setting.write(SETTLED[setting.name])
    try:
        yield
    finally:
        _put_back(before)


# ------------------------------------------------------------------------------ what is given


Given = Mapping[str, Iterable[Tensor | Mapping[str, Tensor]]]
"""What a plugin is given: what an error calls it -> tensors, and tables of tensors."""


@contextmanager
def untouched(who: str, given: Given) -> Iterator[None]:
    """Run code of a plugin that must not change what it is given, since others are judged by it.

    who: as an error names it. What was changed is put back, whatever else happens.

    Raises:
        PluginBroken: something is not what it was. Else the plugin's own errors come through.
    """
    tables = [
        (what, thing, dict(thing))
        for what, things in given.items()
        for thing in things
        if isinstance(thing, dict)
    ]
    tensors = [
        (what, tensor, tensor.detach().clone())
        for what, things in given.items()
        for thing in things
        for tensor in ([thing] if isinstance(thing, Tensor) else thing.values())
    ]
    failure: Exception | None = None
    found: list[str] = []
    try:
        yield
    except Exception as error:  # noqa: BLE001  it comes through, below
        failure = error
    finally:
        for what, table, held in tables:
            if table.keys() != held.keys() or any(table[name] is not held[name] for name in held):
                table.clear()
                table.update(held)
                found.append(what)
        for what, tensor, was in tensors:
            if not _same(tensor, was):
                _overwrite(tensor, was)
                found.append(what)
    _tell(who, [f"{what} it is given" for what in found], failure)


def tensors_in(state: object) -> list[Tensor]:
    """Those of a defense's state: in dataclasses, tables, lists and tuples."""
    if isinstance(state, Tensor):
        return [state]
    parts: Iterable[object] = ()
    if isinstance(state, Mapping):
        parts = state.values()
    elif isinstance(state, list | tuple):
        parts = state
    elif dataclasses.is_dataclass(state) and not isinstance(state, type):
        parts = [getattr(state, field.name) for field in dataclasses.fields(state)]
    return [tensor for part in parts for tensor in tensors_in(part)]


def _same(now: Tensor, was: Tensor) -> bool:
    """Whether shapes, types and all numbers are equal; nan equals nan."""
    if now.shape != was.shape or now.dtype != was.dtype or now.requires_grad:
        return False
    return bool(((now == was) | (now.isnan() & was.isnan())).all())


def _overwrite(tensor: Tensor, was: Tensor) -> None:
    with torch.no_grad():
        if tensor.requires_grad:
            tensor.requires_grad_(False)
        if tensor.shape == was.shape and tensor.dtype == was.dtype:
            tensor.copy_(was)
        else:
            tensor.data = was.clone()
