# One trunk, eight tasks: attributes of a picture
import torch
from torch import nn

torch.manual_seed(0)
TASKS = 8
trunk = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
heads = nn.ModuleList(nn.Linear(512, 2) for _ in range(TASKS))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.01)

for step in range(80):
    x, y = torch.randn(128, 512), torch.randint(0, 2, (TASKS, 128))
    features = trunk(x)
    optimizer.zero_grad()
    for task, head in enumerate(heads):
        loss = nn.functional.cross_entropy(head(features), y[task])
        loss.backward(retain_graph=True)
    optimizer.step()
print(loss.item())
