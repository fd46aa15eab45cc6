"""A dense autoencoder whose activation and loss are written out as chains of elementwise ops."""

import itertools
from collections.abc import Callable

import torch
from torch import nn


class HandGelu(nn.Module):
    """The tanh form of GELU, op by op."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The inputs, scaled by an approximation of the normal distribution function."""
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def workload(batch_size: int = 256, width: int = 784, code: int = 64) -> Callable[[], object]:
    sizes = (width, 512, 256, code, 256, 512, width)
    layers = [module for a, b in itertools.pairwise(sizes) for module in (nn.Linear(a, b), HandGelu())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(batch_size, width)

    def step() -> object:
        optimizer.zero_grad()
        again = model(images)
        loss = ((again - images).abs() + (again - images) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
