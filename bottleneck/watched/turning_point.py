"""Finds the step at which steps become longer."""

import numpy as np
import numpy.typing as npt


def first_beyond(values: npt.NDArray[np.float64], limit: float) -> int:
    """The place from which values lie above the limit.

    It is the one that leaves the fewest values on the wrong side: above before it, below from it on. ``values`` is one
    row, not empty.
    """
    is_above = values > limit
    wrong = np.concatenate(([0], is_above.cumsum())) + np.concatenate(((~is_above)[::-1].cumsum()[::-1], [0]))
    return min(int(np.argmin(wrong)), values.size - 1)
