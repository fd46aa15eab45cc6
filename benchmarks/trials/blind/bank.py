import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(9)
IMAGES, DIM, NEGATIVES, TAU = 250_000, 128, 1024, 0.1


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
        )
        self.project = nn.Linear(64, DIM)

    def forward(self, x):
        h = self.features(x).mean((2, 3))
        return F.normalize(self.project(h), dim=1)


def load(rows):
    g = torch.Generator().manual_seed(int(rows[0]))
    return torch.rand(len(rows), 3, 32, 32, generator=g)


encoder = Encoder()
opt = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
bank = F.normalize(torch.randn(IMAGES, DIM), dim=1)
for step in range(90):
    rows = torch.randint(0, IMAGES, (64,)).unique()
    z = encoder(load(rows))
    positive = (z * bank[rows]).sum(1, keepdim=True)
    negative = z @ bank[torch.randint(0, IMAGES, (NEGATIVES,))].t()
    logits = torch.cat([positive, negative], 1) / TAU
    loss = F.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    opt.step()
    mixed = F.normalize(0.5 * bank[rows] + 0.5 * z.detach(), dim=1)
    bank = bank.index_copy(0, rows, mixed)
print("loss", loss.item(), "bank", float(bank.abs().mean()))
