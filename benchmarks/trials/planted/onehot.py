# Matrix factorisation for recommendations
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
USERS, ITEMS, WIDTH = 4000, 3000, 32


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Linear(USERS, WIDTH, bias=False)
        self.items = nn.Linear(ITEMS, WIDTH, bias=False)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item):
        u = self.users(F.one_hot(user, USERS).float())
        i = self.items(F.one_hot(item, ITEMS).float())
        return self.score(torch.cat([u, i], dim=1)).squeeze(1)


model = Factors()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(120):
    user, item = torch.randint(0, USERS, (512,)), torch.randint(0, ITEMS, (512,))
    rating = torch.rand(512)
    loss = F.mse_loss(model(user, item), rating)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
