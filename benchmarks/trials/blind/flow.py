import math

import torch
import torch.nn as nn

torch.manual_seed(17)
DIM, BATCH, DEPTH = 48, 128, 6
STEPS = 260


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(DIM, DIM))[0])

    def forward(self, x):
        w = self.weight.unsqueeze(0).expand(x.size(0), DIM, DIM)
        logdet = torch.linalg.slogdet(w).logabsdet
        return x @ self.weight.t(), logdet


class Coupling(nn.Module):
    def __init__(self, hidden=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(DIM // 2, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, DIM),
        )

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        shift, scale = self.net(a).chunk(2, dim=1)
        scale = torch.tanh(scale)
        return torch.cat([a, b * scale.exp() + shift], dim=1), scale.sum(1)


layers = nn.ModuleList()
for _ in range(DEPTH):
    layers.append(Mixing())
    layers.append(Coupling())
opt = torch.optim.Adam(layers.parameters(), lr=5e-4)

basis = torch.randn(DIM, DIM) / math.sqrt(DIM)
for step in range(STEPS):
    z = torch.tanh(torch.randn(BATCH, DIM)) @ basis
    total = torch.zeros(BATCH)
    for layer in layers:
        z, logdet = layer(z)
        total = total + logdet
    log_p = -0.5 * (z.pow(2) + math.log(2 * math.pi)).sum(1) + total
    loss = -log_p.mean() / (DIM * math.log(2))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(layers.parameters(), 10.0)
    opt.step()
    if step % 20 == 0:
        print(f"step {step} bits/dim {loss.item():.4f}")
print(f"bits/dim {loss.item():.4f}")
