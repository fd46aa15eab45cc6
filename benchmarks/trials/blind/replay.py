import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(29)
rng = np.random.default_rng(29)
OBS, ACTIONS, CAPACITY, BATCH = 96, 6, 100_000, 256
STEPS = 300

dynamics = rng.standard_normal((ACTIONS, OBS, OBS)).astype(np.float32) / OBS ** 0.5
def env_step(s, a):
    nxt = np.tanh(dynamics[a] @ s + 0.05 * rng.standard_normal(OBS).astype(np.float32))
    return nxt, float(nxt[:8].mean())

class Memory:
    def __init__(self):
        self.s = rng.standard_normal((CAPACITY, OBS)).astype(np.float32)
        self.a = rng.integers(0, ACTIONS, CAPACITY)
        self.ns = np.empty_like(self.s)
        for k in range(ACTIONS):
            rows = self.a == k
            self.ns[rows] = np.tanh(self.s[rows] @ dynamics[k].T)
        self.r = self.ns[:, :8].mean(1)
        self.count = 0
    def push(self, s, a, r, ns):
        for name, value in (("s", s), ("a", a), ("r", r), ("ns", ns)):
            column = np.roll(getattr(self, name), -1, axis=0)
            column[-1] = value
            setattr(self, name, column)
        self.count += 1
    def sample(self):
        idx = rng.integers(0, CAPACITY, BATCH)
        return [torch.from_numpy(v[idx]) for v in (self.s, self.a, self.r, self.ns)]

def q_net():
    return nn.Sequential(nn.Linear(OBS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, ACTIONS))

online, target = q_net(), q_net()
target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), lr=5e-4)
memory = Memory()
state, returns = rng.standard_normal(OBS).astype(np.float32), 0.0
for step in range(STEPS):
    with torch.no_grad():
        action = int(online(torch.from_numpy(state)).argmax()) if rng.random() > 0.1 else int(rng.integers(ACTIONS))
    nxt, reward = env_step(state, action)
    memory.push(state, action, reward, nxt)
    state, returns = nxt, returns + reward
    s, a, r, ns = memory.sample()
    with torch.no_grad():
        goal = r + 0.97 * target(ns).max(1).values
    q = online(s).gather(1, a.unsqueeze(1)).squeeze(1)
    loss = F.smooth_l1_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        target.load_state_dict(online.state_dict())
print(f"return {returns:.3f} loss {loss.item():.5f}")
