"""Builds the document of `verify --device`.

It says what each change would bring on other devices, and in which order.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from bottleneck.report.json_text import LONGEST_TEXT, encode
from bottleneck.report.predict import by_device, held_by, host_sets_pace, host_words, worst_work
from bottleneck.report.speedup_intervals import TITLE, speedup_intervals, speedup_scale
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, as_sentence, clean
from bottleneck.schema.device import without_maker
from bottleneck.schema.predicted_changes import DeviceChanges, PredictedChange, PredictedChanges, PredictedVerdict
from bottleneck.schema.records import replace
from bottleneck.units import counted, format_memory, format_us, format_us_range, listed

_TONES: dict[PredictedVerdict, Literal["good", "bad"]] = {"helps": "good", "hurts": "bad"}
_VERDICTS: dict[PredictedVerdict, str] = {
    "helps": "helps",
    "nothing": "nothing",
    "hurts": "slower",
}
# Where the interval holds 1, what is expected tells more than that: from this factor on it has a direction.
_DIRECTION = 1.05
# Names of changes as sentences have them; tables show the names that `--try` takes.
CHANGE_WORDS: Mapping[str, str] = {
    "bf16-autocast": "bf16 autocast",
    "tf32": "TF32 products",
    "fused-attention": "fused attention",
    "channels-last": "the channels-last layout",
    "fold-batchnorm": "folded batch norm",
    "pad-vocabulary": "a padded vocabulary",
    "inference-mode": "inference mode",
    "fused-optimizer": "a fused optimizer",
    "set-to-none": "gradients set to None",
    "batch-x2": "twice the batch size",
    "checkpoint": "activation checkpointing",
    "compile": "torch.compile",
    "cuda-graph": "CUDA graphs",
    "compile-reduce-overhead": 'torch.compile(mode="reduce-overhead")',
    "compile-max-autotune": 'torch.compile(mode="max-autotune")',
}
_NOTE = (
    "in brackets the interval that holds it in 80 of 100 cases; 'probably', 'about the same': the brackets leave open "
    "whether it helps"
)
_LIST_NOTE = "what each change does: bottleneck verify --list"
# Changes that make another step of the same program: its samples are counted, not its steps.
_LARGER_STEPS = frozenset({"batch-x2"})
_SAMPLES_NOTE = (
    "batch-x2: as many times as many samples per second, as its step is another, longer one; no part of the order"
)
_ORDER_NOTE = "the order ends where nothing is left that brings more than its own error"
_HIDDEN_NOTE = "a change may bring more here than alone: what it saves on the device counts once the host keeps up"
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
            *_with_notes_once([_alone(device) for device in answer.devices]),
            *_with_notes_once([*_orders(answer.devices)]),
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
        return encode(answer, (), lambda text: clean(text, LONGEST_TEXT))
    return render_document(build(answer), form, style)


def _sentence(device: DeviceChanges) -> str:
    name = without_maker(device.device)
    step = f"On {_article(name)} {name} this step takes {_step_words(device)}"
    if lacks := _no_room(device):
        step += f", but {lacks}"
    if not device.order:
        helping = _best_alone(device)
        if helping is not None:
            alone = f"{_words(helping)} helps alone, {_times_in_words(helping)}"
            return f"{step}. {alone}; no order of changes is certain to help."
        return f"{step}; {_NO_GAIN}."
    first = device.order[0]
    words = f"{step}. First: {_words(first)}, {_times_in_words(first)} times as fast"
    if device.total is None:
        return f"{words}; after it nothing is certain to help."
    names = ", then ".join(map(_words, device.order[1:]))
    return f"{words}; then {names}: {_times_in_words(device.total)} times as fast in all."


def _words(change: PredictedChange) -> str:
    return CHANGE_WORDS.get(change.change, change.change)


def _best_alone(device: DeviceChanges) -> PredictedChange | None:
    """The change that helps most by itself; null where none does."""
    return next((change for change in device.alone if change.verdict == "helps"), None)


def _lines(answer: PredictedChanges) -> tuple[LabelledLine, ...]:
    """Gives the first change on each device.

    Then come what holds the step back there, and the changes that follow.
    """
    named = [(without_maker(device.device), device) for device in answer.devices]
    claim = _by_change((*_first(device), name) for name, device in named)
    lines = (
        ("", as_sentence(claim)),
        ("But", by_device((_no_room(device), name) for name, device in named)),
        ("Now", listed([f"{_us(device.step.us)} ({_step_words(device)}) on {name}" for name, device in named])),
        ("Bound", by_device((held_by(device.step), name) for name, device in named)),
        ("Worst", worst_work((name, device.step, device.work) for name, device in named)),
        ("Then", _by_change((*_what_follows(device), name) for name, device in named)),
    )
    return tuple(LabelledLine(label, text) for label, text in lines if text)


def _no_room(device: DeviceChanges) -> str:
    """Says that the step does not fit.

    Empty where it does, or where that is not known.
    """
    lacks = f"{_memory(device.peak_bytes)} at its peak, of {_memory(device.memory_bytes)}"
    return f"its memory does not fit: {lacks}" if device.fits is False else ""


def _by_change(claims: Iterable[tuple[str, str, str]]) -> str:
    """Words what each change brings on each device.

    A claim has a change, the speedup that it brings and a device. What is the same on several devices is said once.
    """
    by_change: dict[str, list[str]] = {}
    for change, speedup, name in claims:
        on_devices = by_change.setdefault(change, [])
        unit = " times as fast" if speedup and not on_devices else ""
        on_devices.append(f"{speedup}{unit} on {name}".strip())
    return "; ".join(f"{change} {listed(on_devices)}" for change, on_devices in by_change.items() if change)


def _first(device: DeviceChanges) -> tuple[str, str]:
    """Words the first change, and how many times as fast it makes the step."""
    first = device.order[0] if device.order else _best_alone(device)
    if first is None:
        return "nothing is certain to help", ""
    return f"{_words(first)} first:", _times_in_words(first)


def _what_follows(device: DeviceChanges) -> tuple[str, str]:
    """Words the changes after the first, and what all bring together."""
    if not device.order:
        return "", ""
    if device.total is None:
        return "nothing certain after the first", ""
    return f"{', then '.join(map(_words, device.order[1:]))}: in all", _times_in_words(device.total)


def _article(name: str) -> str:
    return "an" if name[:1].upper() in "AEFHILMNORSX" and name[1:2].isdigit() else "a"


def _step_words(device: DeviceChanges) -> str:
    step = device.step
    if step.low_us is None or step.high_us is None:
        return "an unknown time"
    return format_us_range(step.low_us, step.high_us)


def _times_in_words(change: PredictedChange) -> str:
    """Formats a speedup for a sentence.

    Its line may break at the hyphen of a table's interval.
    """
    return f"{change.speedup:.2f} ({change.interval.low:.2f} to {change.interval.high:.2f})"


def _times(change: PredictedChange) -> str:
    return f"{change.speedup:.2f} ({change.interval.low:.2f}-{change.interval.high:.2f})"


def _facts(answer: PredictedChanges) -> Iterator[tuple[str, str]]:
    kind = "training" if answer.training else "inference"
    batch = "" if answer.batch_size is None else f", batch size {answer.batch_size:,}"
    yield "step", f"{kind}{batch}, {counted(answer.op_calls, 'op call')}, each change run on tensors without data"


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


def verdict_words(verdict: PredictedVerdict, speedup: float) -> str:
    """Says which side of 1 a change is on, or probably is."""
    if verdict != "open":
        return _VERDICTS[verdict]
    if speedup > _DIRECTION:
        return "probably helps"
    return "probably slower" if speedup < 1 / _DIRECTION else "about the same"


def _alone(device: DeviceChanges) -> TableSection:
    """Each change by itself on one device."""
    rows = [TableRow((*_unchanged(device), ""), key="as it is")]
    rows += [
        TableRow((*_cells(change), verdict_words(change.verdict, change.speedup)), key=change.change)
        for change in device.alone
    ]
    heads = (
        *columns("name", "change"),
        *columns("number", "times as fast", "step", "memory"),
        *columns("words", "verdict"),
    )
    notes = (
        _NOTE,
        _LIST_NOTE,
        *((_SAMPLES_NOTE,) if any(change.change in _LARGER_STEPS for change in device.alone) else ()),
    )
    title = f"Each change alone on {without_maker(device.device)}"
    return TableSection(title, heads, tuple(rows), notes, is_cards=True, menu="Each change alone")


def _unchanged(device: DeviceChanges) -> tuple[str, str, str, str]:
    """Cells of the step as it is."""
    return "now, unchanged", "", _us(device.step.us), _memory(device.peak_bytes)


def _cells(change: PredictedChange) -> tuple[str, str, str, str]:
    return change.change, _times(change), _us(change.step.us), _memory(change.peak_bytes)


def _orders(devices: Sequence[DeviceChanges]) -> Iterator[TableSection]:
    """Yields the changes in the order in which they are best made.

    There is a table for each device that has one.
    """
    for device in devices:
        if device.total is None:
            continue
        rows = [TableRow(_unchanged(device), key="as it is")]
        rows += [TableRow(_cells(change)) for change in device.order]
        total = (
            "together, against now",
            _times(device.total),
            _us(device.total.step.us),
            _memory(device.total.peak_bytes),
        )
        heads = (*columns("name", "change"), *columns("number", "times as fast as the row above", "step", "memory"))
        title = f"In which order on {without_maker(device.device)}"
        alone = {change.change: change for change in device.alone}
        is_hidden = host_sets_pace(device.step) and any(alone[one.change].verdict != "helps" for one in device.order)
        notes = (_ORDER_NOTE, *((_HIDDEN_NOTE,) if is_hidden else ()))
        yield TableSection(
            title, heads, (*rows, TableRow(total, role="rest")), notes, is_cards=True, menu="In which order"
        )


def _with_notes_once(tables: Sequence[TableSection]) -> Iterator[TableSection]:
    """Yields tables of the same kind, without notes that stand under one before."""
    said: set[str] = set()
    for table in tables:
        yield replace(table, notes=tuple(note for note in table.notes if note not in said))
        said |= {*table.notes}


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
    return UNKNOWN if peak_bytes is None else format_memory(peak_bytes)
