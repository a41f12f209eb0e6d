"""Attacks, one file each; installed as leakbench.attacks."""
