"""Audits: what one training gives away, to whom, and whether a claim about it can be true."""
