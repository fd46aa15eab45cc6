import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

torch.manual_seed(2)
CLIPS, MELS, FRAMES, WORDS = 1600, 40, 49, 10
STEPS, BATCH = 60, 32

def prepare(path):
    rng = np.random.default_rng(2)
    word = rng.integers(0, WORDS, CLIPS)
    mel = rng.normal(size=(CLIPS, MELS, FRAMES)).astype(np.float32)
    mel[np.arange(CLIPS), word * 4] += 1.0
    np.savez(path, mel=mel, word=word)

class SpeechCommands(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.size = len(self.archive["word"])
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        mel = torch.from_numpy(self.archive["mel"][i])
        word = int(self.archive["word"][i])
        return (mel - mel.mean()) / (mel.std() + 1e-5), word

class KWSNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(MELS, 96, 5, padding=2), nn.BatchNorm1d(96), nn.ReLU(),
            nn.Conv1d(96, 128, 5, stride=2, padding=2), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Conv1d(128, 128, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, WORDS))
    def forward(self, x):
        return self.body(x)

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "speech.npz")
    prepare(path)
    dataset = SpeechCommands(path)
    order = RandomSampler(dataset, replacement=True, num_samples=STEPS * BATCH)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=order)
    model = KWSNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    hits = n = 0
    for mel, word in loader:
        logits = model(mel)
        loss = loss_fn(logits, word)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (logits.argmax(1) == word).sum().item()
        n += len(word)
print(f"{n} clips, accuracy {hits / n:.3f}")
