import gc
import random

import torch
import torch.nn as nn

random.seed(8)
torch.manual_seed(8)

VOCAB, STEPS = 2000, 70


def load_annotations(n):
    return [
        {
            "image_id": i,
            "bbox": [random.random() for _ in range(4)],
            "tokens": [random.randrange(VOCAB) for _ in range(16)],
            "meta": {"source": "web", "tags": ["train", str(i % 10)]},
        }
        for i in range(n)
    ]


class Captioner(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.box = nn.Linear(4, dim)
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, box, tokens):
        h0 = self.box(box).unsqueeze(0)
        h, _ = self.rnn(self.emb(tokens), h0)
        return self.out(h)


annotations = load_annotations(8000)
model = Captioner()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

history = []
for step in range(STEPS):
    batch = random.sample(annotations, 32)
    box = torch.tensor([a["bbox"] for a in batch])
    tokens = torch.tensor([a["tokens"] for a in batch])
    logits = model(box, tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    del logits, loss, box, tokens
    gc.collect()
print("loss", round(sum(history[-5:]) / len(history[-5:]), 4))
