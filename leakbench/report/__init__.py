"""Tables, verdicts, galleries and HTML, made from the records of a run and its own plan.

`content` names every field of a report; `measured`, `ceilings`, `verdicts`, `costs` and `notes`
fill them in, and `cells` puts them together. `words`, `tables` and `renderings` arrange it;
`victims` chooses whose pictures a `gallery` shows, `shots` makes them, `drawing` draws them, and
`singles` writes each by itself; `choices` shows what `selection` chose. A report or gallery of a
run loads no torch, unless an older leakbench made it or data have to be read.
"""
