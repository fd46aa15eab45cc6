import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
VOCAB, DIM, SEQ, BATCH, RANK = 2000, 64, 48, 16, 8

class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)

class LowRankAdam(torch.optim.Optimizer):
    """Adam whose moments live in a rank-r projection of the gradient."""

    def __init__(self, params, lr=1e-3, rank=8, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, rank=rank, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, basis = p.grad, None
                if g.ndim == 2:
                    basis = torch.linalg.svd(g)[0][:, :group["rank"]]
                    g = basis.T @ g
                st = self.state[p]
                if not st:
                    st["t"], st["m"], st["v"] = 0, torch.zeros_like(g), torch.zeros_like(g)
                st["t"] += 1
                st["m"].lerp_(g, 1 - b1)
                st["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                mhat = st["m"] / (1 - b1 ** st["t"])
                vhat = st["v"] / (1 - b2 ** st["t"])
                update = mhat / (vhat.sqrt() + group["eps"])
                if basis is not None:
                    update = basis @ update
                p.sub_(update, alpha=group["lr"])

model = CharLM()
opt = LowRankAdam(model.parameters(), lr=2e-3, rank=RANK)
tokens = torch.randint(0, 200, (50000,)).cumsum(0) % VOCAB
for step in range(60):
    at = torch.randint(0, len(tokens) - SEQ - 1, (BATCH,))
    chunk = torch.stack([tokens[a:a + SEQ + 1] for a in at.tolist()])
    loss = F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
print("loss", round(loss.item(), 3))
