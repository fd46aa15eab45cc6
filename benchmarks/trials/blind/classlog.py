import os
import tempfile

import pandas as pd
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(8)
N_CLASSES, FEATS, STEPS = 20, 128, 400
log_path = os.path.join(tempfile.mkdtemp(), "train_log.csv")

centres = torch.randn(N_CLASSES, FEATS)


def sample(n=256):
    y = torch.randint(0, N_CLASSES, (n,))
    return centres[y] + 2.5 * torch.randn(n, FEATS), y


class History:
    def __init__(self, path):
        self.path = path
        self.rows = []

    def add(self, new):
        self.rows.extend(new)
        pd.DataFrame(self.rows).to_csv(self.path, index=False)


model = nn.Sequential(
    nn.Linear(FEATS, 384), nn.GELU(), nn.LayerNorm(384),
    nn.Linear(384, 384), nn.GELU(), nn.LayerNorm(384),
    nn.Linear(384, N_CLASSES))
opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
history = History(log_path)
for step in range(STEPS):
    x, y = sample()
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()

    with torch.no_grad():
        hit = torch.bincount(y[logits.argmax(1) == y], minlength=N_CLASSES).tolist()
        seen = torch.bincount(y, minlength=N_CLASSES).tolist()
        conf = logits.softmax(1).mean(0).tolist()
    value = loss.item()
    history.add([
        {"step": step, "loss": value, "class": c, "hit": hit[c], "seen": seen[c], "conf": conf[c]}
        for c in range(N_CLASSES)])

log = pd.read_csv(log_path).tail(400)
print(f"rows {len(history.rows)} recall {log['hit'].sum() / log['seen'].sum():.3f} loss {value:.4f}")
