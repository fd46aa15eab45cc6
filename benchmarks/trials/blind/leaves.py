import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
rng = np.random.default_rng(1)

# leaf disease images, as exported by the labelling team
path = os.path.join(tempfile.mkdtemp(), "leaves.npz")
np.savez(path,
         images=rng.integers(0, 255, (1400, 3, 48, 48), dtype=np.uint8),
         labels=rng.integers(0, 6, 1400))


class LeafDataset(Dataset):
    def __init__(self, path):
        self.data = np.load(path)
        self.n = len(self.data["labels"])
        self.mean = torch.tensor([0.48, 0.51, 0.41]).view(3, 1, 1)
        self.std = torch.tensor([0.22, 0.21, 0.24]).view(3, 1, 1)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        img = torch.from_numpy(self.data["images"][i]).float().div(255)
        img = (img - self.mean) / self.std
        if torch.rand(1) < 0.5:
            img = img.flip(-1)
        return img, int(self.data["labels"][i])


model = nn.Sequential(
    nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
    nn.Conv2d(48, 96, 3, stride=2, padding=1), nn.BatchNorm2d(96), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 6))
loader = DataLoader(LeafDataset(path), batch_size=20, shuffle=True)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

MAX_STEPS = 140
done = 0
while done < MAX_STEPS:
    for x, y in loader:
        loss = criterion(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        done += 1
        if done >= MAX_STEPS:
            break
print("steps", done, "loss", round(loss.item(), 4))
