"""A U-Net that predicts the noise of images, as diffusion models do: group norms, SiLU, skips, a time embedding."""

import math
from collections.abc import Callable

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions with group norms, shifted by the embedding of the time."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm_again, self.conv_again = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Images of the block's number of channels."""
        hidden = self.conv(nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv_again(nn.functional.silu(self.norm_again(hidden)))


class UNet(nn.Module):
    """One level down and up again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.width = 2 * channels
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.middle = (
            Residual(channels, 2 * channels, self.width),
            Residual(2 * channels, 2 * channels, self.width),
        )
        self.up = Residual(3 * channels, channels, self.width)
        self.head = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """The noise in the images at these times."""
        # The frequencies are made anew at every call, as many implementations do.
        rates = torch.exp(-math.log(10_000) * torch.arange(self.width // 2) / (self.width // 2))
        angles = times[:, None].float() * rates[None]
        time = torch.cat([angles.sin(), angles.cos()], dim=1)
        first = self.stem(x)
        low = self.middle(self.down(nn.functional.avg_pool2d(first, 2), time), time)
        wide = nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.head(self.up(torch.cat([first, wide], dim=1), time))


def workload(batch_size: int = 2, channels: int = 32, side: int = 24, train: bool = True) -> Callable[[], object]:
    model = UNet(channels)
    images, times = torch.randn(batch_size, 3, side, side), torch.randint(0, 1000, (batch_size,))
    if not train:
        model.eval()

        def sample() -> object:
            with torch.no_grad():
                return images - 0.1 * model(images, times)

        return sample
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> object:
        optimizer.zero_grad()
        noise = torch.randn_like(images)
        loss = nn.functional.mse_loss(model(images + noise, times), noise)
        loss.backward()
        optimizer.step()
        return loss

    return step
