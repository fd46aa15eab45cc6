"""Trains LeNet-5 on images of 28 x 28. Expected verdict on a CPU: overhead at small batches, less of it at large ones.

A sample needs about 1.7 MFLOP forward and backward, some tens of microseconds. What the framework adds to the step's
hundred operations takes longer than that, so at a batch of one nearly all is overhead; at 2048, which is usual for this
network, its arithmetic and the traffic of its activations take over. `bottleneck sweep examples/lenet.py --param
batch_size=1:2048:x4 --backends eager,inductor` shows where, and what a compiler saves.
`--set training=0` runs the network forward alone, which every backend can.
"""

from collections.abc import Callable

import torch
from torch import nn


def lenet() -> nn.Sequential:
    """The network of LeCun et al. (1998), with ReLU and maximum pooling, as it is written today."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def workload(batch_size: int = 32, training: int = 1) -> Callable[[], torch.Tensor | None]:
    model = lenet().train(bool(training))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.randn(batch_size, 1, 28, 28)
    labels = torch.randint(0, 10, (batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(images)

    return step if training else forward
