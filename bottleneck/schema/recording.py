"""The recording on disk: its records, reader and writer.

It is ``recording.json`` with one trace per rank.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bottleneck.errors import TraceError
from bottleneck.schema.device import Device
from bottleneck.schema.measurements import (
    Compilation,
    DebugMode,
    Extras,
    MeasuredPieces,
    MemoryGrowth,
    OtherThreads,
    Padding,
    RepeatedModule,
    RestingMemory,
    SettingName,
    Timing,
    ValuesLook,
)
from bottleneck.schema.records import check_ranges
from bottleneck.system.files import read_file, write_whole

RECORDING_SCHEMA = "bottleneck/recording/1"
RECORDING_FILE = "recording.json"
_LARGEST_BYTES = 64 * 2**20

Form = Literal["workload", "model", "script"]

# How the boundaries of the steps were found, most trusted first.
StepSource = Literal[
    "workload", "model", "mark", "optimizer", "module", "loader", "time window", "whole program", "none"
]

_KEPT_PREFIXES = ("CUDA_", "TORCH_", "OMP_", "MKL_", "NCCL_", "PYTORCH_")
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
# A user with a password in an address, or one long word that mixes letters and digits as keys and digests do.
_SECRET_VALUE = re.compile(r"://[^/\s@]+:[^/\s@]+@|^(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+_=-]{32,}$")
_REDACTED = "[redacted]"
# A string literal, which may end in a later line, or a comment.
_LITERAL = re.compile(r"""(?P<quote>['"])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?:(?P=quote)|$)|\s*#.*$""")
LONGEST_SOURCE_TEXT = 120


@dataclass(frozen=True)
class LightWindow:
    """Trace of a rank's window with the fewest profiler options.

    It is like a RankTrace. ``profiled`` is in us.
    """

    file: str
    step_marks_ns: tuple[int, ...]
    profiled: Timing | None


@dataclass(frozen=True)
class RankTrace:
    """Trace of one rank: its file and its step boundaries.

    The file name is that inside the folder. The boundaries are on the wall clock.

    ``step_marks_ns`` holds one mark more than there are steps, in nanoseconds since 1970; empty when no step was seen.
    Step times and ``timed_ns`` as in the recording, but of this rank; null in recordings made before ranks had them.
    ``light`` is null where only one window was recorded. ``first_step`` is the number of the step that begins at the
    first mark, among those that the program made: ranks of a job count alike. Null where no steps were watched, and in
    older recordings.
    """

    rank: int
    file: str
    step_marks_ns: tuple[int, ...] = ()
    unprofiled: Timing | None = None
    profiled: Timing | None = None
    timed_ns: tuple[int, int] | None = None
    light: LightWindow | None = None
    first_step: int | None = None


@dataclass(frozen=True)
class Sampling:
    """Sampling of the sensors in ``telemetry.csv``.

    ``cpu_share`` is the CPU time that this took, as a share of one processor; ``missed_share`` the ticks that were left
    out, being late or too dear. ``sensors`` names the sensor of each device by the number that the program knows it by.
    """

    period_ms: float
    samples: int
    cpu_share: float | None
    missed_share: float | None
    sensors: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Measured(Extras):
    """Measurements of a program that the profiled process makes and the recording keeps.

    ``step_name`` is what ended a step of the program ("optimizer.step of AdamW"), null where the harness repeats the
    step itself, and where no step was found. ``unprofiled`` and ``profiled`` are step times in microseconds,
    ``timed_ns`` is the stretch of the wall clock in which the unprofiled steps ran. ``threads`` are those that torch
    computes with, on so many ``cores`` at most, ``device_facts`` what each accelerator said of itself. ``libraries``
    are versions and abilities of what torch computes with, ``compilation`` is null where torch's compiler could not
    tell. ``search_path`` holds the folders that modules come from, relative to the working folder: frames of the trace
    are named from there.
    ``source_texts`` is what the lines of the program said when the trace was written, by 'model.py:57'. ``debug_modes``
    are aids to debugging that were on, ``memory_growth`` is null where it was not looked at, ``resting_memory`` empty
    where allocations were not recorded, ``padding`` null unless it was asked for, ``other_threads`` where no other
    Python thread ran or the system does not tell, ``values`` where those of no tensor were looked at.
    ``repeated_modules``, and the ops at ``repeated_lines``, gave the same in two steps; those of ``same_in_step`` gave
    it several times in one, and those at ``lines_same_in_step`` in so many rounds of a loop. Each round of a line of
    ``carried_lines`` needs the one before. ``setting_lines`` are the lines that choose threads, dtypes and loaders.
    """

    step_name: str | None = None
    unprofiled: Timing | None = None
    profiled: Timing | None = None
    timed_ns: tuple[int, int] | None = None
    threads: int | None = None
    cores: int | None = None
    device_facts: tuple[Mapping[str, str | int | float | None], ...] = ()
    warnings: tuple[str, ...] = ()
    libraries: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    compilation: Compilation | None = None
    search_path: tuple[str, ...] = ()
    source_texts: Mapping[str, str] = field(default_factory=dict)
    debug_modes: tuple[DebugMode, ...] = ()
    memory_growth: MemoryGrowth | None = None
    resting_memory: tuple[RestingMemory, ...] = ()
    padding: Padding | None = None
    other_threads: OtherThreads | None = None
    values: ValuesLook | None = None
    repeated_modules: tuple[RepeatedModule, ...] = ()
    repeated_lines: tuple[str, ...] = ()
    same_in_step: tuple[RepeatedModule, ...] = ()
    lines_same_in_step: Mapping[str, int] = field(default_factory=dict)
    carried_lines: tuple[str, ...] = ()
    setting_lines: Mapping[SettingName, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recording(Measured):
    """Everything that was measured besides the traces; the keys of ``recording.json``.

    With many ranks all that was measured of the program is that of the lowest rank that has a trace. ``steps_seen`` is
    how often a step's end was seen until all was measured, null where ``step_name`` is. ``perturbation`` is the ratio
    of the medians of ``profiled`` and ``unprofiled``. ``device`` holds measured ceilings. ``program_status`` is the
    exit status as a shell shows it (128 + N for signal N), null until the program has ended. ``processors`` counts
    those that the program might use. ``options`` are those of the command line that make the step what it is:
    ``--set NAME=VALUE`` and ``--train``. ``pieces`` are parts of the step that were timed alone afterwards; null where
    none were.
    """

    created: str
    command: tuple[str, ...]
    form: Form
    step_source: StepSource
    program_status: int | None
    framework: str | None
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    traces: tuple[RankTrace, ...]
    steps_seen: int | None = None
    perturbation: float | None = None
    processors: int | None = None
    device: Device | None = None
    options: tuple[str, ...] = ()
    sampling: Sampling | None = None
    pieces: MeasuredPieces | None = None
    schema: str = RECORDING_SCHEMA

    @property
    def lacks_ceilings(self) -> bool:
        """True for a trace of a CPU whose ceilings are not in the recording."""
        return bool(self.traces and self.device is None and not self.device_facts)


_LIGHT = "light.rank"


def light_file(rank: int) -> str:
    """The name of the trace of a rank's window with the fewest options."""
    return f"{_LIGHT}{rank}.json.gz"


def is_light_file(path: Path) -> bool:
    """Returns whether a name is that of a light window's trace.

    Such a trace is not a rank of its own.
    """
    return path.name.startswith(_LIGHT)


def is_recording(path: Path) -> bool:
    """True if the folder holds a recording (a folder with only traces does not)."""
    return (path / RECORDING_FILE).is_file()


def write_recording(folder: Path, recording: Recording) -> Path:
    """The file that now holds the recording; a reader never sees it half written."""
    import msgspec  # noqa: PLC0415 - the user's program shares a process with this module, not with msgspec

    path = folder / RECORDING_FILE
    plain = msgspec.to_builtins(recording)
    # Who opens the file finds first what was run.
    ordered = {name: plain[name] for name in Recording.__annotations__} | plain
    encoded = msgspec.json.encode(_encodable(ordered))
    write_whole(path, msgspec.json.format(encoded, indent=1) + b"\n")
    return path


def _encodable(value: object) -> object:
    """Replaces texts that JSON cannot hold.

    Bytes of arguments and paths that are no UTF-8 become escapes.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def read_recording(folder: Path) -> Recording:
    """The recording in a folder; TraceError says what is missing or malformed."""
    import msgspec  # noqa: PLC0415 - as above

    path = folder / RECORDING_FILE
    try:
        data = read_file(path, _LARGEST_BYTES)
    except OSError as exc:
        raise TraceError(
            f"cannot read {path}: {exc.strerror}", fix="name a folder written by `bottleneck run`"
        ) from exc
    try:
        recording = msgspec.json.decode(data, type=Recording)
        check_ranges(recording)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as exc:
        raise TraceError(
            f"{path} is not a recording", why=str(exc), fix="record again, or name the trace file itself"
        ) from exc
    if recording.schema != RECORDING_SCHEMA:
        raise TraceError(
            f"{path} has format {recording.schema!r}",
            why=f"this version reads {RECORDING_SCHEMA!r}",
            fix="read it with the version of bottleneck that wrote it, or record again",
        )
    for file in [window.file for trace in recording.traces for window in (trace, trace.light) if window is not None]:
        if Path(file).name != file or file in {"", ".", ".."} or "\0" in file:
            raise TraceError(
                f"{path} names a trace outside its folder: {file!r}",
                why="a report reads nothing outside the folder of the recording",
                fix="copy that trace into the folder and name it there, or record again",
            )
    return recording


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Picks the variables that shape performance.

    Those whose name or value looks like a secret are left out.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_KEPT_PREFIXES) and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }


def kept_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line with the values of secret-looking options replaced."""
    cleaned: list[str] = []
    secret_follows = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_option = argument.startswith("-")
        if (secret_follows and not is_option) or _SECRET_VALUE.search(argument):
            cleaned.append(_REDACTED)
        elif is_option and equals and _SECRET_NAME.search(name):
            cleaned.append(f"{name}={_REDACTED}")
        else:
            cleaned.append(argument)
        secret_follows = is_option and not equals and bool(_SECRET_NAME.search(argument))
    return tuple(cleaned)


def kept_source(line: str) -> str:
    """Shortens a line of a program, without comment and secrets.

    Strings that look like a secret are replaced.
    """
    names_secret = _SECRET_NAME.search(line) is not None

    def keep(found: re.Match[str]) -> str:
        quote, text = found["quote"], found["text"]
        if quote is None:
            return ""
        return f"{quote}{_REDACTED}{quote}" if text and (names_secret or _SECRET_VALUE.search(text)) else found[0]

    text = _LITERAL.sub(keep, line).strip()
    return text if len(text) <= LONGEST_SOURCE_TEXT else f"{text[: LONGEST_SOURCE_TEXT - 1]}…"
