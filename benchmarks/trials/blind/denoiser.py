import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(7)


class Monitor:
    def __init__(self, bins=64):
        self.bins = bins
        self.records = []

    def log(self, model, step):
        for name, p in model.named_parameters():
            for kind, t in (("weight", p), ("grad", p.grad)):
                values = t.detach().cpu().numpy().ravel()
                counts, edges = np.histogram(values, bins=self.bins)
                q = np.percentile(values, [1, 50, 99])
                self.records.append((step, name, kind, counts, edges, q))


class Denoiser(nn.Module):
    def __init__(self, frames=257, hidden=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(frames, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, frames), nn.Sigmoid(),
        )

    def forward(self, mag):
        return mag * self.net(mag.log1p())


clean = torch.rand(4096, 257) * torch.linspace(2, 0.1, 257)
noisy = clean + 0.3 * torch.rand(4096, 257)

model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
monitor = Monitor()
for step in range(120):
    idx = torch.randint(0, len(clean), (256,))
    loss = nn.functional.l1_loss(model(noisy[idx]), clean[idx])
    optimizer.zero_grad()
    loss.backward()
    monitor.log(model, step)
    optimizer.step()
    if step % 40 == 0:
        print(step, round(loss.item(), 4))
print("loss", round(loss.item(), 5))
