import numpy as np
import torch
from torch import nn

torch.manual_seed(2)
rng = np.random.default_rng(2)
ROWS, FEATURES, BATCH = 120_000, 512, 512


def read_feature(k):
    base = rng.standard_normal(ROWS, dtype=np.float32)
    if k % 4 == 0:
        return np.log1p(np.abs(base))
    return base


columns = [read_feature(k) for k in range(FEATURES)]
table = np.stack(columns)
weight = rng.standard_normal(FEATURES, dtype=np.float32)
target = np.zeros(ROWS, dtype=np.float32)
for k in range(FEATURES):
    target += weight[k] * columns[k]
target = (target > 0).astype(np.float32)
del columns

model = nn.Sequential(
    nn.Linear(FEATURES, 48), nn.BatchNorm1d(48), nn.ReLU(),
    nn.Linear(48, 24), nn.ReLU(),
    nn.Linear(24, 1),
)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
criterion = nn.BCEWithLogitsLoss()
losses, hits, seen = [], 0, 0
for step in range(1200):
    rows = rng.integers(0, ROWS, size=BATCH)
    xb = torch.from_numpy(table[:, rows].T)
    yb = torch.from_numpy(target[rows])
    logit = model(xb).squeeze(1)
    loss = criterion(logit, yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    hits += int(((logit > 0) == (yb > 0.5)).sum())
    seen += BATCH
print("loss", float(np.mean(losses[-50:])), "accuracy", hits / seen)
