"""What ``bottleneck run`` was asked for, checked: the plan of the measurement and the folder for its recording."""

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck.harness.notes import Plan


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
    step: str | None = None
    stop: bool = False
    nproc_per_node: str | None = None
    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None


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
        step=options.step,
        stop=options.stop,
        nproc_per_node=options.nproc_per_node,
        shapes=options.shapes,
        stacks=options.stacks,
        memory=options.memory,
    )


def _split_setting(text: str) -> tuple[str, str]:
    from bottleneck.errors import UsageError

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--set {text} is not NAME=VALUE", fix="write for example --set batch_size=64")
    return name, value


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
    for pattern in (*ours, "telemetry.csv", ".telemetry.csv.*", ".partial.*", ".fresh.*", ".notes*"):
        for path in folder.glob(pattern):
            path.unlink()
