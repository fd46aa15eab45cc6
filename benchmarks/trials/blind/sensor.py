import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
LENGTH, CHANNELS, DIM, HEADS = 1536, 8, 128, 4
STEPS = 70


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        norm = q @ k.sum(dim=2).unsqueeze(-1)
        out = q @ k.transpose(-2, -1) @ v / norm
        return self.proj(out.transpose(1, 2).reshape(b, t, DIM))


class Encoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.inp = nn.Conv1d(CHANNELS, DIM, 7, padding=3)
        self.attn = nn.ModuleList(LinearAttention() for _ in range(depth))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
            for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(depth))
        self.out = nn.Linear(DIM, CHANNELS)

    def forward(self, x):
        h = self.inp(x).transpose(1, 2)
        for norm, attn, ff in zip(self.norms, self.attn, self.ff):
            h = h + attn(norm(h))
            h = h + ff(h)
        return self.out(h).transpose(1, 2)


model = Encoder()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
t = torch.arange(LENGTH) / 100.0
for step in range(STEPS):
    freq = 0.2 + torch.rand(1, CHANNELS, 1)
    clean = torch.sin(2 * torch.pi * freq * t)
    keep = (torch.rand_like(clean) > 0.3).float()
    loss = F.mse_loss(model(clean * keep), clean)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"step {step} mse {loss.item():.4f}")
print(f"final mse {loss.item():.4f}")
