"""Measures pieces of a recorded step within a budget of seconds, in a process of their own."""

import math
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self, cast

import msgspec

from bottleneck.advice import advise
from bottleneck.advice.interval_table import RuleTrial
from bottleneck.experiment.pieces.choose import choose_pieces
from bottleneck.experiment.pieces.specs import PieceSpec
from bottleneck.experiment.pieces.timing import PieceTimes
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.machine import COMPILATIONS, cache_folder
from bottleneck.harness.messages import Program
from bottleneck.harness.supervise import CHILD
from bottleneck.pipeline import finish
from bottleneck.schema.analysis import StepAnalysis
from bottleneck.schema.evidence import Evidence, Explanation
from bottleneck.schema.measurements import MeasuredPiece, MeasuredPieces
from bottleneck.schema.recording import Recording, write_recording
from bottleneck.units import counted

PIECES_CHILD = (CHILD, "bottleneck.experiment.pieces.timing:serve_pieces")
_QUIT_S = 0.2


class PieceWorker(Protocol):
    """A process that measures pieces; both raise Refused, with the verdict "skipped" where the time is over."""

    def load(self, threads: int | None) -> str:
        """Gets ready; the version of torch."""

    def measure(self, spec: PieceSpec, device: str) -> PieceTimes:
        """The times of a piece."""

    def __enter__(self) -> Self:
        """Starts it."""

    def __exit__(self, *_: object) -> None:
        """Ends it."""


class PieceProcess(Worker):
    """A process that measures pieces; it is killed if it does not answer in time."""

    def __init__(self, until: float, log: Path) -> None:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / COMPILATIONS)}
        super().__init__(Program(""), log, environment, PIECES_CHILD)
        self.until = until

    def load(self, threads: int | None) -> str:
        """See PieceWorker."""
        return cast("str", self._ask(math.inf, do="load", threads=threads))

    def measure(self, spec: PieceSpec, device: str) -> PieceTimes:
        """See PieceWorker."""
        values: Any = self._ask(math.inf, do="piece", piece=asdict(spec), device=device)
        return msgspec.convert(values, PieceTimes)

    def __exit__(self, *_: object) -> None:
        """See PieceWorker."""
        self.close(_QUIT_S)


@dataclass
class PieceBudget:
    """Measures pieces one after the other until the budget is spent; an interruption keeps the pieces measured so far.

    ``open_worker`` starts a process that ends by a time of the clock, and writes to a file. ``tell`` gets the piece
    that is next, and the share of the seconds that is over.
    """

    budget_s: float
    open_worker: Callable[[float, Path], PieceWorker] = PieceProcess
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str, float], None] = lambda _text, _share: None
    done: list[MeasuredPiece] = field(default_factory=list)

    def measure(self, specs: Sequence[PieceSpec], evidence: Evidence) -> MeasuredPieces:
        """The pieces in their order, and the names of those that were left out; an interruption ends it early."""
        began = self.clock()
        recording = evidence.recording
        threads = None if recording is None else recording.threads
        version = None
        with ExitStack() as stack:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bottleneck-pieces-"))) / "output.txt"
            try:
                while len(self.done) < len(specs):
                    with self.open_worker(began + self.budget_s, log) as worker:
                        version = worker.load(threads)
                        if not self._take(worker, specs, began, "cpu" if evidence.is_host_only else "cuda"):
                            break
            except Refused as refused:
                if refused.verdict != "skipped" and not self.done:
                    self.done.append(_without_times(specs[0], refused.reason))
            except KeyboardInterrupt:
                pass
        return MeasuredPieces(
            budget_s=self.budget_s,
            spent_s=max(self.clock() - began, 0.0),
            machine=evidence.analysis.device.name,
            threads=threads,
            torch=version,
            pieces=tuple(self.done),
            left_out=tuple(spec.what for spec in specs[len(self.done) :]),
        )

    def _take(self, worker: PieceWorker, specs: Sequence[PieceSpec], began: float, device: str) -> bool:
        """Measures what is left; true where the process ended in the middle, so that another has to go on."""
        for spec in specs[len(self.done) :]:
            passed = self.clock() - began
            if passed >= self.budget_s:
                return False
            self.tell(spec.what, passed / self.budget_s)
            try:
                times = worker.measure(spec, device)
            except Refused as refused:
                if refused.verdict == "skipped":
                    return False
                self.done.append(_without_times(spec, refused.reason))
                if "its process" in refused.reason:
                    return True
            else:
                self.done.append(_with_times(spec, times))
        return False


def _with_times(spec: PieceSpec, times: PieceTimes) -> MeasuredPiece:
    return replace(
        _without_times(spec, None),
        as_is_us=times.as_is_us,
        changed_us=times.changed_us,
        ratio=times.ratio,
        at_worst=times.at_worst,
    )


def _without_times(spec: PieceSpec, reason: str | None) -> MeasuredPiece:
    return MeasuredPiece(
        kind=spec.kind,
        finding=spec.finding,
        change=spec.change,
        what=spec.what,
        calls=spec.calls,
        recorded_us=spec.recorded_us,
        share=min(spec.share, 1.0),
        reason=reason,
    )


def measure_pieces(
    explained: Explanation,
    folder: Path | None,
    budget: PieceBudget,
    say: Callable[[str], None] = lambda _: None,
    changes: Collection[str] = (),
    trials: Sequence[RuleTrial] = (),
) -> Explanation:
    """The explanation with findings that rest on measured pieces, which are written into the recording of the folder.

    Without a folder nothing is written. Only pieces of ``changes`` are measured, where any are named. The same
    explanation where there is no time, nothing to measure, or no recording of one process; ``say`` gets the line that
    goes before, and those that name what is missing.
    """
    recording = explained.recording
    if recording is None or len(recording.traces) != 1 or budget.budget_s <= 0:
        return explained
    specs = choose_pieces(explained, explained.analysis.findings)
    specs = tuple(spec for spec in specs if not changes or spec.change in changes)
    if not specs:
        return explained
    say(
        f"bottleneck: measuring {counted(len(specs), 'piece')} of the step alone, as it is and changed, for at most "
        f"{budget.budget_s:.3g} s (--probe-budget)"
    )
    measured = budget.measure(specs, explained)
    for line in _missing(measured):
        say(f"bottleneck: {line}")
    return with_pieces(explained, folder, measured, trials)


def _missing(measured: MeasuredPieces) -> list[str]:
    """The lines that name the pieces without times."""
    lines = [f"not measured: {piece.what}: {piece.reason}" for piece in measured.pieces if piece.reason is not None]
    if measured.left_out:
        named = "; ".join(measured.left_out[:3]) + ("; …" if len(measured.left_out) > 3 else "")
        lines.append(
            f"{counted(len(measured.left_out), 'piece')} left out for lack of time: {named}; to measure more: "
            "--probe-budget 60"
        )
    return lines


def with_pieces(
    explained: Explanation, folder: Path | None, measured: MeasuredPieces, trials: Sequence[RuleTrial]
) -> Explanation:
    """The explanation with these pieces, once they are in the recording."""
    assert explained.recording is not None, "pieces are those of a recording"
    recording = replace(explained.recording, pieces=measured)
    if folder is not None:
        _keep(folder, recording)
    known = {name: getattr(explained.analysis, name) for name in StepAnalysis.__struct_fields__}
    step = StepAnalysis(**{**known, "pieces": measured})
    evidence = Evidence(
        **{each.name: getattr(explained, each.name) for each in fields(Evidence) if each.init}
        | {"recording": recording, "analysis": step}
    )
    return finish(evidence, advise(evidence, trials))


def _keep(folder: Path, recording: Recording) -> None:
    try:
        write_recording(folder, recording)
    except OSError:  # a recording that may only be read is explained all the same
        return
