import numpy as np
import pandas as pd
import torch
from torch import nn

torch.manual_seed(2)
rng = np.random.default_rng(2)

# hourly load of 24 substations over a year
hours = pd.date_range("2023-01-01", periods=24 * 365, freq="h")
daily = np.sin(2 * np.pi * hours.hour.values / 24)[:, None]
weekly = np.cos(2 * np.pi * hours.dayofweek.values / 7)[:, None]
load = pd.DataFrame(50 + 10 * daily + 4 * weekly + rng.normal(size=(len(hours), 24)), index=hours)
load = (load - load.mean()) / load.std()

CONTEXT, HORIZON = 168, 24
series = torch.from_numpy(load.values)


class TCN(nn.Module):
    def __init__(self, channels, width=64):
        super().__init__()
        layers, cin = [], channels
        for d in (1, 2, 4, 8):
            layers += [nn.Conv1d(cin, width, 3, padding=d, dilation=d), nn.ReLU()]
            cin = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, channels * HORIZON)

    def forward(self, x):
        h = self.body(x.transpose(1, 2))[:, :, -1]
        return self.head(h).view(len(x), HORIZON, -1)


model = TCN(load.shape[1]).double()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 150)


def sample_batch(n):
    starts = rng.integers(0, len(series) - CONTEXT - HORIZON, n)
    x = torch.stack([series[s:s + CONTEXT] for s in starts])
    y = torch.stack([series[s + CONTEXT:s + CONTEXT + HORIZON] for s in starts])
    return x, y


for step in range(150):
    x, y = sample_batch(64)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(f"step {step} mse {loss.item():.4f}")
print(f"final mse {loss.item():.4f}")
