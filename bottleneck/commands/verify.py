"""``bottleneck verify``: tries changes on a step.

Each takes turns with the original. It reports what each is worth.
"""

import difflib
import itertools
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from bottleneck.commands.progress_bar import ProgressBar
from bottleneck.commands.report_options import (
    PROBE_BUDGET_S,
    RESULT_FORMATS,
    Assumptions,
    HostPaces,
    ProbeBudget,
    ProgramArguments,
    Quiet,
    Settings,
    Train,
    completion_of,
    form_of,
    format_option,
    output_option,
    output_style,
    send,
    typed_devices,
    write_report,
)
from bottleneck.errors import UsageError, WorkloadError
from bottleneck.report.output import write_note
from bottleneck.system.interrupts import answered, says_what_is_kept
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.calibrate.calibration import Calibration
    from bottleneck.harness.messages import Notes, Program
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.evidence import Explanation
    from bottleneck.schema.predicted_changes import PredictedChanges
    from bottleneck.schema.trials import Verification

_ALL = "all"
# The names of the changes, for a shell to complete: their functions would take longer to load than a TAB may.
CHANGE_NAMES = (
    "bf16-autocast",
    "tf32",
    "onednn-products",
    "channels-last",
    "cudnn-benchmark",
    "fused-optimizer",
    "foreach-optimizer",
    "set-to-none",
    "dropout-bits",
    "inference-mode",
    "no-anomaly",
    "threads-1",
    "threads-half",
    "threads-cores",
    "keep-pages",
    "jemalloc",
    "gc-freeze",
    "flush-denormal",
    "batch-x2",
    "compile",
    "compile-step",
    "compile-reduce-overhead",
    "compile-max-autotune",
    "fused-attention",
    "backend-openvino",
    "backend-onnxrt",
    "backend-tvm",
    "backend-tvm-tuned",
    "backend-xla",
    "backend-openxla",
    "backend-tensorrt",
    "backend-cudagraphs",
    "torchscript",
    "cuda-graph",
    "aot-package",
    "executorch",
    "whole-step",
    "fold-batchnorm",
    "checkpoint",
    "workers",
    "pin-memory",
    "replay-batch",
    "pad",
    "pad-vocabulary",
)
_LOG_TAIL_LINES, _INTERRUPTED = 30, 130
# Of the default, and what ending the processes and writing the result take of it.
_WITHIN_S, _CLOSING_S = 90.0, 4.0
_BUDGET_S = 30.0
# Pieces are timed for one part in so many of the seconds that are left.
_PIECES_PART = 6

# Shows the text of a stage, and the share of the trials that are done where it is known.


class _Say(Protocol):
    """Shows what is done now and what share is behind it.

    A stage is a part of what was shown last.
    """

    def __call__(self, text: str, share: float | None = None, *, is_stage: bool = False) -> None:
        """Shows it."""
        ...


def verify_command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="A file with workload(), or `model` and `inputs`; or a recording of one, a folder."
        ),
    ] = None,
    arguments: ProgramArguments = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME,…|all",
            help="Changes to try, each alone; those that the findings name unless given.",
            autocompletion=completion_of(lambda: (*CHANGE_NAMES, _ALL)),
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Then add up the winners, and measure each combination on the way.")
    ] = False,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="A,B",
            help="Predict what each change brings on devices that are not here; repeatable.",
            autocompletion=completion_of(typed_devices),
        ),
    ] = None,
    paces: HostPaces = None,
    no_gain: Annotated[
        bool, typer.Option("--no-gain", help="Try what the report lists as bringing nothing, in place of advice.")
    ] = False,
    settings: Settings = None,
    assumed: Assumptions = None,
    train: Train = False,
    budget: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Seconds of measuring for each change, 30 unless given."),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            min=10.0,
            metavar="SECONDS",
            help="Seconds until all is done; what finds no time is left out. 90 without --try, --best and --budget.",
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option(min=0.001, max=1.0, metavar="SHARE", help="How close an interval has to be.")
    ] = 0.02,
    probe_budget: ProbeBudget = PROBE_BUDGET_S,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Begins the program's random numbers, and draws who goes first.")
    ] = 0,
    chosen_form: Annotated[str | None, format_option("the trials")] = None,
    output: Annotated[Path | None, output_option("the trials")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the changes that can be tried, and leave.")] = False,
    quiet: Quiet = False,
) -> None:
    """Tries what the findings advise, each change against the original in turns, and says what it is really worth.

    \b
    bottleneck verify model.py
    bottleneck verify --try compile,bf16-autocast --set batch_size=64 model.py
    bottleneck verify --best bottleneck-runs/model-1
    bottleneck verify --within 300 model.py
    bottleneck verify --device 'H100 SXM',A100 model.py
    bottleneck verify --no-gain model.py
    bottleneck verify --list

    A change is faster or slower only where a fresh process shows it again, and wrong where it alters results by more
    than it may. Exit code 0 whatever the verdicts are; 4 where the program fails without any change.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    form = form_of(chosen_form, output, RESULT_FORMATS)
    if show_list:
        return _list_changes(form)
    from bottleneck.experiment.trial import TrialEffort, TrialSetup
    from bottleneck.experiment.verify import add_best, verify, with_untried
    from bottleneck.pipeline import explain
    from bottleneck.report.verification import render
    from bottleneck.schema.compiled_kernels import compiled_file
    from bottleneck.schema.recording import is_recording

    target = _checked_target(target, no_gain=no_gain, excluded=bool(tries or best))
    is_recorded = is_recording(Path(target))
    if devices:
        from bottleneck.harness.target import with_assumptions

        given = {
            "--best": best,
            "--no-gain": no_gain,
            "--budget": budget,
            "--within": within,
            "a recording": is_recorded,
        }
        _refuse_with_device([name for name, value in given.items() if value])
        program = _program(target, arguments or (), settings or (), train=train, seed=seed, may_be_script=True)
        program = with_assumptions(program, assumed or ())
        answer = _elsewhere(program, devices, paces or (), tries or (), quiet=quiet)
        return write_report(_rendered(answer, form, output), output)
    _refuse_without_device({"--host-pace": paces, "--assume": assumed})
    if is_recorded:
        if settings or train or arguments:
            raise UsageError(
                f"{target} is a recording, which has its own settings",
                fix="leave --set, --train and arguments out, or name the program's file instead",
            )
        program = _recorded_program(target, seed)
    else:
        program = _program(target, arguments or (), settings or (), train=train, seed=seed)
    if within is None and not (tries or best or budget):
        within = _WITHIN_S
    timer = _Timer(time.monotonic(), within)
    names = _checked([name.strip() for text in tries or () for name in text.split(",") if name.strip()])
    with (
        says_what_is_kept("no change was tried yet, so nothing is kept; the same command begins anew"),
        answered(),
        tempfile.TemporaryDirectory(prefix="bottleneck-verify-", ignore_cleanup_errors=True) as scratch,
    ):
        folder = Path(scratch)
        with _progress(timer, quiet=quiet) as say:
            recording = Path(target) if is_recorded else _record(program, folder, say, quiet=quiet)
            explained = explain([recording])
            # What would not help is that of the report, which times no pieces for it.
            analysis = (explained if no_gain else _with_pieces(explained, probe_budget, timer, names, say)).analysis
            setup = TrialSetup(
                program,
                folder,
                TrialEffort(budget or _BUDGET_S, math.log1p(precision), seed),
                # A program that compiles for itself would do it anew for each change.
                is_cold=not (recording / compiled_file(0)).exists(),
                tell=lambda text: say(text, is_stage=True),
                until=timer.until(),
            )
            chosen = names or tuple(name for name in _named_by(analysis, no_gain=no_gain) if name in setup.changes)

            def announce(name: str, number: int, total: int) -> None:
                say(f"trying {name} ({number + 1} of {total})", number / max(total, 1))

            done = verify(setup, chosen, analysis, announce)
            done = with_untried(done, analysis.no_gain) if no_gain else done
            if best:
                done = add_best(setup, done, analysis, announce)
            done = _with_what_is_left_out(done, within)
    write_report(render(done, form, output_style(output)), output)
    if done.is_interrupted:
        _say(_interrupted(done))
        raise typer.Exit(_INTERRUPTED)
    return None


def _checked_target(target: str | None, *, no_gain: bool, excluded: bool) -> str:
    """Gives the program or recording that is named.

    UsageError without one, and for options that exclude one another.
    """
    if target is None:
        raise UsageError("nothing to verify", fix="name a file with a workload: bottleneck verify FILE")
    if no_gain and excluded:
        raise UsageError(
            "--no-gain tries what would bring nothing, which --try and --best do not name",
            fix="leave them out, or run verify once for each",
        )
    return target


def _refuse_with_device(given: Sequence[str]) -> None:
    if given:
        raise UsageError(
            f"{given[0]} does not go with --device",
            why="nothing is measured: each change is predicted for a device that is not here",
            fix="leave it out, and name the program's file",
        )


def _refuse_without_device(options: Mapping[str, Sequence[str] | None]) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"{given} goes with --device only", fix="leave it out: steps are timed here")


def _elsewhere(
    program: "Program", devices: Sequence[str], paces: Sequence[str], tries: Sequence[str], *, quiet: bool
) -> "PredictedChanges":
    """Predicts each change for devices that are not here."""
    from bottleneck.commands.elsewhere import predict_elsewhere
    from bottleneck.commands.predict import devices_of, host_paces

    names = _checked([name.strip() for text in tries for name in text.split(",") if name.strip() not in ("", _ALL)])
    with _progress(_Timer(time.monotonic(), None), quiet=quiet) as say:
        chosen = devices_of(devices)
        pace_by_device = host_paces(paces, chosen)

        def tell(what: str, part: str) -> None:
            say(part or f"pricing {what}", is_stage=bool(part))

        return predict_elsewhere(program, chosen, pace_by_device, names, tell)


def _rendered(answer: "PredictedChanges", form: str, output: Path | None) -> str:
    from bottleneck.report.predicted_changes import render

    return render(answer, form, output_style(output))


def _named_by(analysis: "Analysis", *, no_gain: bool) -> tuple[str, ...]:
    """The changes that findings name, or those that would bring nothing."""
    from bottleneck.experiment.verify import tries_of, tries_without_gain

    return tries_without_gain(analysis.no_gain) if no_gain else tries_of(analysis.findings)


def _with_pieces(
    explained: "Explanation", budget_s: float, timer: "_Timer", names: Sequence[str], say: _Say
) -> "Explanation":
    """Adds pieces of the step that are timed now to the explanation.

    Only where its recording has none. Only those of changes that are tried, and for no more than a part of the time
    that there is. The recording stays.
    """
    if explained.recording is None or explained.recording.pieces is not None:
        return explained
    from bottleneck.experiment.pieces.measure import PieceBudget, measure_pieces

    most_s = math.inf if timer.within is None else max(timer.until() - time.monotonic(), 0.0) / _PIECES_PART
    budget = PieceBudget(min(budget_s, most_s), tell=lambda text, _share: say(text, is_stage=True))
    return measure_pieces(explained, None, budget, say, names)


def _with_what_is_left_out(done: "Verification", within: float | None) -> "Verification":
    """The verification with a warning that names what found no time."""
    from bottleneck.experiment.verify import left_out

    if within is None:
        return done
    changes = left_out(done)
    is_memory_unknown = any(trial.speedup is not None and trial.peak_after_bytes is None for trial in done.trials)
    parts = [*changes, *(["the peak memory of changes without a proven effect"] if is_memory_unknown else [])]
    if not parts:
        return done
    text = f"left out, to be done within {within:g} s: {', '.join(parts)}"
    if changes:
        text += f"; to try them: bottleneck verify --try {','.join(changes)} {shlex.join(done.program)}"
    return replace(done, warnings=(*done.warnings, text))


def _interrupted(done: "Verification") -> str:
    """Writes the line about trials that a signal ended.

    It tells which are done, and how to try the others.
    """
    left = [trial.change for trial in done.trials if trial.verdict == "skipped"]
    rest = f"; for the others: --try {','.join(left)}" if left else ""
    return f"interrupted; {counted(len(done.trials) - len(left), 'trial')} done, as shown above{rest}"


def _list_changes(form: str) -> None:
    """Prints the changes that can be tried."""
    import json

    from bottleneck.experiment.interventions import CHANGES

    rows = [{"name": change.name, "title": change.title, "precision": change.precision} for change in CHANGES.values()]
    if form == "json":
        send(json.dumps({"changes": rows}, indent=1) + "\n")
        return
    width = max((len(row["name"]) for row in rows), default=0)
    send("".join(f"{row['name'].ljust(width)}  {row['title']} ({row['precision']})\n" for row in rows))


def _program(
    target: str,
    arguments: Sequence[str],
    settings: Sequence[str],
    *,
    train: bool,
    seed: int,
    may_be_script: bool = False,
) -> "Program":
    """The program that the command line names; UsageError states what is missing."""
    from bottleneck.harness.target import check_source, make_program

    if not Path(target).is_file():
        raise UsageError(
            f"{target} is neither a file nor a recording",
            fix="name a file with workload() or with `model` and `inputs`, or a folder that `bottleneck run` made",
        )
    check_source(Path(target))
    program = make_program(target, arguments, settings, train=train, seed=seed)
    if program.form == "script" and not may_be_script:
        raise _is_a_script(target)
    return program


def _is_a_script(target: str) -> UsageError:
    return UsageError(
        f"{target} is a script, whose step cannot be made twice",
        why="verify makes the step afresh for each change, and runs the copies in turns",
        fix="move the step into a function: def workload(batch_size=32): build model and data, define step(), "
        "return step",
    )


def _recorded_program(target: str, seed: int) -> "Program":
    """The program of a recording, with the options that it was recorded with."""
    from bottleneck.schema.recording import read_recording

    recording = read_recording(Path(target))
    if recording.form == "script":
        raise _is_a_script(recording.command[0] if recording.command else target)
    if not recording.command or not Path(recording.command[0]).is_file():
        raise UsageError(
            f"the program of {target} is not found from here: {' '.join(recording.command[:1])}",
            fix="go to the folder in which it was recorded, or name the program's file instead",
        )
    settings = [text for flag, text in itertools.pairwise(recording.options) if flag == "--set"]
    file, *arguments = recording.command
    return _program(file, arguments, settings, train="--train" in recording.options, seed=seed)


def _checked(tries: Sequence[str]) -> tuple[str, ...]:
    """Gives the changes that are requested, all of which exist.

    Empty for those that the findings name.
    """
    from bottleneck.experiment.interventions import CHANGES

    if _ALL in tries:
        return tuple(CHANGES)
    for name in tries:
        if name not in CHANGES:
            near = difflib.get_close_matches(name, CHANGES, n=3)
            raise UsageError(
                f"there is no change called {name}",
                why=f"near it: {', '.join(near)}" if near else "",
                fix="see them all: bottleneck verify --list",
            )
    return tuple(dict.fromkeys(tries))


def _record(program: "Program", folder: Path, say: _Say, *, quiet: bool) -> Path:
    """Records the program as it is, as ``bottleneck run`` does.

    WorkloadError if the program fails.
    """
    from bottleneck.calibrate.cache import find_calibration, read_calibration
    from bottleneck.experiment.record_once import TELEMETRY_S, Ceilings, ProgramFailed, Recorder
    from bottleneck.harness.messages import RecordOptions

    say(f"recording {program.target}")
    target = folder / "recording"
    target.mkdir()

    def find_ceilings(notes: "Notes") -> "Calibration | None":
        # Those that are kept will do, disturbed or not: the time is for the trials.
        cached = None if notes.device_facts else read_calibration(notes.threads)
        return cached or find_calibration(notes.device_facts, notes.threads, say, is_quiet=quiet)

    recorder = Recorder(os.environ, ceilings=Ceilings(find_ceilings), telemetry_s=TELEMETRY_S)
    try:
        recorder.record(replace(program, seed=None), target, RecordOptions())
    except ProgramFailed as failed:
        print("\n".join(failed.stderr.splitlines()[-_LOG_TAIL_LINES:]), file=sys.stderr)
        raise WorkloadError(
            f"{program.target} could not be recorded",
            why=f"it ended with status {failed.status}; the last that it wrote is above",
            fix=f"see that it runs: bottleneck run {program.target}",
        ) from None
    return target


@dataclass(frozen=True)
class _Timer:
    """Holds the time when the command began and its limit.

    The time is by the monotonic clock. The limit is the seconds that it may take, null for any.
    """

    began: float
    within: float | None

    def until(self) -> float:
        """Gives the time when the trials have to end.

        A third of the seconds are theirs, however long recording took.
        """
        if self.within is None:
            return math.inf
        return max(self.began + self.within, time.monotonic() + self.within / 3) - _CLOSING_S

    def left(self, share: float) -> str:
        """Tells in words the time left once this share is done.

        The share is that of the trials. Empty where nothing is known yet.
        """
        passed_s = time.monotonic() - self.began
        guessed_s = passed_s * (1 - share) / share if share else math.inf
        left_s = min(guessed_s, math.inf if self.within is None else max(self.within - passed_s, 0.0))
        about = "about" if left_s == guessed_s else "at most"
        return f"{about} {left_s:.0f} s left" if math.isfinite(left_s) else ""


@contextmanager
def _progress(timer: _Timer, *, quiet: bool) -> Iterator[_Say]:
    """Shows progress.

    It is a bar on a terminal, a line for each trial elsewhere, or nothing.
    """
    if quiet:
        yield lambda *_, **__: None
    elif sys.stderr.isatty():
        with ProgressBar() as bar:
            yield _bar_teller(bar, timer)
    else:

        def tell(text: str, share: float | None = None, *, is_stage: bool = False) -> None:
            left = "" if share is None else timer.left(share)
            _say(f"{text}, {left}" if left else text, share, is_stage=is_stage)

        yield tell


def _say(text: str, share: float | None = None, *, is_stage: bool = False) -> None:  # noqa: ARG001 - no bar here
    if not is_stage:
        write_note(text)


def _bar_teller(bar: ProgressBar, timer: _Timer) -> _Say:
    """Gives a function that draws the stage of a trial.

    It stands behind the time that is left.
    """
    trial, done = "", 0.0

    def tell(text: str, share: float | None = None, *, is_stage: bool = False) -> None:
        nonlocal trial, done
        trial = trial if is_stage else text
        done = done if share is None else share
        stage = f": {text}" if is_stage else ""
        # The time left comes first: what is too long for the line is cut.
        bar.show(f"{left}: {trial}{stage}" if (left := timer.left(done)) else f"{trial}{stage}", share)

    return tell
