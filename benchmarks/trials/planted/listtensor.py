# Trains on sensor readings that arrive as Python lists
import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
readings = [[random.gauss(0, 1) for _ in range(1024)] for _ in range(256)]
targets = [random.random() for _ in range(256)]
model = nn.Sequential(nn.Linear(1024, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(120):
    chosen = [random.randrange(len(readings)) for _ in range(128)]
    x = torch.tensor([readings[n] for n in chosen])
    y = torch.tensor([targets[n] for n in chosen])
    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
