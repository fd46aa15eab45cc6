# A small transformer encoder for sequence classification
import math

import torch
from torch import nn

torch.manual_seed(0)
LENGTH, WIDTH, MOST = 48, 128, 5000


class PositionalEncoding(nn.Module):
    def forward(self, x):
        position = torch.arange(MOST).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        table = torch.zeros(MOST, WIDTH)
        table[:, 0::2] = torch.sin(position * frequency)
        table[:, 1::2] = torch.cos(position * frequency)
        return x + table[: x.shape[1]]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.position = PositionalEncoding()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, 256, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens):
        return self.head(self.encoder(self.position(self.embed(tokens))).mean(1))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(300):
    tokens, labels = torch.randint(0, 1000, (8, LENGTH)), torch.randint(0, 5, (8,))
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
