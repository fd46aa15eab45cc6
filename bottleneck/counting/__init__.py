"""Counts what the steps of a case did: from tables to one whole number per counter."""

from bottleneck.counting.count import count
from bottleneck.counting.merging import merge

__all__ = ["count", "merge"]
