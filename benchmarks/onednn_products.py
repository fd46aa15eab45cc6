"""What fp32 products take by the library that torch chooses, and by oneDNN.

    python -m benchmarks.onednn_products

Microseconds of products and of their backward passes at the precision `highest`, and at `medium`, at which torch gives
them to oneDNN on CPUs with AVX-512; the largest error of a result, relative to the largest value; and how many times as
fast it is. Then fused attention in the same way.
"""

import time
from collections.abc import Callable, Sequence

import torch

_SHAPES = (
    *((16, 16, 16), (32, 64, 64), (64, 64, 64), (64, 128, 128), (128, 128, 128), (256, 256, 256)),
    *((32, 2048, 1000), (128, 784, 512), (512, 256, 1024), (2048, 64, 64), (2048, 512, 512), (4096, 256, 1024)),
)
_ATTENTION = ((2, 6, 16, 64), (8, 4, 48, 32), (16, 6, 64, 32), (4, 4, 128, 32), (4, 8, 512, 64), (2, 8, 1024, 64))
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


def at_both(works: Sequence[Callable[[], object]]) -> str:
    """Columns of each work: microseconds at `highest` and `medium`, and how many times as fast the second is."""
    us: list[list[float]] = []
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        us.append([microseconds(work) for work in works])
    torch.set_float32_matmul_precision("highest")
    return " ".join(f"{usual:10.1f} {medium:10.1f} {usual / medium:7.2f}" for usual, medium in zip(*us, strict=True))


def products(rows: int, inputs: int, outputs: int) -> str:
    """The line of a product and of its backward pass, with the error at `medium`."""
    given, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    grown, trained = given.clone().requires_grad_(), weight.clone().requires_grad_()
    ones = torch.ones(rows, outputs)

    def forward() -> torch.Tensor:
        return torch.nn.functional.linear(given, weight)

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(torch.nn.functional.linear(grown, trained), (grown, trained), ones)

    torch.set_float32_matmul_precision("medium")
    exact = given.double() @ weight.double().T
    error = float((forward() - exact).abs().max() / exact.abs().max())
    return f"{(rows, inputs, outputs)!s:18} {at_both((forward, both))}  {error:.0e}"


def attention(*heads: int) -> str:
    """The line of fused attention and of its backward pass."""
    given = [torch.randn(heads) for _ in range(3)]
    trained = [one.clone().requires_grad_() for one in given]
    ones = torch.ones(heads)

    def forward() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*given)

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(*trained), trained, ones)

    return f"{heads!s:18} {at_both((forward, both))}"


def main() -> None:
    """Prints the two tables."""
    print("rows, in, out        forward, us             times  with backward, us      times  error")
    for shape in _SHAPES:
        print(products(*shape))
    print("\nbatch, heads, tokens, numbers: fused attention, whose blocks are products of their own")
    for heads in _ATTENTION:
        print(attention(*heads))


if __name__ == "__main__":
    main()
