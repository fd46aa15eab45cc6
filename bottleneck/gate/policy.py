"""The verdict on a workload from its counters and its time, and the exit code of all of them together."""

from collections.abc import Sequence

from bottleneck.gated import EXIT_CODES, CounterChange, GateSettings, GateVerdict, TimeResult, WorkloadResult

_COMPARED = frozenset({"same", "improved", "within budget", "broken", "gone", "accepted"})


def verdict_of(changes: Sequence[CounterChange], time: TimeResult | None) -> GateVerdict:
    """The verdict on one workload.

    A counter that vanished says that nothing was measured, whatever the others say; one beyond its budget and a
    slowdown fail. Without any counter in common and without a time there is nothing to judge.
    """
    if any(change.verdict == "gone" for change in changes):
        return "nothing measured"
    if any(change.verdict == "broken" for change in changes) or (time is not None and time.verdict == "slower"):
        return "fail"
    has_time = time is not None and time.verdict in {"fine", "faster"}
    if time is not None and time.verdict == "undecided":
        return "undecided"
    is_compared = any(change.verdict in _COMPARED for change in changes)
    return "pass" if has_time or is_compared else "nothing measured"


def exit_code(results: Sequence[WorkloadResult], settings: GateSettings, *, is_strict: bool = False) -> int:
    """What the process ends with: a regression before a crash, and both before what could not be decided.

    The policies of the settings let what is undecided, or has no baseline yet, pass; ``is_strict`` lets nothing pass
    that was not measured, nor a time that was to be measured and was not.
    """
    if not results:
        return EXIT_CODES["nothing measured"]
    codes = {_code(result, settings, is_strict=is_strict) for result in results}
    return next((code for code in (1, 4, 5) if code in codes), 0)


def sentence_of(results: Sequence[WorkloadResult], code: int) -> str:
    """All verdicts in one sentence: '1 of 3 workloads regressed: mlp'."""
    if not results:
        return "No workload was gated."
    told = [_tell(results, verdict, words) for verdict, words in _WORDS.items()]
    said = "; ".join(text for text in told if text)
    number = sum(result.verdict == "pass" for result in results)
    passed = f"{_count(number)} passed" if number else ""
    tolerated = ", which the settings let pass" if said and not code else ""
    return f"{'; '.join(filter(None, (f'{said}{tolerated}', passed)))}."


_WORDS: dict[GateVerdict, str] = {
    "fail": "regressed",
    "failed": "did not run",
    "nothing measured": "not measured",
    "undecided": "undecided",
}


def _code(result: WorkloadResult, settings: GateSettings, *, is_strict: bool) -> int:
    code = EXIT_CODES[result.verdict]
    if is_strict:
        return code or (EXIT_CODES["undecided"] if _lacks(result) else 0)
    if result.is_new and code in {0, EXIT_CODES["nothing measured"]}:
        return EXIT_CODES["nothing measured"] if settings.on_new == "fail" else 0
    if result.verdict == "undecided":
        return code if settings.on_undecided == "fail" else 0
    return code


def _lacks(result: WorkloadResult) -> bool:
    """Whether a part of it was to be measured and was not: its baseline, its time, or all of its counters."""
    is_untimed = result.time is not None and result.time.verdict == "not run"
    is_uncounted = bool(result.counters) and not any(change.verdict in _COMPARED for change in result.counters)
    return result.is_new or is_untimed or is_uncounted


def _tell(results: Sequence[WorkloadResult], verdict: GateVerdict, words: str) -> str:
    names = [result.name for result in results if result.verdict == verdict]
    return f"{len(names)} of {_count(len(results))} {words}: {', '.join(names)}" if names else ""


def _count(number: int) -> str:
    return f"{number} workload{'' if number == 1 else 's'}"
