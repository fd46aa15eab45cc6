import math
import torch
from torch import nn

torch.manual_seed(1)
WINDOW, HORIZON = 96, 12


def make_meter(length=3000):
    t = torch.arange(length, dtype=torch.float32)
    phase = torch.rand(1) * 2 * math.pi
    daily = torch.sin(t * 2 * math.pi / 24 + phase)
    weekly = 0.5 * torch.sin(t * 2 * math.pi / 168)
    return daily + weekly + 0.2 * torch.randn(length)


def to_examples(series):
    n = len(series) - WINDOW - HORIZON + 1
    past = torch.stack([series[i:i + WINDOW] for i in range(n)])
    future = torch.stack([series[i + WINDOW:i + WINDOW + HORIZON] for i in range(n)])
    return past, future


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.trend = nn.Linear(WINDOW, HORIZON)
        self.net = nn.Sequential(nn.Linear(WINDOW, 64), nn.ReLU(), nn.Linear(64, HORIZON))

    def forward(self, x):
        level = x.mean(1, keepdim=True)
        x = x - level
        return level + self.trend(x) + self.net(x)


meters = [make_meter() for _ in range(40)]
model = Forecaster()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
order = torch.randint(0, len(meters), (600,)).tolist()
running = 0.0
for step in range(600):
    past, future = to_examples(meters[order[step]])
    loss = nn.functional.smooth_l1_loss(model(past), future)
    opt.zero_grad()
    loss.backward()
    opt.step()
    running = 0.98 * running + 0.02 * loss.item()
print("smoothed loss", running)
