import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
DIM, HIDDEN, EXPERTS, CLASSES = 256, 512, 8, 20
STEPS = 110

class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, HIDDEN)
        self.down = nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))

class SwitchLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.router = nn.Linear(DIM, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        h = self.norm(x)
        gate, choice = self.router(h).softmax(-1).max(-1)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            picked = (choice == e).unsqueeze(-1)
            out = out + torch.where(picked, expert(h), 0.0)
        return x + gate.unsqueeze(-1) * out

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(64, DIM)
        self.layers = nn.ModuleList(SwitchLayer() for _ in range(2))
        self.out = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)

centers = torch.randn(CLASSES, 64)
model = Classifier()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(STEPS):
    y = torch.randint(0, CLASSES, (384,))
    x = centers[y] + 0.8 * torch.randn(384, 64)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
print(f"final loss {loss.item():.4f}")
