import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations

torch.manual_seed(21)


class OrthoRNN(nn.Module):
    """Long-memory RNN with an orthogonal hidden-to-hidden map."""

    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.rec = parametrizations.orthogonal(nn.Linear(hidden, hidden, bias=False))
        self.bias = nn.Parameter(torch.full((hidden,), -0.01))
        self.head = nn.Linear(hidden, n_out)
        self.hidden = hidden

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        z = self.inp(x)
        for t in range(x.shape[1]):
            pre = z[:, t] + self.rec(h)
            h = pre.sign() * F.relu(pre.abs() + self.bias)
        return self.head(h)


def copy_first(batch, length):
    x = torch.randn(batch, length, 8)
    return x, x[:, 0].argmax(1)


model = OrthoRNN(8, 128, 8)
opt = torch.optim.RMSprop(model.parameters(), lr=5e-4)
hits = 0.0
for step in range(60):
    x, y = copy_first(128, 40)
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    hits = 0.9 * hits + 0.1 * (logits.argmax(1) == y).float().mean().item()
print(f"loss {loss.item():.4f} acc {hits:.3f}")
