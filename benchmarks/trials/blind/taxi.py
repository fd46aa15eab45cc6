from datetime import datetime

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
N, BATCH = 60000, 1024


def make_trips(n):
    start = np.datetime64("2023-01-01T00:00:00") + rng.integers(0, 365 * 86400, n).astype("timedelta64[s]")
    booked = start - rng.integers(60, 7200, n).astype("timedelta64[s]")
    pickup = [s.replace("T", " ") for s in start.astype(str)]
    request = [s.replace("T", " ") for s in booked.astype(str)]
    coords = rng.normal(size=(n, 4)).astype(np.float32)
    dist = np.abs(coords[:, :2] - coords[:, 2:]).sum(1)
    hour = (start.astype("datetime64[h]").astype(int)) % 24
    minutes = 4 + 6 * dist + 3 * np.sin(hour / 24 * 6.28) + rng.normal(0, 0.5, n)
    return pickup, request, coords, minutes.astype(np.float32)


pickup, request, coords, minutes = make_trips(N)


def calendar(rows):
    out = np.empty((len(rows), 5), dtype=np.float32)
    for k, i in enumerate(rows):
        p = datetime.strptime(pickup[i], "%Y-%m-%d %H:%M:%S")
        r = datetime.strptime(request[i], "%Y-%m-%d %H:%M:%S")
        out[k] = (p.hour / 24, p.minute / 60, p.weekday() / 7, p.month / 12, (p - r).seconds / 7200)
    return torch.from_numpy(out)


model = nn.Sequential(nn.Linear(9, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
order = rng.permutation(N)
pos = 0

for step in range(600):
    if pos + BATCH > N:
        order, pos = rng.permutation(N), 0
    rows = order[pos:pos + BATCH]
    pos += BATCH
    x = torch.cat([torch.from_numpy(coords[rows]), calendar(rows)], dim=1)
    y = torch.from_numpy(minutes[rows])
    loss = nn.functional.smooth_l1_loss(model(x).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")

print(f"final loss {loss.item():.4f}")
