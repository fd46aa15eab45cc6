"""Rule of layers that compute the same rows many times over.

Their input was spread before them.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, broadcast, is_size, size_words, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    BYTES_OF_NUMBER,
    LEAST_SHARE,
    backward_of,
    issued_by,
    main_source,
    moved_us,
    removal_of,
    top_rows,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers

_LAYER = re.compile(r"^aten::(?:linear|addmm|matmul|mm|conv[123]d|convolution)$")
_JOINS, _ADDS = re.compile(r"^aten::(?:cat|concat|concatenate|hstack)$"), re.compile(r"^aten::(?:add|sub)$")
_VIEWS = re.compile(
    r"^aten::(?:view|reshape|flatten|unflatten|_unsafe_view|contiguous|clone|to|_to_copy|squeeze|unsqueeze|transpose"
    r"|permute|movedim|t|detach|expand|slice|select|alias)$"
)
_COPIES = re.compile(r"^aten::(?:reshape|contiguous|clone|flatten)$")
_REPEATS = re.compile(r"^aten::(?:repeat|tile|repeat_interleave)$")
_GATHERS = re.compile(r"^aten::(?:index|index_select|embedding)$")
_BY_ROW = re.compile(
    r"^aten::(?:linear|relu_?|gelu|silu_?|mish|tanh_?|sigmoid_?|elu_?|leaky_relu_?|softplus|layer_norm|rms_norm|view)$"
)
_SPREADS = re.compile(r"^aten::(?:repeat|repeat_interleave|tile|index|index_select|gather|expand_as|expand)$")
# Ops that a joined tensor passes on its way to the layer, and ops back in which an operand was spread, at most.
_MOST_BETWEEN, _MOST_BACK = 4, 24
# Each row is there so many times, at least.
_TIMES = 4.0
_LEAST_NUMBERS = 2**16
# Passes over the result that add the parts up, with the backward pass.
_PASSES = 3
_AT_WORST = 0.5
_NEARLY_WHOLE = 0.99


class _SpreadLayer(Struct, frozen=True):
    """Layer whose input was spread.

    Its rows in OPS, how it was made, and sizes. ``part`` of its input's width is there ``times`` times; ``kind`` is
    'joined', 'added', 'repeated' or 'gathered'.
    """

    layer: int
    maker: int | None
    kind: str
    part: float
    times: float
    size: Size
    result_numbers: float


def _calls(evidence: Evidence) -> list[tuple[int, str, int]]:
    """Row, name and signature of the outermost ops outside of the backward pass."""
    ops, top = evidence.linked.ops, top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    return list(zip(top.tolist(), map(str, names), as_integers(ops["signature"])[top].tolist(), strict=True))


def _copies(size: object, stride: object) -> float:
    """Counts how often a tensor has each of its numbers.

    By strides of zero.
    """
    if not is_size(size) or not is_size(stride) or len(size) != len(stride):
        return 1.0
    return float(math.prod(length for length, step in zip(size, stride, strict=True) if step == 0))


def _input_of(work: KernelWork, name: str, signature: int) -> tuple[Size, Size, int] | None:
    """Returns sizes of a layer's input and weight.

    And the dimension of its features; null for other calls.
    """
    sizes = work.tensors_of(signature)
    if name == "aten::addmm":
        sizes = sizes[1:]
    if len(sizes) < 2 or len(sizes[0]) < 2:
        return None
    if "conv" in name:
        is_pointwise = all(length == 1 for length in sizes[1][2:])
        return (sizes[0], sizes[1], 1) if is_pointwise and len(sizes[1]) > 2 else None
    return (sizes[0], sizes[1], len(sizes[0]) - 1) if len(sizes[1]) == 2 else None


def _times_of(work: KernelWork, before: Sequence[tuple[int, str, int]], size: Size, axis: int) -> float:
    """Returns how often an operand has each row.

    By the latest op that may have spread it; 1 where none has.
    """
    for _, name, signature in reversed(before[-_MOST_BACK:]):
        source = next(iter(work.tensors_of(signature)), ()) if _SPREADS.search(name) else ()
        if len(source) < 2 or size[axis] not in (source[1], source[-1]) or not math.prod(source):
            continue
        times = math.prod(size) / math.prod(source)
        if _makes(work, name, signature, source, size):
            return max(1.0, times)
    return 1.0


def _makes(work: KernelWork, name: str, signature: int, source: Size, size: Size) -> bool:
    """True if an op may have made a tensor of this size.

    By what is known of its result, or of the rows it picks.
    """
    if result := work.text_column("result", signature):
        return is_size(list(result)) and math.prod(result) == math.prod(size)  # type: ignore[arg-type]
    if "index" in name or "gather" in name:
        return any(math.prod(size_) * source[-1] == math.prod(size) for size_ in work.tensors_of(signature)[1:])
    return math.prod(size) % math.prod(source) == 0


def _joined(evidence: Evidence, calls: Sequence[tuple[int, str, int]], at: int) -> tuple[float, float, Size] | None:
    """Returns the part of a joined tensor's features that was spread.

    How often, and the tensor's size; null where none was.
    """
    work, signature = work_of(evidence), calls[at][2]
    parts, strides = (next(iter(work.text_column(name, signature)), None) for name in ("dims", "strides"))
    if not isinstance(parts, list) or len(parts) < 2 or not all(is_size(part) and len(part) > 1 for part in parts):
        return None
    rank = len(parts[0])
    differs = [axis for axis in range(rank) if len({tuple(part)[axis : axis + 1] for part in parts}) > 1]
    text = "".join(str(part) for part in work.text_column("concrete", signature)[1:2])
    axis = (int(text) if re.fullmatch(r"-?\d{1,2}", text) else rank - 1) % rank
    if differs not in ([], [axis]):
        return None
    width = sum(part[axis] for part in parts)
    given = strides if isinstance(strides, list) and len(strides) == len(parts) else [None] * len(parts)
    spread, times = 0, 0.0
    for part, stride in zip(parts, given, strict=True):
        mine = max(_copies(part, stride), _times_of(work, calls[:at], tuple(part), axis))
        if mine >= _TIMES:
            spread, times = spread + part[axis], max(times, mine) if not times else min(times, mine)
    size = (*parts[0][:axis], width, *parts[0][axis + 1 :])
    return (spread / width, times, size) if spread else None


def _added(work: KernelWork, signature: int) -> tuple[float, float, Size] | None:
    """The same for the sum of two tensors that were broadcast against each other."""
    sizes = [shape for shape in work.tensors_of(signature)[:2] if len(shape) > 1]
    strides = work.text_column("strides", signature)[:2]
    if len(sizes) < 2:
        return None
    result = broadcast(sizes)
    copies = [_copies(list(size), stride) for size, stride in zip(sizes, (*strides, None, None), strict=False)]
    times = min(math.prod(result) / max(math.prod(size), 1) * copy for size, copy in zip(sizes, copies, strict=True))
    return (1.0, times, result) if times >= _TIMES and all(size[-1] == result[-1] for size in sizes) else None


def _repeated(work: KernelWork, name: str, signature: int) -> tuple[float, float, Size] | None:
    """Returns the same for a copy of an expanded tensor.

    And for repeat, tile and repeat_interleave.
    """
    size = next(iter(work.tensors_of(signature)), ())
    if len(size) < 2:
        return None
    if _COPIES.search(name):
        times = max((_copies(list(size), text_) for text_ in work.text_column("strides", signature)[:1]), default=1.0)
        return (1.0, times, size) if times >= _TIMES else None
    counts = re.findall(r"\d{1,6}", " ".join(str(text_) for text_ in work.text_column("concrete", signature)[1:2]))
    by = math.prod(map(int, counts))
    return (1.0, float(by), (by * math.prod(size[:-1]), size[-1])) if by >= _TIMES else None


def _gathered(work: KernelWork, signature: int) -> tuple[float, float, Size] | None:
    """Returns the same for whole rows that one index picks.

    There are several times more of them than rows to pick from.
    """
    sizes, result = work.tensors_of(signature), list(work.text_column("result", signature))
    if not sizes or len(sizes[0]) != 2 or not math.prod(sizes[0]):
        return None
    source = sizes[0]
    size = result if is_size(result) and len(result) > 1 else [*sizes[1], source[1]] if len(sizes) == 2 else []
    times = math.prod(size) / math.prod(source)
    return (1.0, times, tuple(size)) if size and size[-1] == source[1] and times >= _TIMES else None


def _layer_after(
    evidence: Evidence, calls: Sequence[tuple[int, str, int]], at: int, size: Size
) -> tuple[int, float] | None:
    """Returns the layer that takes this tensor as it is, or its views.

    And the numbers of its result; null for none.
    """
    work = work_of(evidence)
    for row, name, signature in calls[at + 1 : at + 2 + _MOST_BETWEEN]:
        if _VIEWS.search(name):
            continue
        if not _LAYER.search(name) or (layer := _input_of(work, name, signature)) is None:
            return None
        taken, weight, axis = layer
        if math.prod(taken) != math.prod(size) or taken[axis] not in size:
            return None
        out = weight[1] if name in ("aten::matmul", "aten::mm", "aten::addmm") else weight[0]
        return row, math.prod(taken) / max(taken[axis], 1) * out
    return None


def _spread_layers(evidence: Evidence) -> list[_SpreadLayer]:
    calls, work = _calls(evidence), work_of(evidence)
    layers = []
    for at, (row, name, signature) in enumerate(calls):
        kind, made = _spread_by(evidence, calls, at)
        if made is not None and math.prod(made[2]) >= _LEAST_NUMBERS:
            after = _layer_after(evidence, calls, at, made[2])
            if after is not None:
                layers.append(_SpreadLayer(after[0], row, kind, made[0], made[1], made[2], after[1]))
        if kind:
            continue
        layer = _input_of(work, name, signature) if _LAYER.search(name) else None
        if layer is None or math.prod(layer[0]) < _LEAST_NUMBERS:
            continue
        at_input = 1 if name == "aten::addmm" else 0
        stride = work.text_column("strides", signature)[at_input : at_input + 1]
        times = max((_copies(list(layer[0]), steps) for steps in stride), default=1.0)
        if times >= _TIMES:
            numbers = math.prod(layer[0]) / layer[0][layer[2]] * layer[1][0]
            layers.append(_SpreadLayer(row, None, "repeated", 1.0, times, layer[0], numbers))
    return layers


def _that_follow(evidence: Evidence, calls: Sequence[tuple[int, str, int]], layer: int, size: Size) -> list[int]:
    """Returns the ops after a layer that work on each row by itself.

    The layer's rows are repeated: these ops give the same for each copy too.
    """
    work, rows = work_of(evidence), math.prod(size[:-1])
    at = next(place for place, call in enumerate(calls) if call[0] == layer)
    following = []
    for row, name, signature in calls[at + 1 :]:
        taken = next(iter(work.tensors_of(signature)), ())
        if not _BY_ROW.search(name) or len(taken) < 2 or math.prod(taken) != rows * taken[-1]:
            break
        following.append(row)
    return following


def _spread_by(
    evidence: Evidence, calls: Sequence[tuple[int, str, int]], at: int
) -> tuple[str, tuple[float, float, Size] | None]:
    """Returns the kind of spreading that an op does.

    With part, number and size of its rows; '' for other ops.
    """
    _, name, signature = calls[at]
    if _JOINS.search(name):
        return "joined", _joined(evidence, calls, at)
    if _ADDS.search(name):
        return "added", _added(work_of(evidence), signature)
    if _COPIES.search(name) or _REPEATS.search(name):
        return "repeated", _repeated(work_of(evidence), name, signature)
    if _GATHERS.search(name):
        return "gathered", _gathered(work_of(evidence), signature)
    return "", None


_WORDS = {
    "joined": (
        "A layer works on all pairs of rows, each of which is joined from few",
        "Do not build the joined rows {place}: a linear layer of a concatenation is the sum of one product for each "
        "part. Split the layer's weight by columns, apply each piece to the rows as they are before they are expanded, "
        "repeated or gathered, and add the results by broadcasting (or gather the results): each part then has "
        "{times} times fewer rows.",
        "left, right = layer.weight.split(h.size(-1), dim=1)\n"
        "y = F.linear(h, left, layer.bias).unsqueeze(2) + F.linear(h, right).unsqueeze(1)  # no cat of n x n pairs",
    ),
    "added": (
        "A layer works on all pairs of rows, each of which is a sum of two",
        "Apply the layer before the sum {place}: a linear layer of a sum is the sum of the layer's results, which "
        "are added by broadcasting. Each operand has {times} times fewer rows than the sum.",
        "y = layer(a).unsqueeze(2) + F.linear(b, layer.weight).unsqueeze(1)  # in place of layer(a[:, :, None] + "
        "b[:, None])",
    ),
    "repeated": (
        "A layer computes the same rows many times over",
        "Apply the layer {place} before its input is expanded, and expand the result: each row is there {times} times, "
        "and the layer gives the same for each copy. What follows row by row may stand before the expansion too.",
        "y = layer(x).unsqueeze(1).expand(-1, n, -1)  # in place of layer(x.unsqueeze(1).expand(-1, n, -1))",
    ),
    "gathered": (
        "A layer runs on rows that an index picked many times",
        "Apply the layer before the index {place}, and pick from its results: each row is there {times} times, and the "
        "layer gives the same for each copy. What follows row by row may stand before the index too. Results that are "
        "picked and then added up elsewhere are one product by a sparse matrix.",
        "y = layer(x)[src]  # in place of layer(x[src])",
    ),
}
_BRIEF = {
    "joined": "Split the layer's weight by columns, one piece for each part of the joined rows {place}",
    "added": "Apply the layer before the sum {place}",
    "repeated": "Apply the layer {place} before its input is expanded",
    "gathered": "Apply the layer before the index {place}, and pick from its results",
}
# Kinds whose layer gets whole rows several times, so that what follows it row by row does too.
_WHOLE_ROWS = frozenset({"repeated", "gathered"})


def _spreading_us(evidence: Evidence, layers: Sequence[_SpreadLayer]) -> float:
    """Returns what it takes to spread the layers' results in place of their inputs.

    An index that picks results takes the time of the one that picks inputs, as rows get wider or narrower; the results
    of other kinds are passed over three times.
    """
    numbers = math.fsum(one.result_numbers for one in layers)
    makers = [one.maker for one in layers if one.maker is not None]
    if layers[0].kind != "gathered":
        return moved_us(evidence, _PASSES * BYTES_OF_NUMBER * numbers)
    picking = removal_of(evidence, [*makers, *backward_of(evidence, makers)], certain=1.0)
    return picking.gain.high * numbers / math.fsum(math.prod(one.size) for one in layers)


def spread_layer(evidence: Evidence) -> Draft | None:
    """Finds a linear layer whose input has each row four times and more.

    Or each part of its rows: they were spread first. Gain: the time of what joins, adds or picks them, and of the
    spread part of the layer, with their backward nodes, less the time to spread the results; from half of it.
    """
    candidates = _spread_layers(evidence)
    if not candidates:
        return None
    first = max(candidates, key=lambda one: math.prod(one.size) * one.result_numbers)
    mine = [one for one in candidates if one.kind == first.kind]
    calls = _calls(evidence)
    layers = [one.layer for one in mine]
    if first.kind in _WHOLE_ROWS:
        layers += [row for one in mine for row in _that_follow(evidence, calls, one.layer, one.size)]
        layers = list(dict.fromkeys(layers))
    makers = [one.maker for one in mine if one.maker is not None]
    rows = [*layers, *makers, *backward_of(evidence, [*layers, *makers])]
    work = work_of(evidence)
    removal = removal_of(evidence, rows, certain=1.0)
    of_layers = removal_of(evidence, [*layers, *backward_of(evidence, layers)], certain=1.0)
    left_us = of_layers.gain.high * (1 - first.part * (1 - 1 / first.times))
    high_us = removal.gain.high - left_us - _spreading_us(evidence, mine)
    if evidence.share_of_step(high_us) < 2 * LEAST_SHARE:
        return None
    title, advice, code = _WORDS[first.kind]
    if first.part < _NEARLY_WHOLE:
        title = "A layer works on rows of which a part is the same for many"
    line = main_source(evidence, makers or layers)
    layer_line = main_source(evidence, layers)
    place = at_source(line) + (f" (the layer: {layer_line})" if layer_line not in (None, line) else "")
    size = size_words(first.size)
    part = "" if first.part >= _NEARLY_WHOLE else f"{100 * first.part:.0f} % of the features of "
    return Draft(
        slug="spread-layer",
        title=title,
        evidence=(
            f"the layer's input of {size} numbers {at_source(line)} has {part}each row "
            f"{format_count(first.times)} times",
            f"that takes {format_per_step(evidence, removal.us)}"
            + (", with the backward pass" if len(rows) > len(layers) + len(makers) else ""),
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=advice.format(place=place, times=format_count(first.times)),
        brief=_BRIEF[first.kind].format(place=place),
        places=(line,),
        code=code,
        gain_us=Interval(_AT_WORST * high_us, high_us),
        claims=removal.claims,
        removes=True,
    )


RULES = (spread_layer,)
