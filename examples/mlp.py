"""Trains a tiny multilayer perceptron on the spot. Expected verdict: overhead.

A 64-wide network on 32 samples needs a few MFLOP per step: microseconds of arithmetic and of memory traffic. The step
takes hundreds of microseconds all the same, because each of its many small operations passes through Python, the
dispatcher and autograd. Enlarge `hidden` or `batch_size` until the verdict changes.
"""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 32, hidden: int = 64, layers: int = 3) -> Callable[[], None]:
    widths = [hidden] * layers
    body = [module for width in widths for module in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(batch_size, hidden)
    labels = torch.randint(0, 10, (batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    return step
