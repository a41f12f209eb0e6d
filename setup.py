"""What pyproject.toml cannot say: packages found beside mapped ones, and what is compiled.

Everything else, the mapping itself included, is in pyproject.toml.
"""

import hashlib
import platform
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

MAPPED = ("attacks", "defenses", "suites")
NATIVE = Path("leakbench/native")
# As in leakbench/native/__init__.py.
SOURCES = ("kernels.c", "sigmoid.inc", "relu.inc", "lbfgs.inc", "normals.inc")

own = find_packages(include=["leakbench", "leakbench.*"])
mapped = find_packages(include=[*MAPPED, *(f"{name}.*" for name in MAPPED)])

# A library without Python in it, loaded by ctypes. Without a compiler the installation goes on, and
# torch does its work; so it does where processors are others than these.
digest = hashlib.sha256(b"".join((NATIVE / name).read_bytes() for name in SOURCES)).hexdigest()
native = Extension(
    "leakbench.native._kernels",
    sources=[str(NATIVE / "kernels.c")],
    depends=[str(NATIVE / name) for name in SOURCES],
    define_macros=[("SOURCES", f'"{digest}"')],
    extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno"],
    optional=True,
)
can = platform.machine().lower() in ("x86_64", "amd64") and sys.platform != "win32"

setup(
    packages=[*own, *(f"leakbench.{name}" for name in mapped)],
    ext_modules=[native] if can else [],
)
