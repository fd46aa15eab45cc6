"""Tags sentences with a bidirectional recurrent network, without gradients: nearly all of it is one call."""

from collections.abc import Callable

import torch
from torch import nn


class Tagger(nn.Module):
    """Words to tags."""

    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, sentences: torch.Tensor) -> torch.Tensor:
        """Scores of each tag for each word."""
        states, _ = self.recurrent(self.embedding(sentences))
        return self.head(states)


def workload(batch_size: int = 16, length: int = 32, width: int = 128) -> Callable[[], torch.Tensor]:
    model = Tagger(5000, width, 17)
    sentences = torch.randint(0, 5000, (batch_size, length))

    def step() -> torch.Tensor:
        with torch.no_grad():
            scores = model(sentences)
        if bool((scores.argmax(-1) == 0).all()):
            print("nothing was tagged")
        return scores

    return step
