"""A few latent vectors read a long input by cross-attention, and then attend to one another, for inference."""

from collections.abc import Callable

import torch
from torch import nn


class Reader(nn.Module):
    """Cross-attention of the latents to the inputs, and layers of self-attention."""

    def __init__(self, width: int, latents: int, layers: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, latents, width))
        self.read = nn.MultiheadAttention(width, 4, batch_first=True)
        self.think = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes per sample."""
        latents = self.latents.expand(inputs.shape[0], -1, -1)
        latents = latents + self.read(latents, inputs, inputs, need_weights=False)[0]
        for layer in self.think:
            latents = layer(latents)
        return self.head(latents.mean(1))


def workload(
    batch_size: int = 4, length: int = 512, latents: int = 32, width: int = 96, layers: int = 3
) -> Callable[[], object]:
    model = Reader(width, latents, layers).eval()
    inputs = torch.randn(batch_size, length, width)

    def step() -> object:
        with torch.inference_mode():
            return model(inputs)

    return step
