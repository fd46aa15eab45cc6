import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x)), (k, v)

class TinyGPT(nn.Module):
    def __init__(self, vocab=8000, dim=256, depth=4, heads=8, ctx=512):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids, past=None):
        start = 0 if past is None else past[0][0].shape[2]
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.shape[1]))
        new = []
        for n, block in enumerate(self.blocks):
            x, kv = block(x, None if past is None else past[n])
            new.append(kv)
        return self.head(self.ln(x[:, -1])), new

@torch.inference_mode()
def generate(model, prompt, max_new_tokens, temperature=0.8, top_k=50):
    ids, past = prompt, None
    for _ in range(max_new_tokens):
        logits, _ = model(ids)
        values, index = (logits / temperature).topk(top_k, dim=-1)
        choice = torch.multinomial(values.softmax(-1), 1)
        ids = torch.cat([ids, index.gather(1, choice)], dim=1)
    return ids

model = TinyGPT().eval()
n = 0
for request in range(2):
    prompt = torch.randint(0, 8000, (4, 96))
    out = generate(model, prompt, max_new_tokens=100)
    n += out[:, 96:].numel()
print("generated", n, "checksum", int(out.sum()))
