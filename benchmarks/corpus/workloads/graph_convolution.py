"""Graph convolutions: messages along edges are gathered, weighted and added up with `index_add`."""

from collections.abc import Callable

import torch
from torch import nn


class Convolution(nn.Module):
    """Sums of the neighbours' features behind a dense layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Features of the nodes after one exchange of messages."""
        degree = torch.zeros(x.shape[0]).index_add_(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1.0)
        messages = self.dense(x)[edges[0]] * degree.rsqrt()[edges[0], None] * degree.rsqrt()[edges[1], None]
        return torch.zeros(x.shape[0], messages.shape[1]).index_add(0, edges[1], messages)


class Graph(nn.Module):
    """Two convolutions with dropout between them."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first, self.second = Convolution(features, width), Convolution(width, 8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Scores of 8 classes per node."""
        return self.second(nn.functional.dropout(torch.relu(self.first(x, edges)), 0.1, self.training), edges)


def workload(
    nodes: int = 2000, degree: int = 8, features: int = 64, width: int = 64, train: bool = True
) -> Callable[[], object]:
    model = Graph(features, width)
    x, edges = torch.randn(nodes, features), torch.randint(0, nodes, (2, nodes * degree))
    labels = torch.randint(0, 8, (nodes,))
    if not train:
        model.eval()
        return lambda: model(x, edges)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
