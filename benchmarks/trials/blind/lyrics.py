import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)

VOCAB, D, HEADS, LAYERS, BLOCK = 96, 256, 4, 4, 320

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, D))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))

class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D)
        self.pos = nn.Embedding(BLOCK, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(D, VOCAB)

    def forward(self, ids, start=0):
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = CharGPT().eval()
prompt = torch.randint(0, VOCAB, (3, 16))
out = torch.zeros(3, BLOCK, dtype=torch.long)
out[:, :16] = prompt

with torch.no_grad():
    for t in range(16, 316):
        logits = model(out[:, :t])[:, -1]
        probs = F.softmax(logits / 0.8, dim=-1)
        out[:, t] = torch.multinomial(probs, 1).squeeze(1)

print("".join(chr(32 + c) for c in out[0, :80].tolist()))
print("checksum", out.sum().item())
