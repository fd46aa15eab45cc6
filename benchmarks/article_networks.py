"""Runs the networks of the small-networks article forward, for the back ends that cannot train.

`examples/small_network.py` and `examples/lenet.py` train them; this is the forward pass of the same networks, which
`benchmarks/articles.py` measures: bottleneck sweep benchmarks/article_networks.py --set network=lenet --backends all
"""

import runpy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

_EXAMPLES = Path(__file__).parents[1] / "examples"


def small_network() -> nn.Sequential:
    """The network of `examples/small_network.py`: four numbers in, sixteen in between, two out."""
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def workload(network: str = "mlp", batch_size: int = 16) -> Callable[[], torch.Tensor]:
    """The forward pass of ``mlp`` or ``lenet`` on random samples."""
    if network == "lenet":
        model, samples = runpy.run_path(str(_EXAMPLES / "lenet.py"))["lenet"](), torch.randn(batch_size, 1, 28, 28)
    else:
        model, samples = small_network(), torch.randn(batch_size, 4)
    model.eval()

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(samples)

    return step
