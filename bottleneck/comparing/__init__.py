"""Compares two cases: the change of the step by account, by module and op, adding up to it."""

from bottleneck.comparing.compare import compare
from bottleneck.comparing.sides import Compared, Touched

__all__ = ["Compared", "Touched", "compare"]
