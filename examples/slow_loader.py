"""Trains on samples that are slow to decode. Expected verdict: overhead, most of it waiting for input.

Each sample is unpacked byte by byte in Python, as a careless dataset would, and the loader has no workers: the network
waits for almost the whole step. `--set workers=2` decodes beside the training instead of before it.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32


class PackedImages(Dataset[tuple[torch.Tensor, int]]):
    """Images that arrive as bytes, scrambled, and are put right one byte at a time."""

    def __init__(self, count: int) -> None:
        self.packed = [bytes((7 * index + 13 * place) % 256 for place in range(SIDE * SIDE)) for index in range(count)]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        packed = self.packed[index]
        pixels = [((byte ^ (7 * place)) & 255) / 255.0 for place, byte in enumerate(packed)]
        return torch.tensor(pixels), index % 10


def workload(batch_size: int = 64, workers: int = 0) -> Callable[[], None]:
    loader = DataLoader(PackedImages(1024), batch_size=batch_size, num_workers=workers, drop_last=True)
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(loader)

    def step() -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        images, labels = batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step
