"""The one thing pyproject.toml cannot say: found packages together with mapped folders.

Everything else, the mapping itself included, is in pyproject.toml.
"""

from setuptools import find_packages, setup

MAPPED = ("attacks", "defenses", "suites")

own = find_packages(include=["leakbench", "leakbench.*"])
mapped = find_packages(include=[*MAPPED, *(f"{name}.*" for name in MAPPED)])

setup(packages=[*own, *(f"leakbench.{name}" for name in mapped)])
