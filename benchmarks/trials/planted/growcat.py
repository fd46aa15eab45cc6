# Scores a test set and keeps the embeddings for a nearest-neighbour index
import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1024)).eval()
data = torch.randn(300, 64, 256)
index = torch.empty(0, 1024)

with torch.no_grad():
    for batch in data:
        embedding = encoder(batch)
        embedding = embedding / embedding.norm(dim=1, keepdim=True)
        index = torch.cat([index, embedding])
print("index of", tuple(index.shape))
