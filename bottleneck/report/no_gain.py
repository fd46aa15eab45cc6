"""Words the changes that would bring nothing, one line each.

A line fits a terminal of 80 columns.
"""

import math
from collections.abc import Callable, Mapping

from bottleneck.report.document import ListSection
from bottleneck.report.kernel_names import cut_place
from bottleneck.report.text import cut_text
from bottleneck.schema.analysis import NoGain
from bottleneck.units import format_share, format_us

TITLE = "What will not help"

_PLACE_CELLS = 18

_CHANGES: Mapping[str, str] = {
    "read-later": "fewer .item()",
    "compile": "torch.compile",
    "graph": "one replayed graph",
    "fused-optimizer": "a fused optimizer",
    "workers": "more loader workers",
    "pin-memory": "pinned memory",
    "channels-last": "channels last",
    "larger-batch": "a larger batch",
    "faster-arithmetic": "more FLOP/s",
    "faster-device": "a faster GPU",
}
# What a compiler calls as it is, by the cause.
_AS_THEY_ARE = {
    "products": "products",
    "attention": "attention",
    "recurrent_layers": "recurrent layers",
    "library_calls": "library calls",
}
_LEAST_OUTSIDE = 0.005


def _as_they_are(line: NoGain) -> str:
    library, stays = (line.numbers.get(name, 0.0) for name in ("library_share", "stays_share"))
    what = _AS_THEY_ARE[line.cause]
    if stays - library >= _LEAST_OUTSIDE:
        return f"{format_share(stays)} is {what}, or not the model's"
    return f"{format_share(library)} is {what}, left as they are"


_CAUSES: Mapping[str, Callable[[NoGain], str]] = {
    "queued_work": lambda line: f"{format_us(line.numbers['queued_us'])} of work lies ahead",
    "own_calls": lambda line: f"its calls take {format_us(line.numbers['spent_us'])}",
    **dict.fromkeys(_AS_THEY_ARE, _as_they_are),
    "launched_in_time": lambda line: f"the device waits {format_us(line.numbers['idle_us'])} for kernels",
    "short_update": lambda line: f"the update takes {format_us(line.numbers['update_us'])}",
    "no_wait": lambda line: (
        f"the step waits {format_us(line.numbers['waited_us'])} of {format_us(line.numbers['loading_us'])} of loading"
    ),
    "short_loading": lambda line: f"a batch takes {format_us(line.numbers['loading_us'])} to load",
    "short_copies": lambda line: f"the copies that it helps take {format_us(line.numbers['copied_us'])}",
    "pinned": lambda line: f"its copies ({format_us(line.numbers['copied_us'])}) come from pinned memory",
    "grouped": lambda line: f"{format_share(line.numbers['grouped_share'])} of the convolutions is in many groups",
    "grows": lambda line: f"twice of it takes {line.numbers['ratio']:.2f} times as long",
    "host_sets_pace": lambda line: f"the device works for {format_share(line.numbers['busy_share'])} of the step",
    "moves_bytes": lambda line: f"{format_share(line.numbers['moves_share'])} moves bytes at the memory's pace",
}


def no_gain(lines: tuple[NoGain, ...], most: int = 3) -> ListSection | None:
    """The section of what will not help; null where nothing is listed."""
    return ListSection(TITLE, tuple((describe_no_gain(line),) for line in lines[:most])) if lines[:most] else None


def no_gain_in_brief(lines: tuple[NoGain, ...], characters: int) -> tuple[str, ...]:
    """Names the changes that will not help in a sentence.

    Those that fit, in whole. There is none where nothing is listed.
    """
    texts = [f"{name_change(line)} ({most_text(line.most_share)})" for line in lines[:3]]
    while len(texts) > 1 and len(_BRIEF.format(", ".join(texts))) > characters:
        texts.pop()
    return (cut_text(_BRIEF.format(", ".join(texts)), characters),) if texts else ()


_BRIEF = "Will not help: {}."


def describe_no_gain(line: NoGain) -> str:
    """Describes a change without gain in one line.

    It has the change, why it brings nothing, and what it gains at most.
    """
    cause = _CAUSES.get(line.cause)
    why = f": {cause(line)}" if cause is not None else ""
    place = f" ({cut_place(line.source, _PLACE_CELLS)})" if line.source else ""
    return f"{name_change(line)}{place}{why}; {most_text(line.most_share)}"


def name_change(line: NoGain) -> str:
    """The change as people call it."""
    change = _CHANGES.get(line.code, line.code)
    return f"{change} or bf16" if line.numbers.get("wide_share", 0.0) > 0 else change


def most_text(share: float) -> str:
    """Words a bound: 'at most 0.5 %', rounded up; 'gains nothing'."""
    return f"at most {format_share(math.ceil(share * 1000 - 1e-9) / 1000)}" if share > 0 else "gains nothing"
