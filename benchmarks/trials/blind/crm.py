import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(7)
rng = np.random.default_rng(7)

# synthetic customer table in the shape of the CRM export
N = 18000
NUMERIC = [f"usage_{i}" for i in range(28)]
df = pd.DataFrame(rng.normal(size=(N, len(NUMERIC))), columns=NUMERIC)
df["plan"] = rng.choice(["basic", "plus", "pro"], size=N)
df["tenure"] = rng.integers(1, 72, size=N)
signal = df["usage_0"] - 0.5 * df["usage_3"] + 0.02 * (40 - df["tenure"])
df["churned"] = (signal + rng.normal(size=N) > 0).astype(int)
df["plan_id"] = df["plan"].map({"basic": 0, "plus": 1, "pro": 2})
FEATURES = NUMERIC + ["tenure", "plan_id"]


class CustomerDataset(Dataset):
    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        row = self.frame.iloc[idx]
        x = torch.tensor(row[FEATURES].values.astype(np.float32))
        y = torch.tensor(row["churned"], dtype=torch.float32)
        return x, y


loader = DataLoader(CustomerDataset(df), batch_size=256, shuffle=True)
model = nn.Sequential(
    nn.Linear(len(FEATURES), 384), nn.BatchNorm1d(384), nn.ReLU(), nn.Dropout(0.1),
    nn.Linear(384, 384), nn.BatchNorm1d(384), nn.ReLU(),
    nn.Linear(384, 1),
)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
loss_fn = nn.BCEWithLogitsLoss()

for epoch in range(2):
    total, correct, seen = 0.0, 0, 0
    for step, (x, y) in enumerate(loader):
        opt.zero_grad()
        logits = model(x).squeeze(1)
        loss = loss_fn(logits, y)
        loss.backward()
        opt.step()
        total += loss.item() * len(y)
        correct += ((logits > 0) == (y > 0.5)).sum().item()
        seen += len(y)
    print(f"epoch {epoch}: loss {total / seen:.4f} acc {correct / seen:.3f}")
