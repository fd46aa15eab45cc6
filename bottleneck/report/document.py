"""The records of a report, whatever its subject and medium.

Builders fill a ``Document``, renderers turn it into text. All text in a document is as it came: each renderer makes it
safe for its medium.
"""

from typing import Literal

from msgspec import Struct

from bottleneck.report.line_chart import ChartScale
from bottleneck.schema.checks import Check

# A name is cut so that it stays different from its neighbours, a place keeps its end, words and code their beginning.
ColumnKind = Literal["name", "place", "words", "number", "code"]


class TableColumn(Struct, frozen=True):
    """A column: its title and the kind of its cells.

    The kind decides how the cells are aligned and shortened. A terminal in which names would be cut short sets the
    cells of a column that ``may_move`` beneath the rows.
    """

    title: str
    kind: ColumnKind
    may_move: bool = False


def columns(kind: ColumnKind, *titles: str) -> tuple[TableColumn, ...]:
    """A column of this kind per title."""
    return tuple(TableColumn(title, kind) for title in titles)


class TableRow(Struct, frozen=True):
    """A row: its cells, group and details.

    The group that it belongs to is for its mark and colour; details are set beneath it. ``role``: a 'part' belongs to
    the row above it and is counted there; 'rest' folds rows that are not shown; the 'total' is the sum of all that are
    neither parts nor totals. ``key`` names what the row is about, for a medium in which a row can be chosen.
    """

    cells: tuple[str, ...]
    role: Literal["plain", "part", "rest", "total"] = "plain"
    group: str | None = None
    details: tuple[str, ...] = ()
    key: str | None = None


class TableSection(Struct, frozen=True):
    """A titled table with the sentences that explain it.

    One without rows shows the sentences only. ``details`` is the title and kind of the column that a medium without
    room beneath a row makes of the rows' details. Details without a title have no such column: they stand beneath the
    table, each once. With ``is_cards`` a narrow page shows each row as a card of labelled cells, and does not scroll
    sideways. ``menu`` is its name in the menu of a page, the title where empty; sections of one name have one link.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    details: TableColumn = TableColumn("what it is", "name")
    is_cards: bool = False
    menu: str = ""


class ListSection(Struct, frozen=True):
    """A titled list of sentences.

    Each item is a lead and the lines that belong to it.
    """

    title: str
    items: tuple[tuple[str, ...], ...]


class LabelledLine(Struct, frozen=True):
    """A sentence with its label.

    It may have the line of code that it is about, and a command that it ends in, to be copied.
    """

    label: str
    text: str
    code: str = ""
    command: str = ""


class Action(Struct, frozen=True):
    """One thing to do.

    It has its subject, labelled lines, code to write, and a command that tries it, to be copied. ``key`` names what it
    is about, by which it is looked up or chosen.
    """

    lead: str
    lines: tuple[LabelledLine, ...] = ()
    code: tuple[str, ...] = ()
    command: str | None = None
    key: str | None = None

    @property
    def title(self) -> str:
        """The lead with the key behind it.

        For a medium that has one line for both.
        """
        return f"{self.lead} [{self.key}]" if self.key else self.lead


class ActionSection(Struct, frozen=True):
    """A titled and ranked list of actions.

    It has sentences before it, their total, and sentences that close it. ``groups`` are actions without a rank, in
    short form, each group with its heading.
    """

    title: str
    items: tuple[Action, ...]
    intro: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[Action, ...]], ...] = ()
    closing: tuple[str, ...] = ()


class Sparkline(Struct, frozen=True):
    """A titled figure of one line: values over time.

    None is below 0. It has its reading in words.
    """

    title: str
    values: tuple[float, ...]
    caption: str


class WaterfallBar(Struct, frozen=True):
    """A line of a waterfall: its label, numbers and bar.

    The label is in full and short, the numbers are as shown, and the bar has its ends. ``group`` is empty for the step
    itself and for accounts folded together; ``amount`` is the one number of a narrow screen: the change, or the time of
    the step. ``parts`` are the groups of a step with their time; an account has none.
    """

    label: str
    short: str
    group: str
    before: str
    after: str
    change: str
    amount: str
    start_us: float
    end_us: float
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def is_step(self) -> bool:
        """True for the step before and the step after."""
        return bool(self.parts)

    @property
    def change_us(self) -> float:
        """Gives the change that the bar shows: below zero where the account fell."""
        return self.end_us - self.start_us


class Waterfall(Struct, frozen=True):
    """A titled figure of a change, account by account.

    The first and the last bar are the step before and after. Text and pages draw these two to one scale, group by
    group, and of each account its change: to the left where it fell, to the right where it rose. A picture draws each
    bar where the one above it ends, on an axis from ``low_us`` to ``high_us``.
    """

    title: str
    unit: str
    bars: tuple[WaterfallBar, ...]
    low_us: float
    high_us: float

    @property
    def steps(self) -> tuple[WaterfallBar, WaterfallBar]:
        """The step before and the step after."""
        return self.bars[0], self.bars[-1]

    @property
    def accounts(self) -> tuple[WaterfallBar, ...]:
        """The accounts, most change first."""
        return self.bars[1:-1]

    @property
    def longest_us(self) -> float:
        """The longer of the two steps."""
        return max(bar.end_us for bar in self.steps)

    @property
    def most_us(self) -> float:
        """The largest rise or fall of an account."""
        return max((abs(bar.change_us) for bar in self.accounts), default=0.0)


class IntervalBar(Struct, frozen=True):
    """A line of a picture of intervals: its label, words and ends.

    ``value`` is the one that is marked. ``tone``, 'good' or 'bad', colours what is measured, or what is predicted where
    nothing is. Ends are null where they are not known.
    """

    label: str
    words: str
    value: float | None = None
    measured: tuple[float, float] | None = None
    predicted: tuple[float, float] | None = None
    tone: Literal["good", "bad", ""] = ""


class Intervals(Struct, frozen=True):
    """A titled picture of intervals on one axis, with a line at 1.

    ``menu`` is as in a table.
    """

    title: str
    bars: tuple[IntervalBar, ...]
    scale: ChartScale
    ticks: tuple[tuple[float, str], ...]
    menu: str = ""

    def share(self, value: float) -> float:
        """Gives the place of a value on the axis, from 0 to 1."""
        return min(max(self.scale.share(value), 0.0), 1.0)

    @property
    def has_key(self) -> bool:
        """True if the colours of the bars do not say what they are."""
        return self.has_both or any(bar.predicted and not bar.measured and not bar.tone for bar in self.bars)

    @property
    def has_both(self) -> bool:
        """True if measured and predicted intervals have to be told apart."""
        return any(bar.measured for bar in self.bars) and any(bar.predicted for bar in self.bars)


class CheckSection(Struct, frozen=True):
    """A titled list of checks."""

    title: str
    checks: tuple[Check, ...]


class FoldedSection(Struct, frozen=True):
    """A titled group of sections, which a medium that can fold shows closed.

    ``menu`` is as in a table.
    """

    title: str
    sections: "tuple[Section, ...]"
    menu: str = ""


class BarSection(Struct, frozen=True):
    """A titled bar of groups by their shares.

    Each part is a group, its share and the share in words. The table beneath it is its legend; where there is none, the
    words are.
    """

    title: str
    parts: tuple[tuple[str, float, str], ...]
    table: TableSection | None = None


Section = (
    BarSection
    | TableSection
    | ListSection
    | ActionSection
    | Sparkline
    | Waterfall
    | Intervals
    | CheckSection
    | FoldedSection
)


class Document(Struct, frozen=True):
    """A report in reading order: headline, conditions, sentence, facts, sections, warnings, closing.

    ``headline`` is a word or two, shown in capitals on a terminal, and ``subject`` follows it unchanged. ``lines`` are
    the sentence in its parts, for media that set each on a line of its own: the first without a label, and one thought
    in each. ``ending`` are lines that repeat what matters at the end of a terminal. ``tone`` is the group or the status
    that colours the headline. ``conditions`` are what must be known before the sentence is read. ``fact_width`` is the
    width of the labels of ``facts`` where they stand in a column; with a ``facts_title`` they stand behind the
    sections, else before them.
    """

    headline: str
    sentence: str
    subject: str = ""
    tone: str = ""
    conditions: tuple[ListSection, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    facts_title: str = ""
    fact_width: int = 9
    lines: tuple[LabelledLine, ...] = ()
    sections: tuple[Section, ...] = ()
    warnings: tuple[str, ...] = ()
    closing: str = ""
    ending: tuple[str, ...] = ()
