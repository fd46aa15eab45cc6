import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
logger = logging.getLogger("charlm")
torch.manual_seed(11)

VOCAB, DIM, HEADS, DEPTH, SEQ, BATCH = 96, 128, 4, 6, 48, 8
STEPS = 180
class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        logger.debug(f"block {self.index} attention out: {a}")
        x = x + a
        h = self.ff(self.ln2(x))
        logger.debug(f"block {self.index} mlp out: {h}")
        x = x + h
        logger.debug(f"block {self.index} residual: {x}")
        return x

class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(SEQ, DIM))
        self.blocks = nn.ModuleList(Block(i) for i in range(DEPTH))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(x)

text = torch.randint(0, VOCAB, (200_000,))
model = CharLM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(STEPS):
    start = torch.randint(0, len(text) - SEQ - 1, (BATCH, 1))
    window = text[start + torch.arange(SEQ + 1)]
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 60 == 0:
        logger.info("step %d loss %.4f", step, loss.item())
print(f"final loss {loss.item():.4f}")
