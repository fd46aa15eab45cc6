import torch
from torch import nn

torch.manual_seed(2)
N_ITEMS, DIM, TOP = 80_000, 64, 20


class SessionGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.gru = nn.GRU(DIM, 128, batch_first=True)
        self.proj = nn.Linear(128, DIM)

    def encode(self, history):
        _, h = self.gru(self.items(history))
        return self.proj(h[-1])

    def recommend(self, history, k):
        scores = self.encode(history) @ self.items.weight.t()
        # never recommend what was already seen
        scores.scatter_(1, history, float("-inf"))
        ranked = torch.argsort(scores, dim=1, descending=True)
        return ranked[:, :k]


model = SessionGRU().eval()
sessions = torch.randint(0, N_ITEMS, (4000, 31))
recall, mrr, n = 0, 0.0, 0
with torch.inference_mode():
    for step in range(80):
        batch = sessions[step * 16 : (step + 1) * 16]
        history, target = batch[:, :-1], batch[:, -1]
        top = model.recommend(history, TOP)
        match = top == target.unsqueeze(1)
        recall += match.any(1).sum().item()
        ranks = match.float().argmax(1) + 1
        mrr += (match.any(1).float() / ranks).sum().item()
        n += len(batch)

print(f"recall@{TOP} {recall / n:.4f} mrr {mrr / n:.4f} last {top[0, :3].tolist()}")
