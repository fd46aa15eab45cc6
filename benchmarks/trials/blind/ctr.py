import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
DIM, HIDDEN, BATCH = 1024, 2048, 24
LAM = 1e-5
STEPS = 90


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = self.tower()
        self.item = self.tower()

    @staticmethod
    def tower():
        return nn.Sequential(
            nn.Linear(DIM, HIDDEN, bias=False), nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN, bias=False), nn.ReLU(),
            nn.Linear(HIDDEN, 64, bias=False),
        )

    def forward(self, u, i):
        return F.normalize(self.user(u), dim=1) @ F.normalize(self.item(i), dim=1).t()


model = TwoTower()
opt = torch.optim.SGD(model.parameters(), lr=0.005)
mix = torch.randn(DIM, DIM) / DIM ** 0.5
labels = torch.arange(BATCH)

for step in range(STEPS):
    users = torch.randn(BATCH, DIM)
    items = users @ mix + 0.3 * torch.randn(BATCH, DIM)
    logits = model(users, items) / 0.1
    loss = F.cross_entropy(logits, labels)
    penalty = sum(p.pow(2).sum() for p in model.parameters())
    objective = loss + LAM * penalty
    opt.zero_grad()
    objective.backward()
    opt.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"final {loss.item():.4f}")
