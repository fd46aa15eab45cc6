"""Generates tokens one by one: the cache of keys and values is copied for each, and each token is read back."""

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY = 1000


class Attention(nn.Module):
    """Attention of one new token to a cache that grows by concatenation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The token, and the cache with it."""
        batch, _, width = x.shape
        query, *added = self.qkv(x).view(batch, 1, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        cache = torch.cat([cache, torch.stack(added)], dim=3)
        mixed = nn.functional.scaled_dot_product_attention(query, cache[0], cache[1])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, 1, width))
        return x + self.feed(x), cache


def workload(
    batch_size: int = 1, prompt: int = 64, tokens: int = 8, width: int = 256, layers: int = 2
) -> Callable[[], object]:
    embedding, head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
    layers_ = nn.ModuleList(Attention(width, 4) for _ in range(layers)).eval()
    begun = torch.randn(2, batch_size, 4, prompt, width // 4)

    def step() -> object:
        with torch.no_grad():
            caches, last = [begun] * layers, torch.zeros(batch_size, 1, dtype=torch.long)
            said = []
            for _ in range(tokens):
                x = embedding(last)
                for number, layer in enumerate(layers_):
                    x, caches[number] = layer(x, caches[number])
                last = head(x[:, -1]).argmax(-1, keepdim=True)
                said.append(last[0, 0].item())
            return last

    return step
