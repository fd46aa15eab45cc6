"""Tells waiting for a loader's workers from taking over a ready batch.

The replay of a step and the advice on loading have to agree on it.
"""

import re

import numpy as np

from bottleneck.schema.intervals import Flags, Floats

# The mark of a batch that a loader gives.
# A call of a loader, by any torch; and what is not the program's own.
LOADER_CALL = re.compile(r"^enumerate\(DataLoader\)|DataLoader\w*\.__next__|dataloader_next")
NOT_THE_PROGRAMS = re.compile(rf"^Optimizer\.|{LOADER_CALL.pattern}")
LOADER = re.compile(r"^enumerate\(DataLoader\)#(?P<kind>\w+)\.__next__")
WORKERS_ITERATOR = "_MultiProcessingDataLoaderIter"
# Handing a batch from a worker to the training process: a message, and a shared file per tensor. (ours: 1.6 ms of CPU
# time for two tensors on a crowded machine)
HANDOVER_US = (200.0, 1500.0)
# A call of so long is no more than that, whatever the others took.
_BRIEF_US = 500.0
# So many calls whose longest takes so many times the shortest at most are alike.
_LEAST_CALLS, _ALIKE = 3, 1.5


def were_there(calls_us: Floats) -> Flags:
    """Marks the calls of a loader with workers that found their batch ready.

    Taking it over is work of the host. Waits for workers differ from batch to batch, so that calls which are all alike,
    and no longer than a handover, are such work too.
    """
    shortest, longest = calls_us.min(initial=np.inf), calls_us.max(initial=0.0)
    alike = calls_us.size >= _LEAST_CALLS and longest <= min(_ALIKE * shortest, HANDOVER_US[1])
    return np.asarray((calls_us <= _BRIEF_US) | alike)
