"""Records each case of the corpus, and tries every applicable change on it beside what the findings predict.

python -m benchmarks.corpus RECORDINGS                         all cases that the data file does not hold yet
python -m benchmarks.corpus RECORDINGS --cases lstm,graph --budget 40
python -m benchmarks.corpus RECORDINGS --shard 1/2             every second case
python -m benchmarks.corpus RECORDINGS --predict-again         only the predictions, from the recordings that are there
python -m benchmarks.corpus RECORDINGS --noisy-again           also cases of which most pairs were too noisy
python -m benchmarks.corpus RECORDINGS --unlike-again          only changes of the process whose copies shared one
python -m benchmarks.corpus --list

RECORDINGS is a folder outside of the repository; a case that has a recording there is not recorded again. Each machine
needs a folder of its own: its pairs are kept beside those of others, and predictions come from its recordings. Copies
of the step take turns in rounds, one turn of each in every round: two unchanged ones and one per change. Changes of the
whole process run in processes of their own, beside two more unchanged copies that have one each. A case's lines are
written together at its end, so that the command can be interrupted and given again; cases of workloads with the fewest
quiet pairs come first. Tried are all changes that can apply to a CPU; compilers, which take long, only where a finding
names them or a case is one of every ``--compile-every``. Numbers of threads are tried from ``--threads 2`` on.
Left out are changes that need a GPU or another package, take minutes, or concern a part of the step alone.
"""

import argparse
import hashlib
import importlib.util
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.corpus.cases import CASES, Case
from benchmarks.corpus.pairs import (
    PAIRS,
    Pair,
    append_pairs,
    claims_of,
    read_pairs,
    repredict,
    runs_alone,
    write_pairs,
)
from bottleneck import __version__
from bottleneck.errors import BottleneckError
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.side import environment_of
from bottleneck.experiment.turns import TimedStep, take_rounds
from bottleneck.experiment.variants import Built
from bottleneck.experiment.worker import VARIANTS_CHILD, Refused, Worker
from bottleneck.harness.machine import busy_processors, torch_version
from bottleneck.harness.messages import Program
from bottleneck.pipeline import explain
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.statistics import estimate

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ("compile", "compile-step", "torchscript", "fused-attention")
# Applies to every program, so that each case tries the one whose turn it is, beside those that its findings name.
OF_THE_PROCESS = ("gc-freeze", "keep-pages", "flush-denormal")
USUAL = (
    "bf16-autocast", "channels-last", "fused-optimizer", "foreach-optimizer", "set-to-none", "inference-mode",
    "batch-x2", "fold-batchnorm", "checkpoint", "workers", "replay-batch",
)  # fmt: skip
OF_THREADS = ("threads-1", "threads-cores")
ROUNDS_AT_LEAST, ROUNDS_AT_MOST = 7, 40
# A compiler that takes longer leaves the case without its change.
CASE_SECONDS_AT_MOST = 420.0
# The unchanged copies: of changes that share a process, and of those that have one of their own.
FIRST, AGAIN = "original", "original again"
FIRST_ALONE, AGAIN_ALONE = "original alone", "original alone again"


def main() -> None:
    """Tries the cases that are asked for, one after the other."""
    asked = _options()
    cases = list(_chosen(asked.cases, asked.shard))
    if asked.list:
        print("\n".join(f"{case.kind:16} {case.name}" for case in cases))
        return
    if asked.recordings is None:
        sys.exit("name a folder for the recordings, outside of the repository")
    folder = asked.recordings.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiled"))
    if asked.predict_again:
        predict_again(asked.data, folder)
        return
    pairs = pairs_of_here(read_pairs(asked.data), folder)
    done = _done(pairs, noisy_again=asked.noisy_again)
    missing = most_useful_first([case for case in cases if case.name not in done], pairs)
    only: Mapping[str, frozenset[str]] = {}
    if asked.unlike_again:
        only = unlike_changes(pairs)
        missing = [case for case in cases if case.name in only]
    try:
        _try_all(missing, folder, asked, only)
    except KeyboardInterrupt:
        print("\nstopped: all cases but the last one shown are kept; the same command goes on", flush=True)
        sys.exit(130)


def pairs_of_here(pairs: Sequence[Pair], folder: Path) -> list[Pair]:
    """The pairs of the machine that made the recordings of this folder; all where there is none yet."""
    made = next((path for path in sorted(folder.iterdir()) if (path / "recording.json").exists()), None)
    here = None if made is None else _machine(explain([made]))
    return [pair for pair in pairs if here in {None, pair.machine}]


def most_useful_first(cases: Sequence[Case], pairs: Sequence[Pair]) -> list[Case]:
    """The cases whose workloads have the fewest quiet pairs first: they teach what is known least."""
    quiet = Counter(pair.file for pair in pairs if pair.is_usable)
    return sorted(cases, key=lambda case: quiet[case.file])


def unlike_changes(pairs: Sequence[Pair]) -> dict[str, frozenset[str]]:
    """By case the changes of the process that were measured against copies which shared one."""
    found: dict[str, set[str]] = {}
    for pair in pairs:
        if pair.speedup is not None and pair.alone != runs_alone(pair.change):
            found.setdefault(pair.case, set()).add(pair.change)
    return {case: frozenset(changes) for case, changes in found.items()}


def _try_all(
    cases: Sequence[Case], folder: Path, asked: argparse.Namespace, only: Mapping[str, frozenset[str]]
) -> None:
    """Tries these cases, and keeps the pairs of each at its end."""
    for number, case in enumerate(cases):
        began = time.monotonic()
        print(f"{number + 1}/{len(cases)} {case.name}", flush=True)
        try:
            attempt = Attempt(case, folder, asked.threads, asked.budget, asked.compile_every, only.get(case.name))
            pairs = attempt.pairs()
        except (BottleneckError, Refused, Skipped) as reason:
            print(f"    skipped: {reason}", flush=True)
            continue
        append_pairs(asked.data, pairs)
        for pair in pairs:
            print(f"    {_told(pair)}", flush=True)
        print(f"    {time.monotonic() - began:.0f} s", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="?", help="folder for the recordings")
    parser.add_argument("--cases", default="", help="parts of names, with commas between them")
    parser.add_argument("--shard", default="1/1", help="K/N: the cases K, K+N, …")
    parser.add_argument("--budget", type=float, default=25.0, help="seconds of turns for each case")
    parser.add_argument("--compile-every", type=int, default=3, help="of how many cases one tries compilers unasked")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of everything that is measured")
    parser.add_argument("--data", type=Path, default=PAIRS)
    parser.add_argument("--predict-again", action="store_true", help="renew the predictions; measure nothing")
    parser.add_argument("--noisy-again", action="store_true", help="also cases of which most pairs are noisy")
    parser.add_argument(
        "--unlike-again", action="store_true", help="only changes of the process, measured against unlike copies"
    )
    parser.add_argument("--list", action="store_true", help="list the cases, and leave")
    return parser.parse_args()


def _chosen(names: str, shard: str) -> Iterator[Case]:
    """The cases whose names hold one of these parts, those of one shard."""
    parts = [part for part in names.split(",") if part]
    place, _, shards = shard.partition("/")
    for number, case in enumerate(CASES):
        if (not parts or any(part in case.name for part in parts)) and number % int(shards) == int(place) - 1:
            yield case


def _done(pairs: Sequence[Pair], *, noisy_again: bool) -> set[str]:
    """The cases that need not be tried: all that have pairs, or those of which half of them are not noisy."""
    tried = Counter(pair.case for pair in pairs)
    noisy = Counter(pair.case for pair in pairs if pair.is_noisy)
    return {case for case, count in tried.items() if not (noisy_again and 2 * noisy[case] > count)}


def predict_again(data: Path, folder: Path) -> None:
    """Replaces the claims of all pairs whose recording is there by those of the rules as they are now.

    A recording of another machine tells nothing of these measurements.
    """
    pairs, revision = read_pairs(data), _revision()
    findings = {}
    for case in dict.fromkeys(pair.case for pair in pairs):
        if (folder / case).exists():
            explained = explain([folder / case])
            findings[_machine(explained), case] = explained.analysis.findings
    claimed = [(pair, findings.get((pair.machine, pair.case))) for pair in pairs]
    write_pairs(data, [pair if found is None else repredict(pair, found, revision) for pair, found in claimed])
    without = len({pair.key[:2] for pair, found in claimed if found is None})
    print(f"{len(findings)} cases predicted again, {without} without a recording of their machine")


class Skipped(Exception):  # noqa: N818 - an outcome of a case
    """A case that cannot be tried here, and why."""


@dataclass
class Attempt:
    """One case under way: its recording, its processes, and the turns of all variants."""

    case: Case
    folder: Path
    threads: int
    budget_s: float
    compile_every: int
    only: frozenset[str] | None = None
    machine: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)

    def pairs(self) -> list[Pair]:
        """The pairs of all changes that could be tried, and of those that findings name and could not be."""
        began = time.monotonic()
        analysis = self.record()
        names = self.candidates(analysis)
        with (
            tempfile.TemporaryDirectory(prefix="bottleneck-corpus-") as scratch,
            self.variants(names, scratch) as steps,
        ):
            taken = self.take(steps)
        busy, seconds = busy_processors(), time.monotonic() - began
        named = {name for finding in analysis.findings for name in finding.tries}
        tried = [name for name in names if name in taken or name in named]
        return [self.pair(name, taken, analysis, (busy, seconds / max(len(tried), 1))) for name in tried]

    def record(self) -> Analysis:
        """The analysis of the case's recording, which is made as `bottleneck run` does unless it is there."""
        if self.case.needs is not None and importlib.util.find_spec(self.case.needs) is None:
            raise Skipped(f"needs {self.case.needs}: pip install '.[corpus]'")
        target = self.folder / self.case.name
        if not target.exists():
            words = [word for name, text in self.case.settings for word in ("--set", f"{name}={text}")]
            unfinished = self.folder / f".{self.case.name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            command = [sys.executable, "-m", "bottleneck.cli", "run", "-o", str(unfinished), *words]
            path = self.case.path.relative_to(ROOT)
            done = subprocess.run([*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Skipped(f"bottleneck run ended with status {done.returncode}: {done.stderr[-300:]}")
            unfinished.rename(target)
        explained = explain([target])
        self.machine = _machine(explained)
        return explained.analysis

    def candidates(self, analysis: Analysis) -> list[str]:
        """The changes to try: those that findings name, and those that might apply although none does.

        Threads beyond the first would measure whatever else has a processor now.
        """
        named = [name for finding in analysis.findings for name in finding.tries]
        turn = int(hashlib.sha256(self.case.name.encode()).hexdigest(), 16)
        blind = [*USUAL, OF_THE_PROCESS[turn % len(OF_THE_PROCESS)]]
        if turn % self.compile_every == 0:
            blind += COMPILERS
        blind += OF_THREADS if self.threads > 1 else ()
        known = {*USUAL, *OF_THE_PROCESS, *COMPILERS, "jemalloc", *(OF_THREADS if self.threads > 1 else ())}
        if self.only is not None:
            known &= self.only
            blind += sorted(self.only)
        return [name for name in dict.fromkeys([*named, *blind]) if name in known]

    @contextmanager
    def variants(self, names: Sequence[str], scratch: str) -> Iterator[dict[str, TimedStep]]:
        """The steps that could be made, by change; the two unchanged ones are the first and the last to be made."""
        program = Program(str(self.case.path), settings=self.case.settings)
        with ExitStack() as stack:
            until = time.monotonic() + CASE_SECONDS_AT_MOST

            def start(environment: Mapping[str, str]) -> Worker:
                worker = Worker(program, Path(scratch) / "output.txt", environment, VARIANTS_CHILD)
                worker.until = until
                return stack.enter_context(worker)

            alone = [name for name in names if runs_alone(name)]
            workers = {}
            if len(alone) < len(names) or not names:
                shared = start({})
                workers = dict.fromkeys([FIRST, *(name for name in names if name not in alone), AGAIN], shared)
            if alone:
                workers |= {FIRST_ALONE: start({}), AGAIN_ALONE: start({})}
                workers |= {name: start(environment_of([CHANGES[name]])) for name in alone}
            for name, worker in workers.items():
                try:
                    self.built[name] = worker.build(name, (name,) if name in CHANGES else ())
                except Refused as refused:
                    self.refused[name] = f"{refused.verdict}: {refused.reason}"
            prefetched = max(each.prefetched for each in self.built.values())
            yield {name: TimedStep(workers[name], name, each.step_us, prefetched) for name, each in self.built.items()}

    def take(self, steps: Mapping[str, TimedStep]) -> dict[str, list[float]]:
        """The turns of each step, as many rounds of them as the budget allows."""
        names = list(steps)
        round_s = sum(step.turn_s for step in steps.values())
        rounds = int(min(max(self.budget_s / round_s, ROUNDS_AT_LEAST), ROUNDS_AT_MOST))
        draw = random.Random(self.case.name)
        taken, failed = take_rounds({names.index(name): step for name, step in steps.items()}, rounds, draw, str)
        self.refused |= {names[index]: f"failed: {reason}" for index, reason in failed.items()}
        lost = [self.refused[name] for name in (FIRST, AGAIN, FIRST_ALONE, AGAIN_ALONE) if name in self.refused]
        if lost:
            raise Skipped(f"the unchanged step could not be measured: {lost[0]}")
        return {names[index]: times for index, times in taken.items()}

    def pair(
        self, name: str, taken: Mapping[str, Sequence[float]], analysis: Analysis, cost: tuple[float, float]
    ) -> Pair:
        """The pair of one change: each of its turns against the two unchanged ones of its round that ran as it did."""
        is_alone = runs_alone(name)
        first, again = (taken[each] for each in ((FIRST_ALONE, AGAIN_ALONE) if is_alone else (FIRST, AGAIN)))
        copies = estimate([math.log(one / other) for one, other in zip(first, again, strict=True)]).middle
        speedup = None
        if name in taken:
            samples = self.built[name].samples
            logs = [
                math.log(samples * math.sqrt(one * other) / changed)
                for one, other, changed in zip(first, again, taken[name], strict=True)
            ]
            found = estimate(logs)
            speedup = (math.exp(found.middle), math.exp(found.low), math.exp(found.high))
        return Pair(
            case=self.case.name,
            file=self.case.file,
            kind=self.case.kind,
            parameters=self.case.parameters,
            change=name,
            claims=claims_of(name, analysis.findings),
            speedup=speedup,
            refused=None if speedup is not None else self.refused.get(name, "not tried"),
            rounds=len(taken.get(name, ())),
            copies=copies,
            alone=is_alone,
            step_us=statistics.median(first),
            recorded_us=analysis.steps.wall_us,
            setup_s=self.built[name].setup_s if name in self.built else None,
            seconds=cost[1],
            busy=cost[0],
            threads=self.threads,
            machine=self.machine,
            torch=torch_version(),
            version=__version__,
            revision=_revision(),
            predicted_by=_revision(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _machine(explained: Explanation) -> str:
    """The processor with its instruction sets, their number, and the system."""
    device, recording = explained.analysis.device, explained.recording
    sets = str(recording.libraries.get("isa", "?")) if recording is not None else "?"
    narrow, full = (device.peaks_flops_per_s.get(name, 0.0) for name in ("bf16_tensor", "fp32_tensor"))
    sets += " with bf16" if narrow > full else ""
    return f"{device.name} ({sets}), {os.cpu_count()} processors, {platform.system()} {platform.machine()}"


def _revision() -> str:
    """The commit of the working tree, with a plus where the package differs from it."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "bottleneck"], check=False).returncode
    return commit.stdout.strip() + ("+" if changed else "")


def _told(pair: Pair) -> str:
    said = json.dumps([[claim.slug, claim.low, claim.high] for claim in pair.claims]) if pair.claims else "-"
    if pair.speedup is None:
        return f"{pair.change:18} {pair.refused} {said}"
    middle, low, high = pair.speedup
    noisy = " NOISY" if pair.is_noisy else ""
    return f"{pair.change:18} {middle:.3f} [{low:.3f}, {high:.3f}] copies {pair.copies:+.3f}{noisy} {said}"


if __name__ == "__main__":
    main()
