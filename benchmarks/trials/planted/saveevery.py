# Trains a network on a machine that may be taken away at any time
import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
folder = tempfile.mkdtemp()
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def checkpoint(step):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, "last.pt"))


for step in range(200):
    x, y = torch.randn(16, 256), torch.randint(0, 10, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    checkpoint(step)
os.remove(os.path.join(folder, "last.pt"))
os.rmdir(folder)
print(loss.item())
