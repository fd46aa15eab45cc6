import os
import tempfile
import torch
from torch import nn

torch.manual_seed(42)

FIELDS, CARD, EMB = 12, 2000, 16
run_dir = tempfile.mkdtemp(prefix="ctr_")


class WideDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(CARD, EMB) for _ in range(FIELDS))
        self.wide = nn.Linear(13, 1)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * EMB + 13, 1024), nn.ReLU(),
            nn.Linear(1024, 1024), nn.ReLU(),
            nn.Linear(1024, 1),
        )

    def forward(self, cat, num):
        e = [emb(cat[:, i]) for i, emb in enumerate(self.emb)]
        return (self.deep(torch.cat(e + [num], 1)) + self.wide(num)).squeeze(1)


def impressions(n):
    cat = torch.randint(0, CARD, (n, FIELDS))
    num = torch.rand(n, 13)
    click = (num[:, 0] + (cat[:, 0] % 7) / 7 + 0.3 * torch.randn(n) > 1.1).float()
    return cat, num, click


model = WideDeep()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.BCEWithLogitsLoss()

running = 0.7
for step in range(220):
    cat, num, click = impressions(128)
    loss = loss_fn(model(cat, num), click)
    opt.zero_grad()
    loss.backward()
    opt.step()
    running = 0.95 * running + 0.05 * loss.item()
    state = {"step": step, "model": model.state_dict(), "optimizer": opt.state_dict()}
    torch.save(state, os.path.join(run_dir, "last.pt"))
    if step % 40 == 0:
        print(f"step {step} loss {running:.4f}")

size = os.path.getsize(os.path.join(run_dir, "last.pt")) / 2**20
print(f"finished: loss {running:.4f}, checkpoint {size:.1f} MiB")
