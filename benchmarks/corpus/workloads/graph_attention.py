"""Graph attention: a softmax over the edges of each node by `scatter_reduce` and `index_add`, written out."""

from collections.abc import Callable

import torch
from torch import nn


class Attention(nn.Module):
    """Weights per edge from both of its nodes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense, self.source, self.target = nn.Linear(inputs, outputs), nn.Linear(outputs, 1), nn.Linear(outputs, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Features of the nodes, each a weighted sum over its neighbours."""
        hidden, count = self.dense(x), x.shape[0]
        logits = nn.functional.leaky_relu((self.source(hidden)[edges[0]] + self.target(hidden)[edges[1]]).squeeze(1))
        highest = torch.full((count,), -1e9).scatter_reduce(0, edges[1], logits.detach(), "amax")
        weights = torch.exp(logits - highest[edges[1]])
        total = torch.zeros(count).index_add(0, edges[1], weights)
        weights = weights / (total[edges[1]] + 1e-9)
        return torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]] * weights[:, None])


class Graph(nn.Module):
    """Two layers of attention."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first, self.second = Attention(features, width), Attention(width, 8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Scores of 8 classes per node."""
        return self.second(nn.functional.elu(self.first(x, edges)), edges)


def workload(nodes: int = 1000, degree: int = 8, features: int = 32, width: int = 32) -> Callable[[], object]:
    model = Graph(features, width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, edges = torch.randn(nodes, features), torch.randint(0, nodes, (2, nodes * degree))
    labels = torch.randint(0, 8, (nodes,))

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
