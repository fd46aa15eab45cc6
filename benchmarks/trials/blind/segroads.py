import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)
N_CLASSES = 8


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class RoadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(block(3, 24), block(24, 48), block(48, 128))
        self.context = nn.Sequential(
            nn.Conv2d(128, 128, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True))
        self.classifier = nn.Conv2d(128, N_CLASSES, 1)

    def forward(self, x):
        f = self.context(self.stem(x))
        f = F.interpolate(f, size=x.shape[-2:], mode="bilinear", align_corners=False)
        out = self.classifier(f)
        return out


def fake_batch(n=2, size=192):
    coarse = torch.randint(0, N_CLASSES, (n, 1, 6, 6)).float()
    mask = F.interpolate(coarse, size=(size, size)).long().squeeze(1)
    image = mask.unsqueeze(1) / N_CLASSES + 0.1 * torch.randn(n, 3, size, size)
    return image, mask


model = RoadNet()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=75, power=0.9)
hits = pixels = 0
for step in range(75):
    image, mask = fake_batch()
    out = model(image)
    loss = F.cross_entropy(out, mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 10 == 0:
        hits += (out.detach().argmax(1) == mask).sum().item()
        pixels += mask.numel()

print(f"loss {loss.item():.4f} pixel acc {hits / pixels:.3f}")
