"""What masks of dropout cost that `bernoulli_` draws, and masks made of random bits.

    OMP_NUM_THREADS=1 python -m benchmarks.dropout_masks

Milliseconds of `bernoulli_`, of `nn.Dropout` forward and backward, and of the module that the finding dropout-masks
proposes; the part of the numbers that it keeps; and what it saves as a part of the time of `bernoulli_`.
"""

import time
from collections.abc import Callable

import torch

from bottleneck.experiment.interventions.dropout import drop_by_bits

_SHAPES = ((128, 1024), (32, 78, 256), (256, 78, 78), (2496, 1024))
_TIMES, _P = 15, 0.1


class Proposed(torch.nn.Dropout):
    """nn.Dropout with masks of random bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input with a part of its numbers left out."""
        result: torch.Tensor = drop_by_bits(torch, self, x)
        return result


def milliseconds(work: Callable[[], object]) -> float:
    """Least time of some calls, after one."""
    work()
    least = float("inf")
    for _ in range(_TIMES):
        began = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - began)
    return least * 1e3


def main() -> None:
    """Prints the table."""
    proposed = Proposed(_P)
    print("shape            bernoulli_, ms  nn.Dropout, ms  proposed, ms  kept    saved")
    for shape in _SHAPES:
        given, mask = torch.randn(shape, requires_grad=True), torch.empty(shape)
        ones = torch.ones(shape)

        def run(module: torch.nn.Module, given: torch.Tensor = given, ones: torch.Tensor = ones) -> None:
            module(given).backward(ones)
            given.grad = None

        drawn = milliseconds(lambda mask=mask: mask.bernoulli_(1 - _P))
        usual, bits = (milliseconds(lambda module=module: run(module)) for module in (torch.nn.Dropout(_P), proposed))
        kept = float((proposed(given) != 0).float().mean())
        print(f"{shape!s:16} {drawn:14.3f} {usual:15.3f} {bits:13.3f}  {kept:.4f}  {(usual - bits) / drawn:.2f}")


if __name__ == "__main__":
    main()
