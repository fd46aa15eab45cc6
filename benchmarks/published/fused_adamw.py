"""Trains a network like U-Net of 226 parameters with AdamW, in lists of tensors or fused.

The source names no device, no sizes and no times: an A100 and 16 images of 256 x 256 stand here, in bf16 by autocast.
Its fused kernels were launched later than the others, and nothing was gained.
"""

import torch
from torch import nn

ITEM = 41
DEVICE = "A100"
SOURCE = "github.com/pytorch/pytorch/issues/101291"
TIMES = {"lists": ({}, (), None), "fused": ({"fused": True}, (), None)}
GAINS = [("lists", "fused", 1.0, "nothing")]
_WIDTHS = (64, 128, 256, 512)
# Convolutions of a level, on the way down and up: 7 levels of 8 have 226 parameters, with the last convolution.
_DEEP = 8


def level(channels, width):
    """Convolutions with their norms."""
    layers = []
    for position in range(_DEEP):
        inner = channels if position == 0 else width
        layers += [nn.Conv2d(inner, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Network(nn.Module):
    """Levels down and up again, each up one beside what its own size left (Ronneberger et al. 2015)."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(level(*pair) for pair in zip((3, *_WIDTHS), _WIDTHS, strict=False))
        above = reversed(_WIDTHS[:-1])
        self.up = nn.ModuleList(level(3 * width, width) for width in above)
        self.last = nn.Conv2d(_WIDTHS[0], 3, 1)

    def forward(self, x):
        """Images of the same size."""
        beside = []
        for one in self.down:
            x = one(x if not beside else nn.functional.max_pool2d(x, 2))
            beside.append(x)
        for one, left in zip(self.up, reversed(beside[:-1]), strict=True):
            x = one(torch.cat((nn.functional.interpolate(x, scale_factor=2), left), 1))
        return self.last(x)


def workload(batch_size=16, fused=False):
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), fused=fused, foreach=not fused)
    images = torch.zeros(batch_size, 3, 256, 256)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(network(images), images)
        loss.backward()
        optimizer.step()

    return step
