"""Runs VGG19 forward on random images. Expected verdict: compute, and memory for the classifier at a batch of one.

An image of 224 x 224 needs 39 GFLOP, nearly all of them in sixteen convolutions. The three matrices of the classifier
hold 124 of the 144 million weights, which a batch of one reads for one product each. There is no Python worth
mentioning in between, so a compiler has to fuse or to lay out better to win: `bottleneck sweep examples/vgg19.py
--param batch_size=1,10,100 --backends eager,inductor,torchscript,openvino,onnxruntime`. On a small machine
`--set image=64 --set width=16` does a two-hundredth of the work.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn

# Channels of each convolution in units of the first one's; 0 is a pooling (Simonyan and Zisserman 2014, table 1, E).
LAYERS = (1, 1, 0, 2, 2, 0, 4, 4, 4, 4, 0, 8, 8, 8, 8, 0, 8, 8, 8, 8, 0)


def vgg19(width: int, classes: int = 1000) -> nn.Sequential:
    """The network; ``width`` is 64 in the paper."""
    hidden = 64 * width
    return nn.Sequential(
        *_features(width),
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(8 * width * 7 * 7, hidden),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(hidden, classes),
    )


def _features(width: int) -> Iterator[nn.Module]:
    channels = 3
    for factor in LAYERS:
        if not factor:
            yield nn.MaxPool2d(2)
            continue
        yield nn.Conv2d(channels, factor * width, 3, padding=1)
        yield nn.ReLU()
        channels = factor * width


def workload(batch_size: int = 1, image: int = 224, width: int = 64) -> Callable[[], torch.Tensor]:
    model = vgg19(width).eval()
    images = torch.randn(batch_size, 3, image, image)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(images)

    return step
