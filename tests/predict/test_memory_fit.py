"""Sets of changes that make a step fit: the cheapest by brute force, and what is said where none fits."""

import itertools
import json
from collections.abc import Sequence

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.changes import NoStep
from bottleneck.predict.memory_fit import Choice, cheapest_first, fit_memory
from bottleneck.predict.peak_memory import RESERVED_BYTES, step_memory
from bottleneck.predict.smaller_steps import blocks_of, recomputed
from bottleneck.schema.device import Device
from bottleneck.schema.memory_fit import MemoryFit
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import BEFORE_THE_STEP, EngineSettings, StepCall, StepCalls, Storage
from tests.predict.steps import call, use

L4 = device_by_name("L4")
SIZE = 2048
MATRIX = 4 * SIZE * SIZE
BLOCKS = 4


def _mm(module: str, inputs: tuple[int, int], output: int, phase: str = "forward") -> StepCall:
    made = call("mm", [use(number, SIZE, SIZE) for number in inputs], use(output, SIZE, SIZE))
    return replace(made, phase=phase, module=module)


def program_step() -> StepCalls:
    """Four blocks of two products: 9 matrices are held between the passes, one of them the input."""
    storages = [Storage(MATRIX, "parameter"), Storage(MATRIX, "input"), Storage(2 * MATRIX, "optimizer state")]
    calls: list[StepCall] = []
    before, last = 1, 3 * BLOCKS
    for number in range(BLOCKS):
        inner = len(storages)
        freed = 2 * BLOCKS + 1 + BLOCKS - number
        storages += [
            Storage(MATRIX, "activation", 2 * number, freed),
            Storage(MATRIX, "activation", 2 * number + 1, freed),
        ]
        calls += [_mm(f"blocks.{number}.up", (before, 0), inner), _mm(f"blocks.{number}.down", (inner, 0), inner + 1)]
        before = inner + 1
    storages.append(Storage(MATRIX, "gradient", BEFORE_THE_STEP))
    gradient = len(storages) - 1
    calls.append(_mm("loss", (before, 0), gradient))
    calls += [
        _mm(f"blocks.{number}.up", (3 + 2 * number, 0), gradient, "backward") for number in reversed(range(BLOCKS))
    ]
    states = call("mul_", [use(2, 2 * SIZE, SIZE)], use(2, 2 * SIZE, SIZE))
    calls.append(replace(states, phase="optimizer"))
    assert len(calls) == last + 2
    return StepCalls(
        "program.py", "fake step", tuple(calls), EngineSettings(training=True), storages=tuple(storages), host_ops=20
    )


class Program:
    """Stands for a program: its blocks can be recomputed, nothing else of it can be changed by a run."""

    def __init__(self, grows: int = 0) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._grows = grows

    def record(self, changes: Sequence[str]) -> StepCalls:
        self.asked.append(tuple(changes))
        calls = program_step()
        if not changes:
            return calls
        name, _, values = changes[0].partition(":")
        if name != "checkpoint-blocks" or len(changes) > 1:
            raise NoStep("it cannot be had")
        names = json.loads(values)["blocks"]
        made = recomputed(calls, [block for block in blocks_of(calls) if block.name in names])
        more = (Storage(self._grows, "activation"),) if self._grows else ()
        return replace(made, storages=(*made.storages, *more))


def device(matrices: float) -> Device:
    """A device with room for so many matrices."""
    return replace(L4, memory_bytes=RESERVED_BYTES + int(matrices * MATRIX))


def fit(matrices: float, grows: int = 0) -> MemoryFit:
    made = fit_memory(Program(grows).record, device(matrices))
    assert made is not None
    return made


PEAK = 1 + 1 + 2 + 1 + 2 * BLOCKS


def test_a_step_that_fits_needs_no_change() -> None:
    made = fit(PEAK)
    assert made.fits and made.best is made.same_results is made.by_formula is None
    assert made.peak_bytes == PEAK * MATRIX
    assert made.usable_bytes == PEAK * MATRIX


@pytest.mark.parametrize("lacking", [1, 2, 3])
def test_no_fewer_blocks_than_needed_are_recomputed_and_the_program_is_run_so(lacking: int) -> None:
    made = fit(PEAK - lacking)
    assert not made.fits and made.best is not None
    (remedy,) = made.best.remedies
    assert (remedy.name, remedy.basis, remedy.of_blocks) == ("checkpoint", "run", BLOCKS)
    assert len(remedy.blocks) == lacking
    assert made.best.fits and made.best.is_confirmed
    assert made.best.peak_bytes == made.best.estimated_bytes == (PEAK - lacking) * MATRIX


def test_a_set_that_needs_more_than_expected_when_it_runs_is_made_larger() -> None:
    made = fit(PEAK - 1, grows=MATRIX // 2)
    assert made.best is not None and made.best.fits and made.best.is_confirmed
    assert len(made.best.remedies[0].blocks) == 2
    assert made.best.peak_bytes == made.best.estimated_bytes + MATRIX // 2


def test_what_no_run_frees_is_freed_by_formula() -> None:
    made = fit(PEAK - 5)
    assert made.best is not None and made.best.fits
    assert "formula" in {one.basis for one in made.best.remedies}
    assert made.best.peak_bytes <= made.usable_bytes


def test_where_nothing_fits_the_nearest_set_says_what_is_missing() -> None:
    made = fit(1.2)
    assert made.best is not None and not made.best.fits and made.best.remedies
    assert made.best.peak_bytes > made.usable_bytes
    assert made.same_results is made.by_formula is None
    assert made.best.peak_bytes < min(one.peak_bytes for one in made.alone if one.name != "fsdp")


def test_what_each_change_saves_adds_up_to_what_all_save() -> None:
    made = fit(PEAK - 5)
    assert made.best is not None
    assert made.peak_bytes - sum(one.saved_bytes for one in made.best.remedies) == made.best.estimated_bytes


def test_no_change_alone_raises_the_peak() -> None:
    made = fit(PEAK)
    assert {"checkpoint", "swap", "bf16-states", "8bit-states", "fsdp"} <= {one.name for one in made.alone}
    assert all(one.saved_bytes > 0 and one.peak_bytes < made.peak_bytes for one in made.alone)
    assert "inplace-activations" in {one.name for one in made.refused}


def test_fewest_ranks_that_do_are_named() -> None:
    assert fit(PEAK - 1).ranks == 2
    assert fit(1.2).ranks is None


def test_a_device_without_a_known_memory_has_no_answer() -> None:
    assert fit_memory(Program().record, replace(L4, memory_bytes=None)) is None


def test_lifetimes_that_are_not_known_are_no_step() -> None:
    with pytest.raises(NoStep, match="lifetimes"):
        fit_memory(lambda _: replace(program_step(), storages=()), L4)


def test_the_first_set_that_fits_is_the_cheapest_of_all_that_do() -> None:
    choices = [
        Choice(blocks=blocks, parts=parts, states=states)
        for blocks, parts, states in itertools.product((0, 1, 2), (1, 2), (None, "bf16-states"))
    ]
    costs = [10.0 * choice.blocks + 15.0 * (choice.parts > 1) + 1.0 * (choice.states is not None) for choice in choices]
    saved = [4 * choice.blocks + 7 * (choice.parts > 1) + 3 * (choice.states is not None) for choice in choices]
    order = cheapest_first(choices, costs, 100.0)
    for needed in range(max(saved) + 1):
        first = next(choice for choice in order if saved[choices.index(choice)] >= needed)
        fitting = [cost for cost, bytes_saved in zip(costs, saved, strict=True) if bytes_saved >= needed]
        assert costs[choices.index(first)] == min(fitting)


def test_of_equal_costs_the_set_that_changes_no_result_and_can_be_run_comes_first() -> None:
    by_run, by_formula, other = Choice(blocks=1), Choice(swap="swap"), Choice(states="bf16-states")
    assert cheapest_first([other, by_formula, by_run], [5.0, 5.0, 5.0], 1e6) == [by_run, by_formula, other]


def test_the_peak_of_the_step_by_hand_is_that_of_the_model_of_memory() -> None:
    memory = step_memory(program_step())
    assert memory is not None and memory.peak_bytes == PEAK * MATRIX
