import collections
import random
import re
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
random.seed(1)
torch.manual_seed(1)
EPOCHS = 8
WORDS = ["".join(random.choices("abcdefghijklmnoprstuvw", k=random.randint(3, 9))) for _ in range(9000)]
WEIGHTS = [1 / (r + 20) for r in range(len(WORDS))]


def make_reviews(n):
    rows = []
    for _ in range(n):
        words = random.choices(WORDS, WEIGHTS, k=48)
        rows.append((" ".join(words), int(words.count(WORDS[0]) + words.count(WORDS[2]) > 0)))
    return rows

def tokenize(text):
    return re.findall(r"\w+", text.lower())

class ReviewDataset(Dataset):
    def __init__(self, rows, vocab, max_len=48):
        self.rows, self.vocab, self.max_len = rows, vocab, max_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text, label = self.rows[i]
        ids = [self.vocab.index(w) if w in self.vocab else 1 for w in tokenize(text)]
        return torch.tensor(ids[:self.max_len]), label

class Classifier(nn.Module):
    def __init__(self, n_vocab, dim=64):
        super().__init__()
        self.emb = nn.Embedding(n_vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids)).mean(1))


rows = make_reviews(640)
counts = collections.Counter(w for text, _ in rows for w in tokenize(text))
vocab = ["<pad>", "<unk>"] + [w for w, c in counts.most_common() if c > 1]
loader = DataLoader(ReviewDataset(rows, vocab), batch_size=32, shuffle=True)
model = Classifier(len(vocab))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    for ids, labels in loader:
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("loss", round(loss.item(), 4))
