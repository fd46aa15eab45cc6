"""Maps names of ops and kernels that differ between backends, builds or runs to one canonical name, for matching."""

import re
from functools import lru_cache

# Backend-specific names of an op and the name they share. The first pattern that matches wins; other ops keep their
# own names.
_RENAMED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^aten::((cudnn|miopen|mkldnn|mps|thnn|_?slow)_)?_?conv\w*_backward", "convolution backward"),
        (r"^aten::(cudnn|miopen|mkldnn|thnn)_(depthwise_)?conv\w*|^aten::_?(slow_)?conv\w*", "convolution"),
        (r"^aten::(_nnpack_spatial_convolution|xnnpack_conv)", "convolution"),
        (r"^aten::(native|cudnn|miopen|_?)_?batch_norm\w*_backward", "batch norm backward"),
        (r"^aten::(native_|cudnn_|miopen_|_native_|_)?batch_norm", "batch norm"),
        (r"^aten::(_scaled_dot_product|_\w*attention)\w*_backward", "attention backward"),
        (r"^aten::(_?scaled_dot_product\w*attention|_(flash|efficient|cudnn)_attention)", "attention"),
        (r"^aten::(_cudnn|miopen|mkldnn)_rnn\w*_backward", "recurrent layer backward"),
        (r"^aten::(_cudnn_rnn|miopen_rnn|mkldnn_rnn_layer)", "recurrent layer"),
        (r"^aten::_(cudnn_)?ctc_loss$", "CTC loss"),
        (r"^aten::(cudnn_)?grid_sampler(_[23]d)?$", "grid sampler"),
        (r"^aten::(mkldnn_|mkl_|_mkl_)?linear$", "linear"),
        (r"^aten::(relu|clamp_min|threshold)_?$", "relu"),
    )
)
# An op that encloses a compiled region: its kernels have informative names, the op has none.
_REGION = re.compile(
    r"^(Torch-Compiled Region|Compiled(Fx)?(Function|Graph|Autograd)|## Call|TorchDynamo|Inductor|(cuda|hip)Graph)"
)
# No op that has several names has a longer one; patterns take their time on what is longer.
_LONGEST_NAME = 300
# The op that all collectives of a trace are recorded under; the kernel names the collective.
_ANY_COLLECTIVE = "record_param_comms"
_COLLECTIVES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"all_?reduce", "all-reduce"),
        (r"reduce_?scatter", "reduce-scatter"),
        (r"all_?gather", "all-gather"),
        (r"all_?to_?all|send_?recv", "all-to-all"),
        (r"broadcast", "broadcast"),
        (r"reduce", "reduce"),
    )
)
_COUNTED_REGION = re.compile(r":? *\d+/\d+.*$")
# Of aten::add and aten::add_ a version of torch may take either; the arithmetic is the same.
_IN_PLACE = re.compile(r"(?<=\w)_$")
_COUNTED_NODE = re.compile(r"(?<=Backward)\d+$")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<=_)\d+$")

# Families whose members replace one another: another implementation of the same work. Those of other families only
# look alike (an addition is no product, but both are elementwise).
EXCHANGEABLE = frozenset(
    {
        "matmul",
        "convolution",
        "attention",
        "normalisation",
        "softmax",
        "pooling",
        "collective",
        "optimizer",
        "recurrent",
    }
)
# On a CPU kernels have no names: the family of an op by its own name.
_FAMILY_OF_OP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"attention", "attention"),
        (r"conv", "convolution"),
        (r"^aten::(_?addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot|linear|matmul|mkldnn_linear|_grouped_mm)", "matmul"),
        (r"_(batch|layer|group|instance|rms)_norm", "normalisation"),
        (r"softmax", "softmax"),
        (r"_pool[123]d", "pooling"),
        (r"^aten::_(foreach|fused)_|^Optimizer", "optimizer"),
        (r"rnn|lstm|gru", "recurrent"),
    )
)


@lru_cache(maxsize=1 << 16)
def plain_op(op: str) -> str:
    """The canonical name of an op, the same on every backend and without the profiler's running numbers."""
    if len(op) > _LONGEST_NAME:
        return op
    if is_region(op):
        return _COUNTED_REGION.sub("", op)
    name = next((name for pattern, name in _RENAMED if pattern.search(op)), op)
    return _COUNTED_NODE.sub("", _IN_PLACE.sub("", name))


@lru_cache(maxsize=1 << 16)
def own_op(op: str | None, kernel: str) -> str | None:
    """The op; for the generic collective op the collective that its kernel names."""
    if op != _ANY_COLLECTIVE:
        return op
    return next((name for pattern, name in _COLLECTIVES if pattern.search(kernel[:_LONGEST_NAME])), op)


@lru_cache(maxsize=1 << 16)
def is_region(op: str) -> bool:
    """True for an op that encloses a compiled region, whose kernels are more informative."""
    return len(op) <= _LONGEST_NAME and _REGION.search(op) is not None


@lru_cache(maxsize=1 << 16)
def plain_kernel(name: str) -> str:
    """A kernel's name without what changes from build to build: addresses, and the number at its end."""
    return _NUMBERS.sub("", name)


@lru_cache(maxsize=1 << 16)
def family_of_op(op: str) -> str | None:
    """The kernel family that an op's name implies; None if it implies none."""
    return next((family for pattern, family in _FAMILY_OF_OP if pattern.search(op[:_LONGEST_NAME])), None)
