"""Blocks of convolution and attention over frames of speech, trained or for inference."""

from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    """Half a feed-forward part, attention, a gated depthwise convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm_again, self.wide = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.deep, self.batch_norm = nn.Conv1d(width, width, 15, padding=7, groups=width), nn.BatchNorm1d(width)
        self.narrow = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's frames."""
        x = x + 0.5 * self.feed(x)
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        # The layout changes to channels first and back in every block.
        hidden = nn.functional.glu(self.wide(self.norm_again(x).transpose(1, 2).contiguous()), dim=1)
        hidden = self.narrow(nn.functional.silu(self.batch_norm(self.deep(hidden))))
        return x + hidden.transpose(1, 2).contiguous()


def workload(
    batch_size: int = 2, frames: int = 100, width: int = 96, blocks: int = 2, train: bool = True
) -> Callable[[], object]:
    model = nn.Sequential(nn.Linear(80, width), *(Block(width) for _ in range(blocks)), nn.Linear(width, 32))
    sound, labels = torch.randn(batch_size, frames, 80), torch.randint(0, 32, (batch_size, frames))
    if not train:
        model.eval()

        def infer() -> object:
            with torch.no_grad():
                return model(sound)

        return infer
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(sound).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step
