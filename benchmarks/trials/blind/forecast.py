import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
np.random.seed(1)

HOURS, METERS, CONTEXT, HORIZON = 17520, 120, 168, 24

def load_readings():
    t = np.arange(HOURS)
    base = np.sin(2 * np.pi * t / 24)[None] + 0.5 * np.sin(2 * np.pi * t / 168)[None]
    scale = np.random.lognormal(2, 1, (METERS, 1))
    return (scale * (base + 2 + 0.3 * np.random.randn(METERS, HOURS))).astype(np.float32)

class LoadWindows(Dataset):
    def __init__(self, values, n_windows):
        self.values = values
        self.meter = np.random.randint(0, METERS, n_windows)
        self.start = np.random.randint(0, HOURS - CONTEXT - HORIZON, n_windows)

    def __len__(self):
        return len(self.meter)

    def __getitem__(self, i):
        m, s = self.meter[i], self.start[i]
        q25, median, q75 = np.percentile(self.values[m], [25, 50, 75])
        window = self.values[m, s:s + CONTEXT + HORIZON]
        window = ((window - median) / (q75 - q25)).astype(np.float32)
        return window[:CONTEXT], window[CONTEXT:]

class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.rnn = nn.GRU(24, hidden, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 256), nn.GELU(), nn.Linear(256, HORIZON))

    def forward(self, x):
        days = x.view(x.shape[0], -1, 24)
        out, _ = self.rnn(days)
        return self.head(out[:, -1])

loader = DataLoader(LoadWindows(load_readings(), 19200), batch_size=64, shuffle=True)
model = Forecaster()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.SmoothL1Loss()

running, steps = 0.0, 0
for context, target in loader:
    loss = criterion(model(context), target)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    running += loss.item()
    steps += 1
print(f"{steps} steps, mean loss {running / steps:.4f}")
