import torch
from torch import nn

torch.manual_seed(6)
RATE = 16000
CLIP, TAIL = 4 * RATE, RATE // 2


def room_response():
    t = torch.arange(TAIL) / RATE
    decay = torch.exp(-t * torch.empty(1).uniform_(8, 20))
    h = torch.randn(TAIL) * decay
    h[0] = 1.0
    return h / h.norm()


def add_reverb(wave, response):
    n = wave.shape[-1] + response.shape[-1] - 1
    spectrum = torch.fft.rfft(wave, n=n) * torch.fft.rfft(response, n=n)
    return torch.fft.irfft(spectrum, n=n)[..., :wave.shape[-1]]


class KeywordNet(nn.Module):
    def __init__(self, words=10):
        super().__init__()
        self.front = nn.Conv1d(1, 16, 160, stride=80)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2), nn.ReLU(), nn.Conv1d(24, 32, 5, stride=2), nn.ReLU())
        self.out = nn.Linear(32, words)

    def forward(self, wave):
        h = self.body(self.front(wave.unsqueeze(1)))
        return self.out(h.mean(-1))


rooms = torch.stack([room_response() for _ in range(32)])
pitch = torch.arange(10) * 60.0 + 200.0
time = torch.arange(CLIP) / RATE
model = KeywordNet()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
correct = seen = 0
for step in range(110):
    label = torch.randint(0, 10, (16,))
    clean = torch.sin(6.2832 * pitch[label].unsqueeze(1) * time) + 0.1 * torch.randn(16, CLIP)
    noisy = add_reverb(clean, rooms[torch.randint(0, 32, (16,))])
    logit = model(noisy)
    loss = nn.functional.cross_entropy(logit, label)
    opt.zero_grad()
    loss.backward()
    opt.step()
    correct += int((logit.argmax(1) == label).sum())
    seen += len(label)
print("accuracy", correct / seen, "loss", loss.item())
