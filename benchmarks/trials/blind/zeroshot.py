import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
VOCAB, CTX, WIDTH, CLASSES, BATCH = 1000, 16, 128, 120, 32


class TextTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(torch.randn(CTX, WIDTH) * 0.01)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 3)
        self.proj = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, ids):
        h = self.enc(self.tok(ids) + self.pos)
        return F.normalize(self.proj(h[:, -1]), dim=-1)


class ImageTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=4), nn.GELU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.GELU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 64, bias=False))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = ImageTower(), TextTower()
        self.scale = nn.Parameter(torch.tensor(20.0))

    def forward(self, images, prompts):
        return self.scale * self.image(images) @ self.text(prompts).T


model = DualEncoder().eval()
prompts = torch.randint(0, VOCAB, (CLASSES, CTX))
counts = torch.zeros(CLASSES)
conf = 0.0
steps = 200
with torch.inference_mode():
    for i in range(steps):
        images = torch.rand(BATCH, 3, 64, 64)
        probs = model(images, prompts).softmax(-1)
        top = probs.max(-1)
        counts += torch.bincount(top.indices, minlength=CLASSES)
        conf += top.values.mean().item()
print(f"mean confidence {conf / steps:.4f}, classes hit {(counts > 0).sum().item()}")
