"""One iteration of a particle swarm on a test function with many minima, without any network."""

import math
from collections.abc import Callable

import torch


def workload(particles: int = 20_000, width: int = 16) -> Callable[[], object]:
    places, speeds = 8.0 * torch.rand(particles, width) - 4.0, torch.zeros(particles, width)
    own, own_values = places.clone(), torch.full((particles,), math.inf)

    def step() -> object:
        nonlocal places, speeds, own, own_values
        values = (places.square() - 10.0 * torch.cos(2 * math.pi * places) + 10.0).sum(-1)
        better = values < own_values
        own = torch.where(better[:, None], places, own)
        own_values = torch.minimum(values, own_values)
        best = own[own_values.argmin()]
        pulls = 1.5 * torch.rand_like(places) * (own - places) + 1.5 * torch.rand_like(places) * (best - places)
        speeds = (0.7 * speeds + pulls).clamp(-1.0, 1.0)
        places = (places + speeds).clamp(-4.0, 4.0)
        return own_values

    return step
