"""Finds the lines in which Python or data loading takes its time.

They come with what they call. The trace tells lines that call something, and functions for the rest. Samples of the
stack after the measured steps tell where in such a function the time is.
"""

import math
import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from bottleneck.advice.quantities import events_in_window, events_of_source, idle_rows
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Spans, union
from bottleneck.schema.measurements import LEAST_SAMPLED_US, SampledLine, SearchedContainer
from bottleneck.schema.op_names import at_source, place_of
from bottleneck.schema.records import replace
from bottleneck.units import format_share

# A function of a library that holds this part of a line's time is what the line does.
_MOST_OF_LINE = 0.5
# Below this part of the step it is not looked for what a line calls.
_LEAST_TO_LOOK = 0.05
_LONGEST_QUOTE = 50
_NEXT_LINES = 4
# Lines of the body of a loop or block that are looked at: a pass of training takes some lines up to its backward pass.
_BODY_LINES = 6
# Of the step: less time is not given to another line.
_LEAST_MOVED = 0.1
_DRAWS = re.compile(r"\b(?:integers|randint|random_integers)\(")
# An array that is indexed by another, or by names: `table[:, rows]`.
_INDEXES = re.compile(r"\w\[[^\[\]'\"]*[A-Za-z_]\w*[^\[\]'\"]*\]")
_NUMBER = re.compile(r"\(\d{1,9}\): ")
# Where an object lies in memory: `<built-in method tensor of type object at 0x7f14cbacea40>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{1,16}(?=>$)")


class HotLine(Struct, frozen=True):
    """A line with its time per step in one idle cause.

    It is a function where its lines are not known. ``named`` are the sources that the trace has the time at: the line
    itself, and the function that it is in. ``callees`` are functions of libraries that hold most of its time. ``share``
    is the part of the samples in that function. ``ops_us`` is the time of ops at these sources, which is not part of
    ``us``. ``following`` are the texts of the next lines, as far as known.
    """

    source: str
    named: tuple[str, ...]
    us: float
    text: str = ""
    callees: tuple[str, ...] = ()
    searched: SearchedContainer | None = None
    share: float | None = None
    ops_us: float = 0.0
    following: tuple[str, ...] = ()

    def where(self) -> str:
        """'at train.py:35 (`while j in seen`)'; 'in draw() (train.py:30)'."""
        return f"{at_source(self.source)}{self.quoted()}"

    def place(self) -> str:
        """'train.py:35 (`while j in seen`)', as the thing that does something."""
        return f"{self.source}{self.quoted()}"

    def quoted(self) -> str:
        """Gives ' (`while j in seen`)' for a sentence.

        Empty where the text is not known, or too long for a sentence.
        """
        text = self.text.removesuffix(":")
        return f" (`{text}`)" if text and len(text) <= _LONGEST_QUOTE else ""

    def sampled(self) -> str | None:
        """Gives the line's part of its function's samples, in words.

        Null where it was not sampled.
        """
        if self.share is None:
            return None
        return (
            f"{format_share(self.share)} of the samples in {self.named[-1]} after the recorded steps are at this line"
        )


def hottest_line(evidence: Evidence, source: str | None, cause: str) -> HotLine | None:
    """Gives the line with most of the time at this source.

    The time is that of the trace. Null where the source is not known.
    """
    return next((line for line in _by_cause(evidence)[cause] if source in line.named), None)


def hot_lines(evidence: Evidence, cause: str) -> tuple[HotLine, ...]:
    """Gives the lines with time in Python or data loading, longest first.

    The cause is time between ops (``python``), or in loading data (``input``).
    """
    return _by_cause(evidence)[cause]


def line_at_source(evidence: Evidence, source: str) -> HotLine:
    """Gives a line with its text and what it calls.

    It is given whatever the line's time is spent on, and states no time.
    """
    run = evidence.analysis.run
    sampled = None if run is None else next((line for line in run.lines if line.source == source), None)
    callees = dict.fromkeys((*(() if sampled is None else sampled.callees), *_called(evidence, source)))
    return HotLine(source, (source,), 0.0, _text(evidence, source, sampled), tuple(callees))


@remembered
def _by_cause(evidence: Evidence) -> dict[str, tuple[HotLine, ...]]:
    return {cause: _hot_lines(evidence, cause) for cause in ("python", "input")}


def _hot_lines(evidence: Evidence, cause: str) -> tuple[HotLine, ...]:
    us: dict[str, float] = {}
    for row in idle_rows(evidence, cause):
        if row.source is not None:
            us[row.source] = us.get(row.source, 0.0) + row.us
    run = evidence.analysis.run
    known_us = dict(us)
    for fold in evidence.analysis.lines:
        known_us[fold.name] = known_us.get(fold.name, 0.0) + fold.us
    by_source = {} if run is None else {line.source: line for line in run.lines}
    is_sampled = run is not None and math.fsum(us.values()) >= LEAST_SAMPLED_US
    hot_by_source: dict[str, HotLine] = {}
    for source, spent_us in us.items():
        spread = run.spread(source, spent_us, known_us) if run is not None and is_sampled else {}
        if not spread and source not in hot_by_source:
            hot_by_source[source] = _traced(evidence, source, spent_us, by_source.get(source))
        whole = math.fsum(line.share for line in spread)
        for line, more_us in spread.items():
            own_us = us.get(line.source, 0.0)
            hot_by_source[line.source] = HotLine(
                line.source, (line.source, source), own_us + more_us, line.text or "", line.callees,
                line.searched, line.share / whole,
            )  # fmt: skip
    ops_us = {fold.name: fold.us for fold in evidence.analysis.lines}
    hot_by_source = _moved_on(evidence, hot_by_source, known_us)
    lines = (
        replace(
            line,
            ops_us=math.fsum(ops_us.get(name, 0.0) for name in set(line.named)),
            following=_following(evidence, line.source),
        )
        for line in hot_by_source.values()
    )
    return tuple(sorted(lines, key=lambda line: -line.us))


def _moved_on(evidence: Evidence, found: Mapping[str, HotLine], known_us: Mapping[str, float]) -> dict[str, HotLine]:
    """Moves time to the next lines if samples show it there.

    What indexes an array before it calls anything leaves no mark of its own: its time seems to be that of the line
    before. Samples are late at lines that do not let go of the interpreter, so that only a line that draws some whole
    numbers, which is soon done, gives its time to such an index.
    """
    run, step_us, lines = evidence.analysis.run, evidence.step_us, dict(found)
    for source, line in found.items():
        place = place_of(source)
        if run is None or place is None or place.is_function or line.us < _LEAST_MOVED * step_us:
            continue
        if _DRAWS.search(line.text) is None:
            continue
        own_us = math.fsum(sampled.share for sampled in run.lines if sampled.source == source) * step_us
        file = source.rpartition(":")[0]
        following = {f"{file}:{place.line + more}" for more in range(1, _NEXT_LINES + 1)}
        excess = {
            sampled: sampled.share * step_us - known_us.get(sampled.source, 0.0)
            for sampled in run.lines
            if sampled.source in following and _INDEXES.search(sampled.text or "")
        }
        to = max(excess, key=lambda sampled: excess[sampled], default=None)
        if to is None or own_us > line.us / 2 or excess[to] < line.us / 2:
            continue
        before_us = lines[to.source].us if to.source in lines else 0.0
        lines[to.source] = HotLine(
            to.source, (to.source, source), before_us + line.us, to.text or "", to.callees, to.searched
        )
        del lines[source]
    return lines


def _traced(evidence: Evidence, source: str, us: float, sampled: SampledLine | None) -> HotLine:
    """Gives a line of the trace with its text and library calls.

    The calls are the functions of libraries that hold most of its time.
    """
    is_long = evidence.share_of_step(us) >= _LEAST_TO_LOOK
    callees = () if sampled is None else sampled.callees
    if is_long:
        callees = tuple(dict.fromkeys((*callees, *_called(evidence, source))))
    return HotLine(
        source, (source,), us, _text(evidence, source, sampled), callees, None if sampled is None else sampled.searched
    )  # fmt: skip


def _following(evidence: Evidence, source: str) -> tuple[str, ...]:
    """Texts of the next lines of the file, as far as they are known."""
    texts, place = evidence.source_texts, place_of(source)
    if place is None or place.is_function:
        return ()
    file = source.rpartition(":")[0]
    near = (texts.get(f"{file}:{place.line + more}") for more in range(1, _BODY_LINES + 1))
    return tuple(text for text in near if text)


def _text(evidence: Evidence, source: str, sampled: SampledLine | None) -> str:
    texts = evidence.source_texts
    return texts.get(source) or (None if sampled is None else sampled.text) or ""


def _spans_of(evidence: Evidence, source: str) -> Spans:
    """Gives the stretches in the window of a line or function.

    They are of the events of a line, or of the frames of a function.
    """
    events = evidence.linked.trace.events
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    rows = events_of_source(evidence, source)
    return union(start[rows], np.minimum(end[rows], evidence.linked.window.host_us[1]))


def _called(evidence: Evidence, source: str) -> tuple[str, ...]:
    """The Python frames that hold most of the time of a source: 'numpy/lib/npyio.py: __getitem__'."""
    events, spans = evidence.linked.trace.events, _spans_of(evidence, source)
    whole_us = spans.total()
    if whole_us <= 0:
        return ()
    start, dur = events["ts_us"].to_numpy(), events["dur_us"].to_numpy()
    rows = np.flatnonzero(events_in_window(evidence, "python") & ~events_of_source(evidence, source))
    rows = rows[spans.hold(start[rows])]
    codes = events["name"].cat.codes.to_numpy()[rows]
    us = np.bincount(codes, weights=dur[rows], minlength=len(events["name"].cat.categories))
    most = [code for code in np.argsort(-us).tolist() if us[code] >= _MOST_OF_LINE * whole_us]
    names = (_ADDRESS.sub("", str(events["name"].cat.categories[code])) for code in most)
    return tuple(_NUMBER.sub(": ", name, count=1).replace("\\", "/") for name in names)
