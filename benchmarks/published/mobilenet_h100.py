"""Runs MobileNetV2 on an H100, op by op and compiled: 2.2 times as fast; under the profiler it read 1.87.

The source is Inductor's nightly benchmark, whose inference is in bf16; 96 images are the batch of torchbench.
"""

import torch
from torch import nn

ITEM = 48
DEVICE = "H100"
SOURCE = "github.com/pytorch/pytorch/pull/181043"
TIMES = {"eager": ({}, (), None), "compile": ({}, ("compile",), None)}
GAINS = [("eager", "compile", 2.185)]
# Expansion, channels, blocks, stride of the first.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def convolution(channels, width, window=1, stride=1, groups=1):
    """A convolution with a batch norm and the activation behind it."""
    layer = nn.Conv2d(channels, width, window, stride, window // 2, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(width), nn.ReLU6(inplace=True)


class Block(nn.Module):
    """Wider, over each channel by itself, and narrower again; beside a shortcut where sizes stay."""

    def __init__(self, channels, width, expansion, stride):
        super().__init__()
        inner = channels * expansion
        wider = convolution(channels, inner) if expansion > 1 else ()
        narrower = (nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))
        self.layers = nn.Sequential(*wider, *convolution(inner, inner, 3, stride, inner), *narrower)
        self.adds = stride == 1 and channels == width

    def forward(self, x):
        """The result, with what came in where sizes stay."""
        return x + self.layers(x) if self.adds else self.layers(x)


def mobilenet():
    """MobileNetV2 (Sandler et al. 2018) as torchvision has it."""
    channels, blocks = 32, []
    for expansion, width, count, stride in _STAGES:
        for block in range(count):
            blocks.append(Block(channels, width, expansion, stride if block == 0 else 1))
            channels = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))
    return nn.Sequential(*convolution(3, 32, 3, 2), *blocks, *convolution(320, 1280), *head)


def workload(batch_size=96):
    model = mobilenet().eval().to(torch.bfloat16)
    images = torch.randn(batch_size, 3, 224, 224, dtype=torch.bfloat16)

    def step():
        with torch.no_grad():
            return model(images)

    return step
