"""Defenses, one file each; installed as leakbench.defenses."""
