"""Sets every generator of random numbers to the plan's seed as soon as the program brings it in."""

import random
import sys
from collections.abc import Callable
from typing import Any

from bottleneck.harness.notes import Plan


def seeders(plan: Plan) -> dict[str, Callable[[Any], None]]:
    """What to call once torch or numpy is loaded, by the module's name; Python's own generator is set at once."""
    if plan.seed is None:
        return {}
    random.seed(plan.seed)
    return {"torch": lambda torch: sow(plan, torch), "numpy": lambda numpy: _sow_numpy(plan, numpy)}


def sow(plan: Plan, torch: Any) -> None:
    """Sets torch's generators, those of GPUs included, where the plan has a seed."""
    if plan.seed is not None:
        torch.manual_seed(plan.seed)
        if "numpy" in sys.modules:
            _sow_numpy(plan, sys.modules["numpy"])


def _sow_numpy(plan: Plan, numpy: Any) -> None:
    # Half loaded, where torch is imported while numpy is.
    seed = getattr(getattr(numpy, "random", None), "seed", None)
    if seed is not None and plan.seed is not None:
        seed(plan.seed % 2**32)
