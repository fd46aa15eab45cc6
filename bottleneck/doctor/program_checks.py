"""Judges the facts about Python, torch and its profiler, package names, and other profilers."""

from collections.abc import Mapping
from functools import partial

from bottleneck.doctor.facts import Facts, ProbeOutput
from bottleneck.schema.checks import Check, Status

_GROUP = "programs"
_PYTHON = partial(Check, "python", _GROUP, "Python")
_TORCH = partial(Check, "torch", _GROUP, "torch")
_PROFILER = partial(Check, "profiler", _GROUP, "profiler")
_NAME = partial(Check, "name", _GROUP, "our name")
_PANDAS = partial(Check, "pandas", _GROUP, "pandas")
_SHADOWS = partial(Check, "shadows", _GROUP, "shadows")
_OTHER_PROFILERS = partial(Check, "other-profilers", _GROUP, "profilers")
_SLOWING = partial(Check, "slowing", _GROUP, "settings")

# The versions of torch that the tests run on: from the first up to, not including, the second.
TESTED_TORCH = ((2, 13), (2, 14))
_TESTED_PYTHON = "3.11"
_ANEW = "uninstall it, then install torch-bottleneck anew, since both wrote into one folder:"
_PIP = 'pip install "torch>=2.13,<2.14"'

_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_", "NV_NSIGHT", "NV_COMPUTE_PROFILER",
             "HSA_TOOLS_LIB", "ROCP_TOOL", "ROCPROFILER_")  # fmt: skip
_PROFILER_LIBRARIES = ("nsys", "nsight", "ncu", "rocprof", "vtune", "injection")
# Settings that make the program slower than it is without them.
_SLOW_SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "AMD_SERIALIZE_KERNEL": "every launch waits for its kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "COVERAGE_PROCESS_START": "coverage follows every line of Python",
}
_OFF = {"", "0", "false", "no", "off"}


def program_rows(facts: Facts) -> list[Check]:
    """Checks of Python, torch, names and other profilers."""
    rows = (
        _python(facts),
        _torch(facts),
        _profiler(facts.torch),
        _name(facts),
        _pandas(facts.pandas),
        _shadows(facts.programs.shadows),
        _other_profilers(facts.environment),
        _slowing(facts.environment),
    )
    return [row for row in rows if row is not None]


def _python(facts: Facts) -> Check:
    programs = facts.programs
    fact = f"{programs.python} on {programs.system}, bottleneck {programs.ours}"
    if not programs.system.startswith("Linux"):
        return _PYTHON("limited", fact, "only Linux is tested")
    tested = f" {_TESTED_PYTHON}." in programs.python
    return _PYTHON("ok", fact, "" if tested else f"the tests run on Python {_TESTED_PYTHON}")


def _torch(facts: Facts) -> Check:
    found, installed = facts.torch.stages.get("import"), facts.programs.torch
    if found is None and installed is None:
        why = "`run` uses the torch of the program that it runs; reports of traces need none"
        return _torch_row("missing", "not installed", why, command=_PIP)
    if found is None:
        why = f"importing it {_end(facts.torch)}"
        return _torch_row("missing", f"{installed} is installed but cannot be imported", why, "install it anew", _PIP)
    fact = f"{found['version']} ({_build(found)} build), {found['threads']} threads"
    if not found.get("kineto"):
        return _torch_row("missing", fact, "this build has no Kineto, which records the events", command=_PIP)
    low, high = TESTED_TORCH
    if not low <= release(str(found["version"])) < high:
        why = f"tested with {_dotted(low)} up to, not including, {_dotted(high)}; traces of any version can be read"
        return _torch_row("limited", fact, why, command=_PIP)
    return _torch_row("ok", fact)


def _torch_row(status: Status, fact: str, why: str = "", remedy: str = "", command: str = "") -> Check:
    return _TORCH(status, fact, why, remedy, command, decides=True)


def _build(found: Mapping[str, object]) -> str:
    if found.get("hip"):
        return f"ROCm {found['hip']}"
    return f"CUDA {found['cuda']}" if found.get("cuda") else "CPU"


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; (0, 0) of what is none."""
    numbers = [part for part in version.partition("+")[0].split(".")[:2] if part.isascii() and part.isdecimal()]
    return tuple(int(part) for part in numbers) if len(numbers) == 2 else (0, 0)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _end(output: ProbeOutput) -> str:
    """The end of a probe that did not reach its last stage."""
    if output.status is None:
        return "did not end in time"
    ended = f"died of signal {-output.status}" if output.status < 0 else "failed"
    return f"{ended}: {output.error}" if output.error else ended


def _profiler(output: ProbeOutput) -> Check | None:
    """Check that a tiny window holds the ops that ran in it."""
    if "import" not in output.stages:
        return None
    found = output.stages.get("profiler")
    if found is None:
        return _profiler_row("missing", "recording a tiny window failed", f"it {_end(output)}")
    if "error" in found:
        return _profiler_row("missing", "recording a tiny window failed", str(found["error"]))
    if not found.get("ops"):
        return _profiler_row("missing", "a tiny window was recorded, but holds no op")
    return _profiler_row("ok", f"records: {found['ops']} ops in a tiny window")


def _profiler_row(status: Status, fact: str, why: str = "") -> Check:
    command = _PIP if status == "missing" else ""
    return _PROFILER(status, fact, why, command=command, decides=True)


def _name(facts: Facts) -> Check:
    """Check that `import bottleneck` finds this package; an array library has the same name."""
    found, other = facts.pandas.stages.get("bottleneck"), facts.programs.bottleneck
    why = "both are imported as `bottleneck`, and pandas calls functions of the other"
    if found is None:
        fact = "`import bottleneck` fails"
        return _NAME("missing", fact, _end(facts.pandas), "install it anew", decides=True)
    if found["is_array_library"]:
        fact = f"`import bottleneck` gives the array library at {found['file']}"
        return _NAME("missing", fact, why, _ANEW, "pip uninstall Bottleneck", decides=True)
    if other is not None:
        fact = f"the array library Bottleneck {other} is installed too"
        return _NAME("limited", fact, why, _ANEW, "pip uninstall Bottleneck", decides=True)
    return _NAME("ok", "`import bottleneck` is ours, and no other package claims it")


def _pandas(output: ProbeOutput) -> Check:
    found, median = output.stages.get("import"), output.stages.get("median")
    if found is None:
        return _PANDAS(
            "missing",
            "cannot be imported",
            _end(output),
            command="pip install pandas",
            decides=True,
        )
    if median is None or median["value"] != 2.0:
        why = f"it {_end(output)}" if median is None else f"the median of 1, 2, 3 was {median['value']}"
        fact = f"{found['version']} does not work beside us"
        return _PANDAS("missing", fact, why, command="pip uninstall Bottleneck", decides=True)
    return _PANDAS("ok", f"{found['version']} works beside us")


def _shadows(found: tuple[str, ...]) -> Check:
    if not found:
        return _SHADOWS("ok", "no file here or on PYTHONPATH hides a module")
    shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    why = "Python takes these where a program beside them means a module of that name"
    return _SHADOWS("limited", shown, why, "rename them, or leave their folder out of PYTHONPATH")


def _other_profilers(environment: Mapping[str, str]) -> Check:
    """Only one profiler can listen to a device at a time."""
    preloaded = environment.get("LD_PRELOAD", "").lower()
    found = [name for name in environment if name.startswith(_INJECTED)]
    found += ["LD_PRELOAD"] if any(word in preloaded for word in _PROFILER_LIBRARIES) else []
    kineto = [name for name in environment if name.startswith("KINETO_") and name != "KINETO_LOG_LEVEL"]
    if found:
        why = "a device takes one profiler at a time: kernels may be missing from the recording"
        remedy = "start `bottleneck run` outside of the other profiler"
        fact = f"another profiler is set up: {', '.join(found)}"
        return _OTHER_PROFILERS("limited", fact, why, remedy)
    if kineto:
        fact, why = f"set: {', '.join(kineto)}", "they change what torch's profiler records"
        return _OTHER_PROFILERS("limited", fact, why, command=f"unset {' '.join(kineto)}")
    return _OTHER_PROFILERS("ok", "no other profiler is set up here")


def _slowing(environment: Mapping[str, str]) -> Check | None:
    found = [name for name in _SLOW_SETTINGS if environment.get(name, "").lower() not in _OFF]
    if not found:
        return None
    why = "; ".join(dict.fromkeys(_SLOW_SETTINGS[name] for name in found))
    return _SLOWING("limited", f"set: {', '.join(found)}", why, command=f"unset {' '.join(found)}")
