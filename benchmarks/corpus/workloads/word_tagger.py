"""Tags words by a recurrent network that reads in both directions, trained with gradients that are clipped."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 8, length: int = 40, width: int = 64, tags: int = 20) -> Callable[[], object]:
    embedding, head = nn.Embedding(3000, width), nn.Linear(2 * width, tags)
    reader = nn.GRU(width, width, bidirectional=True, batch_first=True)
    parameters = [*embedding.parameters(), *reader.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    words, wanted = torch.randint(0, 3000, (batch_size, length)), torch.randint(0, tags, (batch_size * length,))

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(reader(embedding(words))[0]).flatten(0, 1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss

    return step
