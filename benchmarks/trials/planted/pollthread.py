# Trains while a thread writes the losses to a file
import collections
import os
import threading

import torch
from torch import nn

torch.manual_seed(0)
waiting, is_over = collections.deque(), False


def write_losses():
    with open(os.devnull, "w") as file:
        while not is_over or waiting:
            if waiting:
                print(waiting.popleft(), file=file)


writer = threading.Thread(target=write_losses)
writer.start()
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(400):
    x, y = torch.randn(16, 64), torch.randn(16, 64)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    waiting.append(loss.detach())
is_over = True
writer.join()
print(loss.item())
