import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data as data

torch.manual_seed(7)
rng = np.random.default_rng(7)

N_ROWS, N_NUM, N_CAT = 120_000, 28, 6
EPOCHS = 6


class LoanDataset(data.Dataset):
    def __init__(self):
        num = rng.standard_normal((N_ROWS, N_NUM)).astype(np.float32)
        cat = rng.integers(0, 50, (N_ROWS, N_CAT))
        logit = num[:, :4].sum(1) + 0.1 * (cat[:, 0] - 25)
        self.num = torch.from_numpy(num)
        self.cat = torch.from_numpy(cat)
        self.target = torch.from_numpy((logit > 0).astype(np.float32))

    def __len__(self):
        return self.target.shape[0]

    def __getitem__(self, i):
        return self.num[i], self.cat[i], self.target[i]


class DefaultNet(nn.Module):
    def __init__(self, dim=8, hidden=128):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(50, dim) for _ in range(N_CAT))
        self.mlp = nn.Sequential(
            nn.Linear(N_NUM + N_CAT * dim, hidden), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, num, cat):
        e = [emb(cat[:, j]) for j, emb in enumerate(self.emb)]
        return self.mlp(torch.cat([num] + e, dim=1)).squeeze(1)


train = LoanDataset()
loader = data.DataLoader(train, batch_size=1024, shuffle=True, drop_last=True)
model = DefaultNet()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(EPOCHS):
    total = torch.zeros(())
    for num, cat, target in loader:
        loss = F.binary_cross_entropy_with_logits(model(num, cat), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    print(f"epoch {epoch} loss {total.item() / len(loader):.4f}")
