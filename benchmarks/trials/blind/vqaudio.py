import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)


class Quantizer(nn.Module):
    def __init__(self, n_codes=512, dim=64, beta=0.25):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        self.codebook.weight.data.uniform_(-1 / n_codes, 1 / n_codes)
        self.beta = beta

    @torch.no_grad()
    def assign(self, flat):
        d = (flat[:, None, :] - self.codebook.weight[None, :, :]).pow(2).sum(-1)
        return d.argmin(1)

    def forward(self, z):
        flat = z.transpose(1, 2).reshape(-1, z.size(1))
        codes = self.assign(flat)
        q = self.codebook(codes)
        loss = F.mse_loss(q, flat.detach()) + self.beta * F.mse_loss(flat, q.detach())
        q = flat + (q - flat).detach()
        return q.view(z.size(0), -1, z.size(1)).transpose(1, 2), loss, codes


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(1, 32, 8, 4, 2), nn.ReLU(),
            nn.Conv1d(32, 64, 8, 4, 2), nn.ReLU(),
            nn.Conv1d(64, 64, 3, 1, 1))
        self.vq = Quantizer()
        self.dec = nn.Sequential(
            nn.ConvTranspose1d(64, 32, 8, 4, 2), nn.ReLU(),
            nn.ConvTranspose1d(32, 1, 8, 4, 2))

    def forward(self, wav):
        q, vq_loss, codes = self.vq(self.enc(wav))
        return self.dec(q), vq_loss, codes


model = VQVAE()
opt = torch.optim.Adam(model.parameters(), lr=2e-4)
t = torch.arange(2048) / 16000
used = set()
for step in range(90):
    f0 = torch.rand(6, 1, 1) * 400 + 80
    wav = torch.sin(2 * torch.pi * f0 * t) + 0.3 * torch.sin(4 * torch.pi * f0 * t) + 0.02 * torch.randn(6, 1, 2048)
    recon, vq_loss, codes = model(wav)
    loss = F.mse_loss(recon, wav) + vq_loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    used.update(codes.unique().tolist())

print(f"loss {loss.item():.4f} codes used {len(used)}")
