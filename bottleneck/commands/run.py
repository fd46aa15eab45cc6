"""``bottleneck run``: records the user's program, then reports on it."""

import os
import sys
import traceback
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.notes import Plan
    from bottleneck.harness.telemetry import Monitor
    from bottleneck.recording import Recording

# What `--strict` makes of a failure of ours (design section 8).
_STRICT_STATUS = 4


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for; ``settings`` are the name=value texts of ``--set``."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    settings: tuple[str, ...] = ()
    train: bool = False
    steps: int | None = None
    warmup: int = 3
    output: Path | None = None
    force: bool = False
    strict: bool = False
    telemetry_ms: int = 20


def run_command(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A script, a file with workload(), or a file with `model` and `inputs`."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments, untouched.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of workload(); repeat for several."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Bare model: full training steps with AdamW.")] = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps to profile; 5 unless given, up to 20 where they are short."),
    ] = None,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Steps to let pass before any is measured.")] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder for the recording.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the recording in a folder that is not empty.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if only the measurement failed.")] = False,
    telemetry_ms: Annotated[
        int, typer.Option("--telemetry-ms", min=0, max=60_000, help="Period at which sensors are read; 0 for never.")
    ] = 20,
) -> None:
    """Records a program while it runs, then says what holds it back.

    \b
    bottleneck run train.py --epochs 1
    bottleneck run --set batch_size=64 workload.py
    bottleneck run -m package.train --config small

    Options stand before FILE; everything after it belongs to the program. The exit status is the program's own.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    program = [*([file] if file is not None else []), *(arguments or [])]
    options = RunOptions(
        target=module if module is not None else (program[0] if program else ""),
        arguments=tuple(program if module is not None else program[1:]),
        module=module is not None,
        settings=tuple(settings or ()),
        train=train,
        steps=steps,
        warmup=warmup,
        output=output,
        force=force,
        strict=strict,
        telemetry_ms=telemetry_ms,
    )
    raise typer.Exit(run(options))


def run(options: RunOptions) -> int:
    """The exit status of the program; UsageError before it starts when the options make no sense."""
    from bottleneck.harness.cpu import busy_processors
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.supervisor import supervise

    plan, busy = make_plan(options), busy_processors()
    monitor = _monitor(plan, options.telemetry_ms / 1e3)
    status = supervise(plan, options.arguments, monitor)
    telemetry = monitor.stop() if monitor is not None else None
    flag = ("-m",) if options.module else ()
    succeeded = _tell(plan, Ending((*flag, options.target, *options.arguments), status, busy, telemetry))
    return _STRICT_STATUS if options.strict and status == 0 and not succeeded else status


def _monitor(plan: "Plan", period_s: float) -> "Monitor | None":
    from bottleneck.harness.finish import measured_spans
    from bottleneck.harness.host import HostSampler
    from bottleneck.harness.nvml import NvmlSampler
    from bottleneck.harness.sensor_log import SensorLog
    from bottleneck.harness.telemetry import Monitor

    if not period_s:
        return None
    log = SensorLog(lambda: measured_spans(Path(plan.folder)))
    return Monitor((NvmlSampler(), HostSampler()), period_s, log)


def make_plan(options: RunOptions) -> "Plan":
    """The plan, with its output folder made; UsageError when something asked for cannot be."""
    from bottleneck.errors import UsageError
    from bottleneck.harness.notes import Plan
    from bottleneck.harness.target import check_settings, find_form

    if not options.target:
        raise UsageError(
            "nothing to run", fix="name a file: bottleneck run FILE, or a module: bottleneck run -m MODULE"
        )
    settings = tuple(_split_setting(text) for text in options.settings)
    form = "script" if options.module else find_form(Path(options.target))
    check_settings(Path(options.target), form, settings)
    if options.train and form != "model":
        raise UsageError(
            f"--train needs a file with `model` and `inputs`; {options.target} is a {form}",
            fix="leave --train out: a script or workload says itself what its step is",
        )
    return Plan(
        folder=str(_make_folder(options)),
        form=form,
        target=options.target,
        module=options.module,
        settings=settings,
        train=options.train,
        steps=options.steps,
        warmup=options.warmup,
        rank=_rank(),
    )


def _split_setting(text: str) -> tuple[str, str]:
    from bottleneck.errors import UsageError

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--set {text} is not NAME=VALUE", fix="write for example --set batch_size=64")
    return name, value


def _rank() -> int:
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def _make_folder(options: RunOptions) -> Path:
    """The absolute path of the output folder, made and found writable before the program starts."""
    from bottleneck.errors import UsageError

    folder = (options.output or Path(_default_name(options.target))).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=options.output is not None)
        is_empty = not any(folder.iterdir())
    except OSError as exc:
        raise UsageError(
            f"cannot make the folder {folder}: {exc.strerror}", fix="name one that can be written with -o DIR"
        ) from exc
    if not is_empty and not options.force:
        raise UsageError(
            f"{folder} is not empty",
            why="a recording never overwrites what it finds",
            fix="name another folder with -o, or pass --force",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write to {folder}", fix="name another folder with -o DIR")
    _remove_old_recording(folder)
    return folder


def _default_name(target: str) -> str:
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(target).stem)[:80]
    now = datetime.now().astimezone()
    return f"bottleneck-{stem or 'program'}-{now:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"


def _remove_old_recording(folder: Path) -> None:
    """Removes what an earlier recording left, and nothing else."""
    ours = ("recording.json", "analysis.json", "roofline.png", "trace.rank*.json.gz", "compiled.rank*.json")
    for pattern in (*ours, "telemetry.csv", ".telemetry.csv.*", ".partial.*", ".notes*"):
        for path in folder.glob(pattern):
            path.unlink()


def _tell(plan: "Plan", ending: "Ending") -> bool:
    """Whether recording and report succeeded; a failure of ours is told and leaves the program's status alone."""
    from bottleneck.errors import BottleneckError

    try:
        recording = _record(plan, ending)
        _say(_summary(plan, recording))
        if not recording.traces:
            return False
        _report(Path(plan.folder))
    except BottleneckError as error:
        _say(f"error: {error.what}")
        for label, text in (("why", error.why), ("fix", error.fix)):
            if text:
                _say(f"  {label}: {text}")
        return False
    except FileNotFoundError as error:
        _say(f"error: the recording could not be finished: {error.filename} is gone")
        _say("  fix: name a folder that the program leaves alone with -o DIR")
        return False
    except Exception:  # the program has run; a bug of ours must not take its exit status away
        _say_that_we_failed(Path(plan.folder))
        return False
    return True


def _say_that_we_failed(folder: Path) -> None:
    """Tells of the exception at hand; its traceback goes to a file, or to stderr if the program removed the folder."""
    _say("error: bottleneck itself failed after the program ended; what was recorded is kept")
    crash = folder / "bottleneck-crash.txt"
    try:
        crash.write_text(traceback.format_exc(), encoding="utf-8")
        _say(f"  fix: please report it with the file {crash}")
    except OSError:
        _say(traceback.format_exc())


def _record(plan: "Plan", ending: "Ending") -> "Recording":
    from bottleneck.harness.ceilings import cpu_calibration
    from bottleneck.harness.finish import finish_recording, read_notes

    notes = read_notes(Path(plan.folder))
    needs_ceilings = plan.partial_file.exists() and not notes.device_facts
    calibration = cpu_calibration(notes.threads, _say) if needs_ceilings else None
    return finish_recording(plan, notes, ending, calibration)


def _report(folder: Path) -> None:
    from bottleneck.commands.output import terminal_text
    from bottleneck.pipeline import analyse
    from bottleneck.report import FORMATS
    from bottleneck.report.plots import save_roofline

    analysis = analyse([folder])
    (folder / "analysis.json").write_text(FORMATS["json"](analysis), encoding="utf-8")
    save_roofline(analysis, folder / "roofline.png")
    _say(terminal_text(analysis, sys.stderr).rstrip("\n"))


def _summary(plan: "Plan", recording: "Recording") -> str:
    lines = [f"bottleneck: recorded {_describe_steps(recording)} in {_shown(Path(plan.folder))}"]
    lines += [f"bottleneck: {warning}" for warning in recording.warnings]
    return "\n".join(lines)


def _shown(folder: Path) -> Path:
    """The folder as seen from here, if it lies below and "here" still exists."""
    try:
        return folder.relative_to(Path.cwd())
    except (ValueError, OSError):
        return folder


def _describe_steps(recording: "Recording") -> str:
    if not recording.traces:
        return "no trace"
    count = max(0, len(recording.traces[0].step_marks_ns) - 1)
    return f"{count} steps" if count != 1 else "1 step"


def _say(text: str) -> None:
    print(text, file=sys.stderr)
