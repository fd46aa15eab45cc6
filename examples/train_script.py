"""An ordinary training script that knows nothing of bottleneck: argparse, a DataLoader, epochs, a printed loss.

Expected verdict: overhead. The network is small and the batches are assembled one sample at a time in Python, so the
processor spends its time between the operations rather than in them. `bottleneck run examples/train_script.py --epochs
2` finds the steps by watching the optimizer.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    images = torch.randn(4096, 1, 28, 28)
    labels = (images.mean(dim=(1, 2, 3)) > 0).long()
    loader = DataLoader(TensorDataset(images, labels), batch_size=arguments.batch_size, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(arguments.epochs):
        total = 0.0
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), wanted)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
