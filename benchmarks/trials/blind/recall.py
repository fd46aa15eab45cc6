import torch
import torch.nn as nn

torch.manual_seed(5)

N_ITEMS, DIM, K = 60000, 64, 20


class UserTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(DIM, 128, batch_first=True)
        self.proj = nn.Linear(128, DIM)

    def forward(self, history):
        _, h = self.rnn(history)
        return nn.functional.normalize(self.proj(h[-1]), dim=-1)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.user = UserTower()

    def forward(self, history):
        u = self.user(self.items(history))
        return u @ self.items.weight.T


def recall_at_k(scores, target, k):
    ranked = torch.argsort(scores, dim=1, descending=True)[:, :k]
    return (ranked == target[:, None]).any(1).float()


def test_users(n_batches, batch_size=16, length=30):
    gen = torch.Generator().manual_seed(11)
    for _ in range(n_batches):
        history = torch.randint(0, N_ITEMS, (batch_size, length), generator=gen)
        yield history, history[:, -1]


model = Retriever().eval()
hits = []
with torch.no_grad():
    for history, target in test_users(75):
        scores = model(history)
        hits.append(recall_at_k(scores, target, K))
hits = torch.cat(hits)
print(f"recall@{K}: {hits.mean().item():.5f} over {len(hits)} users")
