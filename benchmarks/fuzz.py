"""Feeds mutated traces, recordings, saved analyses and lock-files to the commands that read them.

    python -m benchmarks.fuzz [--cases 10000] [--minutes N] [--seed 1] [--first 0] [--case N] [--traces FOLDER]

Each case is a number: its input and mutations follow from seed and number alone, so that `--case N` repeats it. The
mutated input goes through every command that reads its kind: traces, recordings and jobs through `report` (terminal,
JSON, page and Markdown), `doctor`, `compare`, `whatif` and `predict`, a saved analysis through those of `report` and
`compare`, a lock-file or settings through `gate`, `accept` or `compare`. They run one after another, each by the
function that every command runs by, in one process of the case's own; they share the examination of a trace, which is
most of their time. Inputs are the samples of this repository cut to some hundred events, and small traces by hand.

Printed are the outcomes by exit code, every case that ended with 70, took over a minute of CPU time or over 2 GB or did
not end in ten minutes, the slowest case and the largest. For each line of ours that a trace failed at, the smallest
trace is printed that still fails there. Exit status 1 where there was such a case.
"""

import argparse
import collections
import contextlib
import copy
import gc
import gzip
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bottleneck.doctor.trace_checks
import bottleneck.pipeline
from benchmarks.fuzz_seeds import write_ranks, write_seeds
from bottleneck import cli
from bottleneck.errors import BottleneckError

ROOT = Path(__file__).parents[1]
SAMPLES, LOCKS = ROOT / "sample_traces", ROOT / ".bottleneck"
# Of CPU time, which does not depend on what else the machine does. A case that waits for ever is ended.
_SECONDS, _BYTES = 60, 2 * 1024**3
_ENDED_AFTER_SECONDS = 600
# Exit status of a case that prints a null as Python does; no input has the word.
_SAYS_NONE = 98
_NONE = re.compile(r"\bNone\b")
# Exit status of a case that failed in this harness.
_LOST = 99
_LARGEST_TRACE_BYTES = 400_000
_TOLD_EVERY = 100
# What a field may hold that no program writes there.
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**40, -0.5, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "\0", "x" * 5000, "\udcff", "[[1, 2]", "é\u202e", "../../etc/passwd", "<script>", "1e999", "nan"),
    *("-1", "0", "[/red]", "\x1b[31m", "a|b\n|c", "{0}", "%s", "\u202e" * 30),
    *([], {}, [[]], [None], {"": None}, [[[[1]]]], [1, "a", None], [-1, 0], [[0]], [[2**40, 2**40]]),
)


@dataclass(frozen=True)
class Outcome:
    """How one case ended: worst exit status (negative: killed by that signal), CPU time and peak memory."""

    number: int
    what: str
    status: int
    seconds: float
    peak_bytes: int

    @property
    def is_bad(self) -> bool:
        """A bug of ours, here or there, or more time or memory than any small input explains."""
        return (
            self.status in (70, _LOST, _SAYS_NONE)
            or self.status < 0
            or self.seconds > _SECONDS
            or self.peak_bytes > _BYTES
        )


def _odd(chance: random.Random) -> Any:
    """One of the odd values; a copy, for a later change may put it, or what holds it, into itself."""
    return copy.deepcopy(chance.choice(_ODD))


def mutate_tree(tree: Any, chance: random.Random) -> Any:
    """The tree of a JSON file with one change somewhere in it, chosen evenly by depth.

    Half of the changes of a trace are to its events, of which those of rare categories are changed as often as others.
    """
    events = tree if isinstance(tree, list) else tree.get("traceEvents") if isinstance(tree, dict) else None
    if isinstance(events, list) and len(events) > 1 and chance.random() < 0.5:
        if chance.random() < 0.4:
            chance.choice(_EVENT_CHANGES)(events, chance)
            return tree
        return _mutate_event(tree, events, chance)
    return _mutate_anywhere(tree, chance)


def _mutate_anywhere(tree: Any, chance: random.Random) -> Any:
    parent, key = None, None
    node = tree
    while isinstance(node, dict | list) and node and (parent is None or chance.random() < 0.8):
        parent, key = node, chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        node = node[key]
    if parent is None:
        return _odd(chance)
    _CHANGES[chance.randrange(len(_CHANGES))](parent, key, chance)
    return tree


def _category(event: Any) -> str:
    return f"{event.get('cat')}:{str(event.get('name'))[:6]}" if isinstance(event, dict) else "none"


def _mutate_event(tree: Any, events: list[Any], chance: random.Random) -> Any:
    kind = chance.choice(sorted({_category(event) for event in events}))
    event = chance.choice([event for event in events if _category(event) == kind])
    if isinstance(event, dict):
        _mutate_anywhere(event, chance)
    return tree


def _replace(parent: Any, key: Any, chance: random.Random) -> None:
    parent[key] = _odd(chance)


def _remove(parent: Any, key: Any, _: random.Random) -> None:
    del parent[key]


def _swap(parent: Any, key: Any, chance: random.Random) -> None:
    other = chance.choice(list(parent)) if isinstance(parent, dict) else chance.randrange(len(parent))
    parent[key], parent[other] = parent[other], parent[key]


def _scale(parent: Any, key: Any, chance: random.Random) -> None:
    value = parent[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    parent[key] = value * chance.choice((-1, 0, 1e-9, 1000, 1e12)) if is_number else _odd(chance)


def _retype(parent: Any, key: Any, chance: random.Random) -> None:
    value = parent[key]
    parent[key] = chance.choice((str(value)[:5000], [value], {"value": value}, [value, value], bool(value)))


def _repeat(parent: Any, key: Any, chance: random.Random) -> None:
    if isinstance(parent, list):
        parent[key:key] = [parent[key]] * chance.choice((1, 3, 200))
    else:
        parent[f"{key}2"] = parent[key]


_KEYS = ("ts", "dur", "name", "External id", "Input Dims", "correlation", "stream", "new")


def _add(parent: Any, key: Any, chance: random.Random) -> None:
    if isinstance(parent[key], dict):
        parent[key][chance.choice(_KEYS)] = _odd(chance)
    else:
        parent[key] = _odd(chance)


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    *(_replace, _replace, _remove, _swap),
    *(_scale, _repeat, _add, _retype),
)


def _shuffle(events: list[Any], chance: random.Random) -> None:
    chance.shuffle(events)


def _delete_category(events: list[Any], chance: random.Random) -> None:
    gone = chance.choice(sorted({str(event.get("cat")) for event in events if isinstance(event, dict)} or {""}))
    events[:] = [event for event in events if not isinstance(event, dict) or str(event.get("cat")) != gone]


def _keep_few(events: list[Any], chance: random.Random) -> None:
    begin = chance.randrange(len(events))
    events[:] = events[begin : begin + chance.choice((1, 2, 5, 20, 100))]


_TIMES_US = (1.0, -1.0, 50.0, -50.0, 1e4, 1e6, 6e11, -6e11, 1e-4, 1e15)


def _move(events: list[Any], chance: random.Random) -> None:
    """Moves one event, those of one category, or those from one on, in time."""
    at, kind = chance.randrange(len(events)), chance.randrange(3)
    by_us = chance.choice(_TIMES_US)
    for number, event in enumerate(events):
        if not isinstance(event, dict) or not isinstance(event.get("ts"), int | float):
            continue
        is_alike = _category(event) == _category(events[at])
        if (number == at, is_alike, number >= at)[kind]:
            event["ts"] += by_us


def _stretch(events: list[Any], chance: random.Random) -> None:
    """Changes the durations of one category."""
    kind, factor = _category(chance.choice(events)), chance.choice((0, 0.1, 10, 1e6, -1))
    for event in events:
        if isinstance(event, dict) and _category(event) == kind and isinstance(event.get("dur"), int | float):
            event["dur"] *= factor


_EVENT_CHANGES: tuple[Callable[[list[Any], random.Random], None], ...] = (
    *(_shuffle, _delete_category, _keep_few, _move, _move, _stretch),
)


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """The bytes cut off, with some changed, or with others put in."""
    at = chance.randrange(len(content) + 1)
    kind = chance.randrange(5)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 64)))) + content[at + 1 :]
    if kind == 2:
        return content + bytes(chance.choice((1, 5000)))
    if kind == 3:
        return content + content[: chance.choice((100, len(content)))]
    return content[:at] + content[at + chance.choice((1, 10, 1000)) :]


def _mutate_json(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return mutate_bytes(content, chance)
    try:
        tree = json.loads(content)
    except ValueError:  # a trace that was no JSON before
        return mutate_bytes(content, chance)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        tree = mutate_tree(tree, chance)
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _mutate_file(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            text = _mutate_json(gzip.decompress(content), chance)
        except (OSError, EOFError, zlib.error):  # mutated before
            path.write_bytes(mutate_bytes(content, chance))
            return
        packed = gzip.compress(text, 1)
        path.write_bytes(mutate_bytes(packed, chance) if chance.random() < 0.1 else packed)
    elif path.suffix == ".json":
        path.write_bytes(_mutate_json(content, chance))
    else:
        path.write_bytes(mutate_bytes(content, chance))


@dataclass(frozen=True)
class Inputs:
    """Files to mutate, by kind, and a folder for what commands keep."""

    traces: Sequence[Path]
    recordings: Sequence[Path]
    analyses: Sequence[Path]
    job: Path


def _pick_trace(folder: Path, chance: random.Random, inputs: Inputs) -> Path:
    source = chance.choice(inputs.traces)
    path = folder / f"trace.json{'.gz' if source.suffix == '.gz' else ''}"
    shutil.copyfile(source, path)
    _mutate_file(path, chance)
    return path


def _pick_folder(source: Path, folder: Path, chance: random.Random) -> Path:
    path = Path(shutil.copytree(source, folder / "recording"))
    for _ in range(chance.choice((1, 1, 2))):
        _mutate_file(chance.choice([each for each in sorted(path.iterdir()) if each.is_file()]), chance)
    return path


def _pick_recording(folder: Path, chance: random.Random, inputs: Inputs) -> Path:
    return _pick_folder(chance.choice(inputs.recordings), folder, chance)


def _pick_job(folder: Path, chance: random.Random, inputs: Inputs) -> Path:
    return _pick_folder(inputs.job, folder, chance)


def _pick_analysis(folder: Path, chance: random.Random, inputs: Inputs) -> Path:
    path = folder / "analysis.json"
    shutil.copyfile(chance.choice(inputs.analyses), path)
    _mutate_file(path, chance)
    return path


# How many of a hundred cases are of each kind; the rest are of the gate.
_PICKS: tuple[tuple[int, Callable[[Path, random.Random, Inputs], Path]], ...] = (
    *((70, _pick_trace), (10, _pick_recording), (8, _pick_job), (8, _pick_analysis)),
)


def _commands(folder: Path, chance: random.Random, inputs: Inputs) -> list[list[str]]:
    """The commands of a case, on its mutated input."""
    drawn = chance.randrange(100)
    for share, pick in _PICKS:
        drawn -= share
        if drawn < 0:
            path = pick(folder, chance, inputs)
            is_analysis = pick is _pick_analysis
            return [
                *_readers(path, folder),
                *([] if is_analysis else _askers(path, chance)),
                _compared(path, chance, inputs),
            ]
    return [_gate_arguments(folder, chance)]


def _readers(path: Path, folder: Path) -> list[list[str]]:
    """The commands that show an analysis."""
    page = str(folder / "other" / "page.html")
    forms = ([], ["--full"], ["--format", "json"], ["--format", "markdown", "--all-findings"], ["-o", page])
    return [["report", str(path), *form] for form in forms]


_WHAT_IF = (
    *(["--remove", "sync"], ["--set", "kernel=0.5x"], ["--set", "batch=2x"], ["--graph"], ["--overlap", "copy"]),
    *(["--remove", "input"], ["--fuse", "op:aten::*"], ["--set", "op:aten::*=0.5x"], ["--set", "collective=2x"]),
)


def _askers(path: Path, chance: random.Random) -> list[list[str]]:
    """The commands that need the events of a trace."""
    return [
        ["doctor", str(path)],
        ["whatif", str(path)],
        ["whatif", str(path), *chance.choice(_WHAT_IF)],
        ["predict", str(path), "--device", chance.choice(("A100", "H100 SXM,T4"))],
    ]


def _compared(path: Path, chance: random.Random, inputs: Inputs) -> list[str]:
    other = str(chance.choice(inputs.traces if path.is_file() else inputs.recordings))
    return ["compare", *chance.choice(([str(path), other], [other, str(path)]))]


_SETTINGS = """[tool.bottleneck.gate]
workloads = ["examples/mlp.py"]
alpha = 0.01
[tool.bottleneck.gate.budget]
"flops" = "+1 %"
"""


def _gate_arguments(folder: Path, chance: random.Random) -> list[str]:
    """A gate or comparison whose lock-file or settings are mutated; what a gate would run does not exist."""
    (folder / ".bottleneck").mkdir()
    lock = folder / ".bottleneck" / "examples-mlp.lock.toml"
    shutil.copyfile(LOCKS / "examples-mlp.lock.toml", lock)
    settings = folder / "pyproject.toml"
    settings.write_text(_SETTINGS)
    chosen = chance.choice((lock, settings))
    chosen.write_bytes(mutate_bytes(chosen.read_bytes(), chance))
    os.chdir(folder)
    whole = str(LOCKS / "examples-mlp.lock.toml")
    return chance.choice(
        (["compare", str(lock), whole], ["compare", whole, str(lock)], ["accept", "--reason", "x"], ["gate"])
    )


@contextlib.contextmanager
def _examined_once() -> Iterator[None]:
    """Examines and explains each trace once for all commands that ask for it alike; errors are raised again.

    A case that begins inside knows what was asked before: the sound traces that others are compared with.
    """
    pipeline, checks = bottleneck.pipeline, bottleneck.doctor.trace_checks
    usual, examine, explain = pipeline.DEFAULTS, pipeline.examine, pipeline.explain

    def named(options: Any) -> str:
        return repr(replace(options or usual, jobs=1, critical_path=True))

    examined = _once(lambda source, options=None, *_: (f"{source.trace} {named(options)}", examine, (source, options)))
    explained = _once(
        lambda paths, options=None, *_: (
            f"{paths} {named(options)}",
            explain,
            (paths, replace(options or usual, critical_path=True)),
        )
    )
    for module in (pipeline, checks):
        module.examine = examined  # type: ignore[attr-defined]
    pipeline.explain = explained
    try:
        yield
    finally:
        for module in (pipeline, checks):
            module.examine = examine  # type: ignore[attr-defined]
        pipeline.explain = explain


def _once(asked: Callable[..., tuple[str, Callable[..., Any], tuple[Any, ...]]]) -> Callable[..., Any]:
    """A function that keeps what each key gave; ``asked`` tells key, function and arguments of a call."""
    known: dict[str, Any] = {}

    def call(*arguments: Any, **named: Any) -> Any:
        key, function, given = asked(*arguments, **named)
        if key not in known:
            try:
                known[key] = function(*(each for each in given if each is not None))
            except BottleneckError as error:
                known[key] = error
        if isinstance(known[key], BottleneckError):
            raise known[key]
        return known[key]

    return call


def run_command(arguments: Sequence[str]) -> tuple[int, str]:
    """The exit status of a command, and where it failed if that was a failure of ours."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = cli._run([*arguments])
    if shown := _NONE.search(out.getvalue()):
        return _SAYS_NONE, f"says None: {out.getvalue()[max(0, shown.start() - 200) : shown.end() + 50]}"
    crash = [line for line in errors.getvalue().splitlines() if "report it with the file" in line]
    return status, _last_frames(crash) if status == 70 else ""


def _last_frames(lines: list[str]) -> str:
    if not lines:
        return ""
    path = Path(lines[0].rpartition(" ")[2])
    text = path.read_text(errors="replace")
    path.unlink(missing_ok=True)
    return "\n".join(text.splitlines()[-9:])


def _in_child(work: Callable[[Path], int]) -> tuple[int, str, float, int]:
    """Status, text, CPU time and peak memory of work in a process of its own, which writes the text into a file."""
    handle, name = tempfile.mkstemp(prefix="fuzz-said-")
    os.close(handle)
    said = Path(name)
    child = os.fork()
    if not child:
        status = _LOST
        try:
            signal.alarm(_ENDED_AFTER_SECONDS)
            resource.setrlimit(resource.RLIMIT_AS, (16 * 1024**3, 16 * 1024**3))
            status = work(said)
        except Exception:
            said.write_text(traceback.format_exc())
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    text = said.read_text(errors="replace")
    said.unlink()
    return os.waitstatus_to_exitcode(status), text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def run_case(seed: int, number: int, inputs: Inputs, keep: Path | None = None) -> Outcome:
    """One case, in a process of its own that is ended after ten minutes; ``keep`` is a folder for its input."""
    folder = keep or Path(tempfile.mkdtemp(prefix="fuzz-"))
    (folder / "other").mkdir(parents=True, exist_ok=True)

    def work(said: Path) -> int:
        chance = random.Random(f"{seed}:{number}")
        commands = _commands(folder, chance, inputs)
        worst = 0
        for arguments in commands:
            said.write_text(" ".join(arguments))
            status, frames = run_command(arguments)
            worst = max(worst, status)
            if status in (70, _SAYS_NONE):
                said.write_text(f"{' '.join(arguments)}\n{frames}")
                return status
        said.write_text("; ".join(" ".join(arguments) for arguments in commands))
        return worst

    status, what, seconds, peak = _in_child(work)
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(number, what, status, seconds, peak)


_PLACE = re.compile(r'File "[^"]*?(bottleneck/[^"]+\.py)", line (\d+)')


def place_of(what: str) -> str:
    """The innermost line of ours in the last frames of a failure."""
    found = _PLACE.findall(what)
    return ":".join(found[-1]) if found else what[-200:]


def smallest(document: Any, fails: Callable[[Any], bool]) -> Any:
    """The document with as few events, and of each as few fields, as ``fails`` still holds for."""
    if isinstance(document, list):
        return _fewer_fields(_fewer_events(document, fails), fails)

    def with_events(events: list[Any]) -> Any:
        return {**document, "traceEvents": events}

    events = _fewer_events(document["traceEvents"], lambda kept: fails(with_events(kept)))
    events = _fewer_fields(events, lambda kept: fails(with_events(kept)))
    found = with_events(events)
    for key in [key for key in document if key != "traceEvents"]:
        without = {name: value for name, value in found.items() if name != key}
        found = without if fails(without) else found
    return found


def _fewer_events(events: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """The events without runs of them, ever shorter ones, that make no difference."""
    size = max(1, len(events) // 2)
    while size:
        at = 0
        while at < len(events):
            fewer = events[:at] + events[at + size :]
            if fails(fewer):
                events = fewer
            else:
                at += size
        size //= 2
    return events


def _fewer_fields(events: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    for number in range(min(len(events), 20)):
        event = events[number]
        if not isinstance(event, dict):
            continue
        args = event.get("args")
        for path in [*(("args", key) for key in (args if isinstance(args, dict) else ())), *((key,) for key in event)]:
            shorter = copy.deepcopy(events[number])
            inner = shorter if len(path) == 1 else shorter.get("args", {})
            inner.pop(path[-1], None)
            fewer = [*events[:number], shorter, *events[number + 1 :]]
            events = fewer if fails(fewer) else events
    return events


def minimised(seed: int, number: int, inputs: Inputs, place: str) -> str:
    """The smallest trace that fails as a case did, as JSON; empty where its input is no single trace of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-small-"))
    try:
        outcome = run_case(seed, number, inputs, keep=folder)
        words = outcome.what.splitlines()[0].split(" ") if outcome.what else []
        path = next((each for each in folder.glob("trace.json*") if str(each) in words), None)
        if path is None:
            return ""
        content = path.read_bytes()
        document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)

        def fails(candidate: Any) -> bool:
            text = json.dumps(candidate).encode("utf-8", "surrogatepass")
            path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)

            def work(said: Path) -> int:
                status, frames = run_command(words)
                said.write_text(frames)
                return status

            status, frames, _, _ = _in_child(work)
            return status == 70 and place_of(frames) == place

        return json.dumps(smallest(document, fails)) if fails(document) else ""
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        return ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def inputs_of(traces: Path | None, folder: Path) -> Inputs:
    """Files to mutate: the samples of this repository, small traces, and small public traces where there are some."""
    recordings = [each for each in sorted(SAMPLES.iterdir()) if each.is_dir()]
    small = [each for each in recordings if (each / "trace.rank0.json.gz").stat().st_size < 30_000]
    public = [] if traces is None else sorted(traces.glob("*.json*"))
    seeds = write_seeds(folder)
    analyses = []
    for each in (*small, *seeds[:3]):
        path = folder / f"analysis-{each.name.partition('.')[0]}.json"
        assert run_command(["report", str(each), "--format", "json", "-o", str(path)])[0] == 0
        analyses.append(path)
    return Inputs(
        [*seeds, *(each for each in public if each.stat().st_size < _LARGEST_TRACE_BYTES)],
        small,
        analyses,
        write_ranks(folder / "job"),
    )


def _import_all(inputs: Inputs, folder: Path) -> None:
    """Runs each command once, so that no case has to import it."""
    path = inputs.traces[0]
    for arguments in (*_readers(path, folder), *_askers(path, random.Random(0)), ["compare", str(path), str(path)]):
        run_command(arguments)
    run_command(["report", str(inputs.job)])
    for sound in (*inputs.traces, *inputs.recordings):
        run_command(["compare", str(sound), str(sound)])
    gc.collect()
    gc.freeze()


def _words(outcome: Outcome) -> str:
    return f"case {outcome.number}, {outcome.seconds:.1f} s, {outcome.peak_bytes / 1e6:.0f} MB"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=600.0, help="at most so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10_000, help="at most so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--keep", type=Path, help="with --case: a folder for its input")
    parser.add_argument("--traces", type=Path, help="a folder of more traces; those under 400 kB are mutated")
    return parser.parse_args()


def _run_cases(options: argparse.Namespace, inputs: Inputs) -> list[Outcome]:
    numbers = range(options.first, options.first + options.cases) if options.case is None else [options.case]
    outcomes: list[Outcome] = []
    places: set[str] = set()
    until = time.monotonic() + 60 * options.minutes
    for number in numbers:
        outcome = run_case(options.seed, number, inputs, options.keep)
        outcomes.append(outcome)
        if outcome.is_bad or options.case is not None:
            print(f"{_words(outcome)}, status {outcome.status}\n  {outcome.what}", flush=True)
        place = place_of(outcome.what)
        if outcome.status == 70 and place not in places:
            places.add(place)
            small = minimised(options.seed, number, inputs, place)
            if small:
                print(f"  smallest: {small[:4000]}", flush=True)
        if len(outcomes) % _TOLD_EVERY == 0:
            print(f"{len(outcomes):,} cases done", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            break
    return outcomes


def main() -> None:
    """Runs cases, or one case, and prints what came of them."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="fuzz-inputs-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        inputs = inputs_of(options.traces, Path(folder))
        with _examined_once():
            _import_all(inputs, Path(folder))
            outcomes = _run_cases(options, inputs)
    counts = collections.Counter(outcome.status for outcome in outcomes)
    by_status = ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
    print(f"{len(outcomes)} cases; by exit status: {by_status}")
    print(f"slowest: {_words(max(outcomes, key=lambda each: each.seconds))}")
    print(f"largest: {_words(max(outcomes, key=lambda each: each.peak_bytes))}")
    raise SystemExit(any(outcome.is_bad for outcome in outcomes))


if __name__ == "__main__":
    main()
