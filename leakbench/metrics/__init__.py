"""How close a reconstruction is to the victim (one file a metric), and what counts as a success.

Importing this package imports no torch: `leakbench.metrics.rules` reads suites and reports.
"""
