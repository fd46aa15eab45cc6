import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
rng = np.random.default_rng(3)
VOCAB, MAX_LEN, N_CLASSES = 8000, 256, 12

class Tickets(Dataset):
    def __init__(self, n):
        lengths = np.clip(rng.lognormal(3.5, 0.45, n).astype(int), 5, MAX_LEN)
        self.tokens = [torch.from_numpy(rng.integers(1, VOCAB, k)) for k in lengths]
        self.labels = torch.from_numpy(rng.integers(0, N_CLASSES, n))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i], self.labels[i]

def collate(samples):
    longest = MAX_LEN
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, (tok, _) in enumerate(samples):
        ids[row, : len(tok)] = tok
    return ids, torch.stack([y for _, y in samples])

class Encoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.pos = nn.Embedding(MAX_LEN, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, N_CLASSES)

    def forward(self, ids):
        pad = ids == 0
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        x = self.body(x, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.head((x * keep).sum(1) / keep.sum(1))

loader = DataLoader(Tickets(3000), batch_size=8, shuffle=True, collate_fn=collate)
model = Encoder()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
total_steps = 110
total = 0.0
for step, (ids, y) in enumerate(loader):
    if step == total_steps:
        break
    loss = F.cross_entropy(model(ids), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    total += loss.item()
print(f"mean loss {total / total_steps:.4f}")
