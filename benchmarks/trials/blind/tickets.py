import random
import torch
import torch.nn as nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

random.seed(5)
torch.manual_seed(5)

MAX_LEN = 192
WORDS = [f"w{i}" for i in range(3000)]
VOCAB = {"<pad>": 0, **{w: i + 1 for i, w in enumerate(WORDS)}}
QUEUES = 6

def fake_ticket():
    queue = random.randrange(QUEUES)
    words = random.choices(WORDS[queue * 400:queue * 400 + 900], k=random.randint(8, 40))
    return " ".join(words), queue

tickets = [fake_ticket() for _ in range(1600)]

def collate(batch):
    encoded = [[VOCAB[w] for w in text.split()][:MAX_LEN] for text, _ in batch]
    width = MAX_LEN
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    for i, e in enumerate(encoded):
        ids[i, :len(e)] = torch.tensor(e)
    return ids, torch.tensor([q for _, q in batch])

class TicketRouter(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB), d, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(MAX_LEN, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(d, QUEUES)

    def forward(self, ids):
        mask = ids == 0
        h = self.encoder(self.emb(ids) + self.pos[:ids.shape[1]], src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1)
        return self.out((h * keep).sum(1) / keep.sum(1))

loader = DataLoader(tickets, batch_size=16, shuffle=True, collate_fn=collate)
model = TicketRouter()
opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(1):
    for step, (ids, queue) in enumerate(loader):
        loss = loss_fn(model(ids), queue)
        opt.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0:
            print(f"{epoch}/{step} loss {loss.item():.4f}")
print("last loss", loss.item())
