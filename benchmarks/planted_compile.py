"""A program with three graph breaks, two recompiles, a skipped CUDA graph and slow guards.

``without`` takes one of them away: value, print, inserted, size, number, skip or guards.
"""

from collections.abc import Callable

import torch

SETTINGS = 400


class Planted(torch.nn.Module):
    """Layers with three breaks between them, and a number that is changed once."""

    def __init__(self, without: str) -> None:
        super().__init__()
        self.without = without
        self.first, self.second = torch.nn.Linear(128, 128), torch.nn.Linear(128, 128)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Breaks at the value, the print and the inserted break, unless one was taken away."""
        y = self.first(x).relu()
        if self.without != "value":
            y = y * float(y.sum().item() > 0)
        y = self.second(y).relu()
        if self.without != "print":
            print(end="")
        y = self.first(y).relu()
        if self.without != "inserted":
            torch._dynamo.graph_break()
        return self.second(y).relu() * self.scale


def workload(without: str = "") -> Callable[[], object]:
    """Makes the step, once all has been compiled."""
    torch.manual_seed(0)
    original = Planted(without)
    model = torch.compile(original, dynamic=False)
    rows = torch.randn(64, 128)
    settings = {f"key_{number}": float(number) for number in range(SETTINGS)}

    @torch.compile
    def guarded(x: torch.Tensor, settings: dict[str, float]) -> torch.Tensor:
        return x * (sum(settings.values()) if without != "guards" else 2.0)

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if without == "skip" else x.add_(1)

    backend = "eager" if without == "skip" else "cudagraphs"
    captured = torch.compile(add_in_place, backend=backend)
    model(rows)
    if without != "size":
        model(torch.randn(48, 128))
    if without != "number":
        original.scale = 2.0
    model(rows)
    captured(torch.zeros(8))
    return lambda: guarded(model(rows), settings)
