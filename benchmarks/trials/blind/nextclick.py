import os
import random
import sqlite3
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
random.seed(9)
USERS, ITEMS, HISTORY, BATCH = 4000, 500, 20, 24

path = os.path.join(tempfile.mkdtemp(), "events.db")
db = sqlite3.connect(path)
db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, user INTEGER, item INTEGER, ts INTEGER)")
rows = []
for t in range(120000):
    u = random.randrange(USERS)
    rows.append((u, (u * 13 + random.randrange(40)) % ITEMS, t))
db.executemany("INSERT INTO events (user, item, ts) VALUES (?, ?, ?)", rows)
db.commit()


def history(user):
    cur = db.execute("SELECT item FROM events WHERE user = ? ORDER BY ts DESC LIMIT ?", (user, HISTORY + 1))
    items = [r[0] + 1 for r in cur][::-1]
    return [0] * (HISTORY + 1 - len(items)) + items


class NextItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(ITEMS + 1, 64, padding_idx=0)
        self.gru = nn.GRU(64, 128, batch_first=True)
        self.out = nn.Linear(128, ITEMS + 1)

    def forward(self, seq):
        h, _ = self.gru(self.emb(seq))
        return self.out(h[:, -1])


model = NextItem()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(80):
    users = random.sample(range(USERS), BATCH)
    seqs = torch.tensor([history(u) for u in users])
    loss = F.cross_entropy(model(seqs[:, :-1]), seqs[:, -1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step:4d} loss {loss.item():.3f}")
print(f"final loss {loss.item():.3f}")
db.close()
