"""Which kernels torch may choose, settled before torch is loaded.

MKL, ATen and oneDNN pick kernels by the processor they find, and kernels round differently. Under
"portable" all three are held to what every x86-64 processor with AVX2 has, so that a run gives the
same bits on all of them; "fast" leaves the choice to the libraries. Nothing here imports torch.

`LEAKBENCH_ARITHMETIC` says which of the two; a variable of `PORTABLE` that is set already is the
user's own choice and stays.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from leakbench import native
from leakbench.errors import LeakbenchError, unknown_name

UNCOMPILED = "uncompiled"
CHOICE = "LEAKBENCH_ARITHMETIC"

PORTABLE = {
    "MKL_CBWR": "COMPATIBLE",  # AVX2,STRICT gives other bits on AMD than on Intel
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""Environment variables that hold MKL, ATen and oneDNN to what all these processors have."""

_FAST = "fast"
_CHOICES = ("portable", _FAST)
_OURS = "LEAKBENCH_SETTLED"
"""Names, in the environment, of the variables that leakbench has set, for child processes too."""


def settle() -> dict[str, str]:
    """Set what `LEAKBENCH_ARITHMETIC` asks for, unless torch is loaded, which reads it only once.

    Called when leakbench is imported, so before any module of it imports torch, in worker processes
    too: they find what their parent computes with. What `mode` refuses counts as "portable" here:
    an import is no place for a sentence.

    Returns:
        The variables that hold, as `mode` names them.
    """
    if "torch" in sys.modules:
        if any(os.environ.get(name) is None for name in PORTABLE):
            os.environ[CHOICE] = _FAST  # else worker processes would settle for something else
    elif os.environ.get(CHOICE) == _FAST:
        _take_back()
    elif has_avx2():
        ours = [name for name in PORTABLE if name not in os.environ]
        os.environ.update({name: PORTABLE[name] for name in ours})
        if ours:
            os.environ[_OURS] = " ".join(ours)
    return {name: os.environ[name] for name in PORTABLE if os.environ.get(name)}


def choose_fast() -> None:
    """Take back what `settle` has set, here and for worker processes.

    Raises:
        LeakbenchError: torch is loaded, so it is too late.
    """
    if "torch" in sys.modules:
        raise LeakbenchError(f"arithmetic: torch is loaded already; set {CHOICE}=fast before that")
    os.environ[CHOICE] = _FAST
    _HOLDS.clear()
    _HOLDS.update(settle())


def _take_back() -> None:
    for name in os.environ.pop(_OURS, "").split():
        os.environ.pop(name, None)


def mode() -> str:
    """The arithmetic of this process, as identities and manifests name it.

    "portable"; "fast"; where the user has set something else, these settings; each with
    "uncompiled" behind it where the programs of `leakbench.native` do not compute; and the name of
    the architecture where there is nothing to hold (no x86-64, or no AVX2), with the user's
    settings.

    Raises:
        LeakbenchError: `LEAKBENCH_ARITHMETIC` is neither "portable" nor "fast".
    """
    if (choice := os.environ.get(CHOICE, "")) not in ("", *_CHOICES):
        raise unknown_name("value", choice, _CHOICES, CHOICE)
    settings = [f"{name}={value}" for name, value in _HOLDS.items()]
    if not has_avx2():
        return " ".join([platform.machine().lower(), *settings])
    kernels = "portable" if _HOLDS == PORTABLE else " ".join(settings) or _FAST
    return kernels if native.lanes() else f"{kernels} {UNCOMPILED}"


def has_avx2() -> bool:
    """Whether this is an x86-64 processor known to have AVX2."""
    return platform.machine().lower() in ("x86_64", "amd64") and "avx2" in _flags()


def processor() -> str:
    """Name of the processor, as the system gives it; its architecture where it gives none."""
    return _about("model name") or platform.processor() or platform.machine()


def _flags() -> tuple[str, ...]:
    return tuple(_about("flags").split())


@cache
def _about(key: str) -> str:
    """The first entry of this name in /proc/cpuinfo; "" without one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


_HOLDS = settle()
"""What was settled when this module was imported: later changes of the environment reach nobody."""
