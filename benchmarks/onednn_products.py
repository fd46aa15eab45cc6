"""What fp32 products take by the library that torch chooses, and by oneDNN.

    python -m benchmarks.onednn_products

Microseconds of products and of their backward passes at the precision `highest`, and at `medium`, at which torch gives
them to oneDNN on CPUs with AVX-512; the largest error of a result, relative to the largest value; and how many times as
fast it is.
"""

import time
from collections.abc import Callable

import torch

_SHAPES = (
    *((16, 16, 16), (32, 64, 64), (64, 64, 64), (64, 128, 128), (128, 128, 128), (256, 256, 256)),
    *((32, 2048, 1000), (128, 784, 512), (512, 256, 1024), (2048, 64, 64), (2048, 512, 512), (4096, 256, 1024)),
)
_TIMES, _MOST_S = 400, 0.4


def microseconds(work: Callable[[], object]) -> float:
    """Least time of some calls, after two."""
    work()
    work()
    least, began = float("inf"), time.perf_counter()
    for _ in range(_TIMES):
        start = time.perf_counter()
        work()
        end = time.perf_counter()
        least = min(least, end - start)
        if end - began > _MOST_S:
            break
    return least * 1e6


def main() -> None:
    """Prints the table."""
    print("rows, in, out        forward, us             times  with backward, us      times  error")
    for rows, inputs, outputs in _SHAPES:
        given, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        grown, ones = torch.randn(rows, inputs, requires_grad=True), torch.ones(rows, outputs)
        trained = weight.clone().requires_grad_()

        def forward(given: torch.Tensor = given, weight: torch.Tensor = weight) -> torch.Tensor:
            return torch.nn.functional.linear(given, weight)

        def both(
            grown: torch.Tensor = grown, trained: torch.Tensor = trained, ones: torch.Tensor = ones
        ) -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(torch.nn.functional.linear(grown, trained), (grown, trained), ones)

        us: dict[str, tuple[float, float]] = {}
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            us[precision] = microseconds(forward), microseconds(both)
        exact = given.double() @ weight.double().T
        error = float((forward() - exact).abs().max() / exact.abs().max())
        torch.set_float32_matmul_precision("highest")
        (usual, usual_both), (medium, medium_both) = us.values()
        print(
            f"{(rows, inputs, outputs)!s:18} {usual:10.1f} {medium:10.1f} {usual / medium:7.2f}"
            f" {usual_both:10.1f} {medium_both:10.1f} {usual_both / medium_both:7.2f}  {error:.0e}"
        )


if __name__ == "__main__":
    main()
