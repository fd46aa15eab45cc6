import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(7)
torch.manual_seed(7)

USERS, ITEMS = 300, 6000


class TwoTower(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.user_mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))
        self.item_mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, u, i):
        return (self.user_mlp(self.user(u)) * self.item_mlp(self.item(i))).sum(-1)


# play history per user
history = {}
for u in range(USERS):
    history[u] = random.sample(range(ITEMS), random.randint(600, 2400))


def draw_batch(size):
    users, pos, neg = [], [], []
    for _ in range(size):
        u = random.randrange(USERS)
        users.append(u)
        pos.append(random.choice(history[u]))
        j = random.randrange(ITEMS)
        while j in history[u]:
            j = random.randrange(ITEMS)
        neg.append(j)
    return torch.tensor(users), torch.tensor(pos), torch.tensor(neg)


model = TwoTower()
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
running = 0.0
for step in range(150):
    u, i, j = draw_batch(2048)
    loss = -F.logsigmoid(model(u, i) - model(u, j)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    running = 0.95 * running + 0.05 * loss.item()
print("bpr loss", round(running, 4))
