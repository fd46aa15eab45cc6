"""Trains a small transformer: embedding, attention, feed-forward, AdamW. Expected verdict on a CPU: compute.

Most of the time goes into matrix products; the rest is bound by memory (softmax, layer norm, dropout, the optimizer's
pass over all parameters). `--set batch_size=1 --set length=8` leaves the products too little to do, and the optimizer's
pass over memory takes the lead.
"""

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY = 1000


class Transformer(nn.Module):
    """A token classifier of a few encoder layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of every token of the vocabulary at every place."""
        return self.head(self.encoder(self.embedding(tokens)))


def workload(batch_size: int = 8, length: int = 64, width: int = 256, layers: int = 2) -> Callable[[], None]:
    model = Transformer(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, VOCABULARY, (batch_size, length))
    wanted = torch.randint(0, VOCABULARY, (batch_size, length))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()

    return step
