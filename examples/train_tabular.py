"""An ordinary training script, a deep network on rows of a table. Expected verdict: overhead, mostly the optimizer's.

Every parameter is small, and AdamW updates them one after the other unless `--fused` says otherwise. The tutorial
docs/tutorial/first-speedup.md makes it faster and proves it.
"""

import argparse
import time

import torch
from torch import nn

COLUMNS, WIDTH, BLOCKS = 32, 64, 24


class Block(nn.Module):
    """A layer with a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows with what the layer adds to them."""
        return rows + torch.relu(self.linear(self.norm(rows)))


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 1))


def make_batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randn(64, COLUMNS, generator=generator)
    return rows, rows[:, :1] * rows[:, 1:2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--fused", action="store_true", help="update all parameters in one call")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=arguments.fused)
    began = time.perf_counter()
    for _ in range(arguments.steps):
        rows, targets = make_batch(generator)
        loss = nn.functional.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    per_second = arguments.steps / (time.perf_counter() - began)
    print(f"loss {loss.item():.3f}, {per_second:.0f} steps per second")


if __name__ == "__main__":
    main()
