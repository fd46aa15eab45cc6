import numpy as np
import torch
from torch import nn

torch.manual_seed(3)

DIM = 256
N_ITEMS = 5000
N_QUERIES = 150


class CrossScorer(nn.Module):
    """Scores a (query, item) pair; weights come from the offline job."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(3 * dim)
        self.net = nn.Sequential(
            nn.Linear(3 * dim, 768), nn.GELU(),
            nn.Linear(768, 512), nn.GELU(),
            nn.Linear(512, 128), nn.GELU(),
            nn.Linear(128, 1),
        )

    def forward(self, pair):
        return self.net(self.norm(pair))


item_vectors = torch.randn(N_ITEMS, DIM)
query_vectors = torch.randn(N_QUERIES, DIM)
model = CrossScorer(DIM).eval()


def retrieve(query, k=200):
    return torch.topk(item_vectors @ query, k).indices


def make_pairs(query, ids):
    items = item_vectors[ids]
    q = query.expand_as(items)
    return torch.cat([q, items, q * items], dim=1)


@torch.inference_mode()
def rank(query):
    ids = retrieve(query)
    pairs = make_pairs(query, ids)
    scores = []
    for pair in pairs:
        scores.append(model(pair.unsqueeze(0)).item())
    order = np.argsort(scores)[::-1][:10]
    return ids[order.copy()], np.asarray(scores)[order]


top = []
for q in range(N_QUERIES):
    ids, scores = rank(query_vectors[q])
    top.append(scores[0])
print(f"ranked {len(top)} queries, mean top score {np.mean(top):.4f}")
