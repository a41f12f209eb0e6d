"""Privacy accounting: what a list of noisy releases guarantees, to whom, and what papers print.

No module of it imports torch. `events` is what is accounted for; `account` the entry, with `rdp`,
`pld`, `gdp`, `zcdp` and `composition` behind it; `presets` the papers' conventions; `observers` who
sees what; `inverse` the noise and the steps of a budget; `tables` the papers' tables.
"""
