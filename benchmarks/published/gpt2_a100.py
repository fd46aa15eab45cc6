"""Trains GPT-2 of 124 million parameters on 16 sequences of 1,024 tokens on an A100, change by change.

The source shows tokens per second, which are rounded here as a reader of it wrote them down. Nothing was chosen with
this case in view: it was added after all rates and rules, and priced once.
"""

import torch
from torch import nn
from torch.nn import functional

ITEM = 49
DEVICE = "A100-SXM4-80GB"
SOURCE = "youtube.com/watch?v=l8pRSuU81PU, Let's reproduce GPT-2 (124M)"
_SEQUENCES, _LENGTH = 16, 1024
_MIXED = {"mixed": True}
_FLASH = {**_MIXED, "written": False}


def _ms(tokens_per_s):
    return _SEQUENCES * _LENGTH / tokens_per_s * 1e3


TIMES = {
    "fp32": ({}, (), _ms(16_000)),
    "TF32": ({}, ("tf32",), _ms(49_000)),
    "bf16": (_MIXED, ("tf32",), _ms(54_500)),
    "compile": (_MIXED, ("tf32", "compile"), _ms(126_000)),
    "SDPA": (_FLASH, ("tf32", "compile"), _ms(170_000)),
    "padded": ({**_FLASH, "vocabulary": 50_304}, ("tf32", "compile"), _ms(175_000)),
}
# Padding the vocabulary brought 3 %, which has no sign here.
GAINS = [("fp32", "TF32"), ("TF32", "bf16"), ("bf16", "compile"), ("compile", "SDPA"), ("SDPA", "padded")]


class Block(nn.Module):
    """Causal attention and a feed-forward network, each added to its input."""

    def __init__(self, width, heads, written):
        super().__init__()
        self.heads, self.written = heads, written
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.register_buffer("below", torch.ones(_LENGTH, _LENGTH).tril()[None, None])

    def forward(self, x):
        """States of the same size."""
        x = x + self.attend(self.first(x))
        return x + self.feed(self.second(x))

    def attend(self, x):
        """Attention written out, or as one op."""
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.written:
            scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
            scores = scores.masked_fill(self.below[:, :, :length, :length] == 0, float("-inf"))
            attended = scores.softmax(-1) @ value
        else:
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).contiguous().view(batch, length, width))


class Model(nn.Module):
    """The network, whose last layer shares its weights with the embedding."""

    def __init__(self, vocabulary, written, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, written) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, tokens, wanted):
        """The loss of the next tokens."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


def workload(batch_size=_SEQUENCES, mixed=False, written=True, vocabulary=50_257):
    model = Model(vocabulary, written)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.zeros(batch_size, _LENGTH, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed):
            loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()

    return step
