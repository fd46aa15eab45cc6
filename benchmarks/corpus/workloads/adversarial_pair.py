"""A generator and a discriminator with an optimizer each, trained in turns in one step."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 16, channels: int = 16, noise: int = 64, looped: bool = True) -> Callable[[], object]:
    maker = nn.Sequential(
        nn.ConvTranspose2d(noise, 2 * channels, 7), nn.BatchNorm2d(2 * channels), nn.ReLU(),
        nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(1, channels, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(98 * channels, 1),
    )  # fmt: skip
    foreach = False if looped else None
    first = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999), foreach=foreach)
    second = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999), foreach=foreach)
    images = torch.rand(batch_size, 1, 28, 28) * 2 - 1

    def step() -> object:
        made = maker(torch.randn(batch_size, noise, 1, 1))
        second.zero_grad()
        loss = nn.functional.softplus(judge(made.detach())).mean() + nn.functional.softplus(-judge(images)).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        nn.functional.softplus(-judge(made)).mean().backward()
        first.step()
        return loss

    return step
