"""A mixture of experts: the tokens of each are selected with a mask, which waits for their number."""

from collections.abc import Callable

import torch
from torch import nn


class Experts(nn.Module):
    """Feed-forward parts, one of which each token takes."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens after the expert of each, weighted."""
        weights, chosen = torch.softmax(self.router(x), dim=-1).max(dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().squeeze(1)
            if places.numel():
                out = out.index_add(0, places, expert(x[places]) * weights[places, None])
        return x + out


def workload(tokens: int = 512, width: int = 128, count: int = 8, layers: int = 2) -> Callable[[], object]:
    model = nn.Sequential(*(Experts(width, count) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(tokens, width)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
