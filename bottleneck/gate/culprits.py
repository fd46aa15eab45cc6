"""Finds the source lines, ops and modules that changed a counter."""

import ast
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bottleneck.gate.lockfile import line_text
from bottleneck.gate.source_files import LARGEST_SOURCE, Read, read_nothing
from bottleneck.schema.counters import COUNTERS, Counts, Site
from bottleneck.schema.gate_result import Culprit, Touched

_HEADS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_HEADS, ast.ClassDef, ast.Lambda)
_OPERATORS = (ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Compare, ast.Subscript)


def operator_line(site: Site, source: str, touched: Iterable[int]) -> Site | None:
    """Finds the first operator that the diff touches in a site's function.

    Null where there is none.
    """
    head = _head_at(source, site.line)
    if head is None:
        return None
    lines: set[int] = set()
    for node in _inside(head):
        if isinstance(node, _OPERATORS):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    touched_lines = sorted(lines.intersection(touched))
    if not touched_lines:
        return None
    return replace(site, line=touched_lines[0], text=source.splitlines()[touched_lines[0] - 1].strip())


def _head_at(source: str, line: int) -> ast.AST | None:
    """Finds the function that begins at a line, decorators included."""
    if len(source) > LARGEST_SOURCE:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _HEADS):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= line <= node.lineno:
                return node
    return None


def _inside(head: ast.AST) -> Iterator[ast.AST]:
    """Walks what a function does itself, not functions inside it."""
    left = list(getattr(head, "body", []))
    while left:
        node = left.pop()
        if not isinstance(node, _SCOPES):
            yield node
            left.extend(ast.iter_child_nodes(node))


_SHOWN = 3
_SHOWN_OPS = 2
# Edited lines are paired with what they were where they are this alike, if there are few enough to compare them all.
_ALIKE = 0.6
_PAIRED_LINES = 200

# The counter with line data that replaces one without it: a line that added these may have added those.
_RELATED_COUNTERS: Mapping[str, str] = {
    **dict.fromkeys(("h2d_copies", "h2d_bytes", "d2h_copies", "d2h_bytes"), "copies"),
    **dict.fromkeys(("flops", "autograd_nodes", "module_calls", "allocations", "allocated_bytes", "peak_bytes"), "ops"),
    "kernel_names": "launches",
    "graphs": "graph_breaks",
}
_CASTS = ("aten::to", "aten::_to_copy")
# The ops that raise a counter, most specific first; any op may raise the other counters.
_SPECIFIC_OPS: Mapping[str, Sequence[str]] = {
    "syncs": ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"),
    "copies": (*_CASTS, "aten::clone", "aten::contiguous", "aten::copy_"),
    "float64_ops": (*_CASTS, "aten::copy_"),
}
_WIDENING_WORDS = ("float64", "double")

_Key = tuple[str, str, int]


@dataclass(frozen=True)
class _Grown:
    """A line that counts more than before.

    ``is_new`` where it was not there, or was edited.
    """

    site: Site
    growth: int
    is_new: bool
    is_touched: bool | None

    @property
    def is_changed(self) -> bool:
        """True if the line was written since the lock-file."""
        return self.is_new or bool(self.is_touched)

    @property
    def widens(self) -> bool:
        """Tells if a line converts a dtype, by ops or text."""
        return any(op in self.site.ops for op in _CASTS) or any(word in self.site.text for word in _WIDENING_WORDS)


def find_culprits(
    metric: str, before: Counts, after: Counts, touched: Touched | None = None, read: Read = read_nothing
) -> tuple[Culprit, ...]:
    """Finds at most three causes of a counter's growth, likeliest first.

    Lines where any grew, else kernels, else ops.

    Lines come in this order: touched by the diff, written since the lock-file, growing by just as much as the counter.
    """
    growth = after.values.get(metric, 0) - before.values.get(metric, 0)
    for counter in dict.fromkeys((metric, _RELATED_COUNTERS.get(metric, metric))):
        grown = _ranked(counter, _grown(counter, before, after, touched, read), growth)
        if grown:
            return tuple(_culprit(counter, line, before, after) for line in grown[:_SHOWN])
    return _without_lines(metric, before, after)


def moved_lines(
    metric: str, before: Counts, after: Counts, touched: Touched | None = None
) -> tuple[tuple[Site, Site], ...]:
    """Pairs lines that count something with those that do so in their place.

    A line of the same text is the same line, unless it is in another file or the diff put it where it is now. One that
    was edited in its place did not move.
    """
    old, new = _by_key(before.sites), _by_key(after.sites)
    origins = _origins(old, new)
    same = [(old[key][0], sites[0]) for key, sites in new.items() if key in old and _is_touched(sites[0], touched)]
    same += [(old[origin][0], new[key][0]) for key, origin in origins.items() if key[1] == origin[1]]
    gone = [sites[0] for key, sites in old.items() if key not in new and key not in origins.values()]
    fresh = [sites[0] for key, sites in new.items() if key not in old and key not in origins]
    counting = ([site for site in sites if site.counts.get(metric)] for sites in (gone, fresh))
    pairs = [*same, *zip(*counting, strict=False)]
    return tuple(pair for pair in pairs if all(site.counts.get(metric) for site in pair))


def _ranked(counter: str, grown: Iterable[_Grown], growth: int) -> list[_Grown]:
    ranked = sorted(
        grown,
        key=lambda row: (
            not row.is_touched,
            not row.is_new,
            row.growth != growth,
            -row.growth,
            row.site.file,
            row.site.line,
        ),
    )
    return _first_of_chain(ranked) if counter == "float64_ops" else ranked


def _first_of_chain(grown: Sequence[_Grown]) -> list[_Grown]:
    """Finds the line that first makes float64 of something, where known."""
    makers = [row for row in grown if row.is_changed and row.widens]
    makers = makers or [row for row in grown if row.is_changed]
    if not makers:
        return list(grown)
    return sorted(makers, key=lambda row: (not row.widens, row.site.file, row.site.line))[:1]


def _grown(counter: str, before: Counts, after: Counts, touched: Touched | None, read: Read) -> list[_Grown]:
    old, new = _by_key(before.sites), _by_key(after.sites)
    origins = {**_origins(old, new), **_aligned(old, new)}
    grown = []
    for key, sites in new.items():
        origin = origins.get(key, key)
        growth = _sum(counter, sites) - _sum(counter, old.get(origin, ()) if origin else ())
        if growth > 0:
            # Of lines with the same text the one that the diff touches, else the last.
            named = next((site for site in sites if _is_touched(site, touched)), sites[-1])
            site = _of_operator(named, touched, read)
            is_new = origin not in old or origin[1] != key[1]
            grown.append(_Grown(site, growth, is_new, _is_touched(site, touched)))
    return grown


def _by_key(sites: Iterable[Site]) -> dict[_Key, list[Site]]:
    """Keys lines by file and text, else by file and number."""
    by_text: dict[_Key, list[Site]] = {}
    for site in sites:
        text = line_text(site.text)
        by_text.setdefault((site.file, text, 0 if text else site.line), []).append(site)
    return by_text


def _sum(counter: str, sites: Iterable[Site]) -> int:
    return sum(site.counts.get(counter, 0) for site in sites)


def _origins(old: Mapping[_Key, object], new: Mapping[_Key, object]) -> dict[_Key, _Key]:
    """Finds the former key of each line that moved or was edited.

    Each old line is the origin of one.
    """
    gone = {key for key in old if key not in new and key[1]}
    fresh = [key for key in new if key not in old and key[1]]
    by_text = {key[1]: key for key in sorted(gone)}
    origin = {key: by_text.pop(key[1]) for key in fresh if key[1] in by_text}
    left: dict[str, list[str]] = {}
    for file, text, _ in sorted(gone - set(origin.values())):
        left.setdefault(file, []).append(text)
    for key in [key for key in fresh if key not in origin][:_PAIRED_LINES]:
        texts = left.get(key[0], [])
        near = difflib.get_close_matches(key[1], texts, n=1, cutoff=_ALIKE) if len(texts) <= _PAIRED_LINES else []
        if near:
            left[key[0]].remove(near[0])
            origin[key] = (key[0], near[0], 0)
    return origin


def _aligned(old: Mapping[_Key, Sequence[Site]], new: Mapping[_Key, Sequence[Site]]) -> dict[_Key, _Key | None]:
    """Pairs lines without text by the order of what they count.

    Null for one put between.
    """
    origins: dict[_Key, _Key | None] = {}
    before, after = _without_text(old), _without_text(new)
    for file, ours in after.items():
        theirs = before.get(file, [])
        if max(len(theirs), len(ours)) > _PAIRED_LINES:
            continue
        matcher = difflib.SequenceMatcher(None, _marks(old, theirs), _marks(new, ours), autojunk=False)
        for _, low, high, first, last in matcher.get_opcodes():
            origins_of_part = [*theirs[low:high], *[None] * (last - first)]
            origins.update(zip(ours[first:last], origins_of_part, strict=False))
    return origins


def _without_text(keys: Iterable[_Key]) -> dict[str, list[_Key]]:
    """The lines that have no text, by file, in order."""
    by_count: dict[str, list[_Key]] = {}
    for key in sorted(keys):
        if not key[1]:
            by_count.setdefault(key[0], []).append(key)
    return by_count


def _marks(lines: Mapping[_Key, Sequence[Site]], keys: Iterable[_Key]) -> list[tuple[tuple[str, int], ...]]:
    return [tuple(sorted(lines[key][0].counts.items())) for key in keys]


def _of_operator(site: Site, touched: Touched | None, read: Read) -> Site:
    """Finds the touched line of a function whose operators grew."""
    lines = touched.get(site.file) if touched else None
    # Operators in the body of a function may be recorded under the line that begins it.
    is_head = site.text.startswith(("def ", "async def ", "@"))
    if not lines or not is_head or site.line in lines:
        return site
    return operator_line(site, read(site.file), lines) or site


def _is_touched(site: Site, touched: Touched | None) -> bool | None:
    return None if touched is None else site.line in touched.get(site.file, frozenset())


def _culprit(counter: str, grown: _Grown, before: Counts, after: Counts) -> Culprit:
    ops = _ops_at(counter, grown.site, before, after)
    named = f" ({', '.join(ops)})" if ops else ""
    what = f"{COUNTERS[counter].one if grown.growth == 1 else COUNTERS[counter].many}{named}"
    module = _module(counter, grown.growth, before, after)
    return Culprit(what, grown.growth, module, grown.site, grown.is_touched)


def _ops_at(counter: str, site: Site, before: Counts, after: Counts) -> list[str]:
    """Selects the ops of a line that grew in the whole step."""
    more = _growth(before.ops, after.ops)
    specific = _SPECIFIC_OPS.get(counter)
    if specific is not None:
        return [op for op in specific if op in site.ops and op in more][:1]
    return sorted((op for op in site.ops if op in more), key=lambda op: (-more[op], op))[:_SHOWN_OPS]


def _module(counter: str, growth: int, before: Counts, after: Counts) -> str | None:
    """Finds the one module that grew by as much, else null."""
    grown = [
        path
        for path, counts in after.modules.items()
        if counts.get(counter, 0) - before.modules.get(path, {}).get(counter, 0) == growth
    ]
    return grown[0] if len(grown) == 1 else None


def _without_lines(metric: str, before: Counts, after: Counts) -> tuple[Culprit, ...]:
    """Lists kernels or ops that grew, where no line is known."""
    is_of_kernels = metric in {"launches", "kernel_names"}
    more = _growth(before.kernels, after.kernels) if is_of_kernels else {}
    if not more and (metric == "ops" or metric in _RELATED_COUNTERS or metric in _SPECIFIC_OPS):
        specific = _SPECIFIC_OPS.get(metric)
        more = _growth(before.ops, after.ops)
        more = {name: more[name] for name in more if specific is None or name in specific}
    ranked = sorted(more, key=lambda name: (-more[name], name))
    return tuple(Culprit(name, more[name], _module("ops", more[name], before, after)) for name in ranked[:_SHOWN])


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
