"""The ridge by experiment: where the class flips, how far from the ridge, and what the page says of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.ridge import ELEMENTS, Point, flip, knee, point_of, repeats_around, report

DEVICE: dict[str, Any] = {
    "name": "Some CPU",
    "peaks_flops_per_s": {"fp32_vector": 8e10},
    "bandwidth_bytes_per_s": 2e10,
    "ridge_flops_per_byte": {"fp32_vector": 4.0},
}
RIDGE = 32


def point(repeat: int, bound: str | None = None) -> Point:
    compute_s, memory_s = repeat * ELEMENTS / 8e10, 8 * ELEMENTS / 2e10
    found = bound or ("memory" if memory_s > compute_s else "compute")
    time = max(compute_s, memory_s)
    return Point(repeat, time, repeat * ELEMENTS, 8 * ELEMENTS, compute_s, memory_s, found, "near_roof", 1.0, found)


def sweep(repeats: Sequence[int]) -> list[Point]:
    return [point(repeat) for repeat in repeats]


def test_an_ideal_processor_flips_at_its_ridge() -> None:
    points = sweep(repeats_around(RIDGE))
    assert flip(points) == (28, 32)
    assert knee(points) == pytest.approx(RIDGE)
    text, holds = report(points, DEVICE)
    assert holds and "flips between 28 and 32 multiplications, at most 12%" in text
    assert len(text.splitlines()) == len(points) + 7


def test_the_sweep_has_points_at_the_edges_of_what_is_promised() -> None:
    assert {24, 28, 36, 40} <= set(repeats_around(RIDGE))
    assert repeats_around(0.5)[0] == 1


def test_a_coarse_sweep_does_not_prove_it() -> None:
    assert not report(sweep([1, 16, 64, 256]), DEVICE)[1]


@pytest.mark.parametrize(
    "bounds", [("memory", "memory"), ("compute", "memory", "compute"), ("memory", "overhead", "compute")]
)
def test_a_class_that_does_not_flip_once_and_for_good_fails(bounds: Sequence[str]) -> None:
    points = [point(2**at, bound) for at, bound in enumerate(bounds)]
    assert flip(points) is None
    text, holds = report(points, DEVICE)
    assert not holds and "does **not** flip" in text


def test_a_verdict_of_the_whole_step_that_is_another_fails() -> None:
    points = sweep(repeats_around(RIDGE))
    assert not report([replace(points[0], verdict="overhead"), *points[1:]], DEVICE)[1]


def test_arithmetic_slower_than_its_peak_moves_the_knee_and_not_the_flip() -> None:
    ideal = sweep([1, 28, 36, 256])
    points = [replace(each, seconds=max(each.memory_s, 2 * each.compute_s)) for each in ideal]
    assert flip(points) == (28, 36)
    assert knee(points) == pytest.approx(RIDGE / 2)


def test_a_point_is_the_longest_kernel_of_an_analysis() -> None:
    kernel = {"us": 9.0, "flops": 4.0, "bytes_low": 8.0, "compute_us": 1.0, "memory_us": 2.0, "explained": 0.5}
    analysis = {
        "kernels": [{**kernel, "us": 1.0, "bound": "dispatch"}, {**kernel, "bound": "memory", "regime": None}],
        "steps": {"unprofiled_us": {"median": 10.0}, "wall_us": 11.0},
        "verdict": {"bound": "memory"},
    }
    assert point_of(1, analysis) == Point(1, 1e-5, 4.0, 8.0, 1e-6, 2e-6, "memory", None, 0.5, "memory")
