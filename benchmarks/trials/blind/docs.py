import multiprocessing as mp
from functools import partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, CLASSES, BATCH = 20_000, 100, 12, 64
STEPS = 60

torch.manual_seed(31)
rng = np.random.default_rng(31)
vectors = rng.standard_normal((VOCAB, DIM)).astype(np.float32)
idf = rng.gamma(2.0, 1.0, VOCAB).astype(np.float32)


def embed(words, table):
    ids, counts = np.unique(words, return_counts=True)
    weight = counts * idf[ids]
    vec = table[ids]
    mean = (vec * weight[:, None]).sum(0) / weight.sum()
    return np.concatenate([mean, vec.max(0), vec.std(0)]).astype(np.float32)


def make_batch():
    y = rng.integers(0, CLASSES, BATCH)
    return [(rng.zipf(1.3, 400) * (c + 3)) % VOCAB for c in y], torch.from_numpy(y)


def main():
    model = nn.Sequential(nn.Linear(3 * DIM, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, CLASSES))
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    with mp.get_context("fork").Pool(2) as pool:
        for step in range(STEPS):
            words, y = make_batch()
            x = torch.from_numpy(np.stack(pool.map(partial(embed, table=vectors), words)))
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
