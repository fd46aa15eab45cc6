import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)
VOCAB, DIM, LENGTH, BATCH = 4000, 384, 16, 2


class LM(nn.Module):
    def __init__(self, depth=5):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        nn.init.normal_(self.tok.weight, std=0.02)
        self.pos = nn.Parameter(torch.randn(LENGTH, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 6, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        h = self.body(self.tok(ids) + self.pos, mask=mask, is_causal=True)
        return self.norm(h) @ self.tok.weight.T


def batches(n):
    gen = torch.Generator().manual_seed(1)
    for _ in range(n):
        start = torch.randint(0, VOCAB - 100, (BATCH, 1), generator=gen)
        yield start + torch.arange(LENGTH + 1) * torch.randint(1, 4, (BATCH, 1), generator=gen)


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
avg = None
for ids in batches(100):
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
print(f"parameters {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M, loss {avg:.4f}")
