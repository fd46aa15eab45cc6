import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)

NODES, CLASSES = 4000, 7


def build_graph(labels, degree=6):
    src = torch.arange(NODES).repeat_interleave(degree)
    order = labels.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(NODES)
    jump = torch.randint(-200, 201, (len(src),))
    dst = order[(rank[src] + jump) % NODES]
    adj = torch.zeros(NODES, NODES)
    adj[src, dst] = 1.0
    adj[dst, src] = 1.0
    adj.fill_diagonal_(1.0)
    d = adj.sum(1).pow(-0.5)
    return d[:, None] * adj * d[None, :]


class GCN(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.lin1 = nn.Linear(n_in, hidden)
        self.lin2 = nn.Linear(hidden, hidden)
        self.lin3 = nn.Linear(hidden, n_out)

    def forward(self, x, adj):
        x = F.relu(adj @ self.lin1(x))
        x = F.dropout(x, 0.3, self.training)
        x = F.relu(adj @ self.lin2(x))
        return adj @ self.lin3(x)


labels = torch.randint(0, CLASSES, (NODES,))
features = torch.randn(NODES, 256) + 0.3 * torch.randn(CLASSES, 256)[labels]
adj_norm = build_graph(labels)
train_mask = torch.rand(NODES) < 0.3

model = GCN(256, 64, CLASSES)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
for step in range(80):
    logits = model(features, adj_norm)
    loss = F.cross_entropy(logits[train_mask], labels[train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    pred = model(features, adj_norm).argmax(1)
print("test acc", (pred[~train_mask] == labels[~train_mask]).float().mean().item())
