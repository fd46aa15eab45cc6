"""Steps that need less memory, from lifetimes that can be added up by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.predict.peak_memory import step_memory
from bottleneck.predict.smaller_steps import (
    block_path,
    blocks_of,
    fused,
    planned_bytes,
    recomputed,
    sharded,
    swapped,
    with_bf16_parameters,
    with_states_of,
)
from bottleneck.schema.step_calls import (
    BEFORE_THE_STEP,
    EngineSettings,
    Phase,
    StepCall,
    StepCalls,
    Storage,
    StorageKind,
    TensorUse,
)
from tests.predict.steps import call as op
from tests.predict.steps import step, use

MIB = 2**20


def _use(storage: int) -> TensorUse:
    return TensorUse((MIB // 4,), (1,), "float", storage)


def _call(module: str | None, phase: Phase, inputs: list[int], outputs: list[int]) -> StepCall:
    uses = [tuple(map(_use, numbers)) for numbers in (inputs, outputs)]
    return StepCall("aten::op", "[]", "[]", "[]", "[]", *uses, phase=phase, module=module)


def _life(mib: int, created: int, freed: int | None, kind: StorageKind = "activation") -> Storage:
    return Storage(mib * MIB, kind, created, freed)


def chain(blocks: int) -> StepCalls:
    """Blocks of two ops: the first makes 4 MiB that the backward pass needs, the second 1 MiB, its result."""
    calls, storages = list[StepCall](), [_life(1, BEFORE_THE_STEP, None, "input")]
    backward = 2 * blocks + 1
    before = 0
    for number in range(blocks):
        inner, result = len(storages), len(storages) + 1
        back = backward + blocks - 1 - number
        storages += [_life(4, 2 * number, back + 1), _life(1, 2 * number + 1, back + 1)]
        calls += [
            _call(f"blocks.{number}.up", "forward", [before], [inner]),
            _call(f"blocks.{number}.down", "forward", [inner], [result]),
        ]
        before = result
    calls.append(_call(None, "forward", [before], []))  # the loss
    for number in reversed(range(blocks)):
        calls.append(_call(f"blocks.{number}.up", "backward", [2 * number + 1, 2 * number + 2], []))
    return StepCalls("program.py", "fake step", tuple(calls), EngineSettings(training=True), storages=tuple(storages))


def peak_mib(calls: StepCalls) -> float:
    memory = step_memory(calls)
    assert memory is not None
    return memory.peak_bytes / MIB


def test_a_block_is_the_outermost_numbered_part_of_a_path() -> None:
    assert block_path("model.layers.11.mlp.0") == "model.layers.11"
    assert block_path("0") == "0"
    assert block_path("model.head") is None


def test_blocks_have_their_forward_calls_and_the_begin_of_their_backward_pass() -> None:
    first, second = blocks_of(chain(2))
    assert (first.name, second.name) == ("blocks.0", "blocks.1")
    assert (first.passes[0].forward, first.passes[0].backward) == ((0, 1), 6)
    assert (second.passes[0].forward, second.passes[0].backward) == ((2, 3), 5)


def test_recomputing_holds_the_results_of_blocks_and_the_inside_of_one() -> None:
    """Four blocks hold 1 + 4 * 5 MiB; recomputed the input, the results of all, and the inside of one."""
    calls = chain(4)
    assert peak_mib(calls) == 1 + 4 * 5
    changed = recomputed(calls, blocks_of(calls))
    assert peak_mib(changed) == 1 + 4 * 1 + 4
    assert len(changed.calls) == len(calls.calls) + 4  # what is needed of each block is made by its first op


def test_two_of_four_blocks_hold_twice_their_inside_less_the_last_that_is_made_again() -> None:
    calls = chain(4)
    assert peak_mib(recomputed(calls, blocks_of(calls)[:2])) == 1 + 4 * 5 - 2 * 4
    assert peak_mib(recomputed(calls, blocks_of(calls)[3:])) == 1 + 4 * 5  # at once needed again


def test_the_input_of_a_recomputed_block_is_held_until_it_is_made_again() -> None:
    calls = chain(2)
    short = _life(1, calls.storages[2].created, 3)  # freed as soon as the next block has read it
    calls = StepCalls(
        calls.program,
        calls.origin,
        calls.calls,
        calls.settings,
        storages=(*calls.storages[:2], short, *calls.storages[3:]),
    )
    changed = recomputed(calls, blocks_of(calls)[1:])
    copy = next(number for number, one in enumerate(changed.calls) if one.phase == "backward")
    assert changed.storages[2].freed == copy + 1


@given(st.integers(1, 6), st.sets(st.integers(0, 5)))
def test_recomputing_never_raises_the_peak_and_leaves_what_is_there_alone(blocks: int, chosen: set[int]) -> None:
    calls = chain(blocks)
    all_blocks = blocks_of(calls)
    changed = recomputed(calls, [all_blocks[number] for number in chosen if number < blocks])
    assert peak_mib(changed) <= peak_mib(calls)
    assert changed.storages[0] == calls.storages[0]


def _trained() -> StepCalls:
    """Adam of 1 MiB of parameters: 4 MiB before the step, of which 2 MiB are states."""
    storages = (
        _life(1, BEFORE_THE_STEP, None, "parameter"),
        _life(1, BEFORE_THE_STEP, None, "gradient"),
        _life(1, BEFORE_THE_STEP, None, "optimizer state"),
        _life(1, BEFORE_THE_STEP, None, "optimizer state"),
    )
    calls = (_call("blocks.0", "forward", [0], []), _call(None, "optimizer", [0, 1, 2, 3], [0, 2, 3]))
    return StepCalls("program.py", "fake step", calls, EngineSettings(training=True), storages=storages)


def test_states_take_two_bytes_or_one_and_a_scale_per_256() -> None:
    assert peak_mib(_trained()) == 4
    assert peak_mib(with_states_of(_trained(), "bf16")) == 3
    assert with_states_of(_trained(), "8bit").bytes_of("optimizer state") == 2 * (MIB // 4 + MIB // 4 // 256 * 4)


def test_all_in_bf16_takes_half_of_parameters_gradients_and_states() -> None:
    assert peak_mib(with_bf16_parameters(_trained())) == 2


def test_ranks_share_all_but_the_blocks_that_compute() -> None:
    """A quarter of 4 MiB, and three quarters of the parameter while it is whole."""
    assert peak_mib(sharded(_trained(), 4)) == 1 + 0.75
    assert peak_mib(sharded(_trained(), 1)) == 4


def test_swapping_with_waiting_moves_what_is_saved_out_and_back() -> None:
    calls = chain(4)
    us = np.full(len(calls.calls), 1000.0)
    made = swapped(calls, us, MIB * 1000.0, overlapped=False)  # 1 MiB per millisecond
    assert made.moved_bytes == (4 * 4 + 3 * 1) * MIB  # the last result is needed at once
    assert made.added_us == 2 * 19 * 1000
    assert peak_mib(made.calls) < peak_mib(calls)


def test_overlapped_swapping_takes_only_what_the_link_moves_in_time() -> None:
    calls = chain(4)
    us = np.full(len(calls.calls), 1000.0)
    slow, fast = (swapped(calls, us, MIB * rate, overlapped=True) for rate in (100.0, 100_000.0))
    assert (slow.moved_bytes, slow.added_us) == (0, 0.0)
    assert fast.moved_bytes > 0 and fast.added_us == 0.0
    assert peak_mib(fast.calls) < peak_mib(calls) == peak_mib(slow.calls)


@given(st.integers(1, 6), st.floats(1.0, 1e5), st.booleans())
def test_swapping_never_raises_the_peak(blocks: int, rate: float, overlapped: bool) -> None:
    calls = chain(blocks)
    made = swapped(calls, np.full(len(calls.calls), 500.0), MIB * rate, overlapped=overlapped)
    assert peak_mib(made.calls) <= peak_mib(calls)


def test_what_is_recomputed_is_not_swapped_as_well() -> None:
    calls = chain(4)
    whole = recomputed(calls, blocks_of(calls))
    made = swapped(whole, np.full(len(whole.calls), 1000.0), MIB * 1000.0, overlapped=False)
    assert made.moved_bytes == 4 * MIB  # the results of the blocks, and nothing of their insides


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5), st.integers(1, 6)), max_size=10))
def test_a_plan_lies_between_what_is_alive_and_what_is_made(lives: list[tuple[int, int, int]]) -> None:
    storages = [_life(mib, created, created + lasts) for mib, created, lasts in lives]
    calls = tuple(_call(None, "forward", [], []) for _ in range(12))
    made = StepCalls("program.py", "fake step", calls, EngineSettings(), storages=tuple(storages))
    alive = 0.0 if not storages else peak_mib(made)
    assert alive <= planned_bytes(made) / MIB <= sum(mib for mib, _, _ in lives)


def test_a_plan_puts_what_does_not_meet_into_the_same_place() -> None:
    storages = (_life(4, 0, 1), _life(2, 1, 2), _life(2, 1, 3), _life(3, 3, None))
    calls = tuple(_call(None, "forward", [], []) for _ in range(4))
    made = StepCalls("program.py", "fake step", calls, EngineSettings(), storages=storages)
    assert planned_bytes(made) == 4 * MIB


def test_fused_kernels_hold_no_pointwise_result_whose_inputs_are_there() -> None:
    size = 1024
    made = step(
        op("mm", [use(0, size, size), use(1, size, size)], use(2, size, size)),
        op("gelu", [use(2, size, size)], use(3, size, size)),
        op("mm", [use(3, size, size), use(1, size, size)], use(4, size, size)),
        op("mm", [use(2, size, size), use(3, size, size)], use(5, size, size)),
    )
    phases: tuple[Phase, ...] = ("forward", "forward", "forward", "backward")
    lives = (None, None, 4, 4, 3, None)
    storages = tuple(_life(4, max(number - 2, -1), freed) for number, freed in enumerate(lives))
    calls = StepCalls(
        made.program,
        made.origin,
        tuple(
            StepCall(one.name, one.dims, one.types, one.strides, one.concrete, one.inputs, one.outputs, phase)
            for one, phase in zip(made.calls, phases, strict=True)
        ),
        made.settings,
        storages=storages,
    )
    changed = fused(calls)
    assert changed.storages[3].freed == 3  # the result of gelu, after its last use forward
    assert changed.storages[2] == calls.storages[2]  # the product is not computed again
