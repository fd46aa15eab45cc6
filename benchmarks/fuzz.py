"""Feeds mutated traces, recordings, saved analyses and lock-files to the commands that read them.

    python -m benchmarks.fuzz [--minutes 60] [--cases N] [--seed 1] [--case N] [--traces FOLDER]

Each case is a number: its input, mutations and command follow from seed and number alone, so that `--case N` repeats
it. A case runs in a process of its own. Printed are the outcomes by exit code, every case that ended with 70, took over
a minute of CPU time or over 2 GB or did not end in ten minutes, the slowest case and the largest. Exit status 1 where
there was such a case.
"""

import argparse
import collections
import contextlib
import copy
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck import cli

ROOT = Path(__file__).parents[1]
SAMPLES, LOCKS = ROOT / "sample_traces", ROOT / ".bottleneck"
# Of CPU time, which does not depend on what else the machine does. A case that waits for ever is ended.
_SECONDS, _BYTES = 60, 2 * 1024**3
_ENDED_AFTER_SECONDS = 600
# Exit status of a case that failed in this harness.
_LOST = 99
_LARGEST_TRACE_BYTES = 400_000
# What a field may hold that no program writes there.
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**40, -0.5, 1e308, float("nan"), float("inf")),
    *("", "\0", "x" * 5000, "\udcff", "[[1, 2]", "é\u202e", "../../etc/passwd", "<script>", "1e999", "nan"),
    *([], {}, [[]], [None], {"": None}, [[[[1]]]], [1, "a", None]),
)


@dataclass(frozen=True)
class Outcome:
    """How one case ended: exit status (negative: killed by that signal), CPU time and peak memory."""

    number: int
    what: str
    status: int
    seconds: float
    peak_bytes: int

    @property
    def is_bad(self) -> bool:
        """A bug of ours, here or there, or more time or memory than any small input explains."""
        return self.status in (70, _LOST) or self.status < 0 or self.seconds > _SECONDS or self.peak_bytes > _BYTES


def _odd(chance: random.Random) -> Any:
    """One of the odd values; a copy, for a later change may put it, or what holds it, into itself."""
    return copy.deepcopy(chance.choice(_ODD))


def mutate_tree(tree: Any, chance: random.Random) -> Any:
    """The tree of a JSON file with one change somewhere in it, chosen evenly by depth."""
    parent, key = None, None
    node = tree
    while isinstance(node, dict | list) and node and (parent is None or chance.random() < 0.8):
        parent, key = node, chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        node = node[key]
    if parent is None:
        return _odd(chance)
    _CHANGES[chance.randrange(len(_CHANGES))](parent, key, chance)
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
    *(_scale, _repeat, _add),
)


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """The bytes cut off, with some changed, or with others put in."""
    at = chance.randrange(len(content) + 1)
    kind = chance.randrange(4)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 64)))) + content[at + 1 :]
    if kind == 2:
        return content + bytes(chance.choice((1, 5000)))
    return content[:at] + content[at + chance.choice((1, 10, 1000)) :]


def _mutate_json(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.25:
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
        text = _mutate_json(gzip.decompress(content), chance)
        packed = gzip.compress(text, 1)
        path.write_bytes(mutate_bytes(packed, chance) if chance.random() < 0.1 else packed)
    elif path.suffix == ".json":
        path.write_bytes(_mutate_json(content, chance))
    else:
        path.write_bytes(mutate_bytes(content, chance))


def _pick_trace(folder: Path, chance: random.Random, inputs: Mapping[str, list[Path]]) -> list[str]:
    source = chance.choice(inputs["traces"])
    path = folder / f"trace.json{'.gz' if source.suffix == '.gz' else ''}"
    shutil.copyfile(source, path)
    _mutate_file(path, chance)
    return [str(path)]


def _pick_recording(folder: Path, chance: random.Random, inputs: Mapping[str, list[Path]]) -> list[str]:
    path = Path(shutil.copytree(chance.choice(inputs["recordings"]), folder / "recording"))
    for _ in range(chance.choice((1, 1, 2))):
        _mutate_file(chance.choice([each for each in sorted(path.iterdir()) if each.is_file()]), chance)
    return [str(path)]


def _pick_analysis(folder: Path, chance: random.Random, inputs: Mapping[str, list[Path]]) -> list[str]:
    path = folder / "analysis.json"
    shutil.copyfile(chance.choice(inputs["analyses"]), path)
    _mutate_file(path, chance)
    return [str(path)]


def _arguments(folder: Path, chance: random.Random, inputs: Mapping[str, list[Path]]) -> list[str]:
    """The words of a command on a mutated input."""
    pick = chance.choice((_pick_trace, _pick_trace, _pick_recording, _pick_analysis))
    command = chance.choice(("report", "report", "compare", "doctor", "gate"))
    if command == "gate" and chance.random() < 0.5:
        return _gate_arguments(folder, chance)
    paths = pick(folder, chance, inputs)
    if command == "compare":
        recorded = [str(chance.choice(inputs["recordings"]))]
        other = pick(folder / "other", chance, inputs) if chance.random() < 0.5 else recorded
        return ["compare", *paths, *other]
    if command == "gate":
        return ["gate", *paths, "--against", str(chance.choice(inputs["recordings"]))]
    if command == "doctor":
        return ["doctor", *paths]
    form = chance.choice((["--full"], ["--format", "json"], ["--format", "markdown"], ["--all-findings"], []))
    return ["report", *paths, *form]


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


def run_case(seed: int, number: int, inputs: Mapping[str, list[Path]]) -> Outcome:
    """One case, in a process of its own that is ended after ten minutes."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (folder / "other").mkdir()
    said = folder.with_suffix(".arguments")
    child = os.fork()
    if not child:
        _run_and_leave(seed, number, folder, said, inputs)
    _, status, usage = os.wait4(child, 0)
    what = said.read_text(errors="replace") if said.exists() else "(not begun)"
    said.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        number, what, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    )


def _run_and_leave(seed: int, number: int, folder: Path, said: Path, inputs: Mapping[str, list[Path]]) -> None:
    status = _LOST
    try:
        signal.alarm(_ENDED_AFTER_SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (16 * 1024**3, 16 * 1024**3))
        chance = random.Random(f"{seed}:{number}")
        arguments = _arguments(folder, chance, inputs)
        said.write_text(" ".join(arguments))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            status = cli._run(arguments)
        if status == 70:
            crash = [line for line in errors.getvalue().splitlines() if "report it with the file" in line]
            said.write_text(f"{' '.join(arguments)}\n{_last_frames(crash)}")
    except Exception:
        said.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _last_frames(lines: list[str]) -> str:
    if not lines:
        return ""
    path = Path(lines[0].rpartition(" ")[2])
    text = path.read_text(errors="replace")
    path.unlink(missing_ok=True)
    return "\n".join(text.splitlines()[-7:])


def inputs_of(traces: Path | None) -> Mapping[str, list[Path]]:
    """Files to mutate, by kind: the samples of this repository, and small public traces where there are some."""
    recordings = sorted(each for each in SAMPLES.iterdir() if each.is_dir())
    analyses = []
    folder = Path(tempfile.mkdtemp(prefix="fuzz-inputs-"))
    for each in recordings:
        path = folder / f"{each.name}.json"
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli._run(["report", str(each), "--format", "json", "-o", str(path)]) == 0
        analyses.append(path)
    public = [] if traces is None else sorted(traces.glob("*.json*"))
    small = [each for each in public if each.stat().st_size < _LARGEST_TRACE_BYTES]
    return {"recordings": recordings, "analyses": analyses, "traces": [*small, *SAMPLES.glob("*/trace.rank0.json.gz")]}


def _words(outcome: Outcome) -> str:
    return f"case {outcome.number}, {outcome.seconds:.1f} s, {outcome.peak_bytes / 1e6:.0f} MB"


def main() -> None:
    """Runs cases for a time, or one case, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--case", type=int)
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    inputs = inputs_of(options.traces)
    outcomes, until = [], time.monotonic() + 60 * options.minutes
    while time.monotonic() < until and len(outcomes) != options.cases:
        number = len(outcomes) if options.case is None else options.case
        outcome = run_case(options.seed, number, inputs)
        outcomes.append(outcome)
        if outcome.is_bad or options.case is not None:
            print(f"{_words(outcome)}, status {outcome.status}\n  {outcome.what}", flush=True)
        if options.case is not None:
            break
    counts = collections.Counter(outcome.status for outcome in outcomes)
    by_status = ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
    print(f"{len(outcomes)} cases; by exit status: {by_status}")
    print(f"slowest: {_words(max(outcomes, key=lambda each: each.seconds))}")
    print(f"largest: {_words(max(outcomes, key=lambda each: each.peak_bytes))}")
    raise SystemExit(any(outcome.is_bad for outcome in outcomes))


if __name__ == "__main__":
    main()
