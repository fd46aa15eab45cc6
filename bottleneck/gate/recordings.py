"""Gates traces and recordings against one another by counters alone."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bottleneck import __version__
from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.errors import UsageError
from bottleneck.gate.count import count
from bottleneck.gate.judge import exit_code, judge_counts, sentence_of, verdict_of
from bottleneck.gate.result_summary import with_summary
from bottleneck.gate.settings import workload_name
from bottleneck.pipeline import examine, finish
from bottleneck.schema.counters import Counts, Lock
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.gate_result import Gate, GateSettings, TimeResult, WorkloadResult
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import is_recording
from bottleneck.schema.sources import find_traces

_WHY_ADVISORY = (
    "two recordings did not take turns: what other programs did meanwhile is in their times, so that they gate nothing"
)
_SUFFIXES = (".json", ".json.gz")


def is_recorded(path: Path) -> bool:
    """True if the path is a trace or a recording, not a program or its sources."""
    if path.is_dir():
        return is_recording(path)
    return path.is_file() and path.name.endswith(_SUFFIXES)


def gate_recordings(after: Sequence[Path], before: Path, settings: GateSettings, *, is_strict: bool = False) -> Gate:
    """The verdict on each recording against one of before; TraceError where one cannot be read."""
    started = time.monotonic()
    base = _case(before)
    results = tuple(_gate(path, before, base, settings) for path in after)
    code = exit_code(results, settings, is_strict=is_strict)
    return Gate(
        results=results,
        exit_code=code,
        sentence=sentence_of(results, code),
        base=str(before),
        candidate=", ".join(map(str, after)),
        seconds=time.monotonic() - started,
        version=__version__,
    )


def _gate(path: Path, before: Path, base: Explanation, settings: GateSettings) -> WorkloadResult:
    started = time.monotonic()
    case = _case(path)
    base_counts, counts = count(base), count(case)
    name = workload_name((path.name.removesuffix(".gz").removesuffix(".json"),))
    changes = judge_counts(Lock(name, (), _alike(base_counts, counts)), counts, settings)
    timed = _advise(base, case)
    result = WorkloadResult(
        name=name,
        program=(str(path),),
        verdict=verdict_of(changes, timed),
        what="",
        base=str(before),
        counters=changes,
        time=timed,
        counts=counts,
        comparison=compare(
            ComparedSide(str(before), str(before), case=base, counts=base_counts),
            ComparedSide(str(path), str(path), case=case, counts=counts),
        ),
    )
    return replace(with_summary(result), seconds=time.monotonic() - started)


def _alike(base: Counts, counts: Counts) -> Counts:
    """The base's counts without fingerprint facts that only one recording states, which would count as a difference."""
    theirs, ours = base.fingerprint, counts.fingerprint
    portable = {key: value for key, value in theirs.portable.items() if key in ours.portable}
    backend = {key: value for key, value in theirs.backend.items() if key in ours.backend}
    return replace(base, fingerprint=replace(theirs, portable=portable, backend=backend))


def _case(path: Path) -> Explanation:
    sources = find_traces(path)
    if len(sources) != 1:
        raise UsageError(
            f"{path} holds {len(sources)} ranks, and one at a time is gated",
            fix="name the trace of one rank on both sides",
        )
    return finish(examine(sources[0]))


def _advise(base: Explanation, case: Explanation) -> TimeResult:
    times = [_step(each) for each in (base, case)]
    return TimeResult("advisory", _WHY_ADVISORY, base_us=times[0], candidate_us=times[1])


def _step(case: Explanation) -> Timing | None:
    steps = case.analysis.steps
    return steps.unprofiled_us or steps.profiled_us
