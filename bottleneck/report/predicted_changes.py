"""Builds the document of `verify --device`.

It says what each change would bring on other devices, and in which order.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from bottleneck.report import render_document
from bottleneck.report.document import (
    Document,
    IntervalBar,
    Intervals,
    LabelledLine,
    ListSection,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import encode
from bottleneck.report.predict import host_words
from bottleneck.report.speedup_intervals import TITLE, speedup_intervals, speedup_scale
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, clean
from bottleneck.schema.device import without_maker
from bottleneck.schema.predicted_changes import DeviceChanges, PredictedChange, PredictedChanges, PredictedVerdict
from bottleneck.units import counted, format_si, format_us

_LONGEST_JSON_TEXT = 2000
_TONES: dict[PredictedVerdict, Literal["good", "bad"]] = {"helps": "good", "hurts": "bad"}
_VERDICTS: dict[PredictedVerdict, str] = {
    "helps": "helps",
    "nothing": "nothing",
    "hurts": "slower",
    "open": "may help or not",
}
_NOTE = (
    "times as fast as before, in brackets the interval made to hold 80 % of cases; 'may help or not': the interval "
    "holds 1"
)
_ORDER_NOTE = "each after those above it; the order ends where nothing is left that brings more than its own error"
_NO_GAIN = "no change brings more than the error of its prediction"


def build(answer: PredictedChanges) -> Document:
    """The document of predicted changes."""
    return Document(
        headline="predicted changes",
        subject=answer.program,
        sentence=" ".join(_sentence(device) for device in answer.devices),
        lines=_lines(answer),
        facts=tuple(_facts(answer)),
        fact_width=10,
        sections=(
            *_pictures(answer.devices),
            *(_alone(device) for device in answer.devices),
            *_orders(answer.devices),
            *_refused(answer),
            ListSection("What was assumed", tuple((assumption,) for assumption in _assumed(answer))),
        ),
        closing="on a machine with the device, bottleneck verify measures the same changes",
    )


def render(answer: PredictedChanges, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the changes for a terminal, as markdown, JSON or a page.

    In JSON all text is safe for a terminal.
    """
    if form == "json":
        return encode(answer, (), lambda text: clean(text, _LONGEST_JSON_TEXT))
    return render_document(build(answer), form, style)


def _sentence(device: DeviceChanges) -> str:
    name = without_maker(device.device)
    step = f"On {_article(name)} {name} this step takes {_step_words(device)}"
    if device.fits is False:
        lacks = f"{_memory(device.peak_bytes)} at its peak, of {_memory(device.memory_bytes)}"
        step += f", but its memory does not fit: {lacks}"
    if not device.order:
        helping = _best_alone(device)
        if helping is not None:
            return f"{step}. {helping.change} helps alone, {_times(helping)}; no order of changes is certain to help."
        return f"{step}; {_NO_GAIN}."
    first = device.order[0]
    words = f"{step}. First: {first.change}, {_times(first)} times as fast"
    if device.total is None:
        return f"{words}; after it nothing is certain to help."
    names = ", then ".join(change.change for change in device.order[1:])
    return f"{words}; then {names}: {_times(device.total)} times as fast in all."


def _best_alone(device: DeviceChanges) -> PredictedChange | None:
    """The change that helps most by itself; null where none does."""
    return next((change for change in device.alone if change.verdict == "helps"), None)


def _lines(answer: PredictedChanges) -> tuple[LabelledLine, ...]:
    """Gives the first change on each device, then the sentences."""
    claims = []
    for device in answer.devices:
        first, name = device.order[0] if device.order else _best_alone(device), without_maker(device.device)
        if first is None:
            claims.append(f"nothing certain helps on {name}")
        else:
            claims.append(f"{first.change} first on {name}: {_times(first)} times as fast")
    claim = "; ".join(claims)
    words = " ".join(_sentence(device) for device in answer.devices)
    return LabelledLine("", f"{claim[:1].upper()}{claim[1:]}"), LabelledLine("", words)


def _article(name: str) -> str:
    return "an" if name[:1].upper() in "AEFHILMNORSX" and name[1:2].isdigit() else "a"


def _step_words(device: DeviceChanges) -> str:
    step = device.step
    if step.low_us is None or step.high_us is None:
        return "an unknown time"
    return f"{format_us(step.low_us)} to {format_us(step.high_us)}"


def _times(change: PredictedChange) -> str:
    return f"{change.speedup:.2f} ({change.interval.low:.2f}-{change.interval.high:.2f})"


def _facts(answer: PredictedChanges) -> Iterator[tuple[str, str]]:
    kind = "training" if answer.training else "inference"
    batch = "" if answer.batch_size is None else f", batch size {answer.batch_size:,}"
    yield "step", f"{kind}{batch}, {counted(answer.op_calls, 'op call')}, each change run under fake tensors"


def _pictures(devices: Sequence[DeviceChanges]) -> list[Intervals]:
    """The intervals of each change alone, all devices on one axis."""
    bars = [[_interval_bar(change) for change in device.alone] for device in devices]
    scale = speedup_scale(itertools.chain(*bars))
    return [
        picture
        for device, of_device in zip(devices, bars, strict=True)
        for picture in speedup_intervals(f"{TITLE} on {without_maker(device.device)}", of_device, scale)
    ]


def _interval_bar(change: PredictedChange) -> IntervalBar:
    ends = (change.interval.low, change.interval.high)
    return IntervalBar(
        change.change, f"{change.speedup:.2f}x", change.speedup, None, ends, _TONES.get(change.verdict, "")
    )


def _alone(device: DeviceChanges) -> TableSection:
    """Each change by itself on one device."""
    rows = [
        TableRow(("as it is", "", _us(device.step.us), _memory(device.peak_bytes), device.step.bound), key="as it is")
    ]
    rows += [
        TableRow(
            (change.change, _times(change), _us(change.step.us), _memory(change.peak_bytes), _VERDICTS[change.verdict]),
            key=change.change,
        )
        for change in device.alone
    ]
    heads = (
        *columns("name", "change"),
        *columns("number", "times as fast", "step", "peak"),
        *columns("words", "verdict"),
    )
    return TableSection(f"Each change alone on {without_maker(device.device)}", heads, tuple(rows), notes=(_NOTE,))


def _orders(devices: Sequence[DeviceChanges]) -> Iterator[TableSection]:
    """Yields the changes in the order in which they are best made.

    There is a table for each device that has one.
    """
    for device in devices:
        if device.total is None:
            continue
        rows = [
            TableRow((change.change, _times(change), _us(change.step.us), _memory(change.peak_bytes)))
            for change in device.order
        ]
        total = ("together", _times(device.total), _us(device.total.step.us), _memory(device.total.peak_bytes))
        heads = (*columns("name", "change"), *columns("number", "times as fast", "step", "peak"))
        title = f"In which order on {without_maker(device.device)}"
        yield TableSection(title, heads, (*rows, TableRow(total, role="rest")), notes=(_ORDER_NOTE,))


def _refused(answer: PredictedChanges) -> Iterator[ListSection]:
    """The changes without a price."""
    items = [f"{change.change}: {change.reason}" for change in answer.refused]
    for device in answer.devices:
        name = without_maker(device.device)
        items += [f"{change.change} on {name}: {change.reason}" for change in device.refused]
    if items:
        yield ListSection("What does not apply here", tuple((item,) for item in items))


def _assumed(answer: PredictedChanges) -> list[str]:
    reasons = [reason for device in answer.devices for reason in device.step.reasons]
    changed = [reason for device in answer.devices for change in device.alone for reason in change.step.reasons]
    hosts = host_words(device.step for device in answer.devices)
    return list(dict.fromkeys((*hosts, *answer.notes, *reasons, *changed)))


def _us(us: float | None) -> str:
    return UNKNOWN if us is None else format_us(us)


def _memory(peak_bytes: int | None) -> str:
    return UNKNOWN if peak_bytes is None else format_si(float(peak_bytes), "B")
