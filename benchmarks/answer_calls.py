"""The command lines that ``benchmarks.same_answers`` gives to both sides, for the input files at hand."""

import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMMANDS = ("run", "report", "runs", "explain", "compare", "gate", "accept", "sweep", "verify", "calibrate", "doctor")
_INPUT_FOLDERS = ("traces/", "sample_traces/", "locks/", "saved/")


@dataclass(frozen=True)
class Call:
    """One command line; ``kind`` is its line of the summary and ``subject`` what it answers about."""

    kind: str
    subject: str
    arguments: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fresh: bool = False

    @property
    def name(self) -> str:
        """The command line as a shell would read it, marked where a new interpreter runs it."""
        return shlex.join(self.arguments) + (" (new interpreter)" if self.fresh else "")


def plan(samples: Sequence[str], traces: Sequence[str], locks: Sequence[str], saved: Sequence[str]) -> list[Call]:
    """All calls for the input files, named relative to the folder that holds them; ``traces`` are in catalog order."""
    inputs = [*samples, *traces, *saved]
    calls = [call for path in inputs for call in _single(path)]
    calls += [call for pair in pairs(samples, traces) for call in _pair(*pair)]
    calls += [call for lock in locks for call in _pair(lock, _recording_of(lock, samples))] if samples else []
    calls += [call for path in saved for other in samples[:1] for call in _pair(path, other)]
    calls += [call for group in _rank_groups(traces) for call in _several_ranks(group)]
    calls += [_call("report with captures", "report", path, "--capture", by) for path, by in _captures(traces)]
    with_options = [*samples, *(path for path in traces if "__h100__" in path)]
    calls += [call for path in with_options for call in _options(path)] + _uses()
    calls += [_call(f"{c.kind} (new interpreter)", *c.arguments, fresh=True) for p in samples[:1] for c in _single(p)]
    calls += [_call("compare text (new interpreter)", "compare", *samples[:2], fresh=True)] if samples[1:] else []
    unique = {call.name: call for call in calls}
    return list(unique.values())


def pairs(samples: Sequence[str], traces: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbours among the samples and among the traces of one repository, one model on two devices, and both ways."""
    found = list(itertools.pairwise(samples)) + [(path, path) for path in samples[:1]]
    by_repository = itertools.groupby(traces, key=lambda path: path.split("__")[0])
    for _, group in by_repository:
        found += itertools.pairwise(group)
    found += [
        (path, other) for path in traces if (other := path.replace("__h100__", "__mi300__")) in {*traces} - {path}
    ]
    control = [path for path in traces if "trace_diff__control" in path]
    found += [(other, path) for path in control for other in traces if "trace_diff__test" in other]
    found += [(samples[0], path) for path in traces if "PiPPy" in path and samples]
    return found


def _single(path: str) -> list[Call]:
    calls = [
        _call("report json", "report", "--format", "json", path),
        _call("report text", "report", path),
        _call("report markdown", "report", "--format", "markdown", path),
        _call("doctor json", "doctor", "--format", "json", path),
    ]
    return calls if path.startswith("traces/") else [*calls, _call("doctor text", "doctor", path)]


def _pair(before: str, after: str) -> list[Call]:
    calls = [
        _call("compare text", "compare", before, after),
        _call("compare json", "compare", "--format", "json", before, after),
    ]
    is_small = not before.startswith("traces/")
    return [*calls, _call("compare markdown", "compare", "--format", "markdown", before, after)] if is_small else calls


def _recording_of(lock: str, samples: Sequence[str]) -> str:
    named = [path for path in samples if lock.endswith(f"-{Path(path).name}.lock.toml")]
    return named[0] if named else samples[0]


def _rank_groups(traces: Sequence[str]) -> list[list[str]]:
    """The traces whose names differ in host process and time alone: the ranks of one job."""
    groups = defaultdict(list)
    for path in traces:
        groups[re.sub(r"_\d+\.\d+\.pt\.trace", "", path)].append(path)
    return [group for group in groups.values() if len(group) > 1]


def _several_ranks(group: Sequence[str]) -> list[Call]:
    return [
        _call("report of ranks", "report", *group),
        _call("report of ranks", "report", "--format", "json", *group),
        _call("report of ranks", "report", "--format", "markdown", *group),
        _call("doctor of ranks", "doctor", *group),
    ]


def _captures(traces: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each trace with the trace of its graphs' capture, which TraceLens keeps in a folder beside it."""
    for capture in traces:
        folder, found, _ = capture.partition("__capture_traces__")
        if found:
            beside = (path for path in traces if path.startswith(folder + "__") and path != capture)
            yield from ((path, capture) for path in beside)


def _options(path: str) -> list[Call]:
    stem = "written/" + Path(path).name
    picture, ledger, report, plot = (stem + end for end in (".roofline.png", ".ledger.png", ".md", ".plot.png"))
    drawn = ("report", path, "--plot", f"roofline={picture}", "--format", "markdown", "--output", report)
    return [
        _call("report with options", "report", "--all", path),
        _call("report with options", "report", "--steps", "1:2", path),
        _call("report with options", "report", "--steps", "-1:", "--format", "json", path),
        _call("report with options", "report", "--all-findings", path),
        _call("report with options", "report", "--device", "NVIDIA H100 80GB HBM3", path),
        _call("report with options", *drawn, outputs=(picture, report)),
        _call("report with options", "report", path, "--plot", f"ledger={ledger}", outputs=(ledger,)),
        _call("doctor with options", "doctor", "--strict", path),
        _call("compare with options", "compare", path, path, "--plot", plot, "--top", "3", outputs=(plot,)),
        _call("compare with options", "compare", path, path, "--fail-on", "step=+3%,syncs=+0"),
    ]


def _uses() -> list[Call]:
    lines = [
        *([command, "--help"] for command in _COMMANDS),
        ["--help"],
        [],
        ["--unknown"],
        ["unknown"],
        ["report"],
        ["report", "absent.json"],
        ["report", "--format", "unknown", "absent.json"],
        ["report", "--steps", "x", "absent.json"],
        ["report", "--steps", "1:2", "--all", "absent.json"],
        ["report", "--device", "cpu", "absent.json"],
        ["report", "--device", "unknown", "absent.json"],
        ["report", "."],
        ["doctor", "absent.json"],
        ["compare", "absent.json", "absent.json"],
        ["compare", "absent.json"],
        ["sweep", "absent.py"],
        ["verify", "absent.py"],
        ["accept"],
        ["gate"],
    ]
    return [Call("help and mistakes", "command line", tuple(line)) for line in lines]


def _call(kind: str, *arguments: str, outputs: tuple[str, ...] = (), fresh: bool = False) -> Call:
    inputs = tuple(each for each in arguments if each.startswith(_INPUT_FOLDERS))
    subject = " and ".join(dict.fromkeys(inputs)) or "command line"
    return Call(kind, subject, arguments, inputs, outputs, fresh)
