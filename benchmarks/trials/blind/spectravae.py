import torch
import torch.nn as nn
from torch.distributions import MultivariateNormal, kl_divergence

torch.manual_seed(13)

BINS, LATENT = 512, 64


class SpectrumVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(BINS, 512), nn.SiLU(), nn.Linear(512, 256), nn.SiLU())
        self.mu = nn.Linear(256, LATENT)
        self.log_std = nn.Linear(256, LATENT)
        self.dec = nn.Sequential(nn.Linear(LATENT, 256), nn.SiLU(), nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, BINS))

    def posterior(self, x):
        h = self.enc(x)
        std = self.log_std(h).clamp(-5, 2).exp()
        return MultivariateNormal(self.mu(h), torch.diag_embed(std ** 2))

    def prior(self, n):
        return MultivariateNormal(torch.zeros(n, LATENT), torch.eye(LATENT).expand(n, -1, -1))

    def forward(self, x):
        q = self.posterior(x)
        z = q.rsample()
        rec = self.dec(z)
        kl = kl_divergence(q, self.prior(len(x)))
        return rec, kl


model = SpectrumVAE()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
freq = torch.linspace(0, 1, BINS)
peaks = torch.rand(4000, 3, 1)
data = torch.exp(-((freq - peaks) ** 2) / 0.001).sum(1) + 0.02 * torch.randn(4000, BINS)

for step in range(120):
    x = data[torch.randint(0, len(data), (256,))]
    rec, kl = model(x)
    recon = ((rec - x) ** 2).sum(1)
    loss = (recon + 0.1 * kl).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
print(f"recon {recon.mean().item():.3f} kl {kl.mean().item():.3f}")
