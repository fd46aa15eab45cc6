import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
VOCAB, LENGTH, DIM, HID, BATCH = 3000, 32, 128, 64, 16


class ArcScorer(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.proj = nn.Linear(2 * dim, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, h):
        n = h.size(1)
        head = h.unsqueeze(1).expand(-1, n, -1, -1)
        dep = h.unsqueeze(2).expand(-1, -1, n, -1)
        pair = self.proj(torch.cat([dep, head], dim=-1))
        return self.out(F.relu(pair)).squeeze(-1)


class Parser(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 64)
        self.rnn = nn.GRU(64, DIM // 2, batch_first=True, bidirectional=True)
        self.arcs = ArcScorer(DIM, HID)

    def forward(self, words):
        h, _ = self.rnn(self.emb(words))
        return self.arcs(h)


def sentences(gen):
    words = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=gen)
    heads = (torch.arange(LENGTH) - 1).clamp(min=0).expand(BATCH, -1).clone()
    noisy = words % 7 == 0
    heads[noisy] = 0
    return words, heads


model = Parser()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(11)
for step in range(200):
    words, heads = sentences(gen)
    scores = model(words)
    loss = F.cross_entropy(scores.flatten(0, 1), heads.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    if step % 50 == 0:
        print(step, round(loss.item(), 4))
uas = (scores.argmax(-1) == heads).float().mean().item()
print(f"UAS {uas:.3f}")
