import random

import torch
from torch import nn
import torch.nn.functional as F

random.seed(1)
torch.manual_seed(1)

letters = "abcdefghijklmnopqrstuvwxyz"
pieces = ["[PAD]", "[UNK]"] + list(letters)
pieces += sorted({"".join(random.choices(letters, k=random.randint(2, 4))) for _ in range(6000)})
vocab = {p: i for i, p in enumerate(pieces)}
lexicon = ["".join(random.choices(pieces[28:], k=random.randint(2, 8))) for _ in range(5000)]
reviews = [" ".join(random.choices(lexicon, k=90)) for _ in range(1500)]
labels = [random.randint(0, 1) for _ in reviews]
max_len = 256

def word_to_ids(word):
    ids, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start and word[start:end] not in vocab:
            end -= 1
        if end == start:
            return (vocab["[UNK]"],)
        ids.append(vocab[word[start:end]])
        start = end
    return tuple(ids)

def encode(text):
    ids = []
    for word in text.lower().split():
        ids.extend(word_to_ids(word))
    return ids[:max_len] + [0] * (max_len - len(ids))

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(vocab), 32, padding_idx=0)
        self.conv = nn.Conv1d(32, 48, 5, padding=2)
        self.out = nn.Linear(48, 2)

    def forward(self, ids):
        x = self.conv(self.emb(ids).transpose(1, 2)).relu()
        return self.out(x.amax(-1))
model = Classifier()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
acc = 0.5
for step in range(280):
    picks = random.sample(range(len(reviews)), 24)
    ids = torch.tensor([encode(reviews[i]) for i in picks])
    y = torch.tensor([labels[i] for i in picks])
    logits = model(ids)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    acc = 0.95 * acc + 0.05 * (logits.argmax(-1) == y).float().mean().item()
print(f"loss {loss.item():.4f} acc {acc:.3f}")
