"""Finds norms, softmax and GELU written out op by op.

They are told by the order of the names of a program's ops.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bottleneck.advice.kernel_work import KernelWork, Size, requires_gain, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import LEAST_SHARE, backward_of, issued_by, main_source, removal_of, top_rows
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted

# Ops by name without "aten::" and without the mark of ops in place, each followed by a space. On a CPU a mean is
# recorded as a sum and a division. Ops on one number per row may be too small to be seen.
_MEAN = "(?:mean |sum div )"
_SQUARE = "(?:pow |square |mul )"
_ROOT = "(?:add )?(?:rsqrt |sqrt )?"
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    # (x - x.mean()) / (x.var() + eps).sqrt() * weight + bias, with the variance written out or not
    "layer_norm": (
        f"{_MEAN}sub {_SQUARE}{_MEAN}(?:sub )?{_ROOT}(?:sub )?(?:mul |div )(?:mul )?(?:add )?",
        f"{_MEAN}(?:var |std )(?:sub )?(?:mul )?{_ROOT}(?:sub )?(?:mul )?(?:div |mul )(?:mul )?(?:add )?",
    ),
    # x * (x.pow(2).mean() + eps).rsqrt() * weight
    "rms_norm": (
        f"(?:pow |square ){_MEAN}{_ROOT}(?:mul |div )(?:copy |to )?(?:mul )?",
        f"mul {_MEAN}add (?:rsqrt |sqrt )(?:mul |div )(?:copy |to )?(?:mul )?",
    ),
    # (x - x.max()).exp(), divided by its sum
    "softmax": ("(?:(?:amax |max )sub )?exp sum div ",),
    "gelu_tanh": ("(?:mul )?(?:pow |mul mul )mul add (?:mul )?tanh add mul (?:mul )?",),
    "gelu": ("(?:mul )?(?:div |mul )erf add mul (?:mul )?",),
}
# The first that matches at a place counts: a layer norm holds what looks like an RMS norm.
_ANY = re.compile("(?<![^ ])(?:" + "|".join(f"(?P<{op}>{'|'.join(forms)})" for op, forms in _PATTERNS.items()) + ")")


@dataclass(frozen=True)
class HandWritten:
    """Neighbouring ops that do the work of one library op.

    They have its name, the first op, and how many there are.
    """

    op: str
    first: int
    count: int


def find_hand_written(names: Sequence[str]) -> Iterator[HandWritten]:
    """Finds what these neighbouring ops write out, from the first on."""
    text = "".join(f"{name.removeprefix('aten::').removesuffix('_')} " for name in names)
    for match in _ANY.finditer(text):
        assert match.lastgroup is not None, "each pattern has a name"
        yield HandWritten(match.lastgroup, text.count(" ", 0, match.start()), match[0].count(" "))


_ROOTS = frozenset({"rsqrt", "sqrt"})
_CURVES = frozenset({"tanh", "erf"})
# Of the time of the ops that go: the library's op also makes the statistics, or has more to do in its backward pass.
_LEAST_SPARED = 0.5


@dataclass(frozen=True)
class _LibraryCall:
    """A function of the library, in a sentence and in code."""

    name: str
    code: str


# On a CPU this function runs the same ops itself: 0.78 to 1.18 times their time (torch 2.13, one and two threads of a
# Xeon, 4,096 to 4,194,304 numbers).
_ROWS_ON_A_CPU = frozenset({"rms_norm"})
_CALLS: Mapping[str, _LibraryCall] = {
    "layer_norm": _LibraryCall("F.layer_norm", "F.layer_norm(x, (x.shape[-1],), weight, bias, eps)"),
    "channels_norm": _LibraryCall(
        "F.layer_norm on x.permute(0, 2, 3, 1)",
        "F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias, eps).permute(0, 3, 1, 2)",
    ),
    "rms_norm": _LibraryCall("F.rms_norm", "F.rms_norm(x, (x.shape[-1],), weight, eps)"),
    "gelu_tanh": _LibraryCall('F.gelu(x, approximate="tanh")', 'F.gelu(x, approximate="tanh")'),
    "gelu": _LibraryCall("F.gelu", "F.gelu(x)"),
}


@dataclass(frozen=True)
class _WrittenOut:
    """Outermost ops that a library op stands for.

    ``stays`` is the one that takes about as long as the library's.
    """

    op: str
    rows: tuple[int, ...]
    stays: int


def _written_out(evidence: Evidence) -> Iterator[_WrittenOut]:
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(str).to_numpy(dtype=object)[top].tolist()
    plain = [name.removeprefix("aten::").removesuffix("_") for name in names]
    calls = as_integers(ops["signature"])[top].tolist()
    for written in find_hand_written(names):
        places = range(written.first, written.first + written.count)
        sizes = [work.tensors_of(calls[at]) for at in places]
        op, parts = written.op, [plain[at] for at in places]
        held = _norm_in(parts, sizes) if op in {"layer_norm", "rms_norm"} else _gelu_in(parts, sizes)
        if held is None and op == "layer_norm" and _lie_channels_last(work, calls[written.first]):
            # To the library, whose norm is over the last dimension, these images lie so already.
            op, held = "channels_norm", _norm_in(parts, [[_by_channel(size) for size in part] for part in sizes])
        if op in _CALLS and held is not None and not (evidence.is_host_only and op in _ROWS_ON_A_CPU):
            first, last, stays = held
            rows = tuple(int(top[at]) for at in places[first : last + 1])
            yield _WrittenOut(op, rows, int(top[places[stays]]))


def _norm_in(names: Sequence[str], sizes: Sequence[Sequence[Size]]) -> tuple[int, int, int] | None:
    """Gives the first and last op of a norm, and the op that scales.

    The norm is over the last dimension. Null where these ops are another thing.
    """
    root = next((at for at, name in enumerate(names) if name in _ROOTS), None)
    if root is None or not sizes[root] or not sizes[0]:
        return None
    row, whole = sizes[root][0], sizes[0][0]
    if len(whole) < 2 or whole[-1] < 2 or row != (*whole[:-1], 1):
        return None
    stays = next((at for at in range(root + 1, len(names)) if names[at] in {"mul", "div"}), None)
    if stays is None or set(sizes[stays]) != {whole, row}:
        return None
    last = stays
    # Factors and a sum of one number per column are the norm's own, a tensor of full size is not.
    while last + 1 < len(names) and all(size in {whole, whole[-1:]} for size in sizes[last + 1]):
        if sizes[last + 1].count(whole) > 1:
            break
        last += 1
    return 0, last, stays


def _lie_channels_last(work: KernelWork, signature: int) -> bool:
    """True where the first tensor of a call is images whose channels lie together."""
    strides = work.text_column("strides", signature)
    first = strides[0] if strides else None
    return isinstance(first, list) and len(first) == 4 and first[1] == 1


def _by_channel(size: Size) -> Size:
    """The sizes of images as their memory lies: channels last."""
    return (size[0], *size[2:], size[1]) if len(size) == 4 else size


def _gelu_in(names: Sequence[str], sizes: Sequence[Sequence[Size]]) -> tuple[int, int, int] | None:
    """Gives the first and last op of a GELU, and its curve.

    Null where these ops are another thing.
    """
    curve = next((at for at, name in enumerate(names) if name in _CURVES), None)
    if curve is None or not sizes[curve]:
        return None
    whole = sizes[curve][0]
    if not all(size in {whole, ()} for tensors in sizes for size in tensors):
        return None
    products = [at for at, name in enumerate(names) if name == "mul" and sizes[at].count(whole) > 1]
    after = [at for at in products if at > curve]
    if not after:
        return None
    # A product of two tensors before the cube, or a second one behind, is of a gate.
    first = 1 if names[1] == "pow" and 0 in products else 0
    last = after[1] - 1 if len(after) > 1 else len(names) - 1
    return first, last, curve


@requires_gain
def written_function(evidence: Evidence) -> Draft | None:
    """Finds norms and GELU written out op by op.

    One op of the library does the work of each. Gain: these ops with their backward nodes, but for one pass over the
    tensor with its own backward pass, from half.
    """
    written = list(_written_out(evidence))
    gone = [row for one in written for row in one.rows if row != one.stays]
    if not gone:
        return None
    work, steps = work_of(evidence), evidence.steps
    rows = [*gone, *backward_of(evidence, gone)]
    removal = removal_of(evidence, rows, certain=_LEAST_SPARED)
    if evidence.share_of_step(removal.us) < LEAST_SHARE:
        return None
    by_op: dict[str, list[int]] = {}
    for one in written:
        by_op.setdefault(one.op, []).extend(one.rows)
    lines = {op: main_source(evidence, held) for op, held in by_op.items()}
    calls = " and ".join(f"{_CALLS[op].name} {at_source(line)}".rstrip() for op, line in lines.items())
    return Draft(
        slug="written-function",
        title="A norm or an activation is written out op by op",
        evidence=(
            f"{counted(format_count(sum(map(len, by_op.values())) / steps), 'op')} per step write out "
            f"{counted(format_count(len(written) / steps), 'call')} of the library",
            f"what one op for each spares takes {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Call {calls}: one op in place of those that write it out, with one backward node.",
        brief=f"Call {calls}",
        places=tuple(lines.values()),
        code="\n".join(f"y = {_CALLS[op].code}" for op in lines),
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
    )


RULES = (written_function,)
