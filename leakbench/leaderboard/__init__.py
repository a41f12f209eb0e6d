"""Leaderboards: leaks that any tool can attack, answers scored by the rules of runs, static pages.

`packs` says what a leak pack is and reads it, `making` makes one of a suite, `submissions` is what
comes back, `scoring` judges it, `boards` ranks attacks and defenses. What strangers wrote is data:
it is checked before it is loaded, and never executed.
"""
