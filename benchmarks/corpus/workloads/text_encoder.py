"""An encoder of torch's own transformer layers that embeds texts; without `no_grad` it records a graph."""

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY = 4000


class Encoder(nn.Module):
    """Embedding, encoder layers and a mean over the tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One vector of length one per text."""
        return nn.functional.normalize(self.body(self.embedding(tokens)).mean(dim=1), dim=-1)


def workload(
    batch_size: int = 4, length: int = 48, width: int = 192, layers: int = 2, grad: bool = True
) -> Callable[[], object]:
    model = Encoder(width, layers).eval()
    tokens = torch.randint(0, VOCABULARY, (batch_size, length))

    def step() -> object:
        with torch.set_grad_enabled(grad):
            return model(tokens)

    return step
