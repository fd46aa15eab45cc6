import torch
from torch import nn

torch.manual_seed(5)
USERS, ITEMS, DIM = 6000, 4000, 64


class Tower(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.embed = nn.Embedding(count, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.bias = nn.Embedding(count, 1)

    def forward(self, ids):
        return self.mlp(self.embed(ids)), self.bias(ids).squeeze(1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = Tower(USERS)
        self.item = Tower(ITEMS)
        self.offset = nn.Parameter(torch.tensor(3.5))

    def forward(self, users, items):
        u, bu = self.user(users)
        v, bv = self.item(items)
        affinity = torch.matmul(u, v.t()).diagonal()
        return affinity + bu + bv + self.offset


n = 400_000
users = torch.randint(0, USERS, (n,))
items = torch.randint(0, ITEMS, (n,))
taste, style = torch.randn(USERS, 8), torch.randn(ITEMS, 8)
stars = (3.5 + 0.4 * (taste[users] * style[items]).sum(1)).clamp(1, 5)

model = TwoTower()
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
batch = 3072
error = 0.0
for step in range(110):
    lo = step * batch % (n - batch)
    pred = model(users[lo:lo + batch], items[lo:lo + batch])
    loss = nn.functional.mse_loss(pred, stars[lo:lo + batch])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    error = loss.item()
print("rmse", error ** 0.5)
