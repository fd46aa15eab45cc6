"""Trains a small network on an RTX 3090 in batches of 50,000, and reads the loss in each step or adds it up there.

The script that was timed is not public. Batches lie on the device here; whatever else it does in a step is not priced.
"""

import torch
from torch import nn

ITEM = 36
DEVICE = "RTX 3090"
SOURCE = "github.com/lnccbrown/LANfactory/pull/120"
TIMES = {"loss read": ({}, (), 1.97), "loss kept": ({"reads": False}, (), 1.89)}
GAINS = [("loss read", "loss kept", "nothing")]


def workload(batch_size=50_000, reads=True):
    sizes = (7, 100, 100, 100)
    hidden = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), nn.Tanh())]  # noqa: B905, RUF007
    network = nn.Sequential(*hidden, nn.Linear(100, 1))
    optimizer = torch.optim.Adam(network.parameters())
    inputs, wanted, total = torch.rand(batch_size, 7), torch.rand(batch_size, 1), torch.zeros(())

    def step():
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(network(inputs), wanted)
        loss.backward()
        optimizer.step()
        if reads:
            float(loss)
        else:
            total.add_(loss.detach())

    return step
