"""Why a kernel falls far short of its largest floor: rules in order of evidence, each with numbers that prove it."""

import re

import numpy as np

from bottleneck.analysis.floors import Floors
from bottleneck.analysis.groups import Flags, Floats, Work
from bottleneck.analysis.overlap import shared_us
from bottleneck.analysis.shortfalls import Shortfall, more_bytes, throttled
from bottleneck.analysis.thresholds import HIDING_THREADS, LATENCY_US, REGISTERS, SLIM_BYTES
from bottleneck.analysis.waves import Waves, find_waves
from bottleneck.units import US_PER_S, format_si, format_us

_ALIGN = re.compile(r"align[a-c]?([12])(?!\d)")
_ANY_ALIGN = re.compile(r"align[a-c]?\d|nvjet")  # nvjet kernels only take operands aligned to 16 bytes
_LEGACY = re.compile(
    r"cutlass_(?:70|75|80)(?!\d)|_s?16816|s1688|s161616|sm(?:75|80|86)_|ampere_|pytorch_flash::|flash_(?:fwd|bwd)\w*<"
)
_NEEDS = (
    (re.compile(r"\b(?:H20|H100|H200|H800|GH200)\b"), "wgmma"),
    (re.compile(r"\b(?:B100|B200|B300|GB200|GB300)\b"), "tcgen05"),
)
_ELEMENTWISE = re.compile(r"(?<![A-Za-z0-9_])elementwise_kernel(?:_manual_unroll)?<\d+, \d+|CatArrayBatchedCopy(?=<)")
_TENTHS = 10


def of_device(work: Work, floors: Floors, overhead: Flags) -> tuple[Shortfall, ...]:
    """Reasons on a GPU, in order of evidence; ``overhead`` marks the groups that are bound by it."""
    waves = find_waves(work)
    return (
        *_of_grid(work, overhead),
        _quantised(work, waves, work.limits.slot_waste),
        *_of_operands(work, floors),
        _strided(work),
        *more_bytes(work, floors),
        _crowded(work),
        _small(work, floors),
        *_of_threads(work),
        *_of_instructions(work, floors),
        _quantised(work, waves, work.limits.wave_efficiency),
        throttled(work),
    )


def _of_grid(work: Work, overhead: Flags) -> tuple[Shortfall, ...]:
    """Auxiliary kernels, and grids smaller than the device."""
    groups, slots = work.groups, float(work.device.sm_count or 0)
    part = groups.auxiliary_us / np.maximum(groups.time_us, 1e-9)
    grid = (groups.blocks, np.full(groups.blocks.shape, slots))
    few = groups.blocks < work.limits.wave_efficiency * slots
    return (
        Shortfall(
            part > work.limits.auxiliary_share,
            lambda tenths: f"auxiliary layout kernels: about {tenths * 100 / _TENTHS:.0f} % of the time",
            (np.round(part * _TENTHS),),
        ),
        Shortfall(overhead & (groups.blocks < slots), lambda *numbers: f"ramp-up: {_blocks(*numbers)}", grid),
        Shortfall(few, lambda *numbers: f"too few blocks: {_blocks(*numbers)}", grid),
    )


def _blocks(blocks: float, slots: float) -> str:
    return f"{blocks:.0f} block{'s' * (blocks != 1)} for {slots:.0f} multiprocessors"


def _quantised(work: Work, waves: Waves, limit: float) -> Shortfall:
    """Tiles that leave more than the rest of ``limit`` of the device without work."""
    slots = np.full(waves.tiles.shape, float(work.device.sm_count or 0))
    return Shortfall(
        (waves.wave_fill * waves.tile_fill < limit) & (waves.tiles > 0),
        _quantised_words,
        (
            waves.tiles,
            waves.rows,
            waves.columns,
            slots,
            waves.wave_fill,
            waves.tile_fill,
            work.cost("m"),
            work.cost("n"),
        ),
    )


def _quantised_words(*numbers: float) -> str:
    tiles, rows, columns, slots, wave_fill, tile_fill, m, n = numbers
    kind = f"{tiles:.0f} tiles of {rows:.0f}x{columns:.0f}"
    if tile_fill < wave_fill:
        return f"tile quantisation: results of {m:.0f} x {n:.0f} fill {tile_fill * 100:.0f} % of {kind}"
    waves = tiles / slots
    return (
        f"wave quantisation: {kind} fill {waves:.2f} waves of {slots:.0f} multiprocessors, "
        f"{wave_fill * 100:.0f} % of the slots of {np.ceil(waves):.0f}"
    )


def _of_operands(work: Work, floors: Floors) -> tuple[Shortfall, ...]:
    """Leading dimensions that forbid wide loads, and matrix instructions of an older generation."""
    on_matrix_units = _engine(work, "matrix")
    align = work.per_name(lambda name: float(match[1]) if (match := _ALIGN.search(name)) else 0.0)
    m, n, k = (work.cost(size) for size in ("m", "n", "k"))
    silent = on_matrix_units & (work.per_name(_ANY_ALIGN.search) == 0) & _of_family(work, "matmul")
    odd = silent & _in_half_precision(work) & (np.fmin(n, k) > 1) & ((n % 2 == 1) | (k % 2 == 1))
    needed = next((words for pattern, words in _NEEDS if pattern.search(work.device.name)), None)
    arithmetic = ~(floors.compute_us < floors.cold_us)
    legacy = on_matrix_units & arithmetic & (work.per_name(_LEGACY.search) > 0) & (needed is not None)
    return (
        Shortfall((align > 0) | odd, _misaligned_words, (align, m, n, k)),
        Shortfall(legacy, lambda code: _legacy_words(_name(work, code), needed or ""), (_name_codes(work),)),
    )


def _misaligned_words(align: float, m: float, n: float, k: float) -> str:
    """What is misaligned; -1 is an unknown size. Sizes on which an operand's rows hang come first."""
    told = [f"align{align:.0f}"] if align else []
    step, words = (8, "no multiple of 8") if align == 2 else (2, "odd")
    uneven = [(name, size) for name, size in (("k", k), ("n", n), ("m", m)) if size > 1 and size % step]
    return "misaligned: " + ", ".join(told + [f"{name} = {size:.0f} is {words}" for name, size in uneven[:1]])


def _legacy_words(name: str, needed: str) -> str:
    match = _LEGACY.search(name)
    token = match[0].strip("_:<") if match else ""
    return f"legacy instructions: mma.sync ({token}) on a GPU that needs {needed} for more than about 63 % of its peak"


def _strided(work: Work) -> Shortfall:
    return Shortfall(
        work.per_name(_ELEMENTWISE.search) > 0,
        lambda code: f"strided access: {_matched(_ELEMENTWISE, _name(work, code))} moves single elements, not vectors",
        (_name_codes(work),),
    )


def _matched(pattern: re.Pattern[str], name: str) -> str:
    text = match[0] if (match := pattern.search(name)) else name
    return f"{text}>" if "<" in text else text


def _crowded(work: Work) -> Shortfall:
    shared = np.bincount(work.groups.of_kernel, weights=shared_us(work.kernels), minlength=work.groups.kernels.size)
    part = shared / np.maximum(work.groups.time_us, 1e-9)
    return Shortfall(
        part >= work.limits.shared_share,
        lambda tenths: f"shares the device: other work runs for about {tenths * 100 / _TENTHS:.0f} % of its time",
        (np.round(part * _TENTHS),),
    )


def _of_threads(work: Work) -> tuple[Shortfall, ...]:
    """Kernels of the plain units that keep too few loads under way to hide the latency of memory."""
    groups, slots, plain = work.groups, float(work.device.sm_count or np.nan), ~_engine(work, "matrix")
    each = groups.blocks * groups.threads / slots
    fitting = np.floor(REGISTERS / np.maximum(groups.registers, 16) / np.maximum(groups.threads, 1)) * groups.threads
    moved = work.cost("bytes_low") / np.maximum(groups.blocks * groups.threads, 1)
    return (
        Shortfall(
            plain & (each < HIDING_THREADS),
            lambda blocks, threads, count: (
                f"too few threads: {blocks:.0f} blocks of {threads:.0f} for {count:.0f} multiprocessors, "
                f"which need about {HIDING_THREADS} each"
            ),
            (groups.blocks, groups.threads, np.full(each.shape, slots)),
        ),
        Shortfall(
            plain & (fitting > 0) & (fitting < HIDING_THREADS),
            lambda registers, threads: (
                f"too few threads: {registers:.0f} registers each leave room for {threads:.0f} per multiprocessor"
            ),
            (groups.registers, fitting),
        ),
        Shortfall(
            plain & (moved > 0) & (moved <= SLIM_BYTES),
            lambda size, blocks, threads: (
                f"little work per block: {blocks:.0f} blocks of {threads:.0f} threads move {format_si(size, 'B')} each"
            ),
            (np.round(moved * groups.threads), groups.blocks, groups.threads),
        ),
    )


def _small(work: Work, floors: Floors) -> Shortfall:
    """Work that a launch outweighs, or that is over before the first bytes arrive."""
    groups, limits = work.groups, work.limits
    largest = np.fmax(floors.compute_us, floors.cold_us)
    moved = work.cost("bytes_low")
    under_way = (work.device.bandwidth_bytes_per_s or np.nan) * LATENCY_US / US_PER_S
    in_turn = floors.launch_us + largest >= limits.work_share * groups.time_us
    short = groups.time_us < limits.short_floors * floors.launch_us
    return Shortfall(
        (in_turn & (floors.launch_us > largest)) | (short & (moved < under_way)),
        lambda size, floor, launch: (
            f"small tensors: {format_si(size, 'B')} take {format_us(floor)}, "
            f"beside a launch floor of {format_us(launch)}"
        ),
        (moved, largest, floors.launch_us),
    )


def _of_instructions(work: Work, floors: Floors) -> tuple[Shortfall, ...]:
    """Arithmetic whose rate is a fraction of the peak that fused multiply-adds reach."""
    special = work.cost("special_ops")
    rate = work.device.special_ops_per_s or np.nan
    special_us = special / rate * US_PER_S
    leads = ~(floors.compute_us < floors.cold_us)
    plain = (work.cost("matrix_flops") == 0) & (work.cost("vector_flops") > 0)
    enough = work.limits.compute_share / 2
    return (
        Shortfall(
            leads & (special_us >= floors.compute_us * 0.999) & (special_us >= enough * work.groups.time_us),
            lambda count: f"special functions: {format_si(count, 'exp, rsqrt …')} at {format_si(rate, '1/s')} at most",
            (special,),
        ),
        Shortfall(
            leads & plain & (floors.compute_us >= enough * work.groups.time_us) & ~_of_family(work, "matmul"),
            lambda count: f"no fused multiply-adds: {format_si(count, 'FLOP')} at half of the peak at most",
            (work.cost("vector_flops"),),
        ),
    )


def _engine(work: Work, engine: str) -> Flags:
    return np.asarray((work.kernels["engine"] == engine).to_numpy()[work.groups.main])


def _of_family(work: Work, family: str) -> Flags:
    return np.asarray((work.kernels["family"] == family).to_numpy()[work.groups.main])


def _in_half_precision(work: Work) -> Flags:
    """Whether the arithmetic takes two bytes per number, by the kernel's name, else by the op."""
    halves, kernels = ("bf16", "fp16"), work.kernels["math_dtype"]
    by_kernel, silent = kernels.isin(halves).to_numpy(), kernels.isna().to_numpy()
    by_op = np.append(work.costs["math_dtype"].isin(halves).to_numpy(), False)[work.groups.signature]
    return np.asarray(by_kernel[work.groups.main] | (silent[work.groups.main] & by_op))


def _name_codes(work: Work) -> Floats:
    return work.kernels["name"].cat.codes.to_numpy().astype(np.float64)[work.groups.main]


def _name(work: Work, code: float) -> str:
    return str(work.kernels["name"].cat.categories[int(code)])
