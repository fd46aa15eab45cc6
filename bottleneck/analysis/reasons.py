"""Explains kernels without a bound or far short of their floor.

Rules are tried in order of evidence.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.floors import Floors, RooflineInput
from bottleneck.analysis.tiles import Waves, find_waves
from bottleneck.schema.device_facts import generation_of
from bottleneck.schema.intervals import Flags, Floats, Integers, shared_us
from bottleneck.schema.op_names import COMPILED_REGION, IN_PLACE
from bottleneck.schema.reasons import Reason
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import US_PER_S

REGISTERS = 65536  # 32-bit registers of a multiprocessor, on every GPU since 2012
HIDING_THREADS = 512  # a quarter of what a multiprocessor holds; fewer do not hide the latency of memory
LATENCY_US = 0.6  # from a load to its data in DRAM, on a GPU
SLIM_BYTES = 16.0  # per thread: one load of the widest kind; less is gone before the block has started
GRAIN_BYTES = 4.0 * 32768  # at most one thread's share of a loop: 32768 elements, read and written (ATen's GRAIN_SIZE)


class ReasonRows(Struct, frozen=True):
    """Reasons as codes into labels; -1 is null."""

    code: Integers
    labels: list[Reason]

    def on(self, rows: Integers) -> "ReasonRows":
        """The reasons of some rows, null for row -1."""
        return ReasonRows(np.append(self.code, -1)[rows], self.labels)


def choose(*choices: tuple[Flags, ReasonRows | str]) -> ReasonRows:
    """Gives per row the first choice that holds.

    A choice is the reason, or its code, and may be null. Null where none holds.
    """
    codes, labels = list[Integers](), list[Reason]()
    for holds, reason in choices:
        own = ReasonRows(np.zeros(holds.size, dtype=np.int64), [Reason(reason)]) if isinstance(reason, str) else reason
        codes.append(np.where(own.code < 0, -1, len(labels) + own.code))
        labels += own.labels
    return ReasonRows(np.select([holds for holds, _ in choices], codes, -1), labels)


def why_unmodelled(work: RooflineInput) -> ReasonRows:
    """Gives the reason per group for having no cost.

    It is told as far as the trace and the cost stage state it.
    """
    main = work.groups.main
    op = as_integers(work.kernels["op"])[main]
    signature = np.append(as_integers(work.ops["signature"]), -1)[op]
    by_cost, cost_reasons = pd.factorize(work.costs["reason"])
    of_cost = ReasonRows(by_cost, list(cost_reasons))
    cost = of_cost.on(signature)
    # The reason of an unmodelled match of a replayed kernel is more specific than that the kernel has no op.
    replayed = of_cost.on(np.where(work.groups.modelled, -1, work.groups.signature))
    unlinked = work.kernels["unlinked"].cat
    recorded = ReasonRows(
        unlinked.codes.to_numpy().astype(np.int64), [Reason(code) for code in unlinked.categories]
    ).on(main)
    compiled = np.append(text_matches(work.ops["name"], lambda name: name.startswith(COMPILED_REGION)), False)[op]
    return choose(
        (replayed.code >= 0, replayed),
        (recorded.code >= 0, recorded),
        (work.kernels["replayed"].to_numpy()[main], "graph_launch"),
        (op < 0, "no_op"),
        (compiled, "compiled_region"),
        (signature < 0, "no_shapes"),
        (cost.code >= 0, cost),
        (np.ones(op.size, dtype=bool), "no_modelled_op"),
    )


# Families of costs whose usual kernels read their data again: statistics first, then the result; a digit at a time.
_PASSES = ("normalization", "loss", "pooling", "reduction", "scan", "sort")


class Shortfall(Struct, frozen=True):
    """A rule with its groups, code and numbers.

    It has the groups that it holds for, and the code of their reason with its numbers.

    The numbers hang on shapes and names, or are rounded, so that calls of one kind get one reason. ``names`` makes
    those of the reason from them, where names are among these.
    """

    holds: Flags
    code: str
    numbers: tuple[Floats, ...] = ()
    names: Callable[..., tuple[float | str, ...]] | None = None


def first_that_holds(rules: Sequence[Shortfall], wanted: Flags) -> ReasonRows:
    """Gives the reason of the first rule that holds.

    It is per row that is ``wanted``, and 'unexplained' where none holds.
    """
    codes, labels, open_ = np.full(wanted.size, -1, dtype=np.int64), [Reason("unexplained")], wanted.copy()
    for rule in rules:
        rows = np.flatnonzero(open_ & rule.holds)
        open_[rows] = False
        if rows.size:
            numbers = (
                np.stack([column[rows] for column in rule.numbers], axis=1)
                if rule.numbers
                else np.zeros((rows.size, 0))
            )
            distinct, place = np.unique(np.nan_to_num(numbers, nan=-1.0), axis=0, return_inverse=True)
            codes[rows] = len(labels) + place.ravel()
            labels += [
                Reason(rule.code, tuple(values) if rule.names is None else rule.names(*values))
                for values in distinct.tolist()
            ]
    codes[open_] = 0
    return ReasonRows(codes, labels)


def more_bytes(work: RooflineInput, floors: Floors) -> tuple[Shortfall, Shortfall]:
    """Explains time by bytes at the upper end of their interval.

    These fill the time where the compulsory ones do not.

    The usual kernels of some families pass over their data more than once; elsewhere the trace leaves the bytes open.
    """
    low, high = work.cost("bytes_low"), work.cost("bytes_high")
    fills = (floors.compute_us < floors.cold_us) & (high > low)
    fills &= floors.eager_cold_us >= work.limits.memory_share * work.groups.time_us
    passes = np.append(work.costs["family"].isin(_PASSES).to_numpy(), False)[work.groups.signature]
    return (
        Shortfall(fills & passes, "repeated_passes", (high, low)),
        Shortfall(fills & ~passes, "open_bytes", (low, high)),
    )


def throttled(work: RooflineInput) -> Shortfall:
    """Clocks that were held back while the trace was recorded."""
    causes = work.conditions.throttle
    held_back = np.full(work.groups.kernels.shape, bool(causes))
    return Shortfall(held_back, "throttled", names=lambda: (", ".join(causes),))


def two_digits(values: Floats) -> Floats:
    """Rounded to two digits, so that calls of one kind get one reason."""
    scale = 10.0 ** (np.floor(np.log10(np.maximum(np.nan_to_num(values), 1e-30))) - 1)
    return np.asarray(np.round(values / scale) * scale)


_ALIGN = re.compile(r"align[a-c]?([12])(?!\d)")
_SCALAR = re.compile(r"simt|sgemm", re.IGNORECASE)
_ANY_ALIGN = re.compile(r"align[a-c]?\d|nvjet")  # nvjet kernels only take operands aligned to 16 bytes
_ELEMENTWISE = re.compile(r"(?<![A-Za-z0-9_])elementwise_kernel(?:_manual_unroll)?<\d+, \d+|CatArrayBatchedCopy(?=<)")


def of_device(work: RooflineInput, floors: Floors, overhead: Flags) -> tuple[Shortfall, ...]:
    """Gives reasons on a GPU, in order of evidence.

    ``overhead`` marks the groups that are bound by it.
    """
    waves = find_waves(work)
    return (
        *_of_grid(work, overhead),
        *_quantised(work, waves, work.limits.slot_waste),
        *_of_operands(work, floors),
        _strided(work),
        *more_bytes(work, floors),
        _crowded(work),
        _small(work, floors),
        *_of_threads(work),
        *_of_instructions(work, floors),
        *_quantised(work, waves, work.limits.wave_efficiency),
        throttled(work),
    )


def _of_grid(work: RooflineInput, overhead: Flags) -> tuple[Shortfall, ...]:
    """Auxiliary kernels, and grids smaller than the device."""
    groups, slots = work.groups, float(work.device.sm_count or 0)
    part = groups.auxiliary_us / np.maximum(groups.time_us, 1e-9)
    grid = (groups.blocks, np.full(groups.blocks.shape, slots))
    few = groups.blocks < work.limits.wave_efficiency * slots
    return (
        Shortfall(part > work.limits.auxiliary_share, "auxiliary_kernels", (np.round(part, 1),)),
        Shortfall(overhead & (groups.blocks < slots), "ramp_up", grid),
        Shortfall(few, "too_few_blocks", grid),
    )


def _quantised(work: RooflineInput, grid: Waves, limit: float) -> tuple[Shortfall, Shortfall]:
    """Tiles that leave more than the rest of ``limit`` of the device without work."""
    slots = np.full(grid.tiles.shape, float(work.device.sm_count or np.nan))
    wasteful = (grid.wave_fill * grid.tile_fill < limit) & (grid.tiles > 0)
    waves, tile = grid.tiles / slots, (grid.tiles, grid.rows, grid.columns)
    return (
        Shortfall(
            wasteful & (grid.tile_fill < grid.wave_fill),
            "tile_quantisation",
            (work.cost("m"), work.cost("n"), grid.tile_fill, *tile),
        ),
        Shortfall(wasteful, "wave_quantisation", (*tile, waves, slots, grid.wave_fill, np.ceil(waves))),
    )


def _of_operands(work: RooflineInput, floors: Floors) -> tuple[Shortfall, ...]:
    """Leading dimensions that forbid wide loads, and matrix instructions of an older generation."""
    on_matrix_units = _engine(work, "matrix")
    m, n, k = (work.cost(size) for size in ("m", "n", "k"))
    # Kernels without matrix instructions load single numbers whatever the sizes are: their names say align1 always.
    align = work.per_name(_alignment_in)
    silent = on_matrix_units & (work.per_name(_ANY_ALIGN.search) == 0) & _of_family(work, "matmul")
    odd = silent & _in_half_precision(work) & (np.fmin(n, k) > 1) & ((n % 2 == 1) | (k % 2 == 1))
    generation = generation_of(work.device.architecture)
    arithmetic = ~(floors.compute_us < floors.cold_us)
    legacy = on_matrix_units & arithmetic & (work.per_name(generation.older.search) > 0)
    return (
        Shortfall((align > 0) | odd, "misaligned", (align, m, n, k), _alignment),
        Shortfall(
            legacy,
            "legacy_instructions",
            (_name_codes(work),),
            lambda code: (_token(generation.older, _name(work, code)), generation.instruction),
        ),
    )


def _alignment_in(name: str) -> float:
    match = None if _SCALAR.search(name) else _ALIGN.search(name)
    return float(match[1]) if match else 0.0


def _alignment(align: float, m: float, n: float, k: float) -> tuple[str]:
    """Describes the misaligned sizes.

    -1 is an unknown size. Sizes that decide the layout of an operand's rows come first.
    """
    recorded = [f"align{align:.0f}"] if align else []
    step, words = (8, "no multiple of 8") if align == 2 else (2, "odd")
    uneven = [(name, size) for name, size in (("k", k), ("n", n), ("m", m)) if size > 1 and size % step]
    return (", ".join(recorded + [f"{name} = {size:.0f} is {words}" for name, size in uneven[:1]]),)


def _token(pattern: re.Pattern[str], name: str) -> str:
    match = pattern.search(name)
    return match[0].strip("_:<") if match else ""


def _strided(work: RooflineInput) -> Shortfall:
    def kernel(code: float) -> tuple[str]:
        text = next(_ELEMENTWISE.finditer(_name(work, code)))[0]
        return (text + ">" * ("<" in text),)

    return Shortfall(work.per_name(_ELEMENTWISE.search) > 0, "strided", (_name_codes(work),), kernel)


def _crowded(work: RooflineInput) -> Shortfall:
    shared = np.bincount(work.groups.of_kernel, weights=shared_us(work.kernels), minlength=work.groups.kernels.size)
    part = shared / np.maximum(work.groups.time_us, 1e-9)
    return Shortfall(part >= work.limits.shared_share, "shared_device", (np.round(part, 1),))


def _of_threads(work: RooflineInput) -> tuple[Shortfall, ...]:
    """Explains plain kernels with too few loads under way.

    They are kernels of the plain units, and do not hide the latency of memory.
    """
    groups, slots, plain = work.groups, float(work.device.sm_count or np.nan), ~_engine(work, "matrix")
    per_slot = groups.blocks * groups.threads / slots
    fitting = np.floor(REGISTERS / np.maximum(groups.registers, 16) / np.maximum(groups.threads, 1)) * groups.threads
    moved = work.cost("bytes_low") / np.maximum(groups.blocks * groups.threads, 1)
    return (
        Shortfall(
            plain & (per_slot < HIDING_THREADS),
            "few_threads",
            (groups.blocks, groups.threads, np.full(per_slot.shape, slots), np.full(per_slot.shape, HIDING_THREADS)),
        ),
        Shortfall(plain & (fitting > 0) & (fitting < HIDING_THREADS), "many_registers", (groups.registers, fitting)),
        Shortfall(
            plain & (moved > 0) & (moved <= SLIM_BYTES),
            "slim_blocks",
            (groups.blocks, groups.threads, np.round(moved * groups.threads)),
        ),
    )


def _small(work: RooflineInput, floors: Floors) -> Shortfall:
    """Work that a launch outweighs, or that is over before the first bytes arrive."""
    groups, limits = work.groups, work.limits
    largest = np.fmax(floors.compute_us, floors.cold_us)
    moved = work.cost("bytes_low")
    under_way = (work.device.bandwidth_bytes_per_s or np.nan) * LATENCY_US / US_PER_S
    in_turn = floors.launch_us + largest >= limits.work_share * groups.time_us
    short = groups.time_us < limits.short_floors * floors.launch_us
    return Shortfall(
        (in_turn & (floors.launch_us > largest)) | (short & (moved < under_way)),
        "small_tensors",
        (moved, largest, floors.launch_us),
    )


def _of_instructions(work: RooflineInput, floors: Floors) -> tuple[Shortfall, ...]:
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
            "special_functions",
            (special, np.full(special.shape, rate)),
        ),
        Shortfall(
            leads & plain & (floors.compute_us >= enough * work.groups.time_us) & ~_of_family(work, "matmul"),
            "no_multiply_adds",
            (work.cost("vector_flops"),),
        ),
    )


def _engine(work: RooflineInput, engine: str) -> Flags:
    return np.asarray((work.kernels["engine"] == engine).to_numpy()[work.groups.main])


def _of_family(work: RooflineInput, family: str) -> Flags:
    return np.asarray((work.kernels["family"] == family).to_numpy()[work.groups.main])


def _in_half_precision(work: RooflineInput) -> Flags:
    """Marks rows whose arithmetic takes two bytes per number.

    The kernel's name tells, else the op.
    """
    halves, kernels = ("bf16", "fp16"), work.kernels["math_dtype"]
    by_kernel, silent = kernels.isin(halves).to_numpy(), kernels.isna().to_numpy()
    by_op = np.append(work.costs["math_dtype"].isin(halves).to_numpy(), False)[work.groups.signature]
    return np.asarray(by_kernel[work.groups.main] | (silent[work.groups.main] & by_op))


def _name_codes(work: RooflineInput) -> Floats:
    return work.kernels["name"].cat.codes.to_numpy().astype(np.float64)[work.groups.main]


def _name(work: RooflineInput, code: float) -> str:
    return str(work.kernels["name"].cat.categories[int(code)])


# Torch draws these numbers from one generator on one thread.
_SERIAL = re.compile(
    r"^aten::(?:bernoulli|cauchy|exponential|geometric|log_normal|multinomial|normal|rand\w*|uniform)_?$"
)


def of_host(work: RooflineInput, floors: Floors) -> tuple[Shortfall, ...]:
    """Reasons on a CPU, where a kernel is an op and its name."""
    low = work.cost("bytes_low")
    m, n, k = (work.cost(size) for size in ("m", "n", "k"))
    product = work.cost("matrix_flops") > 0
    return (
        Shortfall(work.per_name(_SERIAL.search) > 0, "one_thread"),
        Shortfall(product & (np.fmin(np.fmin(m, n), k) < work.limits.thin_product), "small_product", (m, n, k)),
        Shortfall(~product & (low < GRAIN_BYTES), "small_loop", (low,)),
        *more_bytes(work, floors),
        _fresh(work, floors),
        _partly_cold(work, floors),
        throttled(work),
    )


def _fresh(work: RooflineInput, floors: Floors) -> Shortfall:
    """Explains results in memory handed out at the first write.

    The rule holds where that accounts for the time.
    """
    rate, low, time = work.device.fresh_bytes_per_s or np.nan, work.cost("bytes_low"), work.groups.time_us
    written = low / 2  # at most, of what an op reads and writes
    makes_result = work.per_name(IN_PLACE.search) == 0
    enough = time <= (floors.cold_us + written / rate * US_PER_S) * work.limits.beyond
    return Shortfall(
        makes_result & (written >= GRAIN_BYTES) & enough & (time > floors.cold_us),
        "fresh_memory",
        (written, np.full(low.shape, rate)),
    )


def _partly_cold(work: RooflineInput, floors: Floors) -> Shortfall:
    """Explains data slower than its cache but faster than memory.

    The cache is the one that would hold the data.
    """
    low, time = work.cost("bytes_low"), np.maximum(work.groups.time_us, 1e-9)
    memory = np.full(low.shape, work.device.bandwidth_bytes_per_s or np.nan)
    return Shortfall(
        ~(floors.compute_us >= floors.cold_us) & (floors.warm_us < time) & (time <= floors.cold_us),
        "partly_cold",
        (two_digits(low / time * US_PER_S), memory, two_digits(low / np.maximum(floors.warm_us, 1e-9) * US_PER_S)),
    )
