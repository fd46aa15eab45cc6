import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad

torch.manual_seed(6)
BATCH, CLIP, SIGMA, LR = 64, 1.0, 0.8, 0.2

model = nn.Sequential(
    nn.Linear(64, 128), nn.Tanh(),
    nn.Linear(128, 64), nn.Tanh(),
    nn.Linear(64, 10))
params = dict(model.named_parameters())

centers = torch.randn(10, 64)


def batch(n):
    y = torch.randint(0, 10, (n,))
    return centers[y] + 0.7 * torch.randn(n, 64), y


def sample_loss(p, x, y):
    return F.cross_entropy(functional_call(model, p, (x[None],)), y[None])


def private_gradient(x, y):
    total = {k: torch.zeros_like(p) for k, p in params.items()}
    for xi, yi in zip(x, y):
        g = grad(sample_loss)(params, xi, yi)
        norm = torch.sqrt(sum(v.pow(2).sum() for v in g.values()))
        scale = (CLIP / (norm + 1e-6)).clamp(max=1.0)
        for k, v in g.items():
            total[k] += v * scale
    return total


for step in range(200):
    x, y = batch(BATCH)
    total = private_gradient(x, y)
    with torch.no_grad():
        for k, p in params.items():
            noise = torch.randn_like(p) * SIGMA * CLIP
            p -= LR * (total[k] + noise) / BATCH

x, y = batch(2000)
with torch.no_grad():
    acc = (model(x).argmax(1) == y).float().mean().item()
print(f"accuracy {acc:.3f}")
