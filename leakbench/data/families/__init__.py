"""One file a family of data sets: its `ENTRIES`, and how these are read and prepared.

A file is found by being here. Importing it must load neither torch nor numpy.
"""
