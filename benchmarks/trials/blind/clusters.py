# deep embedded clustering on pre-extracted features
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)

N, D_IN, D_Z, K = 16384, 128, 48, 160
protos = torch.randn(K, D_IN) * 2
features = protos[torch.randint(0, K, (N,))] + torch.randn(N, D_IN)


class DEC(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(D_IN, 256), nn.ReLU(), nn.Linear(256, D_Z))
        self.decoder = nn.Sequential(nn.Linear(D_Z, 256), nn.ReLU(), nn.Linear(256, D_IN))
        self.centers = nn.Parameter(torch.randn(K, D_Z))

    def soft_assign(self, z):
        # Student's t kernel
        d2 = ((z.unsqueeze(1) - self.centers.unsqueeze(0)) ** 2).sum(dim=2)
        q = 1.0 / (1.0 + d2)
        return q / q.sum(1, keepdim=True)

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z), self.soft_assign(z)


def target_distribution(q):
    w = q ** 2 / q.sum(0)
    return (w / w.sum(1, keepdim=True)).detach()


model = DEC()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(280):
    x = features[torch.randint(0, N, (512,))]
    recon, q = model(x)
    loss = F.mse_loss(recon, x) + 0.1 * F.kl_div(q.log(), target_distribution(q), reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print("used clusters:", q.argmax(1).unique().numel(), "loss", round(loss.item(), 4))
