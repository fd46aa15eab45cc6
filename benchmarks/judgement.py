"""How often the comparison of results calls a right change wrong, and how often it misses a wrong one.

python -m benchmarks.judgement [--seeds 3]

Small networks, each with SGD and AdamW and several seeds: the product's own changes, which are right, and changes that
are wrong on purpose (gradients or the learning rate 1.1 times too large, one sample of the batch zeroed), each said to
be of the precision beside it. One row per change.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import nn

from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.interventions.results import compare
from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject, subject_of

Step = Callable[[], Any]

RIGHT = ("bf16-autocast", "fused-optimizer", "foreach-optimizer", "channels-last", "checkpoint")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| change | said to be | is | called wrong | without dropout |\n|---|---|---|---:|---:|")
    for change in (*(CHANGES[name] for name in RIGHT), *WRONG):
        called = list(_called(change, seeds))
        plain = [is_wrong for network, is_wrong in called if network != "dropout"]
        kind = "right" if change.name in RIGHT else "wrong"
        share = f"{sum(is_wrong for _, is_wrong in called)} of {len(called)}"
        print(f"| {change.name} | {change.precision} | {kind} | {share} | {sum(plain)} of {len(plain)} |", flush=True)


def _called(change: Change, seeds: int) -> Iterator[tuple[str, bool]]:
    """Each network that the change applies to, and whether it was called wrong."""
    for network, optimizer, seed in product(NETWORKS, ("SGD", "AdamW"), range(seeds)):
        try:
            found = compare(_maker(network, optimizer, seed), change)
        except NotApplicable:
            continue
        yield network, any(difference.is_within is False for difference in found)


def _maker(network: str, optimizer: str, seed: int) -> Callable[[], Subject]:
    build, shape = NETWORKS[network]

    def make() -> Subject:
        torch.manual_seed(seed)
        model, data = build(), torch.randn(shape)
        wanted = torch.randint(0, 4, (len(data),))
        rate = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 1e-3}}[optimizer]
        updates = getattr(torch.optim, optimizer)(model.parameters(), **rate)

        def step() -> torch.Tensor:
            updates.zero_grad()
            loss = nn.functional.cross_entropy(model(data), wanted)
            loss.backward()
            updates.step()
            return loss

        return subject_of(step)

    return make


def _convolutions() -> nn.Module:
    first = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    second = (nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))


def _deep() -> nn.Module:
    middle = [module for _ in range(15) for module in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, 64), *middle, nn.Linear(64, 4))


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(16 * 8, 4))


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 4))


def _dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (_convolutions, (8, 3, 16, 16)),
    "deep": (_deep, (32, 16)),
    "attention": (_attention, (16, 8, 16)),
    "wide": (_wide, (32, 16)),
    "dropout": (_dropout, (32, 16)),
}


def _large_gradients(subject: Subject) -> Step:
    for parameter in subject.trained():
        parameter.register_hook(lambda gradient: gradient * 1.1)
    return subject.step


def _large_rate(subject: Subject) -> Step:
    for group in subject.optimizers[0].param_groups:
        group["lr"] *= 1.1
    return subject.step


def _lost_sample(subject: Subject) -> Step:
    for tensor in subject.tensors:
        if tensor.is_floating_point():
            tensor[0] = 0.0
    return subject.step


WRONG = (
    Change("gradients x 1.1", "", "reordered", _large_gradients),
    Change("gradients x 1.1", "", "bf16", _large_gradients),
    Change("learning rate x 1.1", "", "reordered", _large_rate),
    Change("one sample of 8 to 32 zeroed", "", "reordered", _lost_sample),
    Change("one sample of 8 to 32 zeroed", "", "bf16", _lost_sample),
)

if __name__ == "__main__":
    main()
