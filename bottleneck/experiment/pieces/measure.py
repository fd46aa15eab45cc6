"""Measures pieces of a recorded step within a budget of seconds.

They are measured in a process of their own.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self, cast

import msgspec

from bottleneck.advice import advise
from bottleneck.experiment.pieces.choose import choose_pieces
from bottleneck.experiment.pieces.kinds import seconds_of
from bottleneck.experiment.pieces.specs import PieceSpec
from bottleneck.experiment.pieces.timing import PieceTimes
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.machine import COMPILATIONS, cache_folder, numbers_of_processors, processor_times
from bottleneck.harness.messages import Program
from bottleneck.harness.supervise import CHILD
from bottleneck.pipeline import finish_with_advice
from bottleneck.schema.analysis import StepAnalysis
from bottleneck.schema.evidence import Evidence, Explanation
from bottleneck.schema.measurements import MeasuredPiece, MeasuredPieces, missing_pieces
from bottleneck.schema.recording import Recording, write_recording
from bottleneck.units import counted

PIECES_CHILD = (CHILD, "bottleneck.experiment.pieces.timing:serve_pieces")
_QUIT_S = 0.1
# The first kernel on a machine takes 7.4 s of processor time instead of 22 s (torch 2.13): Inductor compiles no test
# programs for the instruction sets that the processor names, which a compiler that is older than these then refuses,
# and does not precompile its headers, which pays from five kernels on.
_QUICK_COMPILER = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
# Starting a process with torch takes so long on two cores that are free.
_LOAD_S = 1.6
# Ending the process, with a compiler that it may have started, belongs to the budget: seconds and share of it. On a
# machine with five times as many busy threads as processors, killing both took up to 1.4 s.
_ENDING_S, _ENDING_SHARE = 0.5, 0.05


class PieceWorker(Protocol):
    """Process that measures pieces.

    Its methods raise Refused, with the verdict "skipped" where the time is over.
    """

    def load(self, threads: int | None) -> str:
        """Gets ready; the version of torch."""

    def measure(self, spec: PieceSpec, device: str) -> PieceTimes:
        """The times of a piece."""

    def __enter__(self) -> Self:
        """Starts it."""

    def __exit__(self, *_: object) -> None:
        """Ends it."""


# The system counts CPU time in hundredths of a second.
SHORTEST_RATE_S = 0.5


def seconds_of_other_programs() -> float | None:
    """Returns CPU seconds of our processors used by other programs.

    They are those of the processors that this process may use, less its own and those of the children it waited for.
    Null if not told.
    """
    try:
        import psutil
    except ImportError:
        return None
    with suppress(OSError, AttributeError, RuntimeError):
        machine, own = processor_times(psutil, numbers_of_processors()), os.times()
        # Time of guests is part of the user's.
        idle = ("idle", "iowait", "guest", "guest_nice")
        busy_s = sum(seconds for name, seconds in machine.items() if name not in idle)
        return float(busy_s) - (own.user + own.system + own.children_user + own.children_system)
    return None


class PieceProcess(Worker):
    """Process that measures pieces.

    It is killed if it does not answer in time.
    """

    def __init__(self, until: float, log: Path) -> None:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / COMPILATIONS), **_QUICK_COMPILER}
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
    """Measurement of pieces one after the other within a budget.

    An interruption keeps the pieces measured so far.

    Those that usually fit into what is left come first; the process is killed at the end of the budget.
    ``open_worker`` starts a process that ends by a time of the clock, and writes to a file. ``tell`` gets the piece
    that is next, and the share of the seconds that is over.
    """

    budget_s: float
    open_worker: Callable[[float, Path], PieceWorker] = PieceProcess
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str, float], None] = lambda _text, _share: None
    seconds_of_others: Callable[[], float | None] = seconds_of_other_programs
    done: list[MeasuredPiece] = field(default_factory=list)
    is_interrupted: bool = False

    def measure(self, specs: Sequence[PieceSpec], evidence: Evidence, began: float | None = None) -> MeasuredPieces:
        """Measures the pieces in their order, and names those left out.

        An interruption ends it early.

        The seconds count from ``began``, a time of the clock; from now unless given.
        """
        began = self.clock() if began is None else began
        recording = evidence.recording
        threads = None if recording is None else recording.threads
        left, version = list(specs), None
        begun_s, others_s = self.clock(), self.seconds_of_others()
        until = began + self.budget_s - max(_ENDING_S, _ENDING_SHARE * self.budget_s)
        with ExitStack() as stack:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bottleneck-pieces-"))) / "output.txt"
            try:
                while left and self.clock() < until:
                    with self.open_worker(until, log) as worker:
                        begun = self.clock()
                        version = worker.load(threads)
                        pace = max(1.0, (self.clock() - begun) / _LOAD_S)
                        if not self._take(worker, left, until, pace, "cpu" if evidence.is_host_only else "cuda"):
                            break
            except Refused as refused:
                if refused.verdict != "skipped" and not self.done:
                    self.done.append(_without_times(left.pop(0), refused.reason))
            except KeyboardInterrupt:
                self.is_interrupted = True
        after_s, length_s = self.seconds_of_others(), self.clock() - begun_s
        grown_s = None if others_s is None or after_s is None else max(after_s - others_s, 0.0)
        return MeasuredPieces(
            budget_s=self.budget_s,
            spent_s=max(self.clock() - began, 0.0),
            machine=evidence.analysis.device.name,
            threads=threads,
            torch=version,
            pieces=tuple(self.done),
            left_out=tuple(_with_seconds(spec, self.done) for spec in left),
            other_processors=None if grown_s is None or length_s < SHORTEST_RATE_S else grown_s / length_s,
        )

    def _take(self, worker: PieceWorker, left: list[PieceSpec], until: float, pace: float, device: str) -> bool:
        """Measures what fits and takes it off the list.

        True where the process ended, so that another has to go on.
        """
        while (spec := self._next(left, until - self.clock(), pace)) is not None:
            begun = self.clock()
            (_, usual_s), has_died = seconds_of(spec, self._seen()), False
            self.tell(spec.what, 1.0 - (until - begun) / self.budget_s)
            try:
                piece = _with_times(spec, worker.measure(spec, device))
            except Refused as refused:
                if refused.verdict == "skipped":
                    return False
                piece, has_died = _without_times(spec, refused.reason), refused.has_died
            self.done.append(piece)
            left.remove(spec)
            if has_died:
                return True
            # A busy machine takes longer for the next one too.
            pace = max(1.0, (self.clock() - begun) / usual_s) if piece.reason is None else pace
        return False

    def _next(self, left: Sequence[PieceSpec], seconds: float, pace: float) -> PieceSpec | None:
        """Returns the first piece that fits, or may fit, the time.

        The time is these seconds at this pace of the machine.

        One without a compiler may fit at its usual pace: the process is killed in time anyway. A chain may fit if its
        kernels are in the cache, at this pace, since a compiler that runs takes a while to end.
        """
        needs = [(spec, seconds_of(spec, self._seen())) for spec in left]
        usual = next((spec for spec, (_, usual_s) in needs if pace * usual_s <= seconds), None)
        may_fit = (
            spec for spec, (least_s, usual_s) in needs if (pace * least_s if least_s < usual_s else usual_s) <= seconds
        )
        return usual or next(may_fit, None)

    def _seen(self) -> set[str]:
        return {piece.kind for piece in self.done}


def _with_seconds(spec: PieceSpec, done: Sequence[MeasuredPiece]) -> str:
    _, usual_s = seconds_of(spec, {piece.kind for piece in done})
    return f"{spec.what} ({spec.change}, about {math.ceil(usual_s)} s)"


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
        source=spec.source,
        module=spec.module,
    )


def measure_pieces(
    explained: Explanation,
    folder: Path | None,
    budget: PieceBudget,
    say: Callable[[str], None] = lambda _: None,
    changes: Collection[str] = (),
) -> Explanation:
    """Rests the findings of an explanation on measured pieces.

    The pieces are written into the recording of the folder.

    Without a folder nothing is written. Only pieces of ``changes`` are measured, where any are named. The same
    explanation where there is no time, nothing to measure, or no recording of one process; ``say`` gets the line that
    goes before, and those that name what is missing.
    """
    began, recording = budget.clock(), explained.recording
    if recording is None or len(recording.traces) != 1 or budget.budget_s <= 0:
        return explained
    specs = choose_pieces(explained, advise(explained, with_unmeasured=True))
    specs = tuple(spec for spec in specs if not changes or spec.change in changes)
    if not specs:
        return explained
    as_they_are = "as it is" if len(specs) == 1 else "as they are"
    say(
        f"timing {counted(len(specs), 'part')} of the step, {as_they_are} and changed, for at most "
        f"{budget.budget_s:.3g} s (--probe-budget)"
    )
    measured = budget.measure(specs, explained, began)
    if budget.is_interrupted:
        done = counted(sum(piece.ratio is not None for piece in measured.pieces), "piece")
        say(f"interrupted; {done} of {len(specs)} timed, which the findings use")
    else:
        for line in missing_pieces(measured):
            say(line)
    return with_pieces(explained, folder, measured)


def with_pieces(explained: Explanation, folder: Path | None, measured: MeasuredPieces) -> Explanation:
    """The explanation with these pieces, once they are in the recording."""
    assert explained.recording is not None, "pieces are those of a recording"
    recording = replace(explained.recording, pieces=measured)
    if folder is not None:
        _keep(folder, recording)
    step_fields = {name: getattr(explained.analysis, name) for name in StepAnalysis.__struct_fields__}
    step = StepAnalysis(**{**step_fields, "pieces": measured})
    evidence = Evidence(
        **{part.name: getattr(explained, part.name) for part in fields(Evidence) if part.init}
        | {"recording": recording, "analysis": step}
    )
    return finish_with_advice(evidence)


def _keep(folder: Path, recording: Recording) -> None:
    try:
        write_recording(folder, recording)
    except OSError:  # a recording that may only be read is explained all the same
        return
