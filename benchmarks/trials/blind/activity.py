import os
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(9)
torch.manual_seed(9)
EPOCHS = 14
COLS = ["ax", "ay", "az", "gx", "gy", "gz"]


def export_recordings(folder, n):
    rows = []
    for i in range(n):
        label = int(rng.integers(0, 5))
        t = np.arange(200)[:, None]
        x = np.sin(t * (0.05 + 0.04 * label) + rng.random((1, 6)) * 6) + 0.4 * rng.standard_normal((200, 6))
        name = f"rec_{i:04d}.csv"
        pd.DataFrame(x.round(5), columns=COLS).to_csv(os.path.join(folder, name), index=False)
        rows.append((name, label))
    return rows


class Recordings(Dataset):
    def __init__(self, folder, rows):
        self.folder, self.rows = folder, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        name, label = self.rows[i]
        df = pd.read_csv(os.path.join(self.folder, name))
        x = torch.from_numpy(df[COLS].to_numpy(np.float32).T.copy())
        return x, label


net = nn.Sequential(
    nn.Conv1d(6, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
    nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
    nn.Flatten(), nn.Linear(64, 5),
)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
with tempfile.TemporaryDirectory() as folder:
    train = Recordings(folder, export_recordings(folder, 480))
    loader = DataLoader(train, batch_size=32, shuffle=True)
    for epoch in range(EPOCHS):
        correct = 0
        for x, y in loader:
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (out.argmax(1) == y).sum().item()
print("train acc", correct / len(train))
