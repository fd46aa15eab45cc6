import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(2)
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Leaves(Dataset):
    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 5, n)
        self.images = []
        for y in self.labels:
            img = rng.integers(0, 60, (360, 480, 3), dtype=np.uint8)
            img[:, :, y % 3] += np.uint8(30 * (1 + y))
            self.images.append(img)

    def __len__(self):
        return len(self.images)

    def load(self, i):
        img = torch.from_numpy(self.images[i]).permute(2, 0, 1).float() / 255
        img = F.interpolate(img[None], size=(64, 64), mode="bicubic", antialias=True)[0]
        return (img - MEAN) / STD

    def __getitem__(self, i):
        img = self.load(i)
        if torch.rand(()) < 0.5:
            img = img.flip(-1)
        return img, int(self.labels[i])


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride=2, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


train = Leaves(320)
loader = DataLoader(train, batch_size=32, shuffle=True)
model = nn.Sequential(block(3, 24), block(24, 48), block(48, 96), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 5))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(12):
    total, right = 0.0, 0
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        right += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch} loss {total / len(loader):.4f} acc {right / len(train):.3f}")
print("done, last accuracy", right / len(train))
