"""Trains a ResNet-18 in fp32 on 64 images that the host draws anew in each step: compiling it is a loss.

The device is not named; the times are those of cards of the time, of which an A100 stands here. The host draws 9.6
million normal numbers, which takes most of the stated 85 ms of a step whatever the device does.
"""

import torch
from torch import nn

ITEM = 39
DEVICE = "A100"
SOURCE = "github.com/pytorch/pytorch/issues/97509"
IS_STEP = False
TIMES = {"eager": ({}, (), 84.68), "compile": ({}, ("compile",), 95.14)}
GAINS = [("eager", "compile", "nothing")]


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)),
        )
        shortcut = (nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if channels == width else nn.Sequential(*shortcut)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        """Both added up."""
        return self.relu(self.convolutions(x) + self.shortcut(x))


def resnet18():
    """ResNet-18 (He et al. 2015) as torchvision has it."""
    channels, blocks = 64, []
    for width in (64, 128, 256, 512):
        for block in range(2):
            blocks.append(Block(channels, width, 2 if block == 0 and width > 64 else 1))
            channels = width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def workload(batch_size=64):
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        images = torch.randn(batch_size, 3, 224, 224).to("cuda")
        optimizer.zero_grad()
        model(images).sum().backward()
        optimizer.step()

    return step
