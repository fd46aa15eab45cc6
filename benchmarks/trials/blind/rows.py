import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.manual_seed(2)

EPOCHS = 6
BATCH = 2048

n = 81920
dense = torch.randn(n, 24)
sparse = torch.randint(0, 100, (n, 4))
clicked = ((dense[:, 0] + 0.5 * dense[:, 1] * dense[:, 2] + 0.3 * torch.randn(n)) > 0.4).float()


class ClickModel(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(100, dim) for _ in range(4)])
        self.mlp = nn.Sequential(
            nn.Linear(24 + 4 * dim, 128), nn.ReLU(),
            nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, dense, sparse):
        cols = [e(sparse[:, i]) for i, e in enumerate(self.emb)]
        return self.mlp(torch.cat([dense] + cols, dim=1)).squeeze(1)


train = TensorDataset(dense, sparse, clicked)
loader = DataLoader(train, batch_size=BATCH, shuffle=True, drop_last=True)
model = ClickModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(EPOCHS):
    running = 0.0
    for xd, xs, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(xd, xs), y)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(f"epoch {epoch}: {running / len(loader):.4f}")
