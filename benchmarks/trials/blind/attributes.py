import torch
import torch.nn as nn

torch.manual_seed(6)

TASKS = {"gender": 2, "age": 8, "hair": 6, "glasses": 2, "pose": 5}


class MultiTaskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.heads = nn.ModuleDict({
            name: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, n)) for name, n in TASKS.items()
        })

    def forward(self, x):
        feat = self.trunk(x)
        return {name: head(feat) for name, head in self.heads.items()}


faces = torch.randn(512, 3, 48, 48)
targets = {name: torch.randint(0, n, (512,)) for name, n in TASKS.items()}

model = MultiTaskNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for step in range(80):
    idx = torch.randint(0, 512, (16,))
    outputs = model(faces[idx])
    optimizer.zero_grad()
    losses = {}
    for name, out in outputs.items():
        losses[name] = criterion(out, targets[name][idx])
        losses[name].backward(retain_graph=True)
    optimizer.step()
    if step % 20 == 0:
        print(step, {k: round(v.item(), 3) for k, v in losses.items()})
print("final", round(sum(v.item() for v in losses.values()), 4))
