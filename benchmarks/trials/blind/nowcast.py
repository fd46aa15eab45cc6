import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

rng = np.random.default_rng(0)
torch.manual_seed(0)
FRAMES, SIDE, HISTORY = 400, 64, 4

# drifting rain cells on a 64 x 64 grid
yy, xx = np.mgrid[0:SIDE, 0:SIDE]
centres, speed = rng.uniform(0, SIDE, (6, 2)), rng.normal(0, 0.8, (6, 2))
radar = np.zeros((FRAMES, SIDE, SIDE))
for t in range(FRAMES):
    for (cy, cx), (vy, vx) in zip(centres, speed):
        dy = (yy - cy - t * vy + SIDE / 2) % SIDE - SIDE / 2
        dx = (xx - cx - t * vx + SIDE / 2) % SIDE - SIDE / 2
        radar[t] += np.exp(-(dy ** 2 + dx ** 2) / 40)
radar += 0.02 * rng.standard_normal(radar.shape)


class Nowcast(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Conv2d(HISTORY, width, 3, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=1)
        self.mid2 = nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = F.relu(self.inp(x))
        h = F.relu(self.mid(h)) + h
        h = F.relu(self.mid2(h)) + h
        return x[:, -1:] + self.out(h)


frames = torch.from_numpy(radar)
model = Nowcast().double()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for step in range(50):
    starts = torch.randint(0, FRAMES - HISTORY, (4,))
    clip = torch.stack([frames[s : s + HISTORY + 1] for s in starts.tolist()])
    pred = model(clip[:, :HISTORY])
    loss = F.l1_loss(pred, clip[:, HISTORY:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())

print(f"l1 {np.mean(losses[-10:]):.4f}")
