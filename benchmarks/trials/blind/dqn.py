import copy
import gc
import random
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(4), np.random.seed(4), torch.manual_seed(4)

Transition = namedtuple("Transition", "state action reward next_state done info")
STATE, ACTIONS, CAPACITY, GAMMA = 48, 6, 25_000, 0.99

class Replay:
    def __init__(self, capacity):
        self.capacity, self.data, self.pos = capacity, [], 0

    def push(self, *args):
        if len(self.data) < self.capacity:
            self.data.append(None)
        self.data[self.pos] = Transition(*args)
        self.pos = (self.pos + 1) % self.capacity
    def sample(self, n):
        batch = Transition(*zip(*random.choices(self.data, k=n)))
        return (torch.from_numpy(np.stack(batch.state)), torch.tensor(batch.action),
                torch.tensor(batch.reward), torch.from_numpy(np.stack(batch.next_state)),
                torch.tensor(batch.done, dtype=torch.float32))

def transition(state):
    action = random.randrange(ACTIONS)
    nxt = (0.9 * state + 0.1 * np.random.randn(STATE)).astype(np.float32)
    return state, action, float(nxt[action]), nxt, random.random() < 0.01, {"lives": [3, 2], "t": 0}

def collect(state, n):
    for _ in range(n):
        item = transition(state)
        replay.push(*item)
        state = item[3]
    return state

replay = Replay(CAPACITY)
state = collect(np.zeros(STATE, dtype=np.float32), CAPACITY)
q = nn.Sequential(nn.Linear(STATE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS))
target = copy.deepcopy(q)
opt = torch.optim.Adam(q.parameters(), lr=3e-4)
for step in range(100):
    state = collect(state, 4)
    s, a, r, s2, d = replay.sample(256)
    with torch.no_grad():
        goal = r + GAMMA * (1 - d) * target(s2).max(1).values
    loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0: target.load_state_dict(q.state_dict())
    del s, a, r, s2, d, goal
    gc.collect()
print("td loss", round(loss.item(), 5))
