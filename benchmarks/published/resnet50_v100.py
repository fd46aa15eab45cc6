"""Trains a ResNet-50 in fp32 on a V100, op by op and as one CUDA graph, by batch.

The stated times are of three steps: torchbench calls `_train(niter=3)`. Adam went from parameter to parameter then.
"""

import torch
from torch import nn

ITEM = 24
DEVICE = "V100"
SOURCE = "github.com/pytorch/benchmark/pull/706"
_MS = {
    1: (89.033, 50.233),
    2: (92.854, 56.13),
    4: (93.676, 71.465),
    8: (105.099, 105.381),
    16: (167.292, 167.966),
    32: (297.315, 297.989),
    64: (561.262, 562.029),
}
_STEPS = 3
_KNEE = 8
TIMES = {
    f"batch {size}{graph}": ({"batch_size": size}, changes, ms / _STEPS)
    for size, times in _MS.items()
    for graph, changes, ms in zip(("", ", graph"), ((), ("whole-graph",)), times, strict=True)
}
GAINS = [(f"batch {size}", f"batch {size}, graph", *(("nothing",) if size >= _KNEE else ())) for size in _MS]


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        result = 4 * width
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, result, 1, bias=False), nn.BatchNorm2d(result)),
        )
        is_same = channels == result and stride == 1
        shortcut = (nn.Conv2d(channels, result, 1, stride, bias=False), nn.BatchNorm2d(result))
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*shortcut)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both added up."""
        return self.relu(self.convolutions(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50 (He et al. 2015) as torchvision has it."""
    channels, blocks = 64, []
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            blocks.append(Bottleneck(channels, width, 2 if block == 0 and width > 64 else 1))
            channels = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return nn.Sequential(*stem, *blocks, *head)


def workload(batch_size=32):
    model = resnet50()
    images, wanted = torch.randn(batch_size, 3, 224, 224), torch.rand(batch_size, 1000)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), wanted).backward()
        optimizer.step()

    return step
