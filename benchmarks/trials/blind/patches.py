import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)

N, BATCH, EPOCHS = 8000, 64, 1

# tissue patches, small residual net
images = torch.randn(N, 3, 32, 32)
labels = (images.mean((1, 2, 3)) > 0).long()


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.b = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


net = nn.Sequential(nn.Conv2d(3, 24, 4, stride=4), nn.ReLU(), Res(24), Res(24),
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=EPOCHS * (N // BATCH))

for epoch in range(EPOCHS):
    order = torch.randperm(N)
    correct = 0
    for start in range(0, N - BATCH + 1, BATCH):
        x = images[order][start:start + BATCH]
        y = labels[order][start:start + BATCH]
        out = net(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        correct += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch} acc {correct / N:.4f} loss {loss.item():.4f}")
