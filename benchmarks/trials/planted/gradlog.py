# Trains a deep narrow network and watches its gradients
import torch
from torch import nn

torch.manual_seed(0)
layers = []
for _ in range(24):
    layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []


def log_gradients(step):
    record = {"step": step}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        record[f"{name}/norm"] = gradient.norm().item()
        record[f"{name}/max"] = gradient.abs().max().item()
        record[f"{name}/histogram"] = torch.histc(gradient, bins=50).tolist()
    history.append(record)


for step in range(300):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    log_gradients(step)
    optimizer.step()
print(len(history), loss.item())
