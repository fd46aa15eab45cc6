import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
USERS, ITEMS, HIDDEN = 256, 2048, 64
DECAY = 0.85


class NextClick(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(ITEMS, HIDDEN)
        self.out = nn.Linear(HIDDEN, ITEMS)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))


def warm_start():
    # days since the last click of every pair
    age = torch.randint(0, 700, (USERS, ITEMS)).float()
    return DECAY ** age


favourite = torch.randint(0, ITEMS, (USERS, 5))
rows = torch.arange(USERS)


def clicks():
    return favourite[rows, torch.randint(0, 5, (USERS,))]


trace = warm_start()
model = NextClick()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
history = []
for step in range(80):
    click = clicks()
    loss = F.cross_entropy(model(trace), click)
    opt.zero_grad()
    loss.backward()
    opt.step()
    trace.mul_(DECAY)
    trace[rows, click] += 1.0
    history.append(loss.item())
print(f"first {history[0]:.4f} last {sum(history[-20:]) / 20:.4f}")
