"""Keeps calibrations in the user's cache and measures this CPU.

A process of its own measures the CPU where no calibration is kept.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bottleneck.calibrate.calibration import Calibration, best_of_both
from bottleneck.devices.catalogue import device_from_json
from bottleneck.errors import ERROR_MARK
from bottleneck.harness.machine import allowance, cache_folder, cpu_facts, torch_version
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import Device
from bottleneck.schema.recording import Recording, is_recording, read_recording, write_recording
from bottleneck.system.files import write_whole
from bottleneck.units import counted

_FORMAT = "bottleneck/calibration/5"
# A measurement that other programs disturbed is repeated, which can only improve it, but not at every run.
_REPEAT_AFTER = timedelta(days=1)
# What the short measurement takes on two cores, with a process of its own that imports torch.
SHORT_S = 5
# Lies in the cache while this CPU is measured for a run.
_UNFINISHED = "cpu.unfinished"


def keep(before: Calibration | None, now: Calibration) -> Calibration:
    """Keeps a calibration and gives the one that holds from now on.

    It is the new one, or the better of both where either was disturbed.

    Where the user's cache cannot be written it has a caveat that says so.
    """
    result = now if before is None or not (before.caveats or now.caveats) else best_of_both(before, now)
    try:
        write_calibration(result)
    except OSError as exc:
        message = f"the ceilings could not be kept in {cache_folder()} and are forgotten again: {exc.strerror or exc}"
        return replace(result, caveats=(*result.caveats, Caveat("calibration-not-kept", message)))
    return result


def load_calibration(threads: int | None = None) -> Device | None:
    """Loads the kept ceilings of this CPU and torch version.

    They hold for the number of threads, where null is torch's choice. Null if none fit. Does not import torch.
    """
    calibration = read_calibration(threads)
    return None if calibration is None else calibration.device


def read_calibration(threads: int | None = None) -> Calibration | None:
    """The whole calibration behind ``load_calibration``; a file that cannot be read counts as absent."""
    identity, limits = cpu_facts().identity, allowance()
    for calibration in kept_calibrations("cpu"):
        if calibration.identity != identity:
            continue
        if calibration.threads == threads or (
            threads is None and calibration.is_default and calibration.allowance == limits
        ):
            return calibration
    return None


def kept_calibrations(kind: str) -> list[Calibration]:
    """Those of a kind of device that were made with this version of torch."""
    version = torch_version()
    return [calibration for calibration in _readable(kind) if calibration.torch == version]


def _readable(kind: str) -> list[Calibration]:
    calibrations = [_read(path) for path in sorted(cache_folder().glob(f"{kind}-*.json"))]
    return [calibration for calibration in calibrations if calibration is not None]


def calibration_file(calibration: Calibration) -> Path:
    """Gives the file of a calibration.

    There is one for each device, driver, torch and number of threads.
    """
    key = "\n".join((calibration.identity, calibration.torch, str(calibration.threads), calibration.driver))
    return cache_folder() / f"{calibration.device.kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def write_calibration(calibration: Calibration) -> Path:
    """Writes the calibration to its file in the user's cache.

    A reader never sees it half written.
    """
    path = calibration_file(calibration)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(to_plain(calibration), indent=1) + "\n")
    return path


def to_plain(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain dicts, lists and numbers."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(calibration)
    return {"format": _FORMAT} | plain


def _read(path: Path) -> Calibration | None:
    import msgspec

    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != _FORMAT or data.keys() != {item.name for item in fields(Calibration)}:
            return None
        device = device_from_json(data["device"])
        return replace(msgspec.convert(data, Calibration), device=device)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.MsgspecError):
        return None


def cpu_calibration(
    threads: int | None, report: Callable[[str], None], *, is_quiet: bool = False
) -> Calibration | None:
    """Gives the calibration of this CPU, measured now if there is none.

    It is for this number of threads. Null if the measurement fails, with a report.

    A disturbed one is made again after a while, in a process of its own: the measurement needs torch, which this one
    must not import. It is announced, and its progress shown on this terminal, unless ``is_quiet``.
    """
    reason = reason_to_measure(threads)
    if reason is None:
        return read_calibration(threads)
    if not is_quiet:
        report(f"measuring the ceilings of this CPU, {reason}; it takes about {SHORT_S} s")
    chosen = [] if threads is None else ["--threads", str(threads)]
    shown = sys.stderr.isatty() and not is_quiet
    # -P: a file of the user's that is called torch.py is not ours to import.
    command = [sys.executable, "-P", "-m", "bottleneck.cli", "calibrate", "--short", "--device", "cpu", *chosen]
    unfinished = cache_folder() / _UNFINISHED
    with suppress(OSError):
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    helper = subprocess.run(  # noqa: S603 - our own interpreter and text
        command if shown else [*command, "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if shown else subprocess.PIPE,
        text=True,
        check=False,
    )
    with suppress(OSError):
        unfinished.unlink()
    calibration = read_calibration(threads)
    if calibration is None:
        report(f"this CPU could not be measured: {_reason(helper)}; to try again: bottleneck calibrate")
    return calibration


def reason_to_measure(threads: int | None) -> str | None:
    """Gives the reason why this CPU is measured before a judgement.

    Null where the kept ceilings will do, and where there is no torch to measure it with.
    """
    if not torch_version():
        return None
    calibration = read_calibration(threads)
    if calibration is not None:
        return "again, since it was busy the last time" if _is_worth_repeating(calibration) else None
    if (cache_folder() / _UNFINISHED).exists():
        return "again, since it was interrupted the last time"
    return _reason_for_another(threads) if any(cache_folder().glob("cpu-*.json")) else "once per machine"


def _reason_for_another(threads: int | None) -> str:
    identity, version = cpu_facts().identity, torch_version()
    here = [calibration for calibration in _readable("cpu") if calibration.identity == identity]
    same = [calibration for calibration in here if calibration.torch == version]
    if same and threads is not None:
        return f"again, for {counted(threads, 'thread')} instead of {same[0].threads}"
    if same:
        return "again, since this process may use other processors than the last time"
    if here:
        return f"again, for torch {version} instead of {here[0].torch}"
    return "again, since what is kept is of another CPU or another version of bottleneck"


def _reason(helper: "subprocess.CompletedProcess[str]") -> str:
    if helper.returncode == 0:
        return "its ceilings could not be kept in the user's cache"
    lines = (helper.stderr or "").strip().splitlines() or [f"it ended with status {helper.returncode}"]
    return lines[0].removeprefix(ERROR_MARK)


def gpu_calibration(facts: Iterable[Mapping[str, str | int | float | None]]) -> Calibration | None:
    """Gives the kept calibration of the GPUs that a program saw.

    Null where there is none or they are not all alike.

    None is made here: that takes up to a minute, and the device may have other work.
    """
    from bottleneck.calibrate.gpu import identity, read_gpu_calibration
    from bottleneck.calibrate.probes import driver_version

    kinds = {identity(gpu) for gpu in facts}
    return read_gpu_calibration(kinds.pop(), driver_version()) if len(kinds) == 1 else None


def find_calibration(
    facts: Sequence[Mapping[str, str | int | float | None]],
    threads: int | None,
    report: Callable[[str], None],
    *,
    is_quiet: bool = False,
) -> Calibration | None:
    """Finds the calibration of the device that a program used.

    It is that of its GPUs (by their facts), else that of the CPU.
    """
    return gpu_calibration(facts) if facts else cpu_calibration(threads, report, is_quiet=is_quiet)


def _is_worth_repeating(known: Calibration) -> bool:
    was_busy = any(caveat.slug == "noisy-calibration" for caveat in known.caveats)
    return was_busy and datetime.now(UTC) - datetime.fromisoformat(known.created) > _REPEAT_AFTER


def add_ceilings(folder: Path, report: Callable[[str], None]) -> None:
    """Writes the ceilings into a recording of this CPU without any.

    They are measured now if need be.

    Nothing happens to any other path, and where the recording cannot be written.
    """
    recording = _lacking(folder)
    calibration = None if recording is None else cpu_calibration(recording.threads, report)
    if recording is None or calibration is None:
        return
    doubts = tuple(caveat.message for caveat in calibration.caveats)
    try:
        write_recording(folder, replace(recording, device=calibration.device, warnings=(*recording.warnings, *doubts)))
    except OSError:  # a recording that may only be read is explained as it is
        return


def _lacking(folder: Path) -> Recording | None:
    """The recording, if it is of this CPU and has no ceilings."""
    if not is_recording(folder):
        return None
    recording = read_recording(folder)
    return recording if recording.lacks_ceilings and recording.versions.get("cpu") == cpu_facts().identity else None
