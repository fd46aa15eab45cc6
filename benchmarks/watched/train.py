"""Trains a small model for 2,000 steps of some milliseconds, with the faults that are named on its command line.

gc: a collection of much garbage at step 400. validation: a pass over other data at step 800. contention: at step 1,200
it asks the one who started it for other programs on its processors, and at step 1,300 for their end, by the file
`contend` in the working folder. growing: a list of tensors. dead-worker: a worker of the loader is killed at step
1,800; the program goes on with a new loader, as many do.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS = 2_000
GARBAGE, VALIDATION, CONTENTION, CONTENTION_ENDS, DEATH = 400, 800, 1_200, 1_300, 1_800


class Node:
    """One of two objects that hold each other."""

    def __init__(self) -> None:
        self.other: Node | None = None


def main(planted: set[str]) -> None:
    """Trains, and prints what every such program prints."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(4_096, 128), torch.randint(0, 4, (4_096,)))
    others = DataLoader(data, batch_size=128)
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    kept: list[torch.Tensor] = []
    garbage: list[Node] = []
    faults = {
        "garbage": lambda step: add_garbage(garbage, step) if "gc" in planted else None,
        "validation": lambda step: validate(model, others) if "validation" in planted and step == VALIDATION else None,
        "contention": lambda step: ask_for_others(step) if "contention" in planted else None,
        "growing": lambda _: kept.append(torch.ones(50_000)) if "growing" in planted else None,
    }
    step = 0
    while step < STEPS:
        loader = DataLoader(data, batch_size=64, num_workers=2, persistent_workers=True)
        try:
            for inputs, labels in without_end(loader):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                step += 1
                for fault in faults.values():
                    fault(step)
                if "dead-worker" in planted and step == DEATH:
                    os.kill(loader._iterator._workers[1].pid, signal.SIGKILL)
                if step == STEPS:
                    break
        except (RuntimeError, OSError, EOFError) as error:
            # A worker died: torch raises this wherever the program is. Where it does not see that yet, what the worker
            # had to hand over cannot be had.
            is_told = isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
            if "dead-worker" not in planted or not (is_told or isinstance(error, (OSError, EOFError))):
                raise
    print("trained", STEPS)


def without_end(loader: DataLoader[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Passes over the data, one after the other."""
    while True:
        yield from loader


def validate(model: torch.nn.Module, others: DataLoader[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """A pass over other data."""
    with torch.no_grad():
        for inputs, _ in others:
            for _ in range(5):
                model(inputs)


def add_garbage(garbage: list[Node], step: int) -> None:
    """Leaves what only the collector can free, some in each step; then it collects."""
    if step == 1:
        gc.disable()
    if step == GARBAGE:
        garbage.clear()
        gc.collect()
    elif step < GARBAGE:
        for _ in range(2_000):
            one, other = Node(), Node()
            one.other, other.other = other, one
            garbage.append(one)


def ask_for_others(step: int) -> None:
    """Asks for other programs beside this one, or for their end."""
    if step == CONTENTION:
        Path("contend").touch()
    if step == CONTENTION_ENDS:
        Path("contend").unlink()


if __name__ == "__main__":
    main(set(sys.argv[1:]))
