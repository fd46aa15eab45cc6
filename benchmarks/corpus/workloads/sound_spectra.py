"""Spectra of sounds in mel bands, then one-dimensional convolutions; window and bands are made at every step."""

from collections.abc import Callable

import torch
from torch import nn


def _bands(bins: int, mels: int) -> torch.Tensor:
    centres = torch.linspace(0, bins - 1, mels + 2)
    places = torch.arange(bins)[None]
    rising = (places - centres[:-2, None]) / (centres[1:-1, None] - centres[:-2, None])
    falling = (centres[2:, None] - places) / (centres[2:, None] - centres[1:-1, None])
    return torch.minimum(rising, falling).clamp(min=0.0)


def workload(batch_size: int = 4, samples: int = 16_000, mels: int = 64, channels: int = 64) -> Callable[[], object]:
    model = nn.Sequential(
        nn.Conv1d(mels, channels, 5, padding=2), nn.BatchNorm1d(channels), nn.ReLU(),
        nn.Conv1d(channels, channels, 5, stride=2, padding=2), nn.BatchNorm1d(channels), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 35),
    ).eval()  # fmt: skip
    sounds = torch.randn(batch_size, samples)

    def step() -> object:
        with torch.no_grad():
            spectrum = torch.stft(sounds, 512, 160, window=torch.hann_window(512), return_complex=True)
            power = spectrum.real.pow(2) + spectrum.imag.pow(2)
            mel = torch.log(torch.matmul(_bands(257, mels), power).contiguous() + 1e-6)
            return model((mel - mel.mean()) / (mel.std() + 1e-6))

    return step
