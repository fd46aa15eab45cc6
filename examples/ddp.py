"""Data-parallel training on several ranks, on the CPU by gloo; one of them may be given more work than the others.

Expected verdict: overhead, and with `--slow-rank` a first sentence that names this rank and how long the others wait
for it in collectives. `bottleneck run --nproc-per-node 2 examples/ddp.py --slow-rank 1`
"""

import argparse
import os
import time

import torch
from torch import distributed, nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-ms", type=float, default=20.0, help="what reading a batch takes longer on that rank")
    arguments = parser.parse_args()

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    delay_s = arguments.slow_ms / 1e3 if rank == arguments.slow_rank else 0.0
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    total = 0.0
    for _ in range(arguments.steps):
        batch, wanted = read_batch(delay_s)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), wanted)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"rank {rank} of {os.environ['WORLD_SIZE']}: loss {total / arguments.steps:.4f}")
    distributed.barrier()  # torch 2.13 can lock up where a group is destroyed right after its last collective
    distributed.destroy_process_group()


def read_batch(delay_s: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A random batch with its labels, after as long as a slow disk would take."""
    time.sleep(delay_s)
    batch = torch.randn(256, 64)
    return batch, batch[:, :4].argmax(dim=1)


if __name__ == "__main__":
    main()
