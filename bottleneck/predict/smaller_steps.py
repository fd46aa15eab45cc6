"""Makes of a recorded step the step that needs less memory, one function per remedy.

Each returns op calls with the lifetimes of their storages as they would be, so that one model of memory
(`step_memory`) and one of time (`price_work`) serve all of them.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.predict.peak_memory import BLOCK_BYTES
from bottleneck.predict.step_kernels import split
from bottleneck.schema.intervals import Floats
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import BEFORE_THE_STEP, Phase, StepCall, StepCalls, Storage
from bottleneck.units import US_PER_S

# bitsandbytes keeps smaller tensors in fp32, and a scale of 4 bytes for each block of 256 values (its 8-bit optimizers,
# `min_8bit_size` and `block_wise`).
_LEAST_ELEMENTS_8BIT, _BYTES_8BIT = 4096, 1 + 4 / 256
_FLOAT = "float"
_FP32_BYTES = 4
# Fully sharded training holds this many blocks whole at a time: the one that computes, and the next one.
_WHOLE_BLOCKS = 2


class Pass(Struct, frozen=True):
    """Calls of a block in one forward pass, the end of that pass, and the first call of its backward pass."""

    forward: tuple[int, ...]
    end: int
    backward: int


class Block(Struct, frozen=True):
    """A part of the model that occurs several times, such as a layer of a transformer."""

    name: str
    passes: tuple[Pass, ...]


def block_path(module: str) -> str | None:
    """The path of the outermost numbered part that a module lies in; null where there is none."""
    parts = module.split(".")
    first = next((number for number, part in enumerate(parts) if part.isdigit()), None)
    return None if first is None else ".".join(parts[: first + 1])


def blocks_of(calls: StepCalls) -> tuple[Block, ...]:
    """The repeated parts of the model that have a backward pass, in the order of the step."""
    positions: dict[str, list[int]] = {}
    for position, call in enumerate(calls.calls):
        path = block_path(call.module or "")
        if path is not None and call.phase in ("forward", "backward"):
            positions.setdefault(path, []).append(position)
    blocks = []
    for name, mine in positions.items():
        runs = [(phase, tuple(run)) for phase, run in itertools.groupby(mine, lambda at: calls.calls[at].phase)]
        passes = tuple(
            Pass(run, run[-1] + 1, following[0])
            for (phase, run), (_, following) in itertools.pairwise(runs)
            if phase == "forward" and following
        )
        if passes:
            blocks.append(Block(name, passes))
    return tuple(blocks)


def recomputed(calls: StepCalls, blocks: Sequence[Block]) -> StepCalls:
    """The step with these blocks computed again at the beginning of their backward passes.

    What a block makes in its forward pass is freed at the end of it, but for its results, and made again. The copy ends
    with the last call whose result is needed, as the early stop of `torch.utils.checkpoint` does.
    """
    made, readers = _made_by(calls), _readers(calls)
    passes = [_needed(calls, one, made, readers) for block in blocks for one in block.passes]
    passes = sorted((one for one in passes if one.forward), key=lambda one: one.backward)
    if not passes:
        return calls
    starts = np.array([one.backward for one in passes])
    lengths = np.cumsum([0, *(len(one.forward) for one in passes)])
    after, before = (
        (np.arange(len(calls.calls) + 1) + lengths[np.searchsorted(starts, np.arange(len(calls.calls) + 1), side)])
        for side in ("right", "left")
    )
    storages = [
        Storage(
            one.bytes,
            one.kind,
            one.created if one.created < 0 else int(after[one.created]),
            None if one.freed is None else int(before[one.freed]),
        )
        for one in calls.storages
    ]
    again: dict[int, int] = {}  # the copy of a storage in the backward pass
    for one, copy in zip(passes, (starts + lengths[:-1]).tolist(), strict=True):
        end = copy + len(one.forward)
        at = {old: copy + number for number, old in enumerate(one.forward)}
        results = _results(one, made, readers)
        for number in (storage for old in one.forward for storage in made.get(old, ())):
            life = calls.storages[number]
            if life.freed is None or number in results:
                continue
            if life.freed > one.backward:
                again[number] = len(storages)
                storages.append(replace(storages[number], created=at[life.created]))
                storages[number] = replace(storages[number], freed=int(before[one.end]))
            else:
                freed = next((at[old] for old in one.forward if old >= life.freed), end)
                storages.append(Storage(life.bytes, life.kind, at[life.created], freed))
        used = {use.storage for old in one.forward for use in calls.calls[old].inputs}
        for number in (storage for storage in used if storage is not None):
            held = storages[number]
            if calls.storages[number].created not in at and held.freed is not None:
                storages[number] = replace(held, freed=max(held.freed, end))
    return replace(calls, calls=_with_copies(calls, passes, again), storages=tuple(storages))


def _results(one: Pass, made: Mapping[int, Sequence[int]], readers: Mapping[int, Sequence[int]]) -> set[int]:
    """The storages of a block that other calls of the forward pass read."""
    inside = range(one.forward[0], one.end)
    return {
        number
        for old in one.forward
        for number in made.get(old, ())
        if any(reader not in inside and reader < one.backward for reader in readers.get(number, ()))
    }


def _needed(
    calls: StepCalls, one: Pass, made: Mapping[int, Sequence[int]], readers: Mapping[int, Sequence[int]]
) -> Pass:
    """The pass up to the last call whose result the backward pass needs."""
    results = _results(one, made, readers)
    last = max(
        (
            number
            for number, old in enumerate(one.forward)
            for storage in made.get(old, ())
            if storage not in results and (calls.storages[storage].freed or 0) > one.backward
        ),
        default=-1,
    )
    return replace(one, forward=one.forward[: last + 1])


def _with_copies(calls: StepCalls, passes: Sequence[Pass], again: Mapping[int, int]) -> tuple[StepCall, ...]:
    """The calls with those of the forward passes once more before the backward passes."""
    by_start = {one.backward: one for one in passes}
    changed: list[StepCall] = []
    for position, call in enumerate(calls.calls):
        if position in by_start:
            changed += [_copied(calls.calls[old], again, "backward") for old in by_start[position].forward]
        changed.append(_copied(call, again, call.phase) if call.phase == "backward" else call)
    return tuple(changed)


def _copied(call: StepCall, again: Mapping[int, int], phase: Phase) -> StepCall:
    if call.phase == phase and not any(use.storage in again for use in (*call.inputs, *call.outputs)):
        return call
    inputs = tuple(
        use if use.storage is None else replace(use, storage=again.get(use.storage, use.storage)) for use in call.inputs
    )
    outputs = tuple(
        use if use.storage is None else replace(use, storage=again.get(use.storage, use.storage))
        for use in call.outputs
    )
    return replace(call, inputs=inputs, outputs=outputs, phase=phase)


def _made_by(calls: StepCalls) -> dict[int, list[int]]:
    """The storages that each call made."""
    made: dict[int, list[int]] = {}
    for number, storage in enumerate(calls.storages):
        if storage.created >= 0 and storage.kind == "activation":
            made.setdefault(storage.created, []).append(number)
    return made


def _readers(calls: StepCalls) -> dict[int, list[int]]:
    """The positions of the calls that use each storage, in their order."""
    readers: dict[int, list[int]] = {}
    for position, call in enumerate(calls.calls):
        for use in (*call.inputs, *call.outputs):
            if use.storage is not None and (not (mine := readers.setdefault(use.storage, [])) or mine[-1] != position):
                mine.append(position)
    return readers


def fused(calls: StepCalls) -> StepCalls:
    """The step whose backward kernels compute pointwise results again instead of reading them.

    This is what the partitioner of torch.compile does: a result of a pointwise op is not held where all that it was
    made of is there anyway, or is such a result itself.
    """
    storages, readers, dropped = list(calls.storages), _readers(calls), set[int]()
    made = _made_by(calls)
    for position, call in enumerate(calls.calls):
        if call.phase != "forward" or position not in made or not _is_pointwise(call):
            continue
        for number in made[position]:
            life = calls.storages[number]
            if life.freed is None or not _is_saved(calls, readers.get(number, ()), life):
                continue
            used = [use.storage for use in call.inputs if use.storage is not None and use.storage != number]
            if all(one in dropped or _outlives(calls.storages[one], life) for one in used):
                dropped.add(number)
                last = max(at for at in readers[number] if calls.calls[at].phase == "forward")
                storages[number] = replace(life, freed=last + 1)
    return replace(calls, storages=tuple(storages))


def _is_pointwise(call: StepCall) -> bool:
    kernels = split(call)
    return not isinstance(kernels, Reason) and bool(kernels) and all(one.kind == "pointwise" for one in kernels)


def _is_saved(calls: StepCalls, readers: Sequence[int], life: Storage) -> bool:
    """True for what the forward pass makes and the backward pass needs."""
    first = next((at for at in readers if calls.calls[at].phase == "backward"), None)
    return first is not None and life.freed is not None and life.freed > first


def _outlives(storage: Storage, life: Storage) -> bool:
    return storage.freed is None or (life.freed is not None and storage.freed >= life.freed)


def with_states_of(calls: StepCalls, kind: str) -> StepCalls:
    """The step with the fp32 states of its optimizers in bf16 ('bf16') or in 8 bits ('8bit')."""
    floats = _floats(calls)

    def held_bytes(number: int, storage: Storage) -> int:
        elements = storage.bytes // _FP32_BYTES
        if storage.kind != "optimizer state" or number not in floats:
            return storage.bytes
        if kind == "bf16":
            return elements * 2
        return math.ceil(elements * _BYTES_8BIT) if elements >= _LEAST_ELEMENTS_8BIT else storage.bytes

    return _resized(calls, [held_bytes(number, storage) for number, storage in enumerate(calls.storages)])


def with_bf16_parameters(calls: StepCalls) -> StepCalls:
    """The step with its fp32 parameters, their gradients and states in bf16.

    Copies of parameters in bf16, as autocast makes them, are not needed then.
    """
    floats, casts = _floats(calls), _casts_of_parameters(calls)
    sizes = [
        0
        if number in casts
        else storage.bytes // 2
        if number in floats and storage.kind in ("parameter", "gradient", "optimizer state")
        else storage.bytes
        for number, storage in enumerate(calls.storages)
    ]
    return _resized(calls, sizes)


def _casts_of_parameters(calls: StepCalls) -> set[int]:
    return {
        output.storage
        for call in calls.calls
        if call.name == "aten::_to_copy" and call.inputs and call.inputs[0].storage is not None
        if calls.storages[call.inputs[0].storage].kind == "parameter"
        for output in call.outputs
        if output.storage is not None and calls.storages[output.storage].kind == "activation"
    }


def _floats(calls: StepCalls) -> set[int]:
    """The storages of fp32 tensors."""
    return {
        use.storage
        for call in calls.calls
        for use in (*call.inputs, *call.outputs)
        if use.type == _FLOAT and use.storage is not None
    }


def _resized(calls: StepCalls, sizes: Sequence[int]) -> StepCalls:
    return replace(
        calls,
        storages=tuple(replace(one, bytes=size) for one, size in zip(calls.storages, sizes, strict=True)),
    )


def state_bytes_saved(calls: StepCalls, changed: StepCalls) -> int:
    """Bytes that the states of the optimizers lose by a change."""
    return calls.bytes_of("optimizer state") - changed.bytes_of("optimizer state")


def sharded(calls: StepCalls, ranks: int) -> StepCalls:
    """The step with parameters, gradients and optimizer states spread over ranks (FSDP, ZeRO stage 3).

    The largest blocks are held whole while they compute, and so are parameters outside of blocks.
    """
    sizes = [
        -(-storage.bytes // ranks) if storage.kind in ("parameter", "gradient", "optimizer state") else storage.bytes
        for storage in calls.storages
    ]
    smaller = _resized(calls, sizes)
    whole = int(gathered_bytes(calls) * (1 - 1 / ranks))
    return replace(smaller, storages=(*smaller.storages, Storage(whole, "activation", BEFORE_THE_STEP)))


def gathered_bytes(calls: StepCalls) -> int:
    """Bytes of the parameters that are held whole at a time."""
    by_block: dict[str | None, set[int]] = {}
    for call in calls.calls:
        if call.phase == "forward":
            mine = by_block.setdefault(block_path(call.module or ""), set())
            mine |= {
                use.storage
                for use in call.inputs
                if use.storage is not None and calls.storages[use.storage].kind == "parameter"
            }
    whole = by_block.pop(None, set())
    by_size = sorted(by_block.values(), key=lambda mine: -sum(calls.storages[number].bytes for number in mine))
    return sum(calls.storages[number].bytes for number in whole.union(*by_size[:_WHOLE_BLOCKS]))


class Swapped(Struct, frozen=True):
    """A step that keeps activations in the host's memory between its passes."""

    calls: StepCalls
    moved_bytes: int
    added_us: float


def swapped(calls: StepCalls, us_by_call: Floats, link_bytes_per_s: float, *, overlapped: bool) -> Swapped:
    """The step whose saved activations go to the host and come back before they are needed.

    Each direction of the link carries one tensor at a time. ``overlapped`` takes only tensors whose way out and back
    fits beside the kernels between their last use forward and their first use backward, and so adds no time; else all
    are taken, and the step waits for every copy, as `torch.autograd.graph.save_on_cpu` does.
    """
    ends = np.cumsum(us_by_call)
    starts = ends - us_by_call
    saved = _saved(calls)
    storages = list(calls.storages)
    if not overlapped:
        for number, out, back in saved:
            _swap(storages, number, out + 1, back)
        moved = sum(calls.storages[number].bytes for number, _, _ in saved)
        return Swapped(replace(calls, storages=tuple(storages)), moved, 2 * moved / link_bytes_per_s * US_PER_S)
    arrivals, clock = dict[int, float](), 0.0
    for number, out, back in sorted(saved, key=lambda one: one[1]):
        takes = calls.storages[number].bytes / link_bytes_per_s * US_PER_S
        done = max(clock, float(ends[out])) + takes
        if done + takes < starts[back]:
            arrivals[number], clock = done, done
    moved, clock = 0, math.inf
    # The last to be needed is fetched last: from the end of the step backward, the link is free before each copy.
    for number, _, back in sorted(saved, key=lambda one: -one[2]):
        if number not in arrivals:
            continue
        takes = calls.storages[number].bytes / link_bytes_per_s * US_PER_S
        leaves = min(clock, float(starts[back])) - takes
        gone = int(np.searchsorted(starts, arrivals[number], side="left"))
        comes = int(np.searchsorted(ends, leaves, side="right"))
        if leaves <= arrivals[number] or gone >= comes:
            continue
        clock = leaves
        moved += calls.storages[number].bytes
        _swap(storages, number, gone, min(comes, back))
    return Swapped(replace(calls, storages=tuple(storages)), moved, 0.0)


def _swap(storages: list[Storage], number: int, gone: int, comes: int) -> None:
    life = storages[number]
    storages[number] = replace(life, freed=gone)
    storages.append(replace(life, created=comes))


def _saved(calls: StepCalls) -> list[tuple[int, int, int]]:
    """Activations kept for the backward pass, with the last call before and the first call of that pass."""
    saved = []
    for number, readers in _readers(calls).items():
        life = calls.storages[number]
        if life.kind != "activation" or life.created < 0 or life.bytes < BLOCK_BYTES:
            continue
        if calls.calls[life.created].phase != "forward" or not _is_saved(calls, readers, life):
            continue
        back = next(at for at in readers if calls.calls[at].phase == "backward")
        forward = [at for at in readers if at < back]
        if forward and back > forward[-1] + 1:
            saved.append((number, forward[-1], back))
    return saved


def planned_bytes(calls: StepCalls) -> int:
    """Bytes that a static plan needs for what the step itself makes: largest first, each at the lowest free offset."""
    made = [one for one in calls.storages if one.created >= 0 and one.bytes]
    order = sorted(made, key=lambda one: -one.bytes)
    end = len(calls.calls) + 1
    begun = np.array([one.created for one in order])
    freed = np.array([end if one.freed is None else one.freed for one in order])
    sizes = np.array([-(-one.bytes // BLOCK_BYTES) * BLOCK_BYTES for one in order])
    offsets = np.zeros(len(order), dtype=np.int64)
    for number in range(len(order)):
        meets = np.flatnonzero((begun[:number] < freed[number]) & (freed[:number] > begun[number]))
        lows = offsets[meets]
        by_offset = np.argsort(lows, kind="stable")
        place = 0
        for low, high in zip(lows[by_offset], (lows + sizes[meets])[by_offset], strict=True):
            if low - place >= sizes[number]:
                break
            place = max(place, int(high))
        offsets[number] = place
    return int((offsets + sizes).max()) if order else 0
