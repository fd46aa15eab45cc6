"""Rule of modules of one kind that a loop calls one after the other.

Each is called on its own: heads, ensembles, branches.
"""

import ast
import json
import re
from collections.abc import Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from bottleneck.advice.bare_loops import main_ops
from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.loop_lines import loop_claims, loop_of, program_ops, with_backward_us
from bottleneck.advice.quantities import format_count, format_per_step, is_compiled
from bottleneck.advice.ranking import Draft
from bottleneck.advice.servers import find_server
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers
from bottleneck.schema.op_names import at_source
from bottleneck.schema.records import replace
from bottleneck.schema.source_text import parse_line
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_share, listed

_LAYER = re.compile(r"^aten::(?:linear|conv\w*|bilinear|embedding)$")
_JOINS = ("aten::cat", "aten::stack")
_INSTANCE = re.compile(r"_\d{1,9}$")  # the profiler numbers the modules of a class
_LEAST_MODULES, _LEAST_OVERHEAD, _LEAST_SHARE = 4, 0.3, 0.15
# Of the loop's overhead one call for all saves at least so much; the work itself stays.
_SURE = 0.6
# Of the time of the loop and its backward pass, where the modules are heads of an attention: one fused call of all took
# 62 and 64 % less than 8 and 4 heads of 16 numbers, in inference 57 and 50 % (torch 2.13, EPYC, two threads).
_OF_HEADS = 0.75
_SOFTENS = re.compile(r"^aten::_?softmax$")
# Of a round in a trace without lines: its ops, and how many of them are named.
_MOST_OPS, _SHOWN = 40, 3
_ANY = (
    "Compute all of them at once in place of the loop{at}: keep their weights in one tensor (one wide Linear whose "
    "result is split, a batched product, a convolution with groups), or stack existing modules with "
    "torch.func.stack_module_state and vmap."
)
_ANY_CODE = (
    "y = self.wide(x).unflatten(-1, (count, width))  # one Linear for all modules\n"
    "out = torch.baddbmm(bias, x.expand(count, -1, -1), weight)  # an ensemble: weight is count x inputs x outputs"
)
_HEADS = (
    "Compute all heads at once in place of the loop{at}: one Linear for the queries, keys and values of all of them, "
    "and scaled_dot_product_attention, which writes no scores."
)
_HEADS_CODE = (
    "q, k, v = self.qkv(x).view(B, T, 3, heads, width).permute(2, 0, 3, 1, 4)\n"
    "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # where the mask is causal\n"
    "out = out.transpose(1, 2).reshape(B, T, heads * width)"
)


def _calls_each(text: str) -> bool:
    """True for a comprehension that calls its own variable.

    That is `[m(x) for m in models]`, and `outs.append(m(x))`.
    """
    if ".append(" in text:
        return True
    statement = parse_line(text)
    if statement is None:
        return re.search(r"\b(\w+)\(\w.*\bfor\b.*\b\1\b.*\bin\b", text) is not None
    for node in ast.walk(statement):
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            bound = {
                name.id for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)
            }
            result = node.value if isinstance(node, ast.DictComp) else node.elt
            if any(isinstance(one, ast.Call) and ast.unparse(one.func) in bound for one in ast.walk(result)):
                return True
    return False


class _LoopOfModules(Struct, frozen=True):
    """Lines of modules that a loop calls, with the modules of each."""

    often: dict[str, float]
    lines: tuple[str, ...]
    place: str
    words: str


def _in_comprehensions(evidence: Evidence) -> _LoopOfModules | None:
    """Finds a line that calls a layer of each module in turn.

    Its text tells.
    """
    texts, ops = evidence.source_texts, program_ops(evidence)
    layers = ops[text_matches(ops["name"], _LAYER.search) & ops["module"].notna().to_numpy()]
    same = ["source", "signature", "step"]
    counts = layers.groupby(same, observed=True)["module"].nunique().groupby(level="source", observed=True).max()
    often = {
        str(source): float(count)
        for source, count in counts.items()
        if count >= _LEAST_MODULES and _calls_each(texts.get(str(source), ""))
    }
    if not often:
        return None
    place = max(often, key=lambda source: often[source])
    words = f"{place} runs layers of {counted(format_count(often[place]), 'module')} on inputs of one size"
    return _LoopOfModules(often, tuple(often), place, f"{words} (`{texts.get(place, '')[:80]}`)")


def _joined(evidence: Evidence) -> _LoopOfModules | None:
    """Finds modules of one class whose results are joined by one call.

    Each piece has another size than what their layers take, so that none takes the result of another. The call is in
    the module that holds them, or in the program outside of any.
    """
    ops, work = program_ops(evidence), work_of(evidence)
    joins = ops[ops["name"].isin(_JOINS)].drop_duplicates(["module", "signature"])
    joins, ops = joins.assign(module=joins["module"].astype(object).fillna("")), ops[ops["module"].notna()]
    layers = ops[text_matches(ops["name"], _LAYER.search)]
    members: set[str] = set()
    place, number = "", 0
    for outer, source, signature in zip(joins["module"], joins["source"], joins["signature"].tolist(), strict=True):
        pieces = _pieces(evidence, signature)
        inside = layers[text_matches(layers["module"], partial(_is_inside, outer))]
        below = inside["module"].astype(str).str[len(outer) + 1 if outer else 0 :]
        children = below.map(lambda path: path.partition(".")[0])
        kinds = children.map(lambda name: _INSTANCE.sub("", name))
        for kind in kinds.unique() if len(set(pieces)) == 1 and len(pieces) >= _LEAST_MODULES else ():
            mine = (kinds == kind).to_numpy()
            calls = inside["signature"][mine].unique().tolist()
            taken = {sizes[0] for code in calls if (sizes := work.sizes_of(code))}
            if children[mine].nunique() == len(pieces) and len(taken) == 1 and pieces[0] not in taken:
                members |= {f"{outer}.{name}".lstrip(".") for name in children[mine].unique()}
                place, number = str(source), len(pieces)
    if not members:
        return None
    is_member = text_matches(ops["module"], lambda path: any(_is_inside(name, path) for name in members))
    lines = set(map(str, ops["source"][is_member].unique())) - set(map(str, ops["source"][~is_member].unique()))
    kind = _INSTANCE.sub("", next(iter(members)).rpartition(".")[2])
    words = f"{place} joins the results of {counted(number, 'module')} ({kind}), whose layers take inputs of one size"
    return _LoopOfModules(dict.fromkeys(lines, float(number)), tuple(sorted(lines)), place, words) if lines else None


def _is_inside(outer: str, path: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _pieces(evidence: Evidence, signature: int) -> list[tuple[int, ...]]:
    """Gives the sizes of the tensors that a call takes as a list."""
    try:
        first = json.loads(str(evidence.linked.trace.signatures["dims"].iloc[signature]))
        return [tuple(map(int, size)) for size in first[0]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []


def parallel_modules(evidence: Evidence) -> Draft | None:
    """Finds modules of one kind that a loop calls one after the other.

    They are of one size, and none takes the result of another. Gain: the time of the line that is no arithmetic, less
    one round of it; from 60 % of that.
    """
    if is_compiled(evidence):
        return None
    called = _in_comprehensions(evidence) or _joined(evidence)
    if called is None:
        return _parallel_without_lines(evidence)
    loop = loop_of(evidence, {line: (count, count) for line, count in called.often.items()}, called.lines)
    high_us = loop.overhead * loop.us * (1 - 1 / loop.count)
    low_us, are_heads = _SURE * high_us, _softens(evidence, loop.lines)
    if are_heads:
        high_us = max(high_us, _OF_HEADS * loop.us)
    if (loop.overhead < _LEAST_OVERHEAD and not are_heads) or evidence.share_of_step(high_us) < _LEAST_SHARE:
        return None
    return replace(
        _draft(evidence, f" {at_source(called.place)}", Interval(low_us, high_us), are_heads=are_heads),
        evidence=(
            called.words,
            f"{format_per_step(evidence, loop.us)} goes into the line and its backward pass, "
            f"{format_share(loop.overhead)} of it calls that compute next to nothing",
        ),
        places=(called.place,),
        lines=loop.lines,
    )


def _draft(evidence: Evidence, place: str, gain_us: Interval, *, are_heads: bool) -> Draft:
    """The advice for a loop of modules; ``place`` names it, with a space ahead."""
    return Draft(
        slug="parallel-modules",
        title="The heads of an attention are called one after the other in a loop"
        if are_heads
        else "Modules of one size are called one after the other in a loop",
        evidence=(),
        advice=(_HEADS if are_heads else _ANY).format(at=place),
        brief=f"Compute all {'heads' if are_heads else 'modules'} of the loop{place} at once",
        code=_HEADS_CODE if are_heads else _ANY_CODE,
        gain_us=gain_us,
        claims=loop_claims(evidence, gain_us.high),
        removes=True,
    )


class _JoinedRounds(Struct, frozen=True):
    """Rounds of the same ops, whose results are joined by one call.

    ``rows`` are those of OPS in one round, ``count`` the rounds, ``us`` and ``idle_us`` the time of all of them per
    step and what passes between their ops.
    """

    rows: tuple[int, ...]
    count: int
    us: float
    idle_us: float


def _joined_rounds(evidence: Evidence) -> _JoinedRounds | None:
    """Finds rounds of the same ops in a trace without lines.

    Each has a layer on inputs of one size, and gives one piece of what is joined after the last of them.
    """
    ops = evidence.linked.ops
    if not evidence.is_host_only or ops["source"].notna().any() or find_server(evidence):
        return None
    rows = main_ops(evidence)
    calls, names = as_integers(ops["signature"])[rows], ops["name"].cat.codes.to_numpy().astype(np.int64)[rows]
    code = np.unique(np.stack([names, calls]), axis=1, return_inverse=True)[1].ravel()
    begin_us, dur_us = (ops[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    is_layer = text_matches(ops["name"], _LAYER.search)[rows]
    us, busy_us, found_at = 0.0, 0.0, (0, 0, 0)
    for at in np.flatnonzero(ops["name"].isin(_JOINS).to_numpy()[rows] & (calls >= 0)).tolist():
        pieces = _pieces(evidence, calls[at])
        if len(pieces) < _LEAST_MODULES or len(set(pieces)) != 1:
            continue
        period = _period(code[:at], len(pieces))
        start = at - period * len(pieces)
        layers = calls[start : start + period][is_layer[start : start + period]]
        taken = {sizes[0] for call in layers.tolist() if call >= 0 and (sizes := work_of(evidence).sizes_of(call))}
        if period and len(taken) == 1 and pieces[0] not in taken:
            us += float(begin_us[at - 1] + dur_us[at - 1] - begin_us[start])
            busy_us += float(dur_us[start:at].sum())
            found_at = max(found_at, (len(pieces), start, period))
    count, start, period = found_at
    scale = evidence.host_scale / evidence.steps
    return _JoinedRounds(tuple(rows[start : start + period].tolist()), count, us * scale, (us - busy_us) * scale)


def _period(code: Integers, count: int) -> int:
    """Returns the length of so many equal rounds; 0 for none."""
    for period in range(1, min(_MOST_OPS, code.size // count) + 1):
        rounds = code[code.size - period * count :].reshape(count, period)
        if (rounds == rounds[0]).all():
            return period
    return 0


def _parallel_without_lines(evidence: Evidence) -> Draft | None:
    """Finds such modules by their ops alone.

    Gain: what passes between their ops, less one round, from 60 % of it; of heads up to 75 % of all their time.
    """
    rounds = _joined_rounds(evidence)
    if rounds is None or not rounds.count:
        return None
    whole_us = with_backward_us(evidence, rounds.us)
    high_us = whole_us * (rounds.idle_us / rounds.us) * (1 - 1 / rounds.count)
    low_us, names = _SURE * high_us, evidence.linked.ops["name"].iloc[list(rounds.rows)].astype(str).tolist()
    are_heads = any(map(_SOFTENS.match, names))
    if are_heads:
        high_us = max(high_us, _OF_HEADS * whole_us)
    if evidence.share_of_step(high_us) < _LEAST_SHARE:
        return None
    shown = listed([name.removeprefix("aten::") for name in dict.fromkeys(names)][:_SHOWN])
    return replace(
        _draft(evidence, "", Interval(low_us, high_us), are_heads=are_heads),
        evidence=(
            f"{counted(rounds.count, 'time')} in a row the same {counted(len(rounds.rows), 'op')} on the same sizes "
            f"({shown}, …), and one call joins what they give",
            f"{format_per_step(evidence, whole_us)} goes into that and its part of the backward pass; the trace has no "
            "source lines",
        ),
    )


def _softens(evidence: Evidence, lines: Sequence[str]) -> bool:
    """True where these lines make weights of attention."""
    ops = program_ops(evidence)
    rows = ops["source"].isin(lines).to_numpy() & text_matches(ops["name"], _SOFTENS.search)
    return bool(rows.any())


RULES = (parallel_modules,)
