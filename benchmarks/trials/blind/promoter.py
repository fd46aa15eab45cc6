import gzip
import os
import tempfile

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(9)
rng = np.random.default_rng(9)
GENOME, WINDOW = 1_600_000, 512

path = os.path.join(tempfile.mkdtemp(), "chr.seq.gz")
with gzip.open(path, "wb", compresslevel=4) as out:
    out.write(rng.choice(np.frombuffer(b"ACGT", dtype=np.uint8), GENOME, p=[0.3, 0.2, 0.2, 0.3]).tobytes())
lut = np.zeros(256, dtype=np.int64)
for code, base in enumerate(b"ACGT"):
    lut[base] = code

class Windows(Dataset):
    def __init__(self, path, n):
        self.reads = gzip.open(path, "rb")
        self.starts = rng.integers(0, GENOME - WINDOW, n)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        self.reads.seek(int(self.starts[i]))
        seq = np.frombuffer(self.reads.read(WINDOW), dtype=np.uint8)
        codes = torch.from_numpy(lut[seq])
        return codes, (((codes == 1) | (codes == 2)).float().mean() > 0.4).long()

class Scanner(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(4, 16)
        self.c1 = nn.Conv1d(16, 48, 11, padding=5)
        self.c2 = nn.Conv1d(48, 48, 7, padding=3)
        self.out = nn.Linear(48, 2)

    def forward(self, codes):
        h = F.max_pool1d(F.relu(self.c1(self.emb(codes).transpose(1, 2))), 4)
        return self.out(F.relu(self.c2(h)).mean(-1))

steps = 150
loader = DataLoader(Windows(path, steps * 16), batch_size=16, shuffle=True)
model = Scanner()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
right = 0.0
for codes, y in loader:
    logits = model(codes)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    right += (logits.argmax(1) == y).float().mean().item()
print(f"acc {right / steps:.3f} loss {loss.item():.4f}")
