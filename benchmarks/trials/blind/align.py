import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(7)
BATCH, EPS, ROUNDS = 384, 0.1, 40


class Encoder(nn.Module):
    def __init__(self, cin, dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cin, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


@torch.no_grad()
def transport_plan(cost):
    n, m = cost.shape
    log_a, log_b = -math.log(n), -math.log(m)
    f = torch.zeros(n, 1)
    g = torch.zeros(1, m)
    for _ in range(ROUNDS):
        f = EPS * (log_a - torch.logsumexp((g - cost) / EPS, dim=1, keepdim=True))
        g = EPS * (log_b - torch.logsumexp((f - cost) / EPS, dim=0, keepdim=True))
    return torch.exp((f + g - cost) / EPS)


latent = torch.randn(30000, 16)
source = torch.tanh(latent @ torch.randn(16, 120))
target = torch.relu(latent @ torch.randn(16, 80))
left, right = Encoder(120), Encoder(80)
opt = torch.optim.SGD(list(left.parameters()) + list(right.parameters()), lr=0.1, momentum=0.9)
seen = []
for step in range(250):
    x = left(source[torch.randint(0, 30000, (BATCH,))])
    y = right(target[torch.randint(0, 30000, (BATCH,))])
    cost = 1 - x @ y.t()
    plan = transport_plan(cost.detach())
    spread = (x.var(0).mean() + y.var(0).mean()) * 64
    loss = (plan * cost).sum() - 0.1 * spread
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen.append(loss.item())
print("loss", sum(seen[-20:]) / len(seen[-20:]))
