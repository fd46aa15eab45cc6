"""A language model of LSTM layers, trained on windows of tokens."""

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY = 2000


class Language(nn.Module):
    """Embedding, LSTM and a head over the vocabulary."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.body = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token at every place."""
        return self.head(self.body(self.embedding(tokens))[0])


def workload(
    batch_size: int = 8, length: int = 24, width: int = 128, layers: int = 1, zeroes: bool = False
) -> Callable[[], object]:
    model = Language(width, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(0, VOCABULARY, (batch_size, length + 1))

    def step() -> object:
        optimizer.zero_grad(set_to_none=not zeroes)
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step
