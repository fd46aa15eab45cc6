"""Judges a step's counters against its lock-file and budgets.

The summary of a workload's verdict is three lines: what happened, why (with the line of code), and how to fix it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bottleneck.gate.culprits import find_culprits
from bottleneck.gate.numerics import judge_numerics
from bottleneck.gate.settings import MODULE_PREFIX, default_budgets, split_module_metric
from bottleneck.gate.source_files import Read, read_nothing
from bottleneck.report.ci.phrases import (
    accept_command,
    describe_culprit,
    describe_output,
    format_change,
    time_change_words,
)
from bottleneck.schema.comparison import Comparison
from bottleneck.schema.counters import COUNTERS, Counts, Lock, Value
from bottleneck.schema.gate_result import (
    COMPARED,
    EXIT_CODES,
    Cause,
    CounterChange,
    Fix,
    GateSettings,
    GateVerdict,
    Limit,
    TimeResult,
    Touched,
    WorkloadResult,
)
from bottleneck.schema.numerics import NumericsResult
from bottleneck.schema.op_names import at_source
from bottleneck.units import counted, format_us

# Of what must exist, less than this share of what was counted is a broken measurement until somebody accepts it.
_COLLAPSED = 0.5
_UPDATE = "bottleneck gate --update"
_RED = frozenset({"broken", "gone", "removed"})
# The name by which other outputs are accepted, beside those of the counters.
NUMERICS = "numerics"
# Almost any change affects these counters, so they are listed after the more specific ones.
_LISTED_LAST = (
    "graphs", "ops", "launches", "flops", "autograd_nodes", "module_calls", "allocations", "allocated_bytes",
    "peak_bytes", "kernel_names",
)  # fmt: skip


@dataclass(frozen=True)
class _Sides:
    """Both sides, with the gaps that keep them from being compared.

    A gap is the reason, empty where there is none.
    """

    lock: Lock
    counts: Counts
    limits: Mapping[str, Limit]
    portable_gap: str
    backend_gap: str
    input_gap: str

    def gap(self, counter: str) -> str:
        """The reason that this counter cannot be compared; empty if it can."""
        return self.portable_gap or (self.backend_gap if COUNTERS[counter].tier == "backend" else "")


def judge_counts(
    lock: Lock | None,
    counts: Counts,
    settings: GateSettings,
    touched: Touched | None = None,
    read: Read = read_nothing,
) -> tuple[CounterChange, ...]:
    """Judges each counter; failures come first, with their culprits.

    ``touched`` are the lines of the diff to the base, ``read`` gives the text of a file of the program.

    Without a lock-file all are new. Counters of another torch, backend or device are not compared. Where the program
    was given other arguments or settings, only growth beyond a budget is reported: nothing passes without a comparison.
    """
    if lock is None:
        return tuple(CounterChange(name, None, counts.values[name], "new") for name in _known(counts.values))
    sides = _sides(lock, counts, {**default_budgets(), **settings.budgets})
    # A counter of modules names the module, which is all that a culprit would.
    counters = [
        replace(change, culprits=find_culprits(change.metric, lock.counts, counts, touched, read))
        if change.verdict == "broken"
        else change
        for change in (*_judge_counters(sides), *_judge_creep(sides, settings.creep))
    ]
    return tuple(sorted([*counters, *_judge_modules(sides)], key=_order))


def judge_outputs(lock: Lock | None, counts: Counts) -> NumericsResult:
    """Holds a step's outputs against those of a comparable lock-file.

    That is one of the same torch, libraries and arguments.
    """
    if lock is None:
        return judge_numerics(None, counts)
    sides = _sides(lock, counts, {})
    return judge_numerics(lock, counts, sides.portable_gap or sides.backend_gap or sides.input_gap)


def is_red(change: CounterChange) -> bool:
    """True for a change that fails the gate."""
    return change.verdict in _RED


def is_compared(changes: Sequence[CounterChange]) -> bool:
    """True if any counter was compared with a baseline."""
    return any(change.verdict in COMPARED for change in changes)


def with_accepted(changes: Sequence[CounterChange], lock: Lock, base: Lock | None) -> tuple[CounterChange, ...]:
    """Marks changes as 'accepted' where the lock-file was edited since the base."""
    if base is None:
        return tuple(changes)
    reasons = {row.metric: row.reason for row in lock.accepted if row not in base.accepted}
    return tuple(_accepted(change, base, reasons) for change in changes)


def _accepted(change: CounterChange, base: Lock, reasons: Mapping[str, str]) -> CounterChange:
    before = base.counts.values.get(change.metric)
    if change.verdict != "same" or change.is_creep or before is None or before == change.after:
        return change
    reason = reasons.get(change.metric, "its lock-file was written anew, without a reason")
    return replace(change, before=before, verdict="accepted", reason=reason)


def _sides(lock: Lock, counts: Counts, limits: Mapping[str, Limit]) -> _Sides:
    ours, theirs = counts.fingerprint, lock.counts.fingerprint
    of_file, of_run = lock.counts.input_sha, counts.input_sha
    is_other_input = bool(of_file and of_run) and of_file != of_run
    # Recordings are held against one another, and no lock-file can be written anew.
    baseline = "the lock-file" if lock.program else "the recording before"
    purpose, anew = (f"; if on purpose: {_UPDATE}", f": run {_UPDATE}") if lock.program else ("", "")
    other = f"{baseline} is of other arguments or settings of the program{purpose}"
    portable_gap = _gap(theirs.portable, ours.portable, baseline, anew)
    # No advice: on a mixed pool of machines, lock-files would be written back and forth.
    backend_gap = _gap(theirs.backend, ours.backend, baseline)
    return _Sides(lock, counts, limits, portable_gap, backend_gap, other if is_other_input else "")


def _gap(before: Mapping[str, Value], after: Mapping[str, Value], baseline: str, advice: str = "") -> str:
    """Words how facts differ, with the advice; empty where equal.

    'the lock-file is of torch 2.12, this is torch 2.13'.
    """
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if not names:
        return ""
    old, new = (
        ", ".join(f"{name} {facts[name]}" if name in facts else f"unknown {name}" for name in names)
        for facts in (before, after)
    )
    return f"{baseline} is of {old}, this is {new}{advice}"


def _known(names: Mapping[str, object]) -> list[str]:
    return [name for name in COUNTERS if name in names]


def _judge_counters(sides: _Sides) -> Iterator[CounterChange]:
    ours, theirs = sides.counts, sides.lock.counts
    seen = (ours.values, theirs.values, ours.unstable, theirs.unstable, ours.unknown, theirs.unknown)
    removed = frozenset(sides.lock.removed)
    for name in _known({name: None for names in (*seen, removed) for name in names}):
        if name in removed:
            yield CounterChange(name, None, ours.values.get(name), "removed", sides.limits[name], _REMOVED)
            continue
        change = _without_gap(name, sides)
        yield _with_input_gap(change, sides.input_gap) if sides.input_gap else change


_REMOVED = "somebody took it out of the lock-file, which lists it as counted"


def _without_gap(name: str, sides: _Sides) -> CounterChange:
    before, after = sides.lock.counts.values.get(name), sides.counts.values.get(name)
    change = CounterChange(name, before, after, "not compared", sides.limits[name], sides.gap(name))
    if change.reason:
        return change
    theirs, ours = sides.lock.counts.unstable.get(name), sides.counts.unstable.get(name)
    if theirs is not None:
        return replace(change, verdict="unstable", reason=theirs)
    if ours is not None:
        return _unstable_now(change, ours, sides.counts.lowest.get(name))
    return _with_values(change, sides)


def _unstable_now(change: CounterChange, spread: str, lowest: int | None) -> CounterChange:
    """Judges a counter that was exact and varies now.

    It is broken if even its lowest value exceeds the budget, else unstable.
    """
    if change.before is None:
        return replace(change, verdict="unstable", reason=spread)
    if lowest is None or change.limit is None or change.limit.allows(change.before, lowest):
        return replace(change, verdict="unstable", reason=f"exact before, now {spread}")
    return replace(change, after=lowest, verdict="broken", reason=f"varies now, and is never within: {spread}")


def _with_values(change: CounterChange, sides: _Sides) -> CounterChange:
    name, before, after = change.metric, change.before, change.after
    if before is None:
        unknown = sides.counts.unknown.get(name)
        is_new = after is not None
        return replace(change, verdict="new" if is_new else "not compared", reason=None if is_new else unknown)
    if after is None:
        return replace(change, verdict="gone", reason=sides.counts.unknown.get(name, "it is not counted any more"))
    if COUNTERS[name].must_exist and after < _COLLAPSED * before:
        reason = f"{COUNTERS[name].many} collapsed from {before} to {after} per step, as where the measurement is lost"
        return replace(change, verdict="gone", reason=reason)
    return _held(replace(change, reason=None), before, after)


def _held(change: CounterChange, before: int, after: int) -> CounterChange:
    if after <= before:
        return replace(change, verdict="same" if after == before else "improved")
    is_allowed = change.limit is not None and change.limit.allows(before, after)
    return replace(change, verdict="within budget" if is_allowed else "broken")


def _with_input_gap(change: CounterChange, gap: str) -> CounterChange:
    if change.verdict in {"same", "improved", "within budget"}:
        return replace(change, verdict="not compared", reason=gap)
    if change.verdict in _RED:
        return replace(change, reason=f"{change.reason}; {gap}" if change.reason else gap)
    return change


def _judge_modules(sides: _Sides) -> Iterator[CounterChange]:
    """Judges each module that a limit names.

    One that is not there counts nothing.
    """
    for metric, limit in sides.limits.items():
        parts = split_module_metric(metric)
        if parts is None:
            continue
        pattern, counter = parts
        all_modules = {*sides.lock.counts.modules, *sides.counts.modules}
        paths = sorted(path for path in all_modules if fnmatchcase(path, pattern))
        gap = _module_gap(counter, sides) or ("" if paths else f"no module matches {pattern}")
        if gap:
            yield CounterChange(metric, None, None, "not compared", limit, gap)
            continue
        for path in paths:
            before, after = (side.modules.get(path, {}).get(counter, 0) for side in (sides.lock.counts, sides.counts))
            change = CounterChange(f"{MODULE_PREFIX}{path}.{counter}", before, after, "same", limit)
            yield _held(change, before, after)


def _module_gap(counter: str, sides: _Sides) -> str:
    """Finds why a counter cannot be compared by modules, if so."""
    both = (sides.lock.counts, sides.counts)
    lacking = next((side for side in both if counter not in side.values), None)
    if lacking is None:
        return sides.gap(counter) or sides.input_gap
    return lacking.unstable.get(counter) or lacking.unknown.get(counter) or f"{counter} was not counted"


def _judge_creep(sides: _Sides, creep: Mapping[str, Limit]) -> Iterator[CounterChange]:
    """The counters against the anchor, where small steps add up."""
    anchor = sides.lock.anchor
    for name, limit in creep.items():
        before, after = None if anchor is None else anchor.values.get(name), sides.counts.values.get(name)
        change = CounterChange(name, before, after, "not compared", limit, is_creep=True)
        gap = sides.gap(name) or sides.input_gap
        if anchor is None or before is None:
            gap = f"the lock-file has no anchor for {name}: bottleneck accept --anchor COMMIT"
        elif after is None and not gap:
            gap = sides.counts.unstable.get(name, sides.counts.unknown.get(name, "it is not counted any more"))
        if anchor is None or before is None or after is None or gap:
            yield replace(change, reason=gap)
        else:
            yield replace(_held(change, before, after), reason=f"since {anchor.commit}")


def _order(change: CounterChange) -> tuple[bool, bool, int]:
    names = list(COUNTERS)
    place = names.index(change.metric) if change.metric in COUNTERS else len(names)
    return not is_red(change), is_red(change) and change.metric in _LISTED_LAST, place


def verdict_of(
    changes: Sequence[CounterChange], time: TimeResult | None, numerics: NumericsResult | None = None
) -> GateVerdict:
    """The verdict on one workload.

    A counter that vanished means that nothing was measured, whatever the others show; one beyond its budget or taken
    out of the lock-file, a slowdown and other outputs fail. Without any counter in common and without a time there is
    nothing to judge, nor where outputs are asked for and the lock-file holds none.
    """
    if any(change.verdict == "gone" for change in changes):
        return "nothing measured"
    is_other = numerics is not None and numerics.verdict == "differs"
    is_broken = any(change.verdict in {"broken", "removed"} for change in changes) or is_other
    if is_broken or (time is not None and time.verdict == "slower"):
        return "fail"
    has_time = time is not None and time.verdict in {"fine", "faster"}
    if time is not None and time.verdict == "undecided":
        return "undecided"
    if numerics is not None and numerics.verdict == "new":
        return "nothing measured"
    return "pass" if has_time or is_compared(changes) else "nothing measured"


def exit_code(results: Sequence[WorkloadResult], settings: GateSettings, *, is_strict: bool = False) -> int:
    """Decides the exit code: regression, then crash, then undecided.

    The policies of the settings let what is undecided, or has no baseline yet, pass; where they do not name the latter,
    it passes if its time was measured. ``is_strict`` lets nothing pass that was not measured, nor a time that was to be
    measured and was not.
    """
    if not results:
        return EXIT_CODES["nothing measured"]
    codes = {_code(result, settings, is_strict=is_strict) for result in results}
    return next((code for code in (1, 4, 5) if code in codes), 0)


def sentence_of(results: Sequence[WorkloadResult], code: int) -> str:
    """All verdicts in one sentence: '1 of 3 workloads regressed: mlp'.

    Of one workload 'mlp regressed'.
    """
    if not results:
        return "No workload was gated."
    phrases = []
    for verdict, words in _WORDS.items():
        names = [result.name for result in results if result.verdict == verdict]
        if names:
            of = f"{len(names)} of {counted(len(results), 'workload')}"
            phrases.append(f"{of} {words}: {', '.join(names)}" if len(results) > 1 else f"{names[0]} {words}")
    # Of a failure this stands in its own lines, and counters that vanished must not hide it.
    phrases += [
        f"over budget {f'in {result.name}' if len(results) > 1 else 'all the same'}: {over}"
        for result in results
        if result.verdict == "nothing measured" and (over := _over_budget(result))
    ]
    not_passed = "; ".join(phrases)
    number = sum(result.verdict == "pass" for result in results)
    passed = f"{counted(number, 'workload') if len(results) > 1 else results[0].name} passed" if number else ""
    tolerated = ", which the settings let pass" if not_passed and not code else ""
    return f"{'; '.join(filter(None, (f'{not_passed}{tolerated}', passed)))}."


_WORDS: dict[GateVerdict, str] = {
    "fail": "regressed",
    "failed": "did not run",
    "nothing measured": "remained unmeasured",
    "undecided": "remained undecided",
}


def _code(result: WorkloadResult, settings: GateSettings, *, is_strict: bool) -> int:
    code = EXIT_CODES[result.verdict]
    if is_strict:
        # Its baseline, its time, or all of its counters were to be measured and were not.
        is_untimed = result.time is not None and result.time.verdict == "not run"
        is_uncounted = bool(result.counters) and not is_compared(result.counters)
        return code or (EXIT_CODES["undecided"] if result.is_new or is_untimed or is_uncounted else 0)
    if result.is_new and code in {0, EXIT_CODES["nothing measured"]}:
        is_let_pass = code == 0 if settings.on_new is None else settings.on_new != "fail"
        return 0 if is_let_pass else EXIT_CODES["nothing measured"]
    if result.verdict == "undecided":
        return code if settings.on_undecided == "fail" else 0
    return code


_LISTED = 3


# The event, its causes (the largest first), and the fix.
_Story = tuple[str, Sequence[Cause], Fix]


def with_summary(result: WorkloadResult) -> WorkloadResult:
    """The result with what happened, why, and the fix, whatever its verdict."""
    what, why, fix = _summarise(result)
    return replace(result, what=what, why=tuple(why[:_LISTED]), fix=fix)


def _summarise(result: WorkloadResult) -> _Story:
    time, gone = result.time, [change for change in result.counters if change.verdict == "gone"]
    if gone:  # which usually means a failed measurement
        what = f"{', '.join(change.metric for change in gone)}: counted before, and no more"
        over = _over_budget(result)
        what += f"; over budget: {over}" if over else ""
        return what, [Cause(change.reason) for change in gone[:_LISTED] if change.reason], _fix_of_gone(result, gone)
    if result.verdict == "fail":
        return _summarise_failure(result)
    if result.verdict == "undecided" and time is not None:
        fix = Fix("run it on a quieter machine, or with more --pairs")
        return f"undecided: {time_change_words(time)}", [Cause(time.reason)] if time.reason else [], fix
    outputs = result.numerics
    if result.verdict == "nothing measured" and not result.is_new and outputs is not None and outputs.verdict == "new":
        fix = Fix("write the lock-file anew, and commit it:", f"{_UPDATE} --numerics")
        return "its outputs could not be compared", [Cause(outputs.reason)] if outputs.reason else [], fix
    if result.verdict == "nothing measured":
        what = "there is no lock-file yet" if result.is_new else "no counter could be compared"
        update = Fix("write the lock-file, and commit it:", _UPDATE)
        why = [Cause(change.reason) for change in result.counters if change.reason][:1]
        return what, why, update if result.lock else Fix("name recordings of the same program")
    return _pass_sentence(result), (), Fix()


def _over_budget(result: WorkloadResult) -> str:
    """Words the counters beyond their budgets; empty where none is."""
    broken = [change for change in result.counters if change.verdict == "broken"]
    return _counter_changes(broken) if broken else ""


def _fix_of_gone(result: WorkloadResult, gone: Sequence[CounterChange]) -> Fix:
    """Says what to do about counters that vanished.

    Only a lock-file can take them as they are.
    """
    if not result.lock:
        return Fix("see that both are recordings of the same program, made in the same way (shapes, memory, stacks)")
    look = "see that the workload still does its work; if it really does without:"
    if all(change.after is not None for change in gone):  # what is counted can be accepted
        return Fix(look, accept_command(result.name, {change.metric for change in gone}))
    return Fix(look, _UPDATE)


def _summarise_failure(result: WorkloadResult) -> _Story:
    """Summarises counters beyond budgets, a slower step, or both."""
    broken = [change for change in result.counters if change.verdict == "broken"]
    removed = [change.metric for change in result.counters if change.verdict == "removed"]
    parts, why = [_counter_changes(broken)] if broken else [], _causes(broken)
    if removed:
        parts.append(f"{', '.join(removed)}: taken out of the lock-file")
    if result.numerics is not None and result.numerics.changes:
        parts.append(_outputs_words(result.numerics))
        why += [Cause(describe_output(change)) for change in result.numerics.changes]
    is_slower = result.time is not None and result.time.verdict == "slower"
    if result.time is not None and is_slower:
        parts.append(time_change_words(result.time))
        why += _rows(result.comparison) if result.comparison is not None else []
    refused = [*broken, *(change for change in result.counters if change.verdict == "removed")]
    is_other = result.numerics is not None and bool(result.numerics.changes)
    fix = _fix(result.name, refused, why, is_slower=is_slower, is_other=is_other)
    return "; ".join(parts), why, fix if result.lock else Fix("undo that, or raise the budget in pyproject.toml")


def _outputs_words(numerics: NumericsResult) -> str:
    """'3 of 9 outputs differ, the first is returned of step 1'."""
    number = len(numerics.changes)
    verb = "differs" if number == 1 else "differ"
    return f"{number} of {counted(numerics.compared, 'output')} {verb}, the first is {numerics.changes[0].name}"


def _counter_changes(broken: Sequence[CounterChange]) -> str:
    shown = ", ".join(format_change(change) for change in broken[:_LISTED])
    more = f" and {len(broken) - _LISTED} more" if len(broken) > _LISTED else ""
    creep = " since the anchor" if all(change.is_creep for change in broken) else ""
    return f"{shown}{more} per step{creep}"


def _causes(broken: Sequence[CounterChange]) -> list[Cause]:
    """Gives one cause per line of code, the best known first.

    Several counters often change for one and the same line.
    """
    causes: dict[tuple[str, str], Cause] = {}
    ranked = sorted(
        (culprit for change in broken for culprit in change.culprits),
        key=lambda culprit: (culprit.site is None, not culprit.is_touched),
    )
    for culprit in ranked:
        place = culprit.site.place if culprit.site is not None else culprit.what
        text = culprit.site.text if culprit.site is not None else ""
        causes.setdefault((place, text), Cause(describe_culprit(culprit), text))
    return list(causes.values())


def _rows(comparison: Comparison) -> list[Cause]:
    """Lists rows and waits that take more time in the recordings.

    None if these show no slowdown.
    """
    if comparison.change_us is None or comparison.change_us <= 0:
        return []
    rows = [row for row in comparison.rows if row.change_us > 0 and row.kind != "same"]
    rows.sort(key=lambda row: -row.change_us)
    idle = [bar for bar in comparison.idle if bar.change_us > 0]
    grown = [(bar.change_us, f"+{format_us(bar.change_us)} {bar.account}") for bar in idle]
    for row in rows[:_LISTED]:
        module = f" in {row.module}" if row.module else ""
        place = f" {at_source(row.source)}{', changed here' if row.is_touched else ''}" if row.source else ""
        grown.append((row.change_us, f"+{format_us(row.change_us)} {row.name} ({row.kind}){module}{place}"))
    return [Cause(text) for _, text in sorted(grown, reverse=True)[:_LISTED]]


def _fix(
    name: str, broken: Sequence[CounterChange], why: Sequence[Cause], *, is_slower: bool, is_other: bool = False
) -> Fix:
    undo = "undo that" if why else "see what changed: bottleneck compare"
    if not broken and not is_other:
        return Fix(f"{undo}, or raise the budget of step_us in pyproject.toml" if is_slower else undo)
    accepted = {change.metric for change in broken if not change.is_creep} | ({NUMERICS} if is_other else set())
    if not accepted:
        return Fix(f"{undo}, or move the anchor in the lock-file")
    time = " raise the budget of step_us and:" if is_slower else ":"
    return Fix(f"{undo}, or{time}", accept_command(name, accepted))


def _pass_sentence(result: WorkloadResult) -> str:
    within_budget = sum(change.verdict in {"same", "within budget", "accepted"} for change in result.counters)
    better = sum(change.verdict == "improved" for change in result.counters)
    parts = [f"{counted(within_budget, 'counter')} within budget"] if within_budget else []
    parts += [f"{better} better"] if better else []
    numerics = result.numerics
    parts += [f"{counted(numerics.compared, 'output')} the same"] if numerics and numerics.verdict == "same" else []
    parts += [time_change_words(result.time)] if result.time is not None and result.time.ratio is not None else []
    return "; ".join(parts)
