# Trains a network and keeps the weights with the lowest loss
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best, best_loss = None, float("inf")

for step in range(200):
    x, y = torch.randn(4, 128), torch.randint(0, 10, (4,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    weights = copy.deepcopy(model.state_dict())
    if loss.item() < best_loss:
        best, best_loss = weights, loss.item()
print(best_loss)
