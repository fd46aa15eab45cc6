"""Runs programs with a known fault under `bottleneck run`, and says whether its first screen names the fault.

    python -m benchmarks.trials [FOLDER] [--only NAME ...] [--pairs 3] [--no-measure] [--keep FOLDER]

FOLDER holds the programs, with the truth about them in `trials.toml`: `planted` beside this file unless given, or
`reported`, which are public reports of slow programs with an undisputed cause, rebuilt as plain scripts.

Printed are for each program the verdict's bound, the lines that its sentence and first finding name, that finding and
what it promises, whether bound, line and finding are among the accepted ones, and how many times as fast the mended
program is: (full - short) / (full - short), where short takes a few steps. Both programs run at once on one processor,
so that what slows the machine slows both. Exit status 1 where fewer than 8 of 10 are right.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck.report.json_text import from_json
from bottleneck.schema.finding_order import in_reading_order

HERE = Path(__file__).parent
TABLE = "trials.toml"
_ENDED_AFTER_SECONDS = 600
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_PLACE = re.compile(r"([\w.\-]+\.py):(\d+)")
_RIGHT = 0.8
# The start of a program takes some tenths of a second more or less from run to run.
_LEAST_SECONDS = 0.2
_LONG_SECONDS, _MOST_TIMES = 8.0, 20


@dataclass(frozen=True)
class Trial:
    """A program with its fault, what is accepted of the first screen, and how the fault is mended.

    ``fix`` are texts and what replaces them; null where the remedy is no edit of the program. ``command`` are the words
    before the file, where it is started by a launcher; ``options`` are those of `bottleneck run`.
    """

    program: str
    cause: str
    lines: tuple[str, ...]
    bound: tuple[str, ...]
    slugs: tuple[str, ...]
    remedy: str
    fix: tuple[tuple[str, str], ...] | None = None
    short: tuple[str, str] | None = None
    clock: str = "cpu"
    options: tuple[str, ...] = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Trial":
        """The trial of a row of the table."""
        fix = None if "fix" not in row else tuple((old, new) for old, new in row["fix"])
        short = None if "short" not in row else (row["short"][0], row["short"][1])
        texts = {name: tuple(row.get(name, ())) for name in ("lines", "bound", "slugs", "options")}
        plain = {name: row[name] for name in ("program", "cause", "remedy")}
        return cls(**plain, **texts, fix=fix, short=short, clock=row.get("clock", "cpu"))

    def numbers(self, text: str) -> frozenset[int]:
        """The numbers of the lines that the fault stands at; AssertionError for one that the program lacks."""
        found = set()
        for wanted in self.lines:
            at = [number for number, line in enumerate(text.splitlines(), 1) if wanted in line]
            assert at, f"{self.program} has no line {wanted!r}"
            found |= set(at)
        return frozenset(found)


@dataclass(frozen=True)
class Said:
    """The first screen of a report: bound, sentence, first finding with its text, and the gain that it promises."""

    bound: str
    sentence: str
    slug: str
    first: str
    gain: tuple[float, float] | None


@dataclass(frozen=True)
class Grade:
    """Whether bound, line and finding are accepted ones."""

    bound: bool
    line: bool
    slug: bool

    @property
    def is_right(self) -> bool:
        """True where a reader of the first screen would mend the fault."""
        return self.line and self.slug


def replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """The program with each text replaced; AssertionError for one that it lacks."""
    for old, new in pairs:
        assert old in text, f"there is no {old!r}"
        text = text.replace(old, new)
    return text


def read_trials(folder: Path) -> tuple[Trial, ...]:
    """The table of a folder of programs."""
    with (folder / TABLE).open("rb") as file:
        return tuple(Trial.from_row(row) for row in tomllib.load(file)["trial"])


def said_by(analysis: Mapping[str, Any]) -> Said:
    """What a finished analysis says first."""
    verdict, findings = analysis["verdict"], analysis["findings"]
    first = (
        findings[0] if findings else {"slug": "-", "title": "", "advice": "", "evidence": [], "predicted_speedup": None}
    )
    text = " ".join([first["title"], first["advice"] or "", *first["evidence"]])
    gain = first.get("predicted_speedup")
    return Said(
        verdict["bound"],
        verdict["sentence"],
        first["slug"],
        text,
        None if gain is None else (gain["low"], math.inf if first.get("is_open") else gain["high"]),
    )


def places_in(text: str, program: str) -> frozenset[int]:
    """The lines of the program that a text names."""
    return frozenset(int(number) for file, number in _PLACE.findall(text) if file == f"{program}.py")


def grade(trial: Trial, said: Said, numbers: frozenset[int]) -> Grade:
    """The grade of a first screen; the line may stand in the sentence or in the first finding, if there is one."""
    lines = places_in(f"{said.sentence} {said.first}", trial.program)
    return Grade(said.bound in trial.bound, not numbers or bool(lines & numbers), said.slug in trial.slugs)


def run_under_bottleneck(program: Path, folder: Path, options: Sequence[str] = ()) -> Mapping[str, Any] | None:
    """The analysis of a run of the program; null where there is none."""
    command = [sys.executable, "-m", "bottleneck", "run", "-o", str(folder), *options, str(program)]
    with (folder.parent / f"{folder.name}.txt").open("wb") as log:
        subprocess.run(
            command, stdout=log, stderr=log, env={**os.environ, **_ENVIRONMENT}, cwd=folder.parent, check=False,
            timeout=_ENDED_AFTER_SECONDS,
        )  # fmt: skip
    path = folder / "analysis.json"
    return as_read(path.read_text(encoding="utf-8")) if path.exists() else None


def as_read(text: str) -> Mapping[str, Any]:
    """The analysis of a file with the findings that a report shows, in the order in which it shows them."""
    analysis = from_json(text)
    shown = in_reading_order(analysis.findings, analysis.steps.wall_us, analysis.verdict.bound)
    data = json.loads(text)
    by_slug = {finding["slug"]: finding for finding in data["findings"]}
    return {**data, "findings": [{**by_slug[finding.slug], "is_open": finding.is_open} for finding in shown]}


def _wall_seconds(program: Path) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, str(program)], check=True, timeout=_ENDED_AFTER_SECONDS, **_quietly())
    return time.perf_counter() - started


def _quietly() -> dict[str, Any]:
    return {"env": {**os.environ, **_ENVIRONMENT}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _start(program: Path, processor: int) -> "subprocess.Popen[bytes]":
    """A run of the program that may use this processor alone, as its processes and threads may."""
    pin = f"import os, runpy, sys; os.sched_setaffinity(0, [{processor}]); sys.argv[1:] = []"
    return subprocess.Popen(
        [sys.executable, "-c", f"{pin}; runpy.run_path({str(program)!r}, run_name='__main__')"], **_quietly()
    )


def _processor_seconds(faulty: Path, mended: Path, processor: int) -> dict[str, float]:
    """Processor time of a run of each program, while both share one processor: what slows it slows both.

    The mended program is run again until the faulty one has ended; the mean of its whole runs counts.
    """
    running = {"faulty": _start(faulty, processor), "mended": _start(mended, processor)}
    took: dict[str, list[float]] = {"faulty": [], "mended": []}
    while not (took["faulty"] and took["mended"]):
        pid, status, usage = os.wait4(-1, 0)
        name = next(name for name, each in running.items() if each.pid == pid)
        if status:
            raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), str(running[name].args))
        took[name].append(usage.ru_utime + usage.ru_stime)
        running[name].returncode = 0
        if name == "mended" and not took["faulty"]:
            running[name] = _start(mended, processor)
    for each in running.values():
        if each.returncode is None:
            each.kill()
            each.wait()
    return {name: statistics.mean(each) for name, each in took.items()}


def _seconds(faulty: Path, mended: Path, clock: str, pair: int) -> dict[str, float]:
    """Seconds that a run of each program takes, by the clock of the wall or of a processor."""
    if clock == "wall":
        return {"faulty": _wall_seconds(faulty), "mended": _wall_seconds(mended)}
    processors = sorted(os.sched_getaffinity(0))
    return _processor_seconds(faulty, mended, processors[pair % len(processors)])


def times_as_many(text: str, times: int) -> str:
    """The text with its last number multiplied: 'range(400)' with 5 is 'range(2000)'."""
    found = re.search(r"(\d+)(?=\D*$)", text)
    assert found, f"there is no number in {text!r}"
    return f"{text[: found.start()]}{int(found[1]) * times}{text[found.end() :]}"


def measure_fix(trial: Trial, text: str, folder: Path, pairs: int) -> list[float]:
    """How many times as fast the mended program is, by pairs of runs; none where the remedy is no edit.

    The program takes so many more steps that these take some seconds; a pair in which the mended steps took hardly any
    time all the same tells no ratio.
    """
    if trial.fix is None or trial.short is None:
        return []
    programs = {"faulty": text, "mended": replaced(text, trial.fix)}
    files = {
        (name, length): folder / f"{trial.program}_{name}_{length}.py"
        for name in programs
        for length in ("full", "short")
    }

    def write(times: int) -> None:
        for (name, length), path in files.items():
            change = trial.short if length == "short" else (trial.short[0], times_as_many(trial.short[0], times))
            path.write_text(replaced(programs[name], [change]), encoding="utf-8")

    def steps_s(pair: int) -> dict[str, float]:
        full, short = (
            _seconds(files["faulty", length], files["mended", length], trial.clock, pair)
            for length in ("full", "short")
        )
        return {name: full[name] - short[name] for name in programs}

    write(1)
    once = steps_s(0)["faulty"]
    write(min(math.ceil(_LONG_SECONDS / max(once, _LEAST_SECONDS)), _MOST_TIMES))
    found = [steps_s(pair) for pair in range(pairs)]
    return [each["faulty"] / each["mended"] for each in found if each["mended"] >= _LEAST_SECONDS]


def _rows(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[Trial, Said | None, Grade | None, list[float]]]:
    for trial in read_trials(options.folder):
        if options.only and trial.program not in options.only:
            continue
        path = options.folder / f"{trial.program}.py"
        text = path.read_text(encoding="utf-8")
        numbers = trial.numbers(text)
        folder = scratch / trial.program
        shutil.rmtree(folder, ignore_errors=True)
        analysis = run_under_bottleneck(path, folder, trial.options)
        said = None if analysis is None else said_by(analysis)
        ratios = measure_fix(trial, text, scratch, options.pairs) if options.measure else []
        yield trial, said, None if said is None else grade(trial, said, numbers), ratios


def _words(trial: Trial, said: Said | None, graded: Grade | None, ratios: Sequence[float]) -> str:
    """A program's row: what was said, the grade, what was promised and measured."""
    if said is None or graded is None:
        return f"| {trial.program} | {trial.cause} | no report | | | | | WRONG |"
    places = ", ".join(f":{number}" for number in sorted(places_in(f"{said.sentence} {said.first}", trial.program)))
    low, high = said.gain or (0.0, 0.0)
    promised = "-" if said.gain is None else f"{low:.2f}-{high:.2f}" if math.isfinite(high) else f"at least {low:.2f}"
    median = statistics.median(ratios) if ratios else None
    inside = "" if median is None or said.gain is None else " inside" if low <= median <= high else " OUTSIDE"
    measured = "-" if median is None else f"{median:.2f}{inside}"
    marks = " ".join(
        f"{name}{'' if is_met else ' NOT'}"
        for name, is_met in (("bound", graded.bound), ("line", graded.line), ("finding", graded.slug))
    )
    verdict = "right" if graded.is_right else "WRONG"
    cells = (trial.program, trial.cause, said.bound, places, said.slug, promised, measured, f"{verdict}: {marks}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs the programs and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "planted")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--no-measure", dest="measure", action="store_false")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keeps the recordings there")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    scratch = options.keep or Path(tempfile.mkdtemp(prefix="trials-"))
    scratch.mkdir(parents=True, exist_ok=True)
    print("| program | true cause | bound | lines said | first finding | promised | measured | grade |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    grades = []
    for trial, said, graded, ratios in _rows(options, scratch.resolve()):
        print(_words(trial, said, graded, ratios), flush=True)
        grades.append(graded is not None and graded.is_right)
    if options.keep is None:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"\n{sum(grades)} of {len(grades)} right")
    sys.exit(sum(grades) < _RIGHT * len(grades))


if __name__ == "__main__":
    main()
