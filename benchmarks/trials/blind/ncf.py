import random
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(7)
np.random.seed(7)
torch.manual_seed(7)

N_USERS, N_ITEMS, NEG, BATCH = 500, 12000, 4, 512

def load_clicks():
    users = np.random.randint(0, N_USERS, 600_000)
    items = np.random.randint(0, N_ITEMS, 600_000)
    return list(zip(users.tolist(), items.tolist()))

clicks = load_clicks()
history = defaultdict(list)
for u, i in clicks:
    history[u].append(i)

def make_batch():
    users, items, labels = [], [], []
    for u, i in random.sample(clicks, BATCH):
        users.append(u); items.append(i); labels.append(1.0)
        for _ in range(NEG):
            j = random.randrange(N_ITEMS)
            while j in history[u]:
                j = random.randrange(N_ITEMS)
            users.append(u); items.append(j); labels.append(0.0)
    return torch.tensor(users), torch.tensor(items), torch.tensor(labels)

class NeuMF(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.user = nn.Embedding(N_USERS, dim)
        self.item = nn.Embedding(N_ITEMS, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.out = nn.Linear(64 + dim, 1)

    def forward(self, u, i):
        eu, ei = self.user(u), self.item(i)
        h = self.mlp(torch.cat([eu, ei], dim=-1))
        return self.out(torch.cat([h, eu * ei], dim=-1)).squeeze(-1)

model = NeuMF()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
total = 0.0
for step in range(140):
    u, i, y = make_batch()
    loss = F.binary_cross_entropy_with_logits(model(u, i), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    total += loss.item()
print("mean loss", round(total / (step + 1), 4))
