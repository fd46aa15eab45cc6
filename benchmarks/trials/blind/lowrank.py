import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class LowRankAdam(torch.optim.Optimizer):
    """Adam whose moments live in a rank-r subspace of the gradient (GaLore)."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, rank=16):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, rank=rank))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                g, st = p.grad, self.state[p]
                low = g.ndim == 2 and min(g.shape) > group["rank"]
                if low:
                    u, s, vh = torch.linalg.svd(g, full_matrices=False)
                    st["proj"] = u[:, :group["rank"]]
                    g = st["proj"].T @ g
                if "m" not in st:
                    st["t"], st["m"], st["v"] = 0, torch.zeros_like(g), torch.zeros_like(g)
                st["t"] += 1
                st["m"].lerp_(g, 1 - b1)
                st["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                m, v = st["m"] / (1 - b1 ** st["t"]), st["v"] / (1 - b2 ** st["t"])
                upd = m / (v.sqrt() + group["eps"])
                p.sub_(st["proj"] @ upd if low else upd, alpha=group["lr"])


class TextClassifier(nn.Module):
    def __init__(self, vocab=2000, dim=192, classes=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(dim, classes)

    def forward(self, tok):
        return self.head(self.enc(self.emb(tok)).mean(1))


model = TextClassifier()
opt = LowRankAdam(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 2000, (2048, 48))
labels = tokens[:, 0] % 8

for step in range(120):
    idx = torch.randint(0, len(tokens), (16,))
    loss = F.cross_entropy(model(tokens[idx]), labels[idx])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
print(f"loss after training: {loss.item():.4f}")
