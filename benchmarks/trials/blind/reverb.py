import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)

SR = 16000
NUM_COMMANDS = 10


def make_rooms(n, seconds=0.1):
    t = torch.arange(int(SR * seconds)) / SR
    rt = torch.rand(n, 1) * 0.2 + 0.1
    ir = torch.randn(n, len(t)) * torch.exp(-6.9 * t / rt)
    ir[:, 0] = 1.0
    return ir / ir.norm(dim=1, keepdim=True)


class Reverberate:
    def __init__(self, rooms):
        self.rooms = rooms

    def __call__(self, wav):
        ir = self.rooms[torch.randint(0, len(self.rooms), (1,))]
        n = ir.shape[-1]
        wet = F.conv1d(F.pad(wav.unsqueeze(1), (n - 1, 0)), ir.flip(-1).unsqueeze(0)).squeeze(1)
        return wet / wet.abs().amax(dim=1, keepdim=True)


class CommandNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.body = nn.Sequential(
            nn.Conv1d(201, 96, 3, padding=1), nn.BatchNorm1d(96), nn.ReLU(),
            nn.Conv1d(96, 96, 3, stride=2, padding=1), nn.BatchNorm1d(96), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, NUM_COMMANDS))

    def forward(self, wav):
        spec = torch.stft(wav, 400, 160, window=self.window, return_complex=True).abs()
        return self.body(torch.log1p(spec))


clips = torch.randn(200, SR)
targets = torch.randint(0, NUM_COMMANDS, (200,))
augment = Reverberate(make_rooms(40))
net = CommandNet()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

for step in range(80):
    pick = torch.randint(0, len(clips), (12,))
    wav = augment(clips[pick])
    loss = F.cross_entropy(net(wav), targets[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
print("done", round(loss.item(), 4))
