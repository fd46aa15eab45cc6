import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
VOCAB, SEQ, DIM, CLASSES = 10000, 64, 192, 6


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(SEQ, DIM) / math.sqrt(DIM))
        layer = nn.TransformerEncoderLayer(DIM, 6, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.tok(ids) + self.pos)


class IntentClassifier(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, CLASSES))

    def forward(self, ids):
        hidden = self.encoder(ids)
        return self.head(hidden.mean(dim=1))


def batches(n, size=16):
    for _ in range(n):
        y = torch.randint(0, CLASSES, (size,))
        ids = torch.randint(0, VOCAB, (size, SEQ))
        ids[:, :20] = y[:, None] * 50 + torch.randint(0, 50, (size, 20))
        yield ids, y


encoder = Encoder()
model = IntentClassifier(encoder)
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))

seen = correct = 0
for ids, y in batches(80):
    logits = model(ids)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    correct += (logits.argmax(-1) == y).sum().item()
    seen += len(y)
print(f"train acc {correct / seen:.3f}  last loss {loss.item():.4f}")
