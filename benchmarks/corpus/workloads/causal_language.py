"""A small decoder, trained: norms and rotary embeddings op by op, and a mask that is made anew in every layer."""

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY = 1000


class RootMeanSquare(nn.Module):
    """The norm of recent decoders, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of unit mean square, scaled."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    """Causal attention with rotary embeddings, and a gated feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_again = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's tokens."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = self._turned(query), self._turned(key)
        mask = torch.full((length, length), float("-inf")).triu(1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.norm_again(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))

    @staticmethod
    def _turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rates = 1.0 / (10_000 ** (torch.arange(half) / half))
        angles = torch.arange(x.shape[-2])[:, None] * rates[None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1
        )


class Decoder(nn.Module):
    """Embedding, layers and a head."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token at every place."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def workload(
    batch_size: int = 2, length: int = 64, width: int = 128, layers: int = 2, fused: bool = False
) -> Callable[[], object]:
    model = Decoder(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=fused)
    tokens = torch.randint(0, VOCABULARY, (batch_size, length + 1))

    def step() -> object:
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step
