"""Reads from a case what its counts depend on: versions, device, libraries and the program's arguments."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from bottleneck.schema.counters import Fingerprint, Value
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.recording import Recording

_MINOR = re.compile(r"(\d+\.\d+)")
_DIGEST_LENGTH = 8
_OF_CPU = ("isa", "mkl")
_OF_GPU = ("cuda", "cudnn", "hip")
# With and without oneDNN a CPU's convolutions are other ops (gate statistics, section 4).
_DECIDES_OPS_OF_CPU = ("onednn",)


def fingerprint_of(case: Evidence) -> Fingerprint:
    """The facts that the recording, or the trace alone, states; unknown facts are left out."""
    recording = case.recording
    if recording is None:
        return Fingerprint({"backend": case.linked.trace.flavour, **_ranks(case)}, _of_device(case))
    return Fingerprint(
        portable={
            **_known(torch=_minor(recording.framework or ""), python=_minor(recording.versions.get("python", ""))),
            "backend": case.linked.trace.flavour,
            **_known(compiled=_is_compiled(recording)),
            "world_size": len(recording.traces) or 1,
            **_told(recording, _DECIDES_OPS_OF_CPU if _is_host_only(case) else ()),
        },
        backend={**_of_device(case), **_known(threads=recording.threads), **_libraries(case, recording)},
        # Not its release: that changes with every update of the system, and lock-files with it.
        host=_known(cpu=recording.versions.get("cpu"), system=recording.versions.get("platform", "").partition("-")[0]),
    )


def input_digest(case: Evidence) -> str:
    """Digest of what the program is given: its form, options and arguments; empty for a bare trace.

    It leaves out shapes: in a trace the first call of the program itself cannot be identified, so that an op added to
    the model would look like another input. Whatever else the settings leave open changes the counters themselves.
    """
    recording = case.recording
    if recording is None:
        return ""
    words = recording.command[2:] if recording.command[:1] == ("-m",) else recording.command[1:]
    text = json.dumps([recording.form, list(recording.options), list(words)])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _known(**facts: Value | None) -> dict[str, Value]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _minor(version: str) -> str | None:
    match = _MINOR.search(version)
    return match[1] if match else None


def _is_compiled(recording: Recording) -> bool | None:
    return None if recording.compilation is None else recording.compilation.graphs > 0


def _ranks(case: Evidence) -> dict[str, Value]:
    return _known(world_size=case.linked.trace.world_size)


def _of_device(case: Evidence) -> dict[str, Value]:
    """The device that the trace names; of a CPU nothing, whose instructions are among its libraries."""
    devices = case.linked.trace.devices
    if _is_host_only(case) or not devices:
        return {}
    return _known(device=devices[0].name, sm_count=devices[0].sm_count)


def _libraries(case: Evidence, recording: Recording) -> Mapping[str, Value]:
    everything = (*_OF_GPU, *_OF_CPU, *_DECIDES_OPS_OF_CPU)
    return _told(recording, _OF_CPU if _is_host_only(case) else everything)


def _told(recording: Recording, names: Sequence[str]) -> Mapping[str, Value]:
    return {name: recording.libraries[name] for name in names if name in recording.libraries}


def _is_host_only(case: Evidence) -> bool:
    return case.linked.trace.device_args.empty
