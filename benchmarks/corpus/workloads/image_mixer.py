"""An all-dense network over patches that mixes tokens and channels in turns, with a copy at each transposition."""

from collections.abc import Callable

import torch
from torch import nn


class Mixer(nn.Module):
    """One mix of tokens and one of channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm, self.norm_again = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mixed patches."""
        x = x + self.tokens(self.norm(x).transpose(1, 2).contiguous()).transpose(1, 2).contiguous()
        return x + self.channels(self.norm_again(x))


def workload(
    batch_size: int = 8, tokens: int = 49, width: int = 128, blocks: int = 3, train: bool = True
) -> Callable[[], object]:
    model = nn.Sequential(*(Mixer(tokens, width) for _ in range(blocks)), nn.LayerNorm(width))
    patches = torch.randn(batch_size, tokens, width)
    if not train:
        model.eval()

        def infer() -> object:
            with torch.no_grad():
                return model(patches).mean(dim=1)

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(patches).mean(dim=1).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step
