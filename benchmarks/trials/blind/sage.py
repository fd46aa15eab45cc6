import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
rng = np.random.default_rng(0)

NUM_NODES, NUM_EDGES, NUM_CLASSES, DIM = 20000, 200000, 12, 128
edge_index = np.stack([rng.integers(0, NUM_NODES, NUM_EDGES), rng.integers(0, NUM_NODES, NUM_EDGES)])
labels = torch.from_numpy(rng.integers(0, NUM_CLASSES, NUM_NODES))
features = torch.randn(NUM_NODES, DIM) + F.one_hot(labels, DIM).float() * 2


class NeighborSampler:
    def __init__(self, edge_index, fanout):
        self.src, self.dst = edge_index
        self.fanout = fanout

    def neighbors(self, node):
        return self.src[self.dst == node]

    def sample(self, nodes):
        out = np.empty((len(nodes), self.fanout), dtype=np.int64)
        for i, node in enumerate(nodes):
            nbrs = self.neighbors(node)
            out[i] = rng.choice(nbrs, self.fanout) if len(nbrs) else node
        return out


class SAGE(nn.Module):
    def __init__(self, dim, hidden, classes):
        super().__init__()
        self.conv1 = nn.Linear(2 * dim, hidden)
        self.conv2 = nn.Linear(2 * hidden, classes)

    def forward(self, x0, x1, x2):
        # x0: [B, D], x1: [B, K, D], x2: [B, K, K, D]
        h0 = F.relu(self.conv1(torch.cat([x0, x1.mean(1)], -1)))
        h1 = F.relu(self.conv1(torch.cat([x1, x2.mean(2)], -1)))
        return self.conv2(torch.cat([h0, h1.mean(1)], -1))


sampler = NeighborSampler(edge_index, fanout=6)
model = SAGE(DIM, 512, NUM_CLASSES)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)

losses = []
for step in range(220):
    seeds = rng.integers(0, NUM_NODES, 64)
    hop1 = sampler.sample(seeds)
    hop2 = sampler.sample(hop1.reshape(-1)).reshape(64, 6, 6)
    x0, x1, x2 = (features[torch.from_numpy(n)] for n in (seeds, hop1, hop2))
    loss = F.cross_entropy(model(x0, x1, x2), labels[torch.from_numpy(seeds)])
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
print(f"first {losses[0]:.4f} last {np.mean(losses[-20:]):.4f}")
