"""Trains a small convolutional network on images that the main process decodes, flips and scales one by one."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images of bytes with random flips and noise."""

    def __init__(self, count: int, side: int) -> None:
        self.pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.pixels[index].float() / 255.0
        image = image.flip(-1) if torch.rand(()) < 0.5 else image
        mean, deviation = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.25, 0.25, 0.25])
        return (image - mean[:, None, None]) / deviation[:, None, None] + 0.01 * torch.randn_like(image), index % 10


def workload(batch_size: int = 16, side: int = 32, channels: int = 16, workers: int = 0) -> Callable[[], object]:
    loader = DataLoader(Images(512, side), batch_size, shuffle=True, num_workers=workers, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(32 * channels, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = iter(loader)

    def step() -> object:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return step
