"""Trains a network of two tiny layers on a handful of samples. Expected verdict: overhead, nearly all of the step.

Four numbers in, sixteen in between, two out: one sample needs some 600 floating-point operations forward and backward,
less than a microsecond of any processor's time. The step takes hundreds of microseconds, because allocating, recording
the graph and dispatching some thirty operations cost the same for tiny tensors as for large ones. The batch size below
which that is so is the knee of `bottleneck sweep examples/small_network.py --param batch_size=1:16384:x4`; raise
`width` until matrix products take over. `--set training=0` runs the network forward alone, which every backend can.
"""

from collections.abc import Callable

import torch
from torch import nn


def workload(
    batch_size: int = 16, width: int = 16, inputs: int = 4, outputs: int = 2, training: int = 1
) -> Callable[[], torch.Tensor | None]:
    model = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    samples = torch.randn(batch_size, inputs)
    wanted = torch.randn(batch_size, outputs)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(samples), wanted)
        loss.backward()
        optimizer.step()

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(samples)

    return step if training else forward
