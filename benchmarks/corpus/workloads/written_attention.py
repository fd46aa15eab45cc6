"""Attention written out as two products and a softmax, in blocks of a transformer."""

import math
from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1.0 / math.sqrt(width // heads)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's tokens."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(torch.matmul(query, key.transpose(-2, -1)) * self.scale, dim=-1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.feed(x)


def workload(
    batch_size: int = 2, length: int = 128, width: int = 128, layers: int = 2, train: bool = True
) -> Callable[[], object]:
    model = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
    tokens = torch.randn(batch_size, length, width)
    if not train:
        model.eval()

        def infer() -> object:
            with torch.no_grad():
                return model(tokens)

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
