import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)

# frame classification of sensor recordings with retention blocks (parallel form)
SEQ, DIM, HEADS, CLASSES = 512, 128, 4, 12


class Retention(nn.Module):
    def __init__(self, dim, heads, seq):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.norm = nn.GroupNorm(heads, dim)
        gamma = 1 - torch.exp(torch.linspace(math.log(0.27), math.log(0.2), heads))
        pos = torch.arange(seq)
        dist = (pos[:, None] - pos[None, :]).clamp(min=0)
        self.register_buffer("decay", (gamma[:, None, None] ** dist).tril())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5
        att = att * self.decay[:, :t, :t]
        y = (att @ v).transpose(1, 2).reshape(b * t, c)
        return self.out(self.norm(y).view(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.ret = Retention(DIM, HEADS, SEQ)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.ret(self.ln1(x))
        return x + self.mlp(self.ln2(x))


model = nn.Sequential(nn.Linear(24, DIM), Block(), Block(), nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES))
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)

signals = torch.randn(256, SEQ, 24)
labels = torch.randint(0, CLASSES, (256, SEQ))

for step in range(50):
    idx = torch.randint(0, len(signals), (4,))
    logits = model(signals[idx])
    loss = F.cross_entropy(logits.flatten(0, 1), labels[idx].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"final loss {loss.item():.4f}")
