"""Times torch.topk against a sort of the same rows, of which it takes a part.

python -m benchmarks.select_or_sort

It is behind the gain of the finding `unused-result` where few values of a sort are taken. One thread; the quickest of
some runs counts. The last column is what the finding says that the selection takes of the sort's time.
"""

import math
import time
from collections.abc import Callable

import torch

from bottleneck.advice.unused_results import left_of_sort

_RUNS = 5
_ROWS = ((1, 1_000_000), (64, 60_000), (64, 4_096), (512, 1_024), (2_048, 128))
_PARTS = (0.0, 0.01, 0.1, 0.25, 0.5)


def main() -> None:
    """Times and prints."""
    torch.set_num_threads(1)
    print(f"{'rows':>5}{'of':>9}{'taken':>8}{'of the sort':>13}{'stated':>16}")
    for rows, length in _ROWS:
        numbers = torch.randn(rows, length)
        sort_s = quickest(lambda numbers=numbers: numbers.sort(dim=1, descending=True))
        for part in _PARTS:
            taken = max(math.ceil(part * length), 1)
            select_s = quickest(lambda numbers=numbers, taken=taken: numbers.topk(taken, dim=1))
            left = left_of_sort(taken / length, length)
            print(f"{rows:5}{length:9}{taken:8}{select_s / sort_s:13.0%}{f'{left.low:.0%} to {left.high:.0%}':>16}")


def quickest(run: Callable[[], object]) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(_RUNS + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    main()
