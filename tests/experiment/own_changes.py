"""Changes of our own for a program of our own, and the process that knows them: run by its path, as the real one is.

The program adds numbers for as long as its parameter says, so that a change can make it faster or slower by as much as
a test wants, and gives back tensors that a change can spoil.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.experiment.variants import serve
from bottleneck.harness.messages import Program

PROGRAM = """
import os
import torch
from torch import nn

def workload(work=2000, batch_size=4):
    model = nn.Linear(8, 8)
    inputs = torch.randn(batch_size, 8)

    def step():
        total = 0
        for number in range(work):
            total += number
        return model(inputs)

    return step
"""


def _spoiled(subject: Subject) -> Callable[[], Any]:
    def step() -> Any:
        return subject.step() * 1.5

    return step


def _needs_more(subject: Subject) -> Callable[[], Any]:
    raise NotApplicable("needs a loader")


def _needs_installing(subject: Subject) -> Callable[[], Any]:
    raise Missing("pip install something")


def _raises(subject: Subject) -> Callable[[], Any]:
    def step() -> Any:
        raise ValueError("first line\nsecond line")

    return step


def _dies(subject: Subject) -> Callable[[], Any]:
    def step() -> Any:
        os.abort()

    return step


def _leaves(subject: Subject) -> Callable[[], Any]:
    sys.exit("no more")


def _part(subject: Subject) -> Callable[[], Any]:
    return lambda: sum(range(8000))


def _half_the_part(subject: Subject) -> Callable[[], Any]:
    return lambda: sum(range(1000))


def _divided(by: float) -> Callable[[Mapping[str, object]], Mapping[str, object]]:
    def settings(parameters: Mapping[str, object]) -> Mapping[str, object]:
        work = parameters["work"]
        assert isinstance(work, int)
        return {"work": int(work / by)}

    return settings


def _doubled(parameters: Mapping[str, object]) -> Mapping[str, object]:
    size = parameters["batch_size"]
    assert isinstance(size, int)
    return {"batch_size": 2 * size}


CHANGES = {
    change.name: change
    for change in (
        Change("nothing", "Change nothing", "same"),
        Change("less-work", "Add a quarter of the numbers", "same", settings=_divided(4)),
        Change("least-work", "Add an eighth of the numbers", "same", settings=_divided(8)),
        Change("more-work", "Add four times the numbers", "same", settings=_divided(0.25)),
        Change("double", "Twice the batch", "other work", settings=_doubled, samples=2.0),
        Change("half-a-part", "A part alone", "other work", apply=_half_the_part, against=_part),
        Change("spoiled", "Other results", "reordered", apply=_spoiled),
        Change("needs-more", "Needs a loader", "same", apply=_needs_more),
        Change("needs-installing", "Needs something", "same", apply=_needs_installing),
        Change("raises", "Raises in its step", "same", apply=_raises),
        Change("dies", "Dies in its step", "same", apply=_dies),
        Change("leaves", "Leaves while it is made", "same", apply=_leaves),
        Change("apart", "A variable of the process", "same", environment={"OWN": "1"}, is_process_wide=True),
    )
}

if __name__ == "__main__":
    serve(Program.from_values(json.loads(sys.argv[1])), sys.argv[2], CHANGES)
