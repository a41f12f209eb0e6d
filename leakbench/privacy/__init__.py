"""Privacy accounting: what a list of noisy releases guarantees, to whom, and what papers print.

No module here imports torch. `events` holds what is accounted for; `rdp`, `pld`, `composition`,
`zcdp` and `gdp` the accountants; `presets` the papers' conventions; `observers` and `account` the
epsilons per observer; `inverse` noise and steps for a budget; `tables` the papers' tables.
"""
