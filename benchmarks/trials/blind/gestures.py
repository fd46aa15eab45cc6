import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
np.random.seed(0)


class WristRecordings(Dataset):
    """Windows of 200 samples of accelerometer, gyroscope and magnetometer."""

    def __init__(self, n=4096, classes=8):
        t = np.linspace(0, 2, 200, dtype=np.float32)
        self.labels = np.random.randint(0, classes, n)
        base = np.sin(t[None, :] * (1 + self.labels[:, None]) * 3)
        self.windows = (base[:, None, :] + 0.5 * np.random.randn(n, 9, 200)).astype(np.float32)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        w = self.windows[i]
        return (w - w.mean(1, keepdims=True)) / (w.std(1, keepdims=True) + 1e-6), self.labels[i]


def collate(samples):
    windows = [s[0] for s in samples]
    labels = [int(s[1]) for s in samples]
    return torch.tensor(windows), torch.tensor(labels)


class GestureNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.c1 = nn.Conv1d(9, 24, 7, stride=2, padding=3)
        self.c2 = nn.Conv1d(24, 48, 5, padding=2)
        self.fc = nn.Linear(48, classes)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.c1(x)), 2)
        x = F.relu(self.c2(x))
        return self.fc(x.mean(-1))


loader = DataLoader(WristRecordings(), batch_size=64, shuffle=True, collate_fn=collate, drop_last=True)
model = GestureNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(6):
    losses = []
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch} loss {np.mean(losses):.4f}")
print("final", losses[-1])
