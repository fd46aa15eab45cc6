"""Reasons as codes with numbers, and their words.

They say why work has no cost, no op, or takes longer than its floor. Only this module words them.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from string import Formatter
from typing import Any

from msgspec import Struct

from bottleneck.units import counted, format_si, format_us


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f}"


def _counted(noun: str) -> Callable[[float], str]:
    return lambda number: counted(f"{number:.0f}", noun)


# The format specifications of the templates below, beside those of Python: a unit, or a noun that is counted.
_UNITS: Mapping[str, Callable[[Any], str]] = {
    **{unit: partial(format_si, unit=unit) for unit in ("B", "B/s", "1/s", "FLOP", "exp, rsqrt …")},
    **{noun: _counted(noun) for noun in ("block", "multiprocessor", "thread", "tile")},
    "us": format_us,
    "%": lambda share: f"{share * 100:.0f} %",
    "": _plain,
}


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return str(_UNITS[format_spec](value) if format_spec in _UNITS else format(value, format_spec))


@cache
def _number_names(words: str) -> tuple[str, ...]:
    """Returns the fields of a template, in order.

    The numbers of a reason are given in this order.
    """
    return tuple(name for _, name, _, _ in Formatter().parse(words) if name)


REASONS: Mapping[str, str] = {
    # Of device work without an op.
    "graph_replay": "traces hold no sizes of what a graph replays",
    "outside_op": "the trace does not show which op launched this work",
    "no_launches": "no launches in the trace",
    "launched_before": "launched before the window",
    "no_correlation": "no correlation in the trace",
    "graph_launch": "traces hold no sizes of what a graph replays",
    "no_op": "no op issued it",
    "no_modelled_op": "no modelled op among those that issued it",
    # Of calls without a cost.
    "no_formula": "no formula for {op}",
    "composite": "{op} only calls other ops",
    "unfit_shapes": "the recorded shapes do not fit {op}",
    "compiled_region": "compiled region, whose kernels record no shapes",
    "compiled_kernel": "{why}",
    # Of the call as a whole.
    "no_shapes": "shapes were not recorded",
    "no_dtypes": "dtypes were not recorded",
    "no_tensor": "no tensor was recorded",
    "no_dtype": "no tensor argument was recorded with a dtype",
    "no_dtype_of_op": "no tensor argument of {op} was recorded with a dtype",
    "no_tensor_argument": "argument {position} of {op} was not recorded as a tensor",
    "unknown_dtype": "unknown dtype {dtype}",
    "unknown_dtype_number": "unknown dtype number {number}",
    "bad_json": "shapes are not valid JSON",
    "no_list": "shapes are not a list",
    "no_sizes": "a shape holds something other than sizes",
    # Arguments that a trace may lack.
    "no_result_size": "the size of the result was not recorded",
    "no_list_sizes": "the sizes of the tensor list were not recorded",
    "no_bounds": "the bounds of the range were not recorded",
    "no_dimension": "the dimension was not recorded",
    "no_indices": "the indices were not recorded",
    "no_lookup_indices": "the indices of the lookup are not in the trace",
    "no_table_widths": "the widths of the embedding tables were not recorded",
    "no_repeats": "the number of repeats was not recorded",
    "no_padding": "the padding was not recorded",
    "no_windows": "the windows were not recorded",
    "no_offsets": "the offsets of the deformed windows were not recorded",
    "no_draws": "the number of draws was not recorded",
    "no_transformed": "the transformed dimensions were not recorded",
    "no_weight_sizes": "the sizes of the weights were not recorded",
    "no_convolution_arguments": "the arguments of the convolution were not recorded",
    "no_groups": "the groups of the transposed convolution were not recorded",
    "no_gradients": "which gradients the call makes was not recorded",
    "no_strides": "stride, padding or dilation was not recorded",
    "no_transposed": "whether the convolution is transposed was not recorded",
    "no_expert_weights": "the weights of the experts are no argument of this op",
    "no_block_table": "query or block table of the cache were not recorded",
    "no_buffers": "the buffers of this kernel were not recorded",
    # Data, which no trace holds.
    "packed_weight": "the weight is packed, and its sizes are not in the trace",
    "packed_lengths": "the lengths of the packed sequences are not in the trace",
    "cached_lengths": "the lengths of cached sequences are not in the trace",
    "block_mask": "the block mask of a fused attention kernel is not in the trace",
    "classes_are_data": "the number of classes is data",
    "repeats_are_data": "the number of repeats is data",
    "open_factors": "the shapes do not tell the factors of this product",
    "open_convolution": "the shapes do not tell the parts of this convolution",
    # Sizes that no such call can have.
    "no_matrix": "the operand is no matrix",
    "no_batch": "operands are not matrices of one batch",
    "inner_sizes": "inner sizes of the product differ",
    "unfit_weight": "the weight does not fit the inputs",
    "unfit_vector": "the vector does not fit the matrix",
    "unequal_vectors": "the vectors of a dot product differ in length",
    "unfit_attention": "query, key and value do not fit each other",
    "unequal_dimensions": "input and weight of the convolution differ in dimensions",
    "large_window": "the window is larger than the input",
    "no_broadcast": "shapes do not broadcast",
    "unfit_experts": "the experts' weights are not three-dimensional",
    # Of kernels without a floor.
    "no_peaks": "no peaks known for this device",
    "no_peak": "no peak known for its dtype",
    "no_bandwidth": "no bandwidth known for this device",
    # Of kernels that take longer than their floor.
    "unexplained": "unexplained",
    "too_fast": "faster than its floor: its cost is taken too high, or the peak too low",
    "from_cache": "served from cache",
    "slow_library": "multiplied by a library that is slower on this CPU than oneDNN",
    "compute_by_balance": "by machine balance: more FLOPs per byte than the ridge of any device that this may be",
    "memory_by_balance": "by machine balance: fewer FLOPs per byte than the ridge of any device that this may be",
    "throttled": "clocks: the device was throttled ({causes})",
    # Of kernels and ops whose library is not known.
    "no_library_in_name": "its name tells no library",
    "unknown_build": "a trace does not tell which {part} torch was built with",
    "chosen_by_dtype": "torch chooses a library by dtype, size and processor",
    "inside_aten": "ATen itself, or a library that it calls (BLAS, oneDNN, FBGEMM)",
    # Bytes.
    "repeated_passes": "repeated passes over its data: up to {most:B} for {least:B}",
    "open_bytes": "the trace leaves its bytes open: {least:B} to {most:B}",
    "strided": "strided access: {kernel} moves single elements, not vectors",
    "small_tensors": "small tensors: {size:B} take {floor:us}, beside a launch floor of {launch:us}",
    "fresh_memory": "fresh memory: pages for up to {size:B} come at {rate:B/s}",
    "partly_cold": "partly cold data: about {pace:B/s}, between memory's {memory:B/s} and the cache's {cache:B/s}",
    # The grid and its threads.
    "auxiliary_kernels": "auxiliary layout kernels: about {part:%} of the time",
    "ramp_up": "ramp-up: {blocks:block} for {slots:multiprocessor}",
    "too_few_blocks": "too few blocks: {blocks:block} for {slots:multiprocessor}",
    "wave_quantisation": (
        "wave quantisation: {tiles:tile} of {rows}x{columns} fill {waves:.2f} waves of {slots} multiprocessors, "
        "{fill:%} of the slots of {whole}"
    ),
    "tile_quantisation": "tile quantisation: results of {m} x {n} fill {fill:%} of {tiles:tile} of {rows}x{columns}",
    "shared_device": "shares the device: other work runs for about {part:%} of its time",
    "few_threads": (
        "too few threads: {blocks:block} of {threads} for {slots:multiprocessor}, which need about {needed} each"
    ),
    "many_registers": "too few threads: {registers} registers each leave room for {threads} per multiprocessor",
    "slim_blocks": "little work per block: {blocks:block} of {threads:thread} move {size:B} each",
    # Instructions.
    "misaligned": "misaligned: {alignment}",
    "legacy_instructions": (
        "legacy instructions: mma.sync ({token}) on a GPU that needs {needed} for more than about 63 % of its peak"
    ),
    "special_functions": "special functions: {count:exp, rsqrt …} at {rate:1/s} at most",
    "no_multiply_adds": "no fused multiply-adds: {flops:FLOP} at half of the peak at most",
    # The processors of the host.
    "one_thread": "one thread: random numbers come from one generator, one after the other",
    "comparisons": "comparisons of numbers, one after the other, whose rate no peak tells",
    "small_product": "small product: m = {m}, n = {n}, k = {k}",
    "small_loop": "too small for 2 threads: {size:B}, and loops split from 32,768 elements",
    # Of copies that take longer than theirs.
    "pageable": "pageable host memory",
    "slow_pageable": "pageable host memory: about {pace:B/s} of the link's {limit:B/s}",
    "paced_pageable": "pageable host memory: about {pace:B/s}",
    "small_copy": "small copy: {size:B}",
    "slow_link": "slow link: about {pace:B/s} of the link's {limit:B/s}",
    "slow_copy": "slow copy: reads and writes about {pace:B/s} of the DRAM's {limit:B/s}",
    "no_bytes": "no bytes in the trace",
    # Of steps that do not count.
    "warming_up": "still warming up: {ratio:.3g} times the median of the later steps",
    "fed_before": "fed from work that was queued before it: {ratio:.3g} times the median of the later steps",
    "other_window": "in another window of the profiler",
    "held_up": "held up by other programs, or beside such a step: {ratio:.3g} times the steps explained",
    "outlier": "an outlier: {ratio:.3g} times the median",
    "cut_by_outlier": "cut off from the longest steady stretch by an outlier",
    "held_before": "the device was held by work from before the recording",
    "queued_at_end": "in part still in the device's queue when the recording ended",
    "earlier_side": "on the earlier side of the window",
    "other_ops": "made of other ops than most steps",
    "cut_by_others": "cut off from the longest stretch of equal steps",
    "not_requested": "not in --steps {steps}",
    "not_of_all": "not recorded by every rank",
}

# Words of some of them without their numbers, for several of a kind.
BRIEF: Mapping[str, str] = {
    "warming_up": "still warming up",
    "fed_before": "fed from work that was queued before",
    "held_up": "held up by other programs",
    "outlier": "an outlier",
}

_NEWER_TRACE = (
    "record with record_shapes=True in PyTorch 2.3 or later, whose traces also hold dtypes and scalar arguments"
)
_NO_GRAPH = "record the same step without graphs too: a replay does not say which ops its kernels belong to"
_BEGIN_EARLIER = "let the recording begin before the work is launched, and keep CPU activity on"
_NAME_DEVICE = "name the device (--device) or its ceilings (--peaks), or record with `bottleneck run`"

# What would mend a reason on a new recording.
REMEDIES: Mapping[str, str] = {
    "graph_replay": _NO_GRAPH,
    "outside_op": "call this work through an op (torch.library.custom_op), so that its shapes are recorded",
    "no_launches": _BEGIN_EARLIER,
    "launched_before": _BEGIN_EARLIER,
    "no_correlation": "record with a newer profiler, one that ties device work to the calls that issued it",
    "graph_launch": _NO_GRAPH,
    "compiled_region": "judge the same step without torch.compile too: a compiled region records no shapes",
    "no_shapes": "record with shapes (record_shapes=True), so that more of the work can be modelled",
    "no_dtypes": _NEWER_TRACE,
    "no_tensor_argument": _NEWER_TRACE,
    "no_strides": _NEWER_TRACE,
    "no_peaks": _NAME_DEVICE,
    "no_peak": _NAME_DEVICE,
    "no_bandwidth": "name the device (--device) or its ceilings (--peaks), so that bytes can be judged",
}

# What surrounds a reason: the op is one of those that a kernel fuses, or the call is that of the same kernel elsewhere.
PLACES: Mapping[str, str] = {
    "at_capture": "the same kernel at capture",
    "elsewhere": "the same kernel elsewhere in the trace",
}
_CONTEXTS: Mapping[str, str] = {
    "fused": "it fuses an unmodelled op: {}",
    **{place: f"{{}} ({words})" for place, words in PLACES.items()},
}


class Reason(Struct, frozen=True):
    """Code of REASONS with the numbers and names of its words.

    They are in the order of the words' fields.

    ``contexts`` are keys of what surrounds it, from the inside.
    """

    code: str
    numbers: tuple[float | str, ...] = ()
    contexts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.code in REASONS, self.code

    @property
    def words(self) -> str:
        """The reason for people."""
        text = _Words().format(REASONS[self.code], **self._by_name())
        for context in self.contexts:
            text = _CONTEXTS[context].format(text)
        return text

    @property
    def kind(self) -> str:
        """Reason for people, without the numbers of one case where possible."""
        return BRIEF.get(self.code) or self.words

    def number(self, name: str) -> float | None:
        """One of its numbers; null for another kind of reason."""
        value = self._by_name().get(name)
        return value if isinstance(value, float) else None

    def _by_name(self) -> dict[str, float | str]:
        return dict(zip(_number_names(REASONS[self.code]), self.numbers, strict=True))
