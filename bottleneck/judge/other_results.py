"""Judges numbers that other tools measured.

Reads files of pytest-benchmark, of vLLM's and GuideLLM's benchmarks, and two lists of numbers.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bottleneck import __version__
from bottleneck.errors import TraceError, UsageError
from bottleneck.report.judgement import exit_code_of, sentence_of, sentence_of_all
from bottleneck.schema.judgement import JudgeVerdict, PatchJudgement, WorkloadJudgement
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.statistics import ChangeRule, Estimate, estimate, estimate_shift
from bottleneck.units import counted

STDIN = "-"
# Neighbours in time are alike: this many stretches of a run count, by their medians, not each value.
_STRETCHES = 30
_LEAST_VALUES = 7
_MOST_BYTES = 1 << 30
_ONE_RUN = (
    "one run of each side: the interval holds for these two runs, and knows nothing of how runs differ from one another"
)
_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# By the keys of `vllm bench serve` and `vllm bench latency`, which both hold a time for each request.
_VLLM_TIMES = {"ttfts": "time to first token", "itls": "inter-token latency", "latencies": "latency"}
_GUIDELLM_TIMES = {
    "request_latency": "request latency",
    "time_to_first_token_ms": "time to first token",
    "inter_token_latency_ms": "inter-token latency",
}


@dataclass(frozen=True)
class MeasuredTimes:
    """Times of one kind that a tool measured, in that order.

    ``keys`` name what each was measured on, such as the length of a request; two sides with the same keys are compared
    pair by pair. Empty where that is not known.
    """

    name: str
    values: tuple[float, ...]
    keys: tuple[int, ...] = ()


def is_result_file(text: str) -> bool:
    """True for standard input, and for a file of results rather than sources."""
    return text == STDIN or (Path(text).is_file() and text.endswith((".json", *_PICKLES)))


def judge_files(before: Path, after: Path, resolve: float) -> PatchJudgement:
    """Judges all times that both files hold.

    TraceError where a file is none of those that are read here, or where both share no times.
    """
    old, new = ({times.name: times for times in read_results(path)} for path in (before, after))
    shared = [name for name in old if name in new]
    if not shared:
        raise TraceError(
            f"{before.name} and {after.name} hold no times of the same name",
            why=f"{before.name} has {_some(old)}, {after.name} has {_some(new)}",
            fix="make both by the same command",
        )
    alone = [name for name in (*old, *new) if name not in shared]
    warnings = (f"on one side only, and not compared: {_some(alone)}",) if alone else ()
    results = tuple(judge_times(old[name], new[name], resolve) for name in shared)
    return _judgement(results, str(before), str(after), (_ONE_RUN, *warnings))


def judge_numbers(text: str, resolve: float) -> PatchJudgement:
    """Judges two lists of times in a text.

    They are two lines, lines of two numbers each, which are pairs, or a JSON object with "base" and "changed".
    """
    before, after = _two_lists(text)
    return _judgement((judge_times(before, after, resolve),), "the first list", "the second list", (_ONE_RUN,))


def _judgement(
    results: tuple[WorkloadJudgement, ...], base: str, changed: str, warnings: tuple[str, ...]
) -> PatchJudgement:
    return PatchJudgement(
        results,
        exit_code_of(results),
        sentence_of_all(results),
        base=base,
        changed=changed,
        warnings=warnings,
        version=__version__,
    )


def judge_times(before: MeasuredTimes, after: MeasuredTimes, resolve: float) -> WorkloadJudgement:
    """Judges the times of one kind."""
    result = _judged(WorkloadJudgement(before.name, (), "undecided"), before, after, ChangeRule(resolve))
    return replace(result, sentence=sentence_of(result))


def _judged(
    result: WorkloadJudgement, before: MeasuredTimes, after: MeasuredTimes, rule: ChangeRule
) -> WorkloadJudgement:
    counts = [len(times.values) for times in (before, after)]
    if min(counts) < _LEAST_VALUES:
        return replace(result, reason=f"{counted(min(counts), 'value')} of a side, and it takes {_LEAST_VALUES}")
    if any(value <= 0 for times in (before, after) for value in times.values):
        return replace(result, reason="a time is zero or less")
    old, new = ([math.log(value) for value in times.values] for times in (before, after))
    are_paired = bool(before.keys) and before.keys == after.keys

    def shift(coverage: float) -> Estimate:
        if are_paired:
            return estimate(_by_stretch([late - early for early, late in zip(old, new, strict=True)]), coverage)
        return estimate_shift(_by_stretch(old), _by_stretch(new), coverage)

    shown, within = shift(1 - 2 * rule.error), shift(1 - 2 * rule.pass_error)
    allowed = math.log1p(rule.budget)
    verdict: JudgeVerdict = "undecided"
    if shown.low > 0 and shown.middle >= allowed / 2:
        verdict = "slower"
    elif shown.high < 0 and shown.middle <= -allowed / 2:
        verdict = "faster"
    elif -allowed < within.low and within.high < allowed:
        verdict = "no difference"
    is_open = not math.isfinite(shown.low + shown.high)
    speedup = None if is_open else Ratio(math.exp(-shown.middle), math.exp(-shown.high), math.exp(-shown.low), shown.n)
    bound = math.expm1(max(abs(shown.low), abs(shown.high)))
    return replace(
        result,
        verdict=verdict,
        speedup=speedup,
        bound=bound if verdict == "no difference" else None,
        reason=f"these values leave changes of up to {bound:.1%} possible" if verdict == "undecided" else None,
    )


def _by_stretch(values: Sequence[float]) -> list[float]:
    """The medians of consecutive stretches, of which there are so many at most."""
    if len(values) <= _STRETCHES:
        return list(values)
    edges = [round(place * len(values) / _STRETCHES) for place in range(_STRETCHES + 1)]
    return [sorted(values[first:last])[(last - first) // 2] for first, last in itertools.pairwise(edges)]


def read_results(path: Path) -> list[MeasuredTimes]:
    """Reads the times of a file of pytest-benchmark, vLLM or GuideLLM.

    TraceError for any other file, with what it is.
    """
    if path.suffix in _PICKLES:
        raise TraceError(
            f"{path.name} is a pickle, which runs code when it is read",
            fix="print the times of torch.utils.benchmark, and pipe them in: bottleneck judge -",
        )
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TraceError(f"{path.name} is larger than 1 GiB", fix="name the tool's result file, not its log")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(
            f"{path.name} cannot be read as JSON", why=str(error), fix="name a file that the tool wrote"
        ) from None
    times = [row for row in _times_in(data) if row.values] if isinstance(data, dict) else []
    if not times:
        raise TraceError(
            f"{path.name} holds no times that are known here",
            why="files of pytest-benchmark (--benchmark-json), vllm bench (--save-result --save-detailed, or "
            "--output-json) and GuideLLM are read",
            fix="pipe two lists of numbers instead: bottleneck judge -",
        )
    return times


def _times_in(data: Mapping[str, Any]) -> Iterator[MeasuredTimes]:
    benchmarks = data.get("benchmarks")
    if isinstance(benchmarks, list):
        for number, benchmark in enumerate(benchmarks):
            if isinstance(benchmark, dict):
                yield from _of_pytest(benchmark)
                yield from _of_guidellm(benchmark, number if len(benchmarks) > 1 else None)
        return
    lengths = tuple(_whole(data.get("input_lens")))
    for key, name in _VLLM_TIMES.items():
        values = data.get(key)
        if isinstance(values, list):
            rows = [_mean(value) if isinstance(value, list) else value for value in values]
            keys = lengths if len(lengths) == len(rows) and len(_times(rows)) == len(rows) else ()
            yield MeasuredTimes(name, _times(rows), keys)


def _of_pytest(benchmark: Mapping[str, Any]) -> Iterator[MeasuredTimes]:
    stats = benchmark.get("stats")
    if isinstance(stats, dict) and isinstance(stats.get("data"), list):
        yield MeasuredTimes(str(benchmark.get("fullname") or benchmark.get("name")), _times(stats["data"]))


def _of_guidellm(benchmark: Mapping[str, Any], number: int | None) -> Iterator[MeasuredTimes]:
    requests = benchmark.get("requests")
    successful = requests.get("successful") if isinstance(requests, dict) else None
    if not isinstance(successful, list):
        return
    rows = [request for request in successful if isinstance(request, dict)]
    for key, name in _GUIDELLM_TIMES.items():
        label = name if number is None else f"{name} of benchmark {number + 1}"
        yield MeasuredTimes(label, _times([row.get(key) for row in rows]))


def _times(values: Sequence[Any]) -> tuple[float, ...]:
    """The numbers of a list; a request without a time is none."""
    numbers = (value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
    return tuple(float(value) for value in numbers if math.isfinite(value))


def _whole(values: object) -> list[int]:
    return [value for value in values if isinstance(value, int)] if isinstance(values, list) else []


def _mean(values: Sequence[Any]) -> float | None:
    numbers = _times(values)
    return math.fsum(numbers) / len(numbers) if numbers else None


def _two_lists(text: str) -> tuple[MeasuredTimes, MeasuredTimes]:
    name = "the numbers"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and isinstance(data.get("base"), list) and isinstance(data.get("changed"), list):
        return MeasuredTimes(name, _times(data["base"])), MeasuredTimes(name, _times(data["changed"]))
    lines = [[float(number) for number in _NUMBER.findall(line)] for line in text.splitlines() if line.strip()]
    if len(lines) == 2 and all(lines):
        return MeasuredTimes(name, tuple(lines[0])), MeasuredTimes(name, tuple(lines[1]))
    if lines and all(len(line) == 2 for line in lines):
        old, new = (tuple(values) for values in zip(*lines, strict=True))
        return MeasuredTimes(name, old, tuple(range(len(old)))), MeasuredTimes(name, new, tuple(range(len(new))))
    raise UsageError(
        "standard input holds no two lists of numbers",
        why=f"it has {counted(len(lines), 'line')}",
        fix='give two lines of numbers, lines of two numbers each, or {"base": […], "changed": […]}',
    )


def _some(names: Sequence[str] | Mapping[str, object]) -> str:
    shown = list(names)[:3]
    return ", ".join(shown) + (", …" if len(names) > len(shown) else "") if shown else "none"
