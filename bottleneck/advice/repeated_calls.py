"""Rule of calls that a step makes twice with the same arguments.

Such as of a model for the loss and again for a metric.
"""

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import has_backward_pass, work_of
from bottleneck.advice.quantities import format_count, format_per_step, rows_of_events
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import LEAST_SHARE, backward_of, issued_by, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Floats, Integers
from bottleneck.schema.op_names import MODULE_PREFIX, OPTIMIZER_STEP, PYTHON_FRAME, line_source, place_of
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

_RANDOM = re.compile(r"rand|normal_|uniform_|bernoulli|multinomial|dropout|exponential_")
_MODULE = re.compile(rf"^{MODULE_PREFIX}")
# Of libraries, whose calls with the same text are cheap, or draw new numbers.
_LIBRARIES = frozenset({"torch", "F", "np", "nn", "random", "time", "len", "range", "print", "float", "int", "zip"})
_MOST_CALLS, _MOST_TIMES = 5000, 8
# What of the time is gained at least: that the arguments are the same, only the text says.
_CERTAIN = 0.5
_LEAST_SHARE = 0.05


class _Instance(Struct, frozen=True):
    """Call of a module or a function.

    Its row in EVENTS, span, step, and the lines around it, the outermost first.
    """

    row: int
    start_us: float
    end_us: float
    step: int
    lines: tuple[int, ...]


class _RepeatedCall(Struct, frozen=True):
    """Calls with the same text.

    The text, the lines, the outermost ops of the calls that are spared.
    """

    text: str
    lines: tuple[str, ...]
    rows: tuple[int, ...]
    times: float
    updated: bool
    has_backward: bool


def _instances(evidence: Evidence) -> Mapping[str, list[_Instance]]:
    """Returns calls that each step makes twice to eight times, by name.

    They are of modules and of the program's functions.
    """
    events = evidence.linked.trace.events
    line_rows = np.flatnonzero((events["category"] == "line").to_numpy())
    files = {str(name).partition("(")[0] for name in events["name"].iloc[line_rows].unique()}
    is_frame = (events["category"] == "python").to_numpy()
    calls = text_matches(events["name"], lambda name: bool(_MODULE.match(name)) or _is_function(name, files)) & is_frame
    low_us, high_us = evidence.linked.window.host_us
    begun = events["ts_us"].to_numpy()
    rows = np.flatnonzero(calls & (begun >= low_us) & (begun < high_us))
    if not 0 < rows.size <= _MOST_CALLS:
        return {}
    start, end = _spans(evidence, rows)
    steps = _steps_at(evidence, start)
    names = events["name"].astype(object).to_numpy()[rows].tolist()
    counts = Counter(zip(names, steps.tolist(), strict=True))
    often = {name for name in set(names) if (count := counts[name, 0]) and 2 <= count <= _MOST_TIMES}
    often = {name for name in often if all(counts[name, at] == counts[name, 0] for at in range(evidence.steps))}
    line_start, line_end = _spans(evidence, line_rows)
    by_name: dict[str, list[_Instance]] = {}
    for row, name, low, high, at in zip(
        rows.tolist(), names, start.tolist(), end.tolist(), steps.tolist(), strict=True
    ):
        if name in often and 0 <= at < evidence.steps:
            around = line_rows[(line_start <= low) & (line_end >= high)]
            by_name.setdefault(name, []).append(_Instance(row, low, high, at, tuple(around.tolist())))
    return by_name


def _is_function(name: str, files: AbstractSet[str]) -> bool:
    """True for a frame of a function in one of these files.

    They are files of the program.
    """
    match = PYTHON_FRAME.match(name)
    return match is not None and match["path"] in files and not name[match.end() :].startswith("<")


def _spans(evidence: Evidence, rows: Integers) -> tuple[Floats, Floats]:
    events = evidence.linked.trace.events
    start = events["ts_us"].to_numpy()[rows]
    return start, start + events["dur_us"].to_numpy()[rows]


def _steps_at(evidence: Evidence, at_us: Floats) -> Integers:
    """Returns the step's number of the first op from each instant on.

    It is -1 for none.
    """
    ops = evidence.linked.ops.iloc[top_rows(evidence)].sort_values("ts_us", kind="stable")
    in_step = ops[ops["step"].notna()]
    number = np.append(in_step["step"].astype("category").cat.codes.to_numpy(dtype=np.int64), -1)
    return np.asarray(number[np.searchsorted(in_step["ts_us"].to_numpy(), at_us)])


def _same_text(evidence: Evidence, first: _Instance, second: _Instance) -> tuple[str, tuple[str, str]] | None:
    """Returns the text of the call that both instances come from.

    And the two lines; null where the lines share none.
    """
    texts = evidence.source_texts
    pairs = [pair for pair in zip(first.lines, second.lines, strict=False) if pair[0] != pair[1]]
    one, other = (
        pairs[0] if pairs else (first.lines[-1], second.lines[-1]) if first.lines and second.lines else (-1, -1)
    )
    if one < 0:
        return None
    names = [str(evidence.linked.trace.events["name"].iloc[row]) for row in (one, other)]
    sources = [line_source(match["path"], match["line"]) for frame in names if (match := PYTHON_FRAME.match(frame))]
    if len(sources) < 2 or names[0].partition("(")[0] != names[1].partition("(")[0]:
        return None
    if sources[0] == sources[1] and one != other:
        return None  # a loop, whose arguments may change
    if [name.rpartition(": ")[2] for name in names] != [names[0].rpartition(": ")[2]] * 2:
        return None
    calls = [_calls_in(texts.get(source, "")) for source in sources]
    if one == other:
        common = [text for text, count in calls[0].items() if count > 1]
    else:
        common = [text for text in calls[0] if text in calls[1]]
    changed = set(re.findall(r"\w+", texts.get(sources[0], "").partition("=")[0]))
    common = [text for text in common if not changed & set(re.findall(r"\w+", text.partition("(")[2]))]
    return (max(common, key=len), (sources[0], sources[1])) if common else None


def _is_later(lines: Sequence[str]) -> bool:
    """True if the first of two lines stands behind the second.

    A step ends between the two calls.
    """
    one, other = (place_of(line) for line in lines)
    return one is not None and other is not None and one.line > other.line


def _calls_in(text: str) -> Counter[str]:
    """Returns the calls in a line that may be of the program's functions.

    They have arguments, and come with their number.
    """
    for ending in ("", " pass"):
        try:
            tree = ast.parse(text.strip() + ending)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return Counter(ast.unparse(node) for node in _own_calls(tree))
    return Counter()


def _own_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            root = node.func
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id not in _LIBRARIES:
                yield node


@remembered
def _repeated_call(evidence: Evidence) -> _RepeatedCall | None:
    """The repeated call with the most time in ops."""
    several = [
        repeated
        for instances in sorted(_instances(evidence).values(), key=_us_of, reverse=True)[:_MOST_TIMES]
        if (repeated := _repeated(evidence, instances)) is not None
    ]
    us = evidence.linked.ops["dur_us"].to_numpy()
    return max(several, key=lambda one: float(us[list(one.rows)].sum()), default=None)


def _us_of(instances: Sequence[_Instance]) -> float:
    return sum(one.end_us - one.start_us for one in instances)


def _repeated(evidence: Evidence, instances: Sequence[_Instance]) -> _RepeatedCall | None:
    """Returns the calls of one module beyond the first of each step.

    They have its text, its ops and its sizes.
    """
    spared: list[int] = []
    said: tuple[str, tuple[str, ...]] | None = None
    updated = has_backward = False
    times = 0
    for at in range(evidence.steps):
        mine = sorted((one for one in instances if one.step == at), key=lambda one: one.start_us)
        for first, second in itertools.pairwise(mine):
            pair = _spared(evidence, first, second)
            text = None if pair is None else _same_text(evidence, first, second)
            if pair is None or text is None:
                return None
            around = _is_later(text[1])
            if around and (pair.has_backward or not has_backward_pass(evidence)):
                return None  # of another batch
            spared += pair.rows
            said = text[0], tuple(reversed(text[1])) if around else text[1]
            updated, has_backward = updated or pair.updated or around, has_backward or pair.has_backward
            times += 1
    if said is None:
        return None
    return _RepeatedCall(
        said[0], tuple(dict.fromkeys(said[1])), tuple(spared), times / evidence.steps, updated, has_backward
    )


class _Pair(Struct, frozen=True):
    """Ops of the one of two calls that is spared.

    And whether weights are updated in between.
    """

    rows: tuple[int, ...]
    updated: bool
    has_backward: bool


def _spared(evidence: Evidence, first: _Instance, second: _Instance) -> _Pair | None:
    """Returns the one of two calls that may be spared.

    Null where they differ, or where both may be needed. Of a step that trains, one without a backward pass. Two with a
    backward pass are spared if the graph of the first is still there: there is no backward pass and no update in
    between, and no random number in them.
    """
    ops, top = evidence.linked.ops, top_rows(evidence)
    at_us = ops["ts_us"].to_numpy()[top]
    one, other = (top[(at_us >= call.start_us) & (at_us < call.end_us)] for call in (first, second))
    same = [
        list(zip(ops["name"].astype(object).iloc[rows], as_integers(ops["signature"])[rows], strict=True))
        for rows in (one, other)
    ]
    if not one.size or Counter(same[0]) != Counter(same[1]):
        return None
    is_random = any(_RANDOM.search(str(name)) for name, _ in same[0])
    backward = [bool(backward_of(evidence, rows.tolist())) for rows in (one, other)]
    marks = rows_of_events(evidence, OPTIMIZER_STEP)
    begun = evidence.linked.trace.events["ts_us"].to_numpy()[marks]
    updated = bool(((begun > first.end_us) & (begun < second.start_us)).any())
    if is_random and not any(backward):
        return None  # two views of the same data, for example
    if has_backward_pass(evidence) and not all(backward):
        rows = other if not backward[1] else one
        return _Pair(tuple(rows.tolist()), updated, has_backward=False)
    between = (ops["ts_us"] > first.end_us).to_numpy() & (ops["ts_us"] < second.start_us).to_numpy()
    between &= ops["is_autograd"].to_numpy()
    if is_random or updated or between.any():
        return None
    return _Pair(tuple(other.tolist()), updated, has_backward=backward[1])


def repeated_call(evidence: Evidence) -> Draft | None:
    """Finds a call with the same text at two lines of a step.

    It runs the same module or function with the same sizes twice. Gain: the time of its ops, and of its backward nodes,
    from half of it: only the text says that the arguments are the same.
    """
    call = _repeated_call(evidence)
    if call is None:
        return None
    rows = [*call.rows, *(backward_of(evidence, call.rows) if call.has_backward else ())]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.gain.high) < max(LEAST_SHARE, _LEAST_SHARE):
        return None
    where = " and ".join(call.lines)
    use = (
        "take the results of the first call, which are those of the weights before the update"
        if call.updated
        else "keep the result of the first call"
    )
    return Draft(
        slug="repeated-call",
        title="The same call is made several times in a step",
        evidence=(
            f"{call.text} at {where} runs the same ops on the same sizes {format_count(call.times + 1)} times per step",
            f"{counted(format_count(call.times), 'call')} of it per step, beyond the first, "
            f"{'takes' if call.times == 1 else 'take'} {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"If the arguments of {call.text} at {where} are the same, {use}: nothing has to be computed twice.",
        code="out = model(x)\nloss = criterion(out, y)\nhits = (out.argmax(1) == y).sum()  # not model(x) again",
        gain_us=Interval(_CERTAIN * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
        changes_results=call.updated,
    )


RULES = (repeated_call,)
