import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
np.random.seed(0)

EPOCHS = 5


def make_load(hours, meters):
    t = np.arange(hours)[:, None]
    phase = np.random.rand(1, meters) * 6.28
    daily = np.sin(2 * np.pi * t / 24 + phase)
    weekly = 0.5 * np.sin(2 * np.pi * t / 168 + phase)
    return (100 + 20 * (daily + weekly) + 4 * np.random.randn(hours, meters)).astype(np.float32)


class WindowDataset(Dataset):
    def __init__(self, series, window=72, horizon=12, stride=48):
        self.series = torch.from_numpy(series)
        self.window, self.horizon = window, horizon
        self.starts = list(range(0, len(series) - window - horizon, stride))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        scaled = (self.series - self.series.mean(0)) / self.series.std(0)
        x = scaled[s:s + self.window]
        y = scaled[s + self.window:s + self.window + self.horizon, 0]
        return x, y


class Forecaster(nn.Module):
    def __init__(self, n_in, hidden=64, horizon=12):
        super().__init__()
        self.rnn = nn.GRU(n_in, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, horizon))

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


dataset = WindowDataset(make_load(30000, 12))
loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
model = Forecaster(12)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("mse", round(loss.item(), 4))
