"""Builds the document of a prediction.

It has the step on each device, its memory, other ways to run it, and the work. The work is also placed as points under
the roofs of each device, for the picture and the charts of the page.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bottleneck.report import render_document
from bottleneck.report.document import Document, LabelledLine, ListSection, TableRow, TableSection, columns
from bottleneck.report.json_text import encode
from bottleneck.report.line_chart import ROLES, ChartCurve, ChartPoint, ChartSection, LineChart
from bottleneck.report.memory_fit import fit_line, fit_sections
from bottleneck.report.roofline_points import RooflinePoint, RooflineRoof
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.device import without_maker
from bottleneck.schema.predicted_step import PredictedStep
from bottleneck.schema.prediction import BackendGain, DevicePrediction, PredictedWork, Prediction
from bottleneck.units import (
    US_PER_S,
    apportion,
    counted,
    format_memory,
    format_share,
    format_si,
    format_us,
    format_us_range,
    listed,
)

_WORK_ROWS = 8
# The peak is known to grow along a line as far as batch sizes were tried; many times beyond it is only a bound.
_BEYOND_TRIED = 64
# Changes of the step's time below this are not worth a sentence.
_WORTH_SAYING = 1.1
# A step without matmuls in fp32 is as fast with TF32: no column for that.
_SOME_GAIN = 1.005


class _BackendWords(NamedTuple):
    """A way to run a step, in words.

    They are the title of its column, its name as what is gained from, and how a step is run.
    """

    title: str
    gained_from: str
    run_as: str


_WAYS = {
    "eager": _BackendWords("eager", "eager", ""),
    "compile": _BackendWords("compile", "torch.compile", ", compiled,"),
    "cudagraphs": _BackendWords("cudagraphs", 'torch.compile(backend="cudagraphs")', ", as a CUDA graph,"),
    "captured": _BackendWords("CUDA graphs", "CUDA graphs", ", as CUDA graphs,"),
    "reduce-overhead": _BackendWords(
        "reduce-overhead", 'torch.compile(mode="reduce-overhead")', ", compiled and with CUDA graphs,"
    ),
    "max-autotune": _BackendWords(
        "max-autotune", 'torch.compile(mode="max-autotune")', ", compiled with max-autotune,"
    ),
    "max-autotune-no-cudagraphs": _BackendWords(
        "max-autotune, no graphs",
        'torch.compile(mode="max-autotune-no-cudagraphs")',
        ", compiled with max-autotune,",
    ),
    "tf32": _BackendWords("TF32", "TF32", ""),
}
_ENGINES = {
    "fp32_vector": "fp32 without TF32",
    "tf32_tensor": "TF32",
    "fp16_tensor": "fp16",
    "bf16_tensor": "bf16",
    "fp64_vector": "fp64",
    "fp64_tensor": "fp64",
    "int8_tensor": "int8",
    "fp8_tensor": "fp8",
}

_WORK_NOTE = "share: of the time of the kernels; floor: no device of this kind takes less"
_IN_CACHE = "in cache"
_LEAST_FLOOR_US = 0.01
_CACHE_NOTE = "in cache: the data of each kernel fit into the last cache, so that its bytes set no floor"
_NO_GRAPH = "no graph"
_NO_GRAPH_NOTE = (
    "no graph: the backend cudagraphs runs a step op by op that writes to a buffer, such as a batch norm in training; "
    "reduce-overhead makes a graph of it"
)
_COPIES_NOTE = (
    "the backend cudagraphs copies the parameters in each step; a graph that you capture yourself "
    "(torch.cuda.make_graphed_callables) does not"
)
_ROOFLINE_NOTE = (
    "Each mark is a kind of work by its FLOPs and least bytes, with its share of the time of the kernels; the lines "
    "are what the memory and the arithmetic units of the device allow."
)
# Copies from the host of less than this share of the step are not worth a line.
_LEAST_COPY = 0.01
_GROUPS = ("compute", "memory", "latency", "overhead")
# Latency is shown where some step has this much of it.
_SOME_LATENCY = 0.02
# The styles of a report know no latency.
_STYLED = frozenset(_GROUPS) - {"latency"}


def short_name(prediction: DevicePrediction) -> str:
    """The name of the device without that of its maker."""
    return without_maker(prediction.device.name)


def build(answer: Prediction) -> Document:
    """The document of a prediction."""
    first = sentences(answer)[0]
    worked = [_work(item) for item in answer.devices if item.work][:1]
    tables = [
        *fit_sections(answer.devices),
        _steps(answer),
        *_memory(answer),
        *_gains(answer),
        *_costs(answer),
        *worked,
    ]
    return Document(
        headline="predicted",
        subject=answer.program,
        sentence=first,
        lines=_lines(answer),
        facts=tuple(_facts(answer)),
        fact_width=11,
        sections=(*tables, ListSection("What was assumed", tuple((item,) for item in _assumed(answer)))),
    )


_MOST_IN_HEADLINE = 3


def _lines(answer: Prediction) -> tuple[LabelledLine, ...]:
    """Gives the times on all devices, then what holds each back.

    It says where, too, and what to do first.
    """
    timed = [one for one in answer.devices if one.step.low_us is not None and one.step.high_us is not None]
    times = [
        f"{format_us_range(one.step.low_us or 0.0, one.step.high_us or 0.0)} on {short_name(one)}" for one in timed
    ]
    if not times:
        return ()
    more = f" and {len(times) - _MOST_IN_HEADLINE} more" if len(times) > _MOST_IN_HEADLINE else ""
    lines = (
        ("", f"A step takes {', '.join(times[:_MOST_IN_HEADLINE])}{more}"),
        *(("But", sentence) for sentence in _without_time_or_room(answer)),
        *(("Fit", fit_line(prediction)) for prediction in answer.devices),
        ("Bound", by_device((_held_by(one), short_name(one)) for one in timed[:_MOST_IN_HEADLINE])),
        ("Worst", worst_work((short_name(one), one.step, one.work) for one in timed[:_MOST_IN_HEADLINE])),
        ("First", _first_change(answer, timed)),
    )
    return tuple(LabelledLine(label, text) for label, text in lines if text)


def _without_time_or_room(answer: Prediction) -> list[str]:
    """The sentences of devices that have no time, or too little memory."""
    return [
        sentence.rstrip(".")
        for prediction, sentence in zip(answer.devices, sentences(answer), strict=True)
        if prediction.step.us is None or prediction.fits is False
    ]


def by_device(words: Iterable[tuple[str, str]]) -> str:
    """Joins words about devices with their names.

    Devices with the same words stand together; those without words are left out.
    """
    names: dict[str, list[str]] = {}
    for text, name in words:
        if text:
            names.setdefault(text, []).append(name)
    return "; ".join(f"{text} on {listed(at)}" for text, at in names.items())


def host_sets_pace(step: PredictedStep) -> bool:
    """True where issuing the step takes longer than running its kernels."""
    return step.host_us is not None and step.device_us is not None and step.host_us > step.device_us


def worst_work(devices: Iterable[tuple[str, PredictedStep, Sequence[PredictedWork]]]) -> str:
    """Words the kind of work with most time.

    It has its op and line, and its share on each device. Where the device waits for its host, that is the worst.
    """
    shares: dict[str, list[str]] = {}
    hosts: list[str] = []
    for name, step, work in devices:
        if host_sets_pace(step):
            times = [format_us(us or 0.0) for us in (step.host_us, step.device_us)]
            hosts.append(f"{times[0]} on {name} ({'' if hosts else 'its kernels take '}{times[1]})")
        elif work:
            place = ", ".join(filter(None, (work[0].op, work[0].source)))
            share = format_share(work[0].us / math.fsum(row.us for row in work))
            words = f"{kind_words(work[0].kind)}{f' ({place})' if place else ''}"
            of_time = "" if shares else " of the kernels' time"
            shares.setdefault(words, []).append(f"{share}{of_time} on {name}")
    of_hosts = [f"the host: it issues the step in {listed(hosts)}"] if hosts else []
    return "; ".join((*of_hosts, *(f"{words}: {listed(of)}" for words, of in shares.items())))


def _first_change(answer: Prediction, timed: Sequence[DevicePrediction]) -> str:
    """Words the way to run the step that helps most on each device.

    Behind it stands the command that prices more changes.
    """
    if answer.origin == "trace" and answer.settings.compiled is True:
        return "The step is compiled already: no gain of compiling it is predicted"
    gains = _best_gains(timed)
    if answer.origin == "trace":
        return gains
    devices = ",".join(short_name(prediction) for prediction in timed)
    command = f"`bottleneck verify --device {shlex.quote(devices)} {shlex.quote(answer.program)}`"
    command += " prices mixed precision and other changes"
    return f"{gains}; {command}" if gains else f"No other way to run it is certain to help much; {command}"


def _best_gains(devices: Sequence[DevicePrediction]) -> str:
    """Words what helps most on each device; devices with the same change stand together."""
    speedups: dict[str, list[str]] = {}
    without: list[str] = []
    for prediction in devices:
        best = max(filter(_helps, prediction.gains), key=lambda gain: gain.speedup or 0.0, default=None)
        if best is None:
            without.append(short_name(prediction))
        else:
            named = speedups.setdefault(_gained_from(best, prediction), [])
            named.append(f"{_gain_words(best)}{'' if named else ' times as fast'} on {short_name(prediction)}")
    words = [f"{change}: {listed(of)}" for change, of in speedups.items()]
    return "; ".join((*words, *([f"nothing certain on {listed(without)}"] if words and without else ())))


def _gain_words(gain: BackendGain) -> str:
    around = "" if gain.interval is None else f" ({gain.interval.low:.2f} to {gain.interval.high:.2f})"
    return f"{gain.speedup or 0.0:.2f}{around}"


def _gained_from(gain: BackendGain, prediction: DevicePrediction) -> str:
    # cuDNN may use TF32 where matmuls do not.
    is_tf32_already = gain.name == "tf32" and prediction.engine == "tf32_tensor"
    return "TF32 for matmul too" if is_tf32_already else _WAYS[gain.name].gained_from


def kind_words(kind: str) -> str:
    """Words a kind of work as people say it."""
    return "matmul" if kind == "product" else kind


def sentences(answer: Prediction) -> list[str]:
    """Gives the answer in words, one sentence or two per device.

    The first says of a compiled step that it is one.
    """
    first, *others = map(_device_sentence, answer.devices)
    return [first + _compiled_words(answer), *others]


def _compiled_words(answer: Prediction) -> str:
    is_compiled = answer.origin == "trace" and answer.settings.compiled is True
    return " The step is compiled already: no gain of compiling it is predicted." if is_compiled else ""


def _device_sentence(prediction: DevicePrediction) -> str:
    step, name = prediction.step, short_name(prediction)
    if step.us is None or step.low_us is None or step.high_us is None:
        why = step.reasons[0] if step.reasons else "its ceilings are not known"
        if step.floor_us is None:
            return f"Nothing can be predicted for {name}: {why}."
        sets = {"compute": ", set by its arithmetic", "memory": ", set by its memory traffic"}
        by = sets.get(prediction.floor_bound or "", "")
        fit = "; its memory does not fit" if prediction.fits is False else ""
        floor = f"By peak and bandwidth the step takes no less than {format_us(step.floor_us)} there{by}{fit}."
        return f"No time is predicted for {name}: {why}. {floor}"
    takes = format_us_range(step.low_us, step.high_us)
    return f"{_step_words(prediction)} takes {takes} and is {_held_and_helped(prediction)}."


def _step_words(prediction: DevicePrediction) -> str:
    """Names the step on a device: 'On an H100 this step, compiled,'."""
    step, name = prediction.step, short_name(prediction)
    article = "an" if name[:1] in "AEIHLMRX" and not name.startswith("RTX 9") else "a"
    run = _WAYS[step.backend].run_as if step.graph or step.backend != "cudagraphs" else ""
    return f"On {article} {name} this step{run}"


def _held_and_helped(prediction: DevicePrediction) -> str:
    """Says what holds the step there, and what would make it faster."""
    words = _held_by(prediction)
    if prediction.fits is False:
        words += ", but its memory does not fit"
    for gain in filter(_helps, prediction.gains):
        words += f"; {_gained_from(gain, prediction)} would make it {gain.speedup:.1f} times as fast"
    return words


def _helps(gain: BackendGain) -> bool:
    """True where a gain is worth a sentence, and beyond its own error."""
    is_certain = gain.interval is None or gain.interval.low > 1
    return gain.speedup is not None and gain.speedup >= _WORTH_SAYING and is_certain and not _lacks_graph(gain)


def _lacks_graph(gain: BackendGain) -> bool:
    """True where CUDA graphs are asked for, and the step cannot be one."""
    return gain.step.backend == "cudagraphs" and not gain.step.graph


def _held_by(prediction: DevicePrediction) -> str:
    return held_by(prediction.step, _ENGINES.get(prediction.engine or "", prediction.engine))


def held_by(step: PredictedStep, engine: str | None = None) -> str:
    """Words what holds a step back.

    ``engine`` is where most of its arithmetic is done.
    """
    words = {
        "compute": f"compute-bound ({engine})" if engine else "compute-bound",
        "memory": "memory-bound (bandwidth)",
        "latency": "latency-bound (steps that wait for one another, or too little work at once)",
        "overhead": "overhead-bound (the host and its launches)",
        "mixed": "held back by no single resource",
    }.get(step.bound, "held back by something unknown")
    # Most of the step may be arithmetic, and less of it still change nothing.
    return f"{words} but kept waiting by the host" if step.bound != "overhead" and host_sets_pace(step) else words


def _facts(answer: Prediction) -> list[tuple[str, str]]:
    batch = "batch size not known" if answer.batch_size is None else f"batch size {answer.batch_size:,}"
    way = "seen on tensors without data" if answer.origin == "fake step" else "from the ops of the trace"
    mode = {True: "training", False: "inference", None: "forward or training"}[answer.settings.training]
    facts = [("step", f"{mode}, {batch}, {counted(answer.op_calls, 'op call')}, {way}")]
    facts.append(("precision", _precision_words(answer)))
    copies = ""
    if answer.origin != "trace" and answer.copied_bytes:
        copies = f"copies of {format_si(answer.copied_bytes, 'B')} per step from the host"
    if left_out := ", ".join(filter(None, (copies, answer.left_out))):
        facts.append(("left out", left_out))
    if answer.measured_us is not None:
        on = f" on {answer.measured_on}" if answer.measured_on else ""
        busy = _measured_device_words(answer)
        facts.append(("measured", f"{format_us(answer.measured_us)} in the trace{on}{busy}"))
    return facts


def _measured_device_words(answer: Prediction) -> str:
    """Gives the time of the trace's kernels.

    The predicted one stands beside it where the trace's own device is among those asked.
    """
    if answer.measured_device_us is None:
        return ""
    words = f"; its kernels take {format_us(answer.measured_device_us)}"
    same = [prediction.step.device_us for prediction in answer.devices if prediction.device.name == answer.measured_on]
    return f"{words}, predicted {format_us(same[0])}" if same and same[0] else words


def _precision_words(answer: Prediction) -> str:
    settings = answer.settings
    switch = {True: "on", False: "off", None: "not known"}
    words = [
        f"TF32 {switch[settings.matmul_allow_tf32]} for matmul",
        f"{switch[settings.cudnn_allow_tf32]} for cuDNN",
        "autocast not known" if settings.autocast is None else f"autocast {', '.join(settings.autocast) or 'off'}",
    ]
    if settings.channels_last:
        words.append("channels_last")
    if settings.compiled:
        words.append("the program calls torch.compile" if answer.origin == "fake step" else "compiled")
    return ", ".join(words)


def _steps(answer: Prediction) -> TableSection:
    """Builds the table of the step on each device."""
    waits = any(
        prediction.step.us and prediction.step.groups["latency"] >= _SOME_LATENCY * prediction.step.us
        for prediction in answer.devices
    )
    groups = _GROUPS if waits else tuple(group for group in _GROUPS if group != "latency")
    rows = tuple(_step_row(prediction, groups) for prediction in answer.devices)
    heads = columns("name", "device") + columns("number", "step", "interval") + columns("words", "bound")
    coverage = max(prediction.step.coverage for prediction in answer.devices)
    notes = [f"interval: holds the time in {coverage * 100:.0f} of 100 cases; {', '.join(groups)}: shares of the step"]
    if waits:
        notes.append("latency: kernels wait for loads or for steps before them, or are too small to fill the device")
    if any(prediction.step.us is None and prediction.step.floor_us is not None for prediction in answer.devices):
        notes.append("over: no time is predicted, but peak and bandwidth allow none below this; (): what sets it")
    copies = [
        f"{format_us(prediction.copy_us)} on {short_name(prediction)}"
        for prediction in answer.devices
        if prediction.copy_us is not None
        and prediction.copy_us >= _LEAST_COPY * (prediction.step.us or prediction.step.floor_us or 0.0)
    ]
    if copies:
        notes.append(f"copies from the host are not in the step; over the link they take {', '.join(copies)}")
    title = "The step on each device"
    return TableSection(title, heads + columns("number", *groups), rows, tuple(notes), is_cards=True, menu="Devices")


def _step_row(prediction: DevicePrediction, groups: Sequence[str]) -> TableRow:
    step = prediction.step
    interval = UNKNOWN if step.floor_us is None else f"over {format_us(step.floor_us)}"
    if step.low_us is not None and step.high_us is not None:
        interval = format_us_range(step.low_us, step.high_us, "-")
    bound = f"({prediction.floor_bound})" if prediction.floor_bound else UNKNOWN
    bound = bound if step.us is None else prediction.bound
    cells = (short_name(prediction), _us_or_unknown(step.us), interval, bound, *_shares(step, groups))
    return TableRow(cells, group=prediction.bound if prediction.bound in _STYLED else None)


def _us_or_unknown(us: float | None) -> str:
    return UNKNOWN if us is None else format_us(us)


def _shares(step: PredictedStep, groups: Sequence[str]) -> list[str]:
    """Shares of the groups in whole percents that add up to 100."""
    if not step.us:
        return [UNKNOWN] * len(groups)
    parts = [step.groups[group] for group in groups]
    return [
        "<1 %" if part > 0 and not percent else f"{percent} %"
        for part, percent in zip(parts, apportion([amount / sum(parts) * 100 for amount in parts]), strict=True)
    ]


def _memory(answer: Prediction) -> list[TableSection]:
    memory = answer.memory
    if memory is None:
        return []
    rows = []
    for prediction in answer.devices:
        has = UNKNOWN if prediction.device.memory_bytes is None else format_memory(prediction.device.memory_bytes)
        fits = {True: "yes", False: "no", None: "not known"}[prediction.fits]
        rates = [
            point.samples_per_s
            for point in prediction.batches
            if point.us == prediction.step.us and point.samples_per_s
        ]
        rate = format_si(rates[0], "").strip() if rates else UNKNOWN
        knee = UNKNOWN if prediction.knee_batch is None else f"{prediction.knee_batch:,}"
        rows.append(
            TableRow(
                (
                    short_name(prediction),
                    has,
                    format_memory(memory.peak_bytes),
                    fits,
                    rate,
                    _largest(prediction),
                    knee,
                )
            )
        )
    heads = columns("name", "device") + columns("number", "memory", "peak") + columns("words", "fits")
    heads += columns("number", "samples/s", "largest batch", "full from")
    held = {
        "parameters": memory.parameter_bytes,
        "gradients": memory.gradient_bytes,
        "optimizer state": memory.optimizer_bytes,
        "inputs": memory.input_bytes,
        "activations": memory.activation_bytes,
    }
    at_peak = ", ".join(
        f"{name} {format_memory(size)}" for name, size in held.items() if size > 0.005 * memory.peak_bytes
    )
    notes = [f"at the peak ({memory.phase or 'end of the step'}): {at_peak}; 1 GiB more is reserved for CUDA itself"]
    if any(prediction.knee_batch is not None for prediction in answer.devices):
        notes.append(
            "full from: from this batch size on, twice the batch brings less than 10 % more samples per second"
        )
    reasons = {("largest batch", prediction.largest_batch_reason) for prediction in answer.devices}
    reasons |= {
        ("full from", prediction.knee_reason) for prediction in answer.devices if prediction.step.us is not None
    }
    notes += sorted(f"{name} not known: {reason}" for name, reason in reasons if reason)
    return [TableSection("Memory and batch size", heads, tuple(rows), tuple(notes), is_cards=True, menu="Memory")]


def _largest(prediction: DevicePrediction) -> str:
    """The largest batch, rounded where it lies beyond those that were tried."""
    size = prediction.largest_batch
    if size is None:
        return UNKNOWN
    tried = max(point.batch_size for point in prediction.batches)
    if size <= tried:
        return f"{size:,}"
    if size > _BEYOND_TRIED * tried:
        return f"over {_BEYOND_TRIED * tried:,}"
    digits = max(len(str(size)) - 2, 0)
    return f"about {size // 10**digits * 10**digits:,}"


def _gains(answer: Prediction) -> list[TableSection]:
    gains = [gain for prediction in answer.devices for gain in prediction.gains]
    worth = (gain.name for gain in gains if gain.name != "tf32" or (gain.speedup or 0.0) >= _SOME_GAIN)
    names = list(dict.fromkeys(worth))
    if not names:
        return []
    rows = []
    for prediction in answer.devices:
        by_name = {gain.name: gain for gain in prediction.gains}
        faster = (_gain(by_name.get(name)) for name in names)
        rows.append(TableRow((short_name(prediction), *faster)))
    heads = columns("name", "device") + columns("number", *(_WAYS[name].title for name in names))
    notes = [f"in brackets: times as fast as the step above ({_WAYS[answer.devices[0].step.backend].title})"]
    if any(_lacks_graph(gain) for prediction in answer.devices for gain in prediction.gains):
        notes.append(_NO_GRAPH_NOTE)
    if any(gain.name == "cudagraphs" and gain.speedup is not None and gain.speedup < 1 for gain in gains):
        notes.append(_COPIES_NOTE)
    return [TableSection("Other ways to run it", heads, tuple(rows), tuple(notes), is_cards=True, menu="Other ways")]


def _gain(gain: BackendGain | None) -> str:
    if gain is None or gain.step.us is None or gain.speedup is None:
        return UNKNOWN
    return _NO_GRAPH if _lacks_graph(gain) else f"{format_us(gain.step.us)} ({gain.speedup:.2f})"


def _costs(answer: Prediction) -> list[TableSection]:
    costs = {
        short_name(prediction): prediction.cost_per_million_samples
        for prediction in answer.devices
        if prediction.cost_per_million_samples is not None
    }
    if not costs:
        return []
    # Two digits of the cheapest, and as many for all.
    digits = max(2, 1 - math.floor(math.log10(min(cost.low for cost in costs.values()))))
    rows = tuple(TableRow((name, *(f"{end:,.{digits}f}" for end in (c.low, c.high)))) for name, c in costs.items())
    heads = columns("name", "device") + columns("number", "from", "to")
    return [TableSection("Price of a million samples", heads, rows, ("in the currency of --price",), menu="Price")]


def _work(prediction: DevicePrediction) -> TableSection:
    """The kernels of the first device by kind."""
    shown, rest = prediction.work[:_WORK_ROWS], prediction.work[_WORK_ROWS:]
    total = sum(row.us for row in prediction.work)

    def cells(name: str, bound: str, rows: Sequence[PredictedWork]) -> tuple[str, ...]:
        us, launches = sum(row.us for row in rows), sum(row.launches for row in rows)
        share = format_share(us / total) if total else UNKNOWN
        return name, bound, f"{launches:,.0f}", format_us(us), share, _floor(rows)

    rows = []
    for row in shown:
        bound = _ENGINES.get(row.engine or "", row.bound) if row.bound == "compute" else row.bound
        rows.append(
            TableRow(cells(kind_words(row.kind), bound, [row]), group=row.bound if row.bound in _STYLED else None)
        )
    if rest:
        rows.append(TableRow(cells(counted(len(rest), "more kind"), "", rest), "rest"))
    heads = columns("name", "kind") + columns("words", "bound") + columns("number", "kernels", "time", "share", "floor")
    title = f"Work on {short_name(prediction)}"
    notes = (_WORK_NOTE, *([_CACHE_NOTE] if any(row.cells[-1] == _IN_CACHE for row in rows) else []))
    return TableSection(title, heads, tuple(rows), notes, is_cards=True, menu="Work")


def _floor(rows: Sequence[PredictedWork]) -> str:
    """Formats the floor of some kernels.

    A word where the cache may hold all their bytes, a dash where nothing sets one.
    """
    floor_us = sum(row.floor_us for row in rows)
    if floor_us:
        return format_us(floor_us) if floor_us >= _LEAST_FLOOR_US else f"<{format_us(_LEAST_FLOOR_US)}"
    return _IN_CACHE if any(row.memory_us for row in rows) else UNKNOWN


def _assumed(answer: Prediction) -> list[str]:
    # A device without a time has its reason in its sentence.
    steps = [prediction.step for prediction in answer.devices if prediction.step.us is not None]
    reasons = [reason for step in steps for reason in step.reasons]
    unknown = max((step.unknown_calls for step in steps), default=0)
    left_out = [f"{counted(unknown, 'call')} without a predicted time: the step leaves them out"] if unknown else []
    return [*host_words(steps), *left_out, *dict.fromkeys([*answer.notes, *reasons])]


def host_words(steps: Iterable[PredictedStep]) -> list[str]:
    """Says of each host-bound step between which times the pace of its host decides."""
    return [
        f"host-bound on {without_maker(step.device)}: {format_us_range(step.by_host.low, step.by_host.high)} by the "
        "host's pace; give --host-pace or run `bottleneck calibrate` there"
        for step in steps
        if step.by_host is not None
    ]


def render(answer: Prediction, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the answer for a terminal, as markdown, JSON or a page.

    The page has a roofline of each device.
    """
    if form == "json":
        return encode(answer)
    if form != "html":
        return render_document(build(answer), form, style)
    from bottleneck.report.page import document_to_html  # noqa: PLC0415 - jinja2 is loaded only where it is used

    return document_to_html(build(answer), chart_section=_rooflines(answer))


def _rooflines(answer: Prediction) -> ChartSection | None:
    titled = [
        (prediction, f"{short_name(prediction)}: {format_us(prediction.step.us)}")
        for prediction in answer.devices
        if prediction.step.us
    ]
    drawn = [chart for prediction, title in titled if (chart := roofline_chart(prediction, title)) is not None]
    return ChartSection("Roofline", tuple(drawn), (_ROOFLINE_NOTE,)) if drawn else None


_MOST_ROOFS = 3
_MOST_KINDS = 6  # a chart of the page has colours for these and for the step
_ROOM = 10.0  # between the outermost points and the ends of the roofs, as a factor


def work_points(prediction: DevicePrediction) -> tuple[RooflinePoint, ...]:
    """The kinds of work that have FLOPs and bytes, longest first."""
    total_us = sum(row.us for row in prediction.work)
    kinds = [row.kind for row in prediction.work]
    points = []
    for at, row in enumerate(prediction.work):
        if row.flops and row.bytes and row.us:
            name = kind_words(row.kind)
            name = f"{name}, {row.bound}" if kinds.count(row.kind) > 1 else name
            intensity, rate = row.flops / row.bytes, row.flops / row.us * US_PER_S
            spread = (intensity, intensity, intensity)  # the middle, and the ends of an interval that is a point
            points.append(RooflinePoint(at, name, *spread, rate, row.us, row.us / total_us, row.bound, None))
    return tuple(points)


def work_roofs(prediction: DevicePrediction) -> tuple[RooflineRoof, ...]:
    """Gives the peaks that the work is held against, highest first.

    They are the three with most time.
    """
    peaks, us = prediction.device.peaks_flops_per_s, dict[str, float]()
    for row in prediction.work:
        if row.engine is not None and row.engine in peaks and row.flops:
            us[row.engine] = us.get(row.engine, 0.0) + row.us
    used = sorted(us, key=lambda key: -us[key])[:_MOST_ROOFS] or sorted(peaks, key=lambda key: -peaks[key])[:1]
    return tuple(sorted((RooflineRoof(key, peaks[key]) for key in used), key=lambda roof: -roof.flops_per_s))


def step_point(prediction: DevicePrediction) -> tuple[float, float] | None:
    """Gives FLOP/byte and FLOP/s of the whole step.

    The waiting for its host is included. Null where they are not known.
    """
    flops = sum(row.flops or 0.0 for row in prediction.work)
    moved = sum(row.bytes or 0.0 for row in prediction.work)
    if not flops or not moved or not prediction.step.us:
        return None
    return flops / moved, flops / prediction.step.us * US_PER_S


def not_drawn(prediction: DevicePrediction) -> str:
    """Gives the share of the kernels' time that has no point.

    Empty where all has one.
    """
    total_us = sum(row.us for row in prediction.work)
    missing_us = math.fsum(row.us for row in prediction.work if not (row.flops and row.bytes))
    if missing_us <= 1e-9 * total_us:
        return ""
    return f"not drawn: {format_share(missing_us / total_us)} of the time of the kernels, which does no arithmetic"


def roofline_chart(prediction: DevicePrediction, title: str) -> LineChart | None:
    """Builds the chart of one device for a page.

    It has a mark per kind of work, and the roofs as lines. Null without points.
    """
    points = work_points(prediction)[:_MOST_KINDS]
    bandwidth = prediction.device.bandwidth_bytes_per_s
    if not points or not bandwidth:
        return None
    roofs = work_roofs(prediction)
    ridges = [roof.flops_per_s / bandwidth for roof in roofs]
    low = min(*(point.intensity for point in points), *ridges) / _ROOM
    high = max(*(point.intensity for point in points), *ridges) * _ROOM
    kinds = [
        ChartCurve(
            f"{point.name} {format_share(point.share)}",
            (ChartPoint(point.intensity, point.flops_per_s),),
            role=point.bound if point.bound in GROUPS else "unknown",
        )
        for point in points
    ]
    step = step_point(prediction)
    if step is not None:
        kinds.append(ChartCurve(ROLES["step"], (ChartPoint(*step),), role="step"))
    return LineChart(
        f"{title}, speed in FLOP/s",
        "arithmetic intensity, FLOP per byte",
        (*kinds, *_roof_lines(roofs, bandwidth, low, high)),
        lambda value: format_si(value, "").strip(),
        show_x=lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
    )


def _roof_lines(roofs: Sequence[RooflineRoof], bandwidth: float, low: float, high: float) -> list[ChartCurve]:
    """Gives the memory's slope, and each peak from its ridge on.

    The slope goes up to the highest peak.
    """
    highest = max(roof.flops_per_s for roof in roofs)
    ends = (ChartPoint(low, low * bandwidth), ChartPoint(highest / bandwidth, highest))
    slope = ChartCurve(f"memory, {format_si(bandwidth, 'B/s')}", ends, is_guide=True, role="roof")
    curves = [slope]
    for roof in roofs:
        name, rate = roof.key.replace("_", " "), roof.flops_per_s
        ends = (ChartPoint(rate / bandwidth, rate), ChartPoint(high, rate))
        words = f"{name} {format_si(rate, 'FLOP/s')}"
        curves.append(ChartCurve(name, ends, is_guide=True, words=words, role="roof"))
    return curves
