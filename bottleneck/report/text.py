"""Makes text of reports safe, rounds numbers, and words what is shown.

Untrusted text is made safe, and numbers are rounded so that parts add up as printed. Words are those of calls, shapes,
bounds, confidences and modules, as people read them.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import Analysis, IdleCause, KernelSummary, LiveAllocations
from bottleneck.schema.measurements import MeasuredPiece
from bottleneck.schema.records import replace
from bottleneck.units import apportion, counted

_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u202f", " "))


def clean(text: str, limit: int = 200) -> str:
    r"""Cleans a text: everything unprintable becomes a visible escape.

    An escape is ``\x1b`` or ``\u202e``. The text is cut at ``limit`` characters. Unprintable is what Unicode calls
    control, format, surrogate, private, unassigned or separator: that covers the terminal's escape sequences, line
    breaks, bidirectional overrides, zero-width characters and lone surrogates.
    """
    shown = text[: limit + 1].translate(_SPACES)
    if not shown.isprintable():
        shown = "".join(character if character.isprintable() else _escape(ord(character)) for character in shown)
    return shown if len(shown) <= limit else shown[: max(limit - 1, 0)] + "…"


# The last bracket of a text, with the full stop behind it.
_CLOSING_BRACKET = re.compile(r" \([^()]*\)\.?$")
_SHARE = re.compile(r" \(<?[\d.]+ %\)\.?")


def cut_text(text: str, limit: int) -> str:
    """Cuts the text at ``limit`` characters.

    The cut is after a sentence or a clause where one ends in its second half: what is left is whole, with its bracket
    closed, and bears no mark.
    Else it is before a comma there or after a word, with an ellipsis. A bracket that ends the text stays, where it is
    shorter than half of the limit: it holds the number, which the words before it do not.
    """
    if len(text) <= limit:
        return text
    bracket = _CLOSING_BRACKET.search(text)
    if bracket is not None and len(bracket[0]) < limit // 2:
        before = text[: bracket.start()]
        shortened = cut_text(before, limit - len(bracket[0]))
        # It belongs to the last sentence, or to the last item of a list: where that is left out, so is its bracket.
        is_of_item = _SHARE.fullmatch(bracket[0]) is not None and _SHARE.search(before) is not None
        is_cut = shortened.endswith("…")
        return shortened + bracket[0] if shortened == before or (is_cut and not is_of_item) else shortened
    head = text[:limit]
    sentence = max(head.rfind(". "), head.rfind("; "))
    if sentence >= limit // 2:
        whole = text[:sentence]
        closing = ")" if whole.count("(") > whole.count(")") else ""
        return whole + closing + ("." if text[sentence] == "." else "")
    comma = head.rfind(", ")
    words = head[: comma if comma >= limit // 2 else max(head.rfind(" "), limit // 2)]
    # A number stays with its unit.
    return _LONE_NUMBER.sub("", words).rstrip(" ,;:(") + " …"


def first_clauses(text: str, limit: int) -> str:
    """Gives the clauses at the beginning that have room, whole.

    A part of the first where even that has none.
    """
    ends = [match.start() for match in _CLAUSE_END.finditer(text[: limit + 1])]
    return text[: ends[-1]] if ends else cut_text(text, limit)


_CLAUSE_END = re.compile(r"[:;.](?=\s)")
_LONE_NUMBER = re.compile(r"\s+\(?[<~]?[\d.,]*\d$")


_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mu]?s|[kMGTP]?(?:B|B/s|FLOP|FLOP/s)|MHz|W|J)(?!\w))")


def join_units(text: str, joint: str) -> str:
    """Puts ``joint`` between each number and its unit.

    It is for a medium that breaks lines at spaces.
    """
    return _NUMBER_AND_UNIT.sub(joint, text)


# The first word of a sentence may be a name, which stays as it is: a path, an op, a file with its line, a call.
_PLAIN_WORD = re.compile(r"[a-z]+[,;:.]?(?=\s|$)|[a-z]+-[a-z]+\s|[a-z]+'[a-z]*\s")


def as_sentence(text: str) -> str:
    """Gives the text with a capital, unless it begins with a name.

    A name is a path, an op, a line of a file.
    """
    return f"{text[:1].upper()}{text[1:]}" if _PLAIN_WORD.match(text) else text


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


UNKNOWN = "-"


class Scale(Struct, frozen=True):
    """The unit of a table.

    It has its name, its size in the unit of the data, and how many decimals it shows.
    """

    unit: str
    size: float
    decimals: int

    def quanta(self, value: float) -> float:
        """The value in steps of the last decimal shown."""
        return value / self.size * 10.0**self.decimals

    def show(self, quanta: int, value: float) -> str:
        """The rounded number; what is nonzero but rounds to nothing reads '<0.01'."""
        if quanta == 0 and value > 0:
            return f"<{10**-self.decimals:.{self.decimals}f}"
        return f"{quanta / 10**self.decimals:,.{self.decimals}f}"

    def one(self, value: float | None) -> str:
        """A number that belongs to no sum."""
        if value is None or not math.isfinite(value):
            return UNKNOWN
        return self.show(round(self.quanta(value)), value)

    def column(self, values: Sequence[float]) -> tuple[str, ...]:
        """Formats numbers that belong to one sum, and then that sum.

        As printed, they add up exactly.
        """
        parts = apportion([self.quanta(value) for value in values])
        shown = [self.show(part, value) for part, value in zip(parts, values, strict=True)]
        return (*shown, self.show(sum(parts), math.fsum(values)))


PERCENT = Scale("%", 0.01, 1)


def scale_of(us: float) -> Scale:
    """Gives the scale in which a table reads best.

    The table adds up to this many microseconds; its total has four digits.
    """
    unit, size = next(((unit, size) for unit, size in (("s", 1e6), ("ms", 1e3)) if us >= 10 * size), ("us", 1.0))
    magnitude = math.floor(math.log10(us / size)) if us > 0 else 0
    return Scale(unit, size, min(max(3 - magnitude, 0), 3))


def percents(shares: Sequence[float]) -> tuple[str, ...]:
    """Formats shares as percentages, and after them their sum.

    As printed, they add up; a part never reads 100 %.
    """
    *parts, total = PERCENT.column(shares)
    whole = [
        ">99.9" if part == "100.0" and share < 1 - 1e-9 else part for part, share in zip(parts, shares, strict=True)
    ]
    return tuple(f"{text} %" for text in (*whole, total))


def sparkline_cells(values: Sequence[float], width: int, levels: str) -> str:
    """Draws the values as this many characters.

    Each is the mean of its part; ``levels`` run from nothing to the most. Something never looks like nothing: the first
    level is for parts in which every value is 0.
    """
    cells = min(width, len(values))
    if cells < 1:
        return ""
    import numpy as np  # noqa: PLC0415 - check-ups and comparisons are rendered by this module too, without numpy

    area = np.concatenate(([0.0], np.cumsum(np.array(values, dtype=np.float64))))
    edges = np.linspace(0, len(values), cells + 1)
    # The mean of each of so many equal parts; a value counts by the part of it that lies in it.
    means = np.diff(np.interp(edges, np.arange(len(area)), area)) * cells / len(values)
    most = float(means.max())
    if most <= 0:
        return levels[0] * cells
    heights = np.where(means > 0, np.clip(np.ceil(means / most * (len(levels) - 1)), 1, len(levels) - 1), 0)
    return "".join(levels[int(height)] for height in heights)


Item = TypeVar("Item", KernelSummary, IdleCause)


class TopRows(Struct, Generic[Item], frozen=True):
    """The largest items, and the numbers that they show.

    They are (time, share) for each, for the rest, and for the sum.
    """

    shown: Sequence[Item]
    hidden: int
    scale: Scale
    each: Sequence[tuple[str, str]]
    rest: tuple[str, str] | None
    total: tuple[str, str]


def top_rows(items: Sequence[Item], top: int) -> TopRows[Item]:
    """Gives the ``top`` items by time.

    A single one left over is shown too, since its row costs the same.
    """
    ordered = sorted((item for item in items if item.us > 0), key=lambda item: -item.us)
    cut = top if len(ordered) > top + 1 else len(ordered)
    shown, hidden = ordered[:cut], ordered[cut:]
    us, share = [item.us for item in shown], [item.share for item in shown]
    if hidden:
        us.append(math.fsum(item.us for item in hidden))
        share.append(math.fsum(item.share for item in hidden))
    scale = scale_of(math.fsum(us))
    numbers = list(zip(scale.column(us), percents(share), strict=True))
    rest = numbers[cut] if hidden else None
    return TopRows(shown, len(hidden), scale, numbers[:cut], rest, numbers[-1])


Named = TypeVar("Named", KernelSummary, IdleCause, LiveAllocations, MeasuredPiece)

_LONGEST_SHAPES, _MOST_SHAPES = 60, 4
_UNSURE = {"medium": "?", "low": "??"}
_BOUNDS = {"dispatch": "calls ops", "unknown": UNKNOWN}


def bound_word(row: KernelSummary) -> str:
    """The bound of a kernel in a word, with the mark of its confidence."""
    return _BOUNDS.get(row.bound, row.bound) + (_UNSURE[row.confidence] if is_marked(row) else "")


def is_marked(row: KernelSummary) -> bool:
    """Returns True where a question mark follows the bound.

    A kernel without a bound is never marked.
    """
    return row.confidence != "high" and row.bound not in {"unknown", "dispatch"}


def with_attribute_paths(analysis: Analysis) -> Analysis:
    """Names modules by their attribute paths in the model.

    A path is 'encoder.layer.0'. Modules whose path is unknown stay. Only for people to read: what compares two analyses
    goes by the profiler's names.
    """
    paths = analysis.module_paths

    def named(row: Named) -> Named:
        return row if row.module is None else replace(row, module=attribute_path(row.module, paths))

    memory, pieces = analysis.memory, analysis.pieces
    return replace(
        analysis,
        pieces=pieces and replace(pieces, pieces=tuple(map(named, pieces.pieces))),
        kernels=tuple(map(named, analysis.kernels)),
        idle=tuple(map(named, analysis.idle)),
        memory=memory and replace(memory, allocations=tuple(map(named, memory.allocations))),
        module_paths={},
    )


def attribute_path(module: str, known: Mapping[str, str]) -> str:
    """Gives the attribute path of a module.

    Its path of classes as it is, where no other is known.
    """
    return known.get(module.rpartition(".")[2], module)


def account_name(account: str, group: str) -> str:
    """'overhead: python'; the group alone where the account is all of it."""
    label = label_of(account)
    return group if label == group else f"{group}: {label}"


def describe_calls(calls: float) -> str:
    """Calls per step in words: '24 calls', '1 call', '0.5 calls'."""
    number = calls_number(calls)
    return f"{number} call{'' if number == '1' else 's'}"


def calls_number(calls: float) -> str:
    """Calls per step, with a decimal only where that is not a whole number."""
    if math.isclose(calls, round(calls), rel_tol=1e-6):
        return f"{calls:,.0f}"
    return f"{calls:,.1f}" if calls >= 0.05 else "<0.1"


def describe_shapes(shapes: str) -> str:
    """Formats shapes of an op's inputs such as '512x512, 141x512'.

    Scalars are left out. Of what is no JSON only the spaces go.
    """
    try:
        listed = json.loads(shapes)
    except (ValueError, RecursionError):
        return "".join(shapes.split())[:_LONGEST_SHAPES]
    sizes = [_shape(shape) for shape in listed if shape] if isinstance(listed, list) else [shapes]
    return ", ".join([*sizes[:_MOST_SHAPES], *(["…"] if len(sizes) > _MOST_SHAPES else [])])


def _shape(shape: object) -> str:
    if not isinstance(shape, list):
        return str(shape)
    if any(isinstance(size, list) for size in shape):
        return f"{counted(len(shape), 'tensor')}"
    return "x".join("?" if size is None else str(size) for size in shape)
