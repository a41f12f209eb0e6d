"""Tables, verdicts, galleries and HTML, made from the records of a run and its own plan.

`content` names every field of a report; `measured`, `ceilings`, `verdicts`, `costs` and `notes`
fill them in, and `cells` puts them together. `words`, `tables` and `renderings` arrange it;
`gallery` chooses pictures and `drawing` draws them. Nothing here loads torch, but a gallery of a
run that kept no originals.
"""
