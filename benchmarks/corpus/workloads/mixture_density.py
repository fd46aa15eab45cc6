"""A mixture of Gaussians whose parts a small network predicts, trained by the log-likelihood of what it should give."""

import math
from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 256, width: int = 96, parts: int = 16, outputs: int = 8) -> Callable[[], object]:
    body = nn.Sequential(nn.Linear(24, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    head = nn.Linear(width, parts * (1 + 2 * outputs))
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    inputs, wanted = torch.randn(batch_size, 24), torch.randn(batch_size, 1, outputs)

    def step() -> object:
        optimizer.zero_grad()
        found = head(body(inputs))
        weights, means, scales = found.split([parts, parts * outputs, parts * outputs], dim=1)
        means, scales = means.view(-1, parts, outputs), scales.view(-1, parts, outputs)
        apart = (wanted - means) * torch.exp(-scales)
        of_part = -0.5 * apart.square().sum(-1) - scales.sum(-1) - 0.5 * outputs * math.log(2 * math.pi)
        loss = -torch.logsumexp(of_part + torch.log_softmax(weights, dim=1), dim=1).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
