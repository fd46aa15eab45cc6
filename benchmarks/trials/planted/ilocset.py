# Tabular model on a data frame of customers
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
rng = np.random.default_rng(0)
columns = [f"f{n}" for n in range(40)]
frame = pd.DataFrame(rng.standard_normal((20_000, 40), dtype=np.float32), columns=columns)
frame["segment"] = rng.choice(["a", "b", "c"], len(frame))
frame["churned"] = rng.integers(0, 2, len(frame))


class Customers(Dataset):
    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        row = self.frame.iloc[index]
        features = torch.tensor(row[columns].to_numpy(dtype=np.float32))
        return features, int(row["churned"])


model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()
loader = DataLoader(Customers(frame), batch_size=64, shuffle=True)

for epoch in range(1):
    for features, churned in loader:
        optimizer.zero_grad()
        loss = loss_function(model(features), churned)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, loss.item())
