import os
import tempfile
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(9)

def prepare(path, n=1500):
    rng = np.random.default_rng(9)
    labels = rng.integers(0, 20, n)
    stamps = rng.integers(0, 180, (20, 32, 32))
    images = (stamps[labels] + rng.integers(0, 70, (n, 32, 32))).astype(np.uint8)
    np.savez_compressed(path, images=images, labels=labels)

class Glyphs(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.size = len(self.archive["labels"])

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        image = torch.from_numpy(self.archive["images"][i]).float().div(255)
        return image.unsqueeze(0), int(self.archive["labels"][i])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc = nn.Linear(64 * 64, 20)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))

path = os.path.join(tempfile.mkdtemp(), "glyphs.npz")
prepare(path)
loader = DataLoader(Glyphs(path), batch_size=20, shuffle=True)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

for epoch in range(1):
    hits = seen = 0
    for step, (x, y) in enumerate(loader):
        out = net(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (out.argmax(1) == y).sum().item()
        seen += len(y)
    print(f"epoch {epoch}: train acc {hits / seen:.3f}, loss {loss.item():.4f}")
