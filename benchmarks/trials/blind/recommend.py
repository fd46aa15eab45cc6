import random

import numpy as np
import torch
from torch import nn

torch.manual_seed(1)
np.random.seed(1)
random.seed(1)
USERS, ITEMS, DIM, BATCH, NEG = 3000, 2000, 32, 2048, 6

users = np.random.randint(0, USERS, 150000)
items = (np.random.zipf(1.3, 150000) + users * 7) % ITEMS
seen = [set() for _ in range(USERS)]
for u, i in zip(users.tolist(), items.tolist()):
    seen[u].add(i)


class MF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.bias = nn.Parameter(torch.zeros(ITEMS))
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, u, i):
        return torch.einsum("bd,bnd->bn", self.user(u), self.item(i)) + self.bias[i]


def sample_negatives(batch_users):
    negs = []
    for u in batch_users.tolist():
        row = []
        while len(row) < NEG:
            j = random.randint(0, ITEMS - 1)
            if j not in seen[u]:
                row.append(j)
        negs.append(row)
    return np.array(negs)


model = MF()
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
running = 0.0
for step in range(600):
    idx = np.random.randint(0, len(users), BATCH)
    u, pos = users[idx], items[idx]
    neg = sample_negatives(u)
    cand = torch.from_numpy(np.concatenate([pos[:, None], neg], axis=1))
    scores = model(torch.from_numpy(u), cand)
    loss = -nn.functional.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    running = 0.98 * running + 0.02 * loss.item()

print(f"bpr loss {running:.4f}")
