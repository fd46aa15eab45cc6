import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
VOCAB, LENGTH, DIM, HEADS, BATCH = 2000, 1024, 64, 8, 2


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        a, _ = self.attn(h, h, h)
        x = x + a
        return x + self.mlp(self.norm2(x))


class DocClassifier(nn.Module):
    def __init__(self, classes=6, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(1, LENGTH, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(depth))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, classes)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x).mean(1))


def batch(gen):
    y = torch.randint(0, 6, (BATCH,), generator=gen)
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=gen)
    mark = torch.rand(BATCH, LENGTH, generator=gen) < 0.2
    return torch.where(mark, y[:, None].expand_as(ids), ids), y


model = DocClassifier()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
gen = torch.Generator().manual_seed(7)
right = seen = 0
for step in range(40):
    ids, y = batch(gen)
    logits = model(ids)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    right += (logits.argmax(1) == y).sum().item()
    seen += len(y)
print(f"train accuracy {right / seen:.3f}, loss {loss.item():.4f}")
