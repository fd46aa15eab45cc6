"""Builds the document of ``verify``, and renders it.

It becomes text, markdown, JSON or a page.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from bottleneck.report import render_document
from bottleneck.report.document import (
    Document,
    IntervalBar,
    LabelledLine,
    TableColumn,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import LONGEST_TEXT, encode
from bottleneck.report.speedup_intervals import TITLE, speedup_intervals, speedup_scale
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, as_sentence, clean
from bottleneck.schema.measurements import Difference, Ratio, Timing, TrialVerdict
from bottleneck.schema.trials import LoaderSearch, Trial, TriedSetting, Verification
from bottleneck.units import counted, format_ratio, format_ratio_range, format_share, format_si, format_us

_TONES: dict[TrialVerdict, Literal["good", "bad"]] = {"faster": "good", "slower": "bad"}


def build(done: Verification) -> Document:
    """Builds the document of `verify`.

    It is a picture of the intervals, and one table of all trials with the result of each beneath it.
    """
    rows = []
    trials = (*done.trials, *done.combinations)
    bars = [_interval_bar(trial) for trial in trials]
    for trial in trials:
        cells = (trial.change, _predicted(trial), _times(trial.speedup), trial.verdict)
        rows.append(TableRow(cells, details=details(trial)))
    heads = columns("name", "change") + columns("number", "predicted", "measured") + columns("words", "verdict")
    detail = TableColumn("what it showed", "words")
    table = TableSection("Each change", heads, tuple(rows), details=detail, is_cards=True)
    step_us = _step_us(done)
    step = "" if step_us is None else f", {format_us(step_us)} per step"
    return Document(
        headline="changes tried",
        subject=f"{' '.join(done.program)}{step}",
        sentence=sentence(done),
        lines=_lines(done),
        sections=(*speedup_intervals(TITLE, bars, speedup_scale(bars)), table, *_loader_tables(done))
        if done.trials
        else (),
        warnings=done.warnings,
    )


def _step_us(done: Verification) -> float | None:
    """The step as the trials timed it; as it was recorded where none did."""
    timed = [trial.original_us.median for trial in done.trials if trial.original_us is not None and not trial.is_part]
    return median(timed) if timed else done.step_us


def _loader_tables(done: Verification) -> tuple[TableSection, ...]:
    """The settings of a loader that were tried, quickest first, for each search."""
    searches = [trial.loader_search for trial in done.trials if trial.loader_search is not None]
    timed = [search for search in searches if any(tried.sample_us for tried in search.settings)]
    return (*map(_loader_table, timed), *(_batch_table(search) for search in timed if search.batches))


def _batch_table(search: LoaderSearch) -> TableSection:
    """The best setting with larger batches, which change the results."""
    rows = []
    for tried in search.batches:
        timing, role = tried.sample_us, "own" if tried.is_own else tried.reason or ""
        shown = (UNKNOWN, UNKNOWN) if timing is None else _in_ms(timing)
        rows.append(TableRow((str(tried.setting.batch_size), *shown, role)))
    heads = (
        columns("name", "batch size") + columns("number", "ms per sample", "95 % interval") + columns("words", "role")
    )
    note = "with the setting that was tried; another batch size changes the results"
    return TableSection("Batches of the loader", heads, tuple(rows), notes=(note,))


def _loader_table(search: LoaderSearch) -> TableSection:
    unit = "ms per sample" if search.samples else "ms per step"
    heads = columns("name", "setting") + columns("number", unit, "95 % interval", "rungs") + columns("words", "role")
    ranked = sorted(
        search.settings, key=lambda tried: (-tried.rungs, tried.sample_us.median if tried.sample_us else math.inf)
    )
    measured = sum(tried.sample_us is not None for tried in search.settings)
    ended = {"time": ", until no time was left", "user": ", until it was interrupted", None: ""}[search.stopped_by]
    summary = (
        f"{measured} of {counted(len(search.settings), 'setting')} timed in {search.seconds:.0f} s{ended}: after each "
        "rung stay the better half, and what cannot be told from the best; rungs are those survived, own is the "
        "program's setting, tried the one that took turns with it"
    )
    rows = tuple(TableRow(_cells_of(tried, search)) for tried in ranked)
    return TableSection("Settings of the loader", heads, rows, notes=(summary, *search.notes))


def _cells_of(tried: TriedSetting, search: LoaderSearch) -> tuple[str, ...]:
    setting, timing = tried.setting, tried.sample_us
    name = f"{setting.num_workers} workers" if setting.num_workers != 1 else "1 worker"
    if setting.prefetch_factor is not None:
        name += f", prefetch {setting.prefetch_factor}"
    name += "".join(
        [
            ", pinned" if setting.pin_memory else "",
            ", started anew" if setting.num_workers and not setting.persistent_workers else "",
        ]
    )
    role = [
        "own" if tried.is_own else "",
        # Interrupted before its turns in pairs had ended, it only led.
        ("tried" if search.stopped_by != "user" else "led") if setting == search.best else "",
        tried.reason or "",
    ]
    if timing is None:
        return name, UNKNOWN, UNKNOWN, str(tried.rungs), ", ".join(filter(None, role))
    return name, *_in_ms(timing), str(tried.rungs), ", ".join(filter(None, role))


def _in_ms(timing: Timing) -> tuple[str, str]:
    """The median and the interval in milliseconds."""
    median, low, high = (f"{us / 1e3:.3g}" for us in (timing.median, timing.low, timing.high))
    return median, f"{low} to {high}"


# What a verdict means for a change that is not to be kept.
_OPEN: frozenset[TrialVerdict] = frozenset({"inconclusive", "skipped"})
_LEFT_OUT: dict[TrialVerdict, str] = {"slower": "slower", "wrong": "wrong results", "no effect": "no effect"}


def _lines(done: Verification) -> tuple[LabelledLine, ...]:
    """Gives the outcome, the change to keep, and those to leave out."""
    lines = [LabelledLine("", as_sentence(sentence(done)))]
    if done.tried == "no-gain" or not done.trials:
        return tuple(lines)
    best, is_open = _best(done), any(trial.verdict in _OPEN for trial in done.trials)
    if best is not None:
        keep = f"Measure again on a quiet machine: {_kept(best, 'keep')}" if done.is_contended else _kept(best, "Keep")
    elif is_open:
        keep = "Measure again with more time (--within) on a quiet machine; until then keep the program as it is"
    else:
        keep = "Keep the program as it is"
    left = [f"{trial.change} ({_LEFT_OUT[trial.verdict]})" for trial in done.trials if trial.verdict in _LEFT_OUT]
    writes = [
        LabelledLine("Write", f"{search.constructor}{f'  # {search.line}' if search.line else ''}")
        for search in (trial.loader_search for trial in done.trials)
        if search is not None and search.constructor is not None
    ]
    if done.is_contended:
        busy = f"other programs kept {done.other_processors:.1f} of {_processors(done)} busy meanwhile"
        lines.append(LabelledLine("But", f"{as_sentence(busy)}: what uses fewer processors looks better for it"))
    return *lines, LabelledLine("First", keep), *writes, *([LabelledLine("Leave", ", ".join(left))] if left else [])


def _processors(done: Verification) -> str:
    return counted(done.processors or 0, "processor")


def _best(done: Verification) -> Trial | None:
    """The quickest change that can be kept: a combination, where some were tried."""
    faster = [trial for trial in done.trials if trial.verdict == "faster" and not trial.is_bound]
    return done.best or max(faster, key=lambda trial: trial.speedup.median if trial.speedup else 0.0, default=None)


def _kept(trial: Trial, keep: str) -> str:
    """Words what keeping a change brings, and the finding that it answers."""
    parts = [f"{keep} {trial.change}", _steps(trial), _setup(trial)]
    why = f"; why it helps: `bottleneck explain {trial.findings[0]}`" if trial.findings else ""
    return ", ".join(filter(None, parts)) + why


def render(done: Verification, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the trials for a terminal, as markdown, JSON or a page.

    The markdown is for a comment on a pull request. In JSON all text is made safe for a terminal, as it may hold the
    output of failed programs.
    """
    if form == "json":
        return encode(done, (), lambda text: clean(text, LONGEST_TEXT))
    return render_document(build(done), form, style)


def _predicted(trial: Trial) -> str:
    """The speedup that was predicted: its interval, or what it is at most."""
    expected, most = trial.predicted_speedup, trial.predicted_most
    if expected is not None:
        return format_ratio_range(expected.low, expected.high)
    return UNKNOWN if most is None else f"at most {math.ceil(most * 1e3 - 1e-6) / 1e3:.3f}"


def _interval_bar(trial: Trial) -> IntervalBar:
    """The intervals of one change; green or red only where its verdict is."""
    predicted, speedup = trial.predicted_speedup, trial.speedup
    band = None if predicted is None else (predicted.low, predicted.high)
    if band is None and trial.predicted_most is not None:
        band = (0.0, trial.predicted_most)
    if speedup is None:
        return IntervalBar(trial.change, trial.verdict, predicted=band)
    remark = ", a bound" if trial.is_bound else ", wrong" if trial.verdict == "wrong" else ""
    words = f"{_times(speedup).partition(' ')[0]}x{remark}"
    return IntervalBar(
        trial.change, words, speedup.median, (speedup.low, speedup.high), band, _TONES.get(trial.verdict, "")
    )


def _sentence_without_gain(done: Verification) -> str:
    """The outcome for changes of which a report says that they would bring nothing."""
    measured = [(trial.speedup, trial.predicted_most) for trial in done.trials if trial.speedup is not None]
    held = [most is not None and speedup.low <= most for speedup, most in measured]
    if not done.trials:
        return "no change is listed as one that would bring nothing here"
    left = len(done.trials) - len(held)
    rest = f"; {left} not measured" if left else ""
    if not held:
        return f"none of {counted(len(done.trials), 'change')} was measured"
    verb = "gains" if len(held) == 1 else "gain"
    return f"{sum(held)} of {counted(len(held), 'change')} {verb} no more than predicted{rest}"


def sentence(done: Verification) -> str:
    """The outcome in one sentence."""
    if done.tried == "no-gain":
        return _sentence_without_gain(done)
    faster = [trial for trial in done.trials if trial.verdict == "faster" and not trial.is_bound]
    if not done.trials:
        return "no finding of this recording names a change to try; --try all tries them all"
    changes = counted(len(done.trials), "change")
    if not faster:
        return _without_winner(done.trials)
    best = _best(done) or faster[0]
    make = "makes" if len(faster) == 1 else "make"
    faster_what = "the step" if best.samples == 1 else "each sample"
    return f"{len(faster)} of {changes} {make} {faster_what} faster; best: {_name(best)}, {_gain(best)}"


def _without_winner(trials: Sequence[Trial]) -> str:
    """The outcome where no change was proven to be faster."""
    untried = sum(trial.speedup is None for trial in trials)
    open_ = sum(trial.verdict == "inconclusive" for trial in trials if trial.speedup is not None)
    measured = len(trials) - untried
    if not measured:
        return "the change was not measured" if untried == 1 else f"none of {counted(untried, 'change')} was measured"
    more = [f"{open_} undecided"] if 0 < open_ < measured else []
    more += [f"{untried} not measured"] if untried else []
    what = "the change" if measured == 1 else f"of {measured} changes that were measured"
    if open_ == measured:
        verdict = f"{what} is undecided" if measured == 1 else f"{what} all are undecided"
    else:
        verdict = f"{what} does not make the step faster" if measured == 1 else f"{what} none makes the step faster"
    return "; ".join([verdict, *more])


def _name(trial: Trial) -> str:
    """The change in words; the names of several, whose words are long."""
    return trial.change if "+" in trial.change else trial.title or trial.change


def _gain(trial: Trial) -> str:
    """Words the measured speedup with its interval: '1.31 times as fast (1.29 to 1.35)'."""
    if trial.speedup is None:
        return "not measured"
    noun = "as fast" if trial.samples == 1 else "as many samples per second"
    between = format_ratio_range(trial.speedup.low, trial.speedup.high)
    return f"{format_ratio(trial.speedup.median)} times {noun} ({between})"


def details(trial: Trial) -> tuple[str, ...]:
    """Results of a trial besides its speed, a phrase each."""
    bound = "a bound that no fix can pass, not a change to keep" if trial.is_bound else None
    bound = "figures of a part of the step alone" if trial.is_part else bound
    phrases = [trial.reason, bound, _steps(trial), _noise(trial), _setup(trial), _memory(trial)]
    # The reason of a wrong result is its difference.
    differences = [] if trial.verdict == "wrong" and trial.reason else _differences(trial.differences)
    return tuple(filter(None, [*phrases, *differences]))


def _times(speedup: Ratio | None) -> str:
    """Formats the speedup with its interval.

    It has more digits where two would hide on which side of 1 it lies.
    """
    if speedup is None:
        return UNKNOWN
    if 0.99 < speedup.low <= speedup.high < 1.01:
        return f"{speedup.median:.3f} ({speedup.low:.3f} to {speedup.high:.3f})"
    return f"{format_ratio(speedup.median)} ({format_ratio_range(speedup.low, speedup.high)})"


def _steps(trial: Trial) -> str | None:
    if trial.original_us is None or trial.changed_us is None or trial.speedup is None:
        return None
    times = f"{format_us(trial.original_us.median)} → {format_us(trial.changed_us.median)} per step"
    larger = "" if trial.samples == 1 else f" of {trial.samples:g} times the samples"
    return f"{times}{larger} over {counted(trial.speedup.n, 'pair')}"


def _noise(trial: Trial) -> str | None:
    """The smallest visible effect, where the pairs showed none."""
    if trial.smallest_visible is None or trial.verdict not in {"no effect", "inconclusive"}:
        return None
    return f"a change of {format_share(trial.smallest_visible)} or more would have been seen"


def _setup(trial: Trial) -> str | None:
    if trial.setup_s is None or trial.setup_s < 0.05:
        return None
    text = f"set-up {format_us(trial.setup_s * 1e6)}"
    if trial.break_even_steps is None:
        return text
    return f"{text}, paid back after {counted(round(trial.break_even_steps), 'step')}"


def _memory(trial: Trial) -> str | None:
    if trial.peak_before_bytes is None or trial.peak_after_bytes is None:
        return None
    before, after = (format_si(float(peak), "B") for peak in (trial.peak_before_bytes, trial.peak_after_bytes))
    return f"peak memory {before} → {after}"


def _differences(differences: tuple[Difference, ...]) -> list[str]:
    """The largest difference and whether it is allowed; why where nothing could be compared."""
    compared = [difference for difference in differences if difference.relative is not None]
    if not compared:
        return list(dict.fromkeys(difference.reason for difference in differences if difference.reason))
    worst = max(
        compared,
        key=lambda difference: (
            (difference.relative or 0.0) / (difference.allowed or 1e-30),
            difference.relative or 0.0,
        ),
    )
    if not worst.relative:
        return ["results the same bit for bit" if all(not difference.relative for difference in compared) else ""]
    allowed = (
        "" if worst.allowed is None else f" ({'allowed' if worst.is_within else 'allowed only'} {worst.allowed:.0e})"
    )
    return [f"{worst.claim} by {worst.relative:.0e}{allowed}"]
