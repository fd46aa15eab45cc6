import torch
from torch import nn

torch.manual_seed(3)
VOCAB, DIM, LENGTH, MASK = 12000, 128, 128, 1


class Encoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(LENGTH, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth)
        self.norm = nn.LayerNorm(DIM)
        self.decoder = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h = self.layers(self.tok(ids) + self.pos)
        return self.norm(h)


def corrupt(ids, rate=0.15):
    picked = torch.rand(ids.shape) < rate
    labels = ids.masked_fill(~picked, -100)
    return ids.masked_fill(picked, MASK), labels


corpus = torch.randint(5, VOCAB, (4000, LENGTH))
corpus[:, 1::2] = corpus[:, ::2]
model = Encoder()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for step in range(90):
    ids, labels = corrupt(corpus[torch.randint(0, len(corpus), (4,))])
    hidden = model(ids)
    logits = model.decoder(hidden)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())
print("masked lm loss", sum(history[-20:]) / len(history[-20:]))
