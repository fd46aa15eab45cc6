import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

np.random.seed(7)
torch.manual_seed(7)

n_users, n_items, dim = 20_000, 1_000_000, 16
batch, n_neg = 512, 4


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(n_users, dim, sparse=True)
        self.items = nn.Embedding(n_items, dim, sparse=True)
        self.user_mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 32))
        self.item_mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 32))

    def forward(self, u, pos, neg):
        uv = self.user_mlp(self.users(u))
        pv = self.item_mlp(self.items(pos))
        nv = self.item_mlp(self.items(neg))
        pos_score = (uv * pv).sum(-1, keepdim=True)
        neg_score = torch.einsum("bd,bnd->bn", uv, nv)
        return pos_score, neg_score


clicks = np.stack([np.random.randint(0, n_users, 400_000),
                   (np.random.pareto(1.2, 400_000) * 500).astype(np.int64) % n_items], axis=1)

model = TwoTower()
tables = torch.optim.SGD([model.users.weight, model.items.weight], lr=0.5)
towers = torch.optim.Adam([p for n, p in model.named_parameters() if "mlp" in n], lr=1e-3)

running = 0.0
for step in range(320):
    rows = clicks[np.random.randint(0, len(clicks), batch)]
    # distinct negatives inside a batch
    neg = np.random.choice(n_items, size=batch * n_neg, replace=False)
    u = torch.from_numpy(rows[:, 0])
    pos = torch.from_numpy(rows[:, 1])
    pos_score, neg_score = model(u, pos, torch.from_numpy(neg).view(batch, n_neg))
    loss = -F.logsigmoid(pos_score - neg_score).mean()
    tables.zero_grad()
    towers.zero_grad()
    loss.backward()
    tables.step()
    towers.step()
    running = 0.98 * running + 0.02 * loss.item()

print(f"bpr loss {running:.4f}")
