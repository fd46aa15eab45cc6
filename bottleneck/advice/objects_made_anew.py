"""Rule of objects that each step makes again of constants."""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.loop_lines import loop_claims
from bottleneck.advice.quantities import (
    event_spans,
    format_count,
    format_per_step,
    outermost_frames,
    rows_of_events,
)
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats
from bottleneck.schema.op_names import PYTHON_FRAME, at_source, line_source
from bottleneck.units import counted

_LEAST_SHARE = 0.03
# Of the time of making it: what is left is the name that it is called by.
_SURELY = 0.9
_MAKES = re.compile(r"\): __init__$")
# What makes objects of its own: autograd's contexts, loaders, optimizers, threads.
_FOREIGN = re.compile(
    r"(?:^|[/\\])(?:bottleneck|torch[/\\](?:autograd|profiler|utils|optim|_\w+|cuda|distributions|distributed)|threading"
    r"|multiprocessing|contextlib|ctypes|logging|tqdm|subprocess)\b"
)
# `LogMel()`, `STFT(512, hop=HOP)`: a class, and arguments that are numbers, texts, constants and settings.
_CONSTANT = (
    r"(?:[\d.]+(?:e-?\d+)?|True|False|None|'[^'\n]*'|\"[^\"\n]*\"|[A-Z][A-Z\d_]*"
    r"|(?:cfg|config|conf|args|opt|hparams|params|settings)(?:\.\w+)+)"
)
# A sign stands at the beginning alone: `1--1` has one reading, so that a long row of these is read in one go.
_ARGUMENT = rf"\s*(?:\w+\s*=\s*)?-?{_CONSTANT}(?:\s*[-+*/]{{1,2}}\s*{_CONSTANT})*\s*"
_OF_CONSTANTS = re.compile(rf"(?<![\w.])(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*)\((?:{_ARGUMENT}(?:,{_ARGUMENT})*)?,?\)")
_LONGEST_LINE = 400


class _Remade(Struct, frozen=True):
    """A line that makes an object, its class, and frames of its constructor."""

    source: str
    name: str
    rows: list[int]


def object_made_anew(evidence: Evidence) -> Draft | None:
    """Finds an object that each step makes of nothing but constants.

    Known by the text of its line. Gain on a CPU: the time of its constructor, from 90 % of it.
    """
    if not evidence.is_host_only or evidence.recording is None:
        return None
    made = max(_made(evidence), key=lambda one: _us(evidence, one), default=None)
    if made is None or evidence.share_of_step(us := _us(evidence, made)) < _LEAST_SHARE:
        return None
    calls = len(made.rows) / evidence.steps
    return Draft(
        slug="object-made-anew",
        title=f"{made.name} is made anew in each step, of nothing that changes",
        evidence=(
            f"{made.name} is made {counted(format_count(calls), 'time')} per step {at_source(made.source)}",
            f"its constructor takes {format_per_step(evidence, us)}",
        ),
        advice=f"Make {made.name} once, before the loop or in the constructor of what uses it: {made.source} makes it "
        "in each step.",
        brief=f"Make {made.name} once, before the loop, which {made.source} does in each step",
        places=(made.source,),
        code=f"self.made = {made.name}(...)  # in __init__, or before the loop; in the step: self.made(x)",
        gain_us=Interval(_SURELY * us, us),
        claims=loop_claims(evidence, us),
        removes=True,
    )


def _us(evidence: Evidence, made: _Remade) -> float:
    rows = np.array(made.rows, dtype=np.int64)
    return event_spans(evidence, rows).total() * evidence.host_scale / evidence.steps


def _made(evidence: Evidence) -> list[_Remade]:
    """The lines that make an object of constants in each step."""
    events = evidence.linked.trace.events
    start, names = events["ts_us"].to_numpy(), events["name"].astype(object).to_numpy()
    frames = rows_of_events(evidence, _MAKES)
    frames = frames[(events["category"].to_numpy()[frames] == "python")]
    frames = frames[np.isin(start[frames], outermost_frames(evidence, _MAKES).start)]
    frames = frames[[_FOREIGN.search(str(name)) is None for name in names[frames]]] if frames.size else frames
    texts = evidence.source_texts
    by_line: dict[str, list[int]] = {}
    for row, line in zip(frames.tolist(), _lines_around(evidence, start[frames]), strict=True):
        by_line.setdefault(line, []).append(row)
    matches = {line: _OF_CONSTANTS.search(texts.get(line, "")[:_LONGEST_LINE]) for line in by_line}
    return [
        _Remade(line, match["name"], rows)
        for line, rows in by_line.items()
        if (match := matches[line]) is not None and len(rows) >= evidence.steps
    ]


def _lines_around(evidence: Evidence, at_us: Floats) -> list[str]:
    """The innermost line that runs at each of these times; empty for none."""
    events = evidence.linked.trace.events
    rows = np.flatnonzero((events["category"] == "line").to_numpy())
    start = events["ts_us"].to_numpy()[rows]
    rows, start = rows[np.argsort(start, kind="stable")], np.sort(start)
    end, names = start + events["dur_us"].to_numpy()[rows], events["name"].astype(object).to_numpy()[rows]
    lines = []
    for time, last in zip(at_us.tolist(), np.searchsorted(start, at_us, side="right").tolist(), strict=True):
        open_ = np.flatnonzero(end[:last] >= time)
        frame = PYTHON_FRAME.match(str(names[open_[-1]])) if open_.size else None
        lines.append("" if frame is None else line_source(frame["path"], frame["line"]))
    return lines


RULES = (object_made_anew,)
