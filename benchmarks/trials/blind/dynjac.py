import torch
from torch import nn
import torch.nn.functional as F
from torch.autograd.functional import jacobian

torch.manual_seed(4)
STATE, CTRL = 6, 2


class Dynamics(nn.Module):
    def __init__(self, hidden=160):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE + CTRL, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, STATE))

    def forward(self, xu):
        return xu[:, :STATE] + 0.1 * self.net(xu)


def local_linear(model, xu):
    J = jacobian(model, xu, create_graph=True)
    return torch.diagonal(J, dim1=0, dim2=2).permute(2, 0, 1)


A = torch.eye(STATE) + 0.05 * torch.randn(STATE, STATE)
B = 0.2 * torch.randn(STATE, CTRL)


def simulate(n):
    xu = torch.randn(n, STATE + CTRL)
    nxt = torch.sin(xu[:, :STATE] @ A.T) + xu[:, STATE:] @ B.T
    return xu, nxt


model = Dynamics()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
history = []
for step in range(100):
    xu, nxt = simulate(48)
    fit = F.mse_loss(model(xu), nxt)
    jac = local_linear(model, xu)
    # keep the linearised model well conditioned for the controller
    smooth = jac[:, :, :STATE].pow(2).sum((1, 2)).mean()
    gain = jac[:, :, STATE:].pow(2).sum((1, 2)).mean()
    loss = fit + 1e-3 * smooth + 1e-3 * gain
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(fit.item())

print(f"fit {sum(history[-10:]) / 10:.5f} smooth {smooth.item():.4f}")
