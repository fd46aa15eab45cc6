import os
import tempfile

import numpy as np
import torch
from torch import nn

torch.manual_seed(10)
out_dir = tempfile.mkdtemp()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 32, 16, stride=8), nn.GELU(),
            nn.Conv1d(32, 64, 8, stride=4), nn.GELU(),
            nn.Conv1d(64, 128, 4, stride=2), nn.GELU())
        self.proj = nn.Linear(128, 256)

    def forward(self, wav):
        return self.proj(self.conv(wav.unsqueeze(1)).transpose(1, 2))


def clips(n, samples=16000):
    gen = torch.Generator().manual_seed(4)
    for k in range(n):
        yield k, torch.randn(8, samples, generator=gen)


model = Encoder().eval()
total = 0
norm = 0.0
with torch.inference_mode():
    for k, wav in clips(100):
        feats = model(wav)
        name = os.path.join(out_dir, f"shard_{k % 10:03d}.npz")
        np.savez_compressed(name, feats=feats.numpy(), lengths=np.full(len(wav), feats.size(1)))
        total += feats.shape[0] * feats.shape[1]
        norm += feats.norm(dim=-1).mean().item()
print(f"{total} frames written, mean norm {norm / 100:.4f}")
