"""Suites, one TOML file each; installed as leakbench.suites."""
