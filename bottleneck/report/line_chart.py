"""Lays out a chart of curves for the SVG of a page.

It places points, lines and ticks in units of its view box.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.records import replace
from bottleneck.units import trimmed

WIDTH, HEIGHT = 600, 300
# The mark of each of these is the same in all reports, as its words are.
ROLES = {
    **{group: f"{group}-bound" for group in GROUPS},
    "unknown": "no verdict",
    "step": "the whole step, waiting included",
}
_CHARACTER, _LINE, _BESIDE = 9.5, 20.0, 10.0  # of the words beside a mark, where the page is narrow
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 14, 12, 48
FROM_END = 20  # nearer to the right end of the axis its words end where they would else have their middle
# From this factor between the ends on an axis reads better in powers.
LOG_FROM = 8.0
_MOST_TICKS, _MOST_MARKS = 9, 40


@dataclass(frozen=True)
class ChartPoint:
    """A point, with the interval of its value where that is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ChartCurve:
    """The points of one series from left to right.

    A guide is a line without marks, such as a fit. ``words`` stand at the right end of a guide, which the legend then
    leaves out. ``role`` gives it the mark that this has in every report: the group of a ledger, "step" or "roof".
    """

    label: str
    points: tuple[ChartPoint, ...]
    is_guide: bool = False
    words: str = ""
    role: str = ""


@dataclass(frozen=True)
class ChartScale:
    """One axis: its ends, and whether it is in powers."""

    low: float
    high: float
    is_log: bool

    def share(self, value: float) -> float:
        """Gives the place of a value on the axis.

        It is 0 at the lower end, 1 at the upper.
        """
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


_Box = tuple[float, float, float, float]
"""Left, top, right and bottom; of a line the two ends."""


def _places_around(x: float, y: float, width: float, others: int) -> list[tuple[tuple[float, float, str], _Box]]:
    """Gives the places for words near a mark, the nearest first.

    Each is x, y and the end that is there, with its box.
    """
    places = []
    for up in (sign * step * _LINE / 4 for step in range(4 * others + 5) for sign in (1, -1)):
        for away in (_BESIDE, 4 * _BESIDE, 8 * _BESIDE, 14 * _BESIDE, 22 * _BESIDE):
            box = (x + away, y + up - _LINE / 2, x + away + width, y + up + _LINE / 2)
            places.append((math.hypot(away, up), (x + away, y + up, "start"), box))
            box = (x - away - width, box[1], x - away, box[3])
            places.append((math.hypot(away, up) + _BESIDE / 2, (x - away, y + up, "end"), box))
    return [(place, box) for _, place, box in sorted(places, key=lambda one: one[0])]


def _overlap(box: _Box, other: _Box) -> bool:
    return box[0] < other[2] and box[2] > other[0] and box[1] < other[3] and box[3] > other[1]


def _crosses(line: _Box, box: _Box) -> bool:
    """True if the line runs through the box.

    By the clipping of Liang and Barsky.
    """
    x, y, right, down = line[0], line[1], line[2] - line[0], line[3] - line[1]
    enter, leave = 0.0, 1.0
    for step, room in ((-right, x - box[0]), (right, box[2] - x), (-down, y - box[1]), (down, box[3] - y)):
        if step == 0:
            if room < 0:
                return False
        elif step < 0:
            enter = max(enter, room / step)
        else:
            leave = min(leave, room / step)
    return enter <= leave


@dataclass(frozen=True)
class LineChart:
    """A chart of curves over numbers, or over ``x_names`` where x counts these.

    ``show`` writes a value of the vertical axis; ``mark`` is a value of the horizontal one, with its words. With
    ``show_x`` the horizontal axis holds the guides too and has ticks at round numbers, not at the points; ``from_zero``
    begins it at 0, in even steps. With ``is_memory`` the vertical axis has ticks that are round in KiB, MiB or GiB.
    """

    title: str
    x_title: str
    curves: tuple[ChartCurve, ...]
    show: Callable[[float], str]
    x_names: tuple[str, ...] = ()
    mark: tuple[float, str] | None = None
    show_x: Callable[[float], str] | None = None
    from_zero: bool = False
    is_memory: bool = False

    @cached_property
    def x_scale(self) -> ChartScale:
        """The horizontal axis, with room at both ends."""
        if self.x_names:
            return ChartScale(-0.5, len(self.x_names) - 0.5, is_log=False)
        if self.from_zero:
            return ChartScale(0.0, 1.03 * max(self._across), is_log=False)
        return scale_with_room(min(self._across), max(self._across))

    @cached_property
    def y_scale(self) -> ChartScale:
        """The vertical axis: from 0, or in powers where the values lie far apart."""
        every = [point for curve in self.curves for point in curve.points]
        good = [value for one in every for value in (one.y, one.high) if value and math.isfinite(value) and value > 0]
        low, high = min(good, default=1.0), max(good, default=1.0)
        if high > LOG_FROM * low:
            return ChartScale(low / 1.5, high * 1.5, is_log=True)
        return ChartScale(0.0, high * 1.12, is_log=False)

    @cached_property
    def _across(self) -> list[float]:
        is_all = self.show_x is not None
        return sorted({point.x for curve in self.curves if is_all or not curve.is_guide for point in curve.points})

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A point in units of the view box."""
        across = _LEFT + (WIDTH - _LEFT - _RIGHT) * self.x_scale.share(x)
        up = _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - min(max(self.y_scale.share(y), 0.0), 1.0))
        return round(across, 2), round(up, 2)

    @property
    def frame(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the field of the curves."""
        return _LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Places and words along the horizontal axis."""
        if self.x_names:
            return [(self.at(index, 0)[0], name) for index, name in enumerate(self.x_names)]
        scale = self.x_scale
        if self.show_x is not None:
            return _apart([(self.at(x, 0)[0], self.show_x(x)) for x in round_values(scale)])
        step = math.ceil(len(self._across) / _MOST_TICKS)
        return _apart([(self.at(x, 0)[0], f"{x:g}") for x in self._across[::step]])

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Places and words along the vertical axis."""
        scale = self.y_scale
        values = _round_sizes(scale) if self.is_memory else round_values(scale)
        return [(self.at(self.x_scale.low, value)[1], trimmed(self.show(value))) for value in values]

    @property
    def drawn(self) -> list[tuple[ChartCurve, str, list[tuple[float, float, float, float, str]]]]:
        """Gives each curve with its line and its marks.

        The line is a path. A mark is its place, the ends of its interval, and words.
        """
        return [(curve, self._line(curve), [] if curve.is_guide else list(self._marks(curve))) for curve in self.curves]

    def _line(self, curve: ChartCurve) -> str:
        if self.x_names:
            return ""
        places = [self.at(point.x, point.y) for point in curve.points if math.isfinite(point.y)]
        return " ".join(f"{'L' if place else 'M'}{x} {y}" for place, (x, y) in enumerate(places))

    def _marks(self, curve: ChartCurve) -> Iterable[tuple[float, float, float, float, str]]:
        for point in curve.points:
            if not math.isfinite(point.y):
                continue
            x, y = self.at(point.x, point.y)
            low, high = (y if end is None else self.at(point.x, end)[1] for end in (point.low, point.high))
            x_words = self.show_x(point.x) if self.show_x else f"{point.x:g}"
            where = self.x_names[int(point.x)] if self.x_names else f"{self.x_title}={x_words}"
            yield x, y, low, high, f"{curve.label}, {where}: {self.show(point.y)}"

    @property
    def is_dense(self) -> bool:
        """True where marks would cover one another, so that lines alone are drawn."""
        return max((len(curve.points) for curve in self.curves if not curve.is_guide), default=0) > _MOST_MARKS

    @property
    def in_legend(self) -> list[tuple[ChartCurve, int]]:
        """Gives the curves that a legend names, with their places.

        It has one of each role, and the guides whose words have no room at their ends.
        """
        beside = {words for *_, words in self.line_words}
        named = [
            (replace(curve, label=curve.words or curve.label), place)
            for place, curve in enumerate(self.curves)
            if curve.words not in beside
        ]
        roles = {
            curve.role: (replace(curve, label=ROLES[curve.role]), place)
            for curve, place in named
            if curve.role in ROLES
        }
        return [*roles.values(), *((curve, place) for curve, place in named if curve.role not in ROLES)]

    @property
    def line_words(self) -> list[tuple[float, float, str]]:
        """The words at the ends of guides, with their places.

        They stand above or below their guide, where no other guide and no words before them are in their way.
        """
        placed: list[tuple[float, float, str]] = []
        boxes: list[_Box] = []
        for curve in self.curves:
            if not curve.words:
                continue
            x, y = self.at(curve.points[-1].x, curve.points[-1].y)
            left = x - _CHARACTER * len(curve.words)
            for base in (y - 5, y + _LINE - 4):
                box = (left, base - _LINE + 5, x, base + 3)
                if left > _LEFT and not self._is_crossed(box) and not any(_overlap(box, other) for other in boxes):
                    placed.append((x, base, curve.words))
                    boxes.append(box)
                    break
        return placed

    def _is_crossed(self, box: _Box) -> bool:
        """True if a guide runs through the box."""
        return any(_crosses(line, box) for line in self._guide_lines)

    @cached_property
    def _guide_lines(self) -> list[_Box]:
        """The straight parts of the guides, each with its two ends."""
        places = [[self.at(point.x, point.y) for point in curve.points] for curve in self.curves if curve.is_guide]
        return [(*start, *end) for line in places for start, end in itertools.pairwise(line)]

    @property
    def mark_words(self) -> list[tuple[float, float, str, str]]:
        """Places the names beside the marks that have a role.

        Each is x, y, the end that is there, and words.
        """
        return [place for place, _ in self._named_marks]

    @property
    def leaders(self) -> list[_Box]:
        """Gives the lines from marks to names that stand aside."""
        return [
            (*mark, x, y) for (x, y, *_), mark in self._named_marks if math.dist(mark, (x, y)) > _BESIDE + _LINE / 2
        ]

    @cached_property
    def _named_marks(self) -> list[tuple[tuple[float, float, str, str], tuple[float, float]]]:
        """Gives the place of each name, with that of its mark.

        A name moves away from its mark until it is clear of the marks, of the words at lines and of the names before
        it, within the frame where it has room, and of the guides where it can.
        """
        marks = [self.at(point.x, point.y) for curve in self.curves if curve.role in ROLES for point in curve.points]
        taken = [(x - _BESIDE / 2, y - _LINE / 2, x + _BESIDE / 2, y + _LINE / 2) for x, y in marks]
        taken += [(x - _CHARACTER * len(words), y - _LINE + 5, x, y + 3) for x, y, words in self.line_words]
        left, top, right, bottom = self.frame
        placed = []
        named = [curve for curve in self.curves if curve.role in ROLES and curve.role != "step"]
        for curve in sorted(named, key=lambda curve: -curve.points[-1].y):  # names in the order of their marks
            x, y = self.at(curve.points[-1].x, curve.points[-1].y)
            width = _CHARACTER * len(curve.label)
            free = [
                (place, box)
                for place, box in _places_around(x, y, width, len(taken))
                if not any(_overlap(box, other) for other in taken)
            ]
            inside = [one for one in free if left <= one[1][0] and one[1][2] <= right]
            inside = [one for one in inside or free if top <= one[1][1] and one[1][3] <= bottom] or inside or free
            place, box = next((one for one in inside if not self._is_crossed(one[1])), inside[0])
            taken.append(box)
            placed.append(((*place, curve.label), (x, y)))
        return placed

    @property
    def mark_place(self) -> float | None:
        """The place of the mark; null where there is none within the axis."""
        if self.mark is None or not self.x_scale.low < self.mark[0] < self.x_scale.high:
            return None
        return self.at(self.mark[0], 0)[0]


@dataclass(frozen=True)
class ChartSection:
    """Charts under a title of their own, with the sentences that explain them."""

    title: str
    charts: tuple[LineChart, ...]
    notes: tuple[str, ...] = ()


def scale_with_room(low: float, high: float) -> ChartScale:
    """Makes an axis with room at both ends.

    It is in powers where the ends lie far apart.
    """
    if low > 0 and high > LOG_FROM * low:
        room = (high / low) ** 0.04
        return ChartScale(low / room, high * room, is_log=True)
    room = 0.04 * (high - low) or 0.5
    return ChartScale(low - room, high + room, is_log=False)


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Leaves out ticks whose words would cover those before them.

    That is where the page is narrow.
    """
    shown, end = [], -math.inf
    for place, words in ticks:
        # Words at the right end of the axis end there, others have their middle at the place.
        at_right = place > WIDTH - _RIGHT - FROM_END
        start = place - _CHARACTER * len(words) / (1 if at_right else 2)
        if start >= end + _CHARACTER / 2:
            shown.append((place, words))
            end = start + _CHARACTER * len(words)
    return shown


def _round_sizes(scale: ChartScale) -> Sequence[float]:
    """Gives the sizes on an axis that are round as shown.

    On an axis in powers they are powers of two.
    """
    if scale.is_log:
        first, last = math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high))
        return [2.0**power for power in range(first, last + 1, max(math.ceil((last - first + 1) / _MOST_TICKS), 1))]
    unit = 1024.0 ** min(max(math.floor(math.log(max(scale.high, 1.0), 1024)), 0), 3)
    return [unit * value for value in _steps(scale.low / unit, scale.high / unit)]


def round_values(scale: ChartScale) -> Sequence[float]:
    """Gives the round values on an axis, for its ticks."""
    return _powers(scale.low, scale.high) if scale.is_log else _steps(scale.low, scale.high)


def _powers(low: float, high: float) -> Sequence[float]:
    """Gives 1, 2 and 5 times the powers of ten between the ends.

    The powers alone where that would be many.
    """
    digits = (1,) if high > 100 * low else (1, 2, 5)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        digit * 10.0**exponent for exponent in exponents for digit in digits if low <= digit * 10.0**exponent <= high
    ]


def _steps(low: float, high: float) -> Sequence[float]:
    """The ends of four to eight round steps."""
    size = 10.0 ** math.floor(math.log10(high - low))
    step = next(part * size for part in (1.0, 0.5, 0.25, 0.2, 0.1) if high - low >= 4 * part * size)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
