"""Reads the gate's settings, and finds workloads and lock-files.

Parses limits ("+3%", "+2", "+10MB") of that table and of --fail-on, and defines the default limits.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from bottleneck.errors import UsageError
from bottleneck.gate.toml_table import TomlTable, read_toml, shown
from bottleneck.harness.messages import Program
from bottleneck.harness.target import make_program
from bottleneck.schema.counters import COUNTERS, MODULE_COUNTERS
from bottleneck.schema.gate_result import GateSettings, Limit, Policy

STEP = "step_us"
MODULE_PREFIX = "module:"
# The step by the names that people write.
_STEP_NAMES = ("step_us", "step_ms")

_TIMES = {"us": 1.0, "ms": 1e3, "s": 1e6}
_BYTES = {"B": 1, "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FLOPS = {"FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12}
_SCALES: Mapping[str | None, Mapping[str, float]] = {None: {}, "B": _BYTES, "FLOP": _FLOPS, "us": _TIMES}
_AMOUNT = re.compile(r"(\+?)([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(%|[A-Za-z]{1,8})?")
# FLOPs and bytes repeat exactly too; allocated memory does except for workspaces that a library requests.
_DEFAULT_TEXTS = {name: "+1%" if name in {"peak_bytes", "allocated_bytes"} else "+0" for name in COUNTERS}
# Below 20 us a step is shorter than what two clocks of the same machine agree on.
_STEP_DEFAULT = Limit(STEP, relative=0.03, floor=20.0, text="+3%")


def default_budgets() -> dict[str, Limit]:
    """The limits of what pyproject.toml does not name."""
    budgets = {name: Limit(name, *_growth(name, text), text=text) for name, text in _DEFAULT_TEXTS.items()}
    return {**budgets, STEP: _STEP_DEFAULT}


def read_limits(section: TomlTable, *, of_anchor: bool = False) -> dict[str, Limit]:
    """Reads the limits of a table, by metric.

    Those of an anchor are of counters of the whole step only.
    """
    limits: dict[str, Limit] = {}
    for key in section.data:
        metric = _metric(section, key)
        if of_anchor and metric not in COUNTERS:
            raise section.error(
                key, "an anchor holds the counters of a step, no times and no modules", "give it a budget instead"
            )
        if metric in limits:
            raise section.error(key, f"{metric} has two limits")
        limits[metric] = _read_limit(section, key, metric)
    return limits


def limits_of_option(option: str, text: str | None) -> tuple[Limit, ...]:
    """Reads the limits of an option: 'step=+3%,syncs=+0'.

    UsageError where it is not valid.
    """
    if text is None:
        return ()
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    data = {STEP if name.strip() == "step" else name.strip(): limit.strip() for name, _, limit in pairs}
    if not data or len(data) < len(pairs):
        raise UsageError(f"{option} {text} names nothing, or something twice", fix="write it as step=+3%,syncs=+0")
    fix = "write it as step=+3%,syncs=+0,h2d_bytes=+10MB"
    limits = read_limits(TomlTable(data, Path(option), UsageError, fix))
    for name in limits:
        if name.startswith(MODULE_PREFIX):
            raise UsageError(
                f"{option} {name}: compare limits the whole step, not modules of it",
                fix="leave it out, or limit the module in pyproject.toml: [tool.bottleneck.gate.budget]",
            )
    return tuple(limits.values())


def split_module_metric(metric: str) -> tuple[str, str] | None:
    """Splits 'module:PATTERN.COUNTER' in two; null for any other metric."""
    if not metric.startswith(MODULE_PREFIX):
        return None
    pattern, _, counter = metric.removeprefix(MODULE_PREFIX).rpartition(".")
    return pattern, counter


def _metric(section: TomlTable, key: str) -> str:
    parts = split_module_metric(key)
    if parts is None:
        section_of = TomlTable({key: None}, section.file, section.failure, section.fix, section.path)
        section_of.refuse_others((*COUNTERS, *_STEP_NAMES))
        return STEP if key in _STEP_NAMES else key
    pattern, counter = parts
    if not pattern or counter not in MODULE_COUNTERS:
        names = ", ".join(MODULE_COUNTERS)
        raise section.error(key, f"a limit of modules is written module:PATTERN.COUNTER, with one of {names}")
    return key


def _read_limit(section: TomlTable, key: str, metric: str) -> Limit:
    value = section.data[key]
    if not isinstance(value, dict):
        relative, absolute = _parse(section, key, metric, value)
        return Limit(metric, relative, absolute, text=str(value))
    part = section.section(key)
    part.refuse_others(("max", "floor"))
    text = part.text("max")
    relative, absolute = _parse(part, "max", metric, text)
    return Limit(metric, relative, absolute, _floor(part, metric), text)


def _parse(section: TomlTable, key: str, metric: str, value: object) -> tuple[float | None, float | None]:
    if not isinstance(value, str):
        raise section.error(key, f"a limit is a text in quotes, and this is {shown(value)}", _LIMIT_FIX)
    try:
        return _growth(metric, value)
    except ValueError as exc:
        raise section.error(key, str(exc), _LIMIT_FIX) from exc


def _floor(section: TomlTable, metric: str) -> float:
    if "floor" not in section.data:
        return 0.0
    text = section.text("floor")
    try:
        relative, absolute = _growth(metric, text if text.startswith("+") else f"+{text}")
    except ValueError as exc:
        raise section.error("floor", str(exc), _LIMIT_FIX) from exc
    if absolute is None or relative is not None:
        raise section.error("floor", f"a floor is an amount, and this is {shown(text)}", _LIMIT_FIX)
    return absolute


_LIMIT_FIX = 'write "+0", "+2", "+3%", "+10MB" (bytes), "+0.2ms" (the step), or { max = "+3%", floor = "0.2ms" }'


def _growth(metric: str, text: str) -> tuple[float | None, float | None]:
    """Reads the share or the amount that a limit allows.

    The other is null. ValueError where it is not valid.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"this is no limit: {shown(text)}")
    sign, digits, unit = match.groups()
    if not sign:
        raise ValueError(f"a limit is the growth that is allowed, and begins with +: {shown('+' + text.strip())}")
    if unit == "%":
        return float(digits) / 100, None
    return None, float(digits) * _scale(metric, unit, digits)


def _scale(metric: str, unit: str | None, digits: str) -> float:
    parts = split_module_metric(metric)
    name = parts[1] if parts else metric
    scales = _SCALES["us" if name == STEP else COUNTERS[name].unit]
    if unit is None:
        if name == STEP and float(digits):
            raise ValueError(f"{name} is a time, whose amount has a unit: {', '.join(scales)}")
        if "." in digits:
            raise ValueError(f"{name} is counted in whole numbers")
        return 1.0
    if unit not in scales:
        units = f"the units {', '.join(scales)}, or %" if scales else "no unit but %"
        raise ValueError(f"{name} has {units}; this is {shown(unit)}")
    return scales[unit]


_FIX = "see docs/reference/gate.md for the keys of [tool.bottleneck.gate]"
_FILE = "pyproject.toml"
_KEYS = (
    "workloads", "against", "lock", "alpha", "on_undecided", "on_new", "time_limit", "setup", "seed", "env", "budget",
    "creep", "numerics",
)  # fmt: skip
_Alpha = Annotated[float, msgspec.Meta(gt=0, le=0.2)]
_POLICIES = "pass, warn or fail"
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|s|min|h)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=]+")
_PLACEHOLDER = "{workload}"
_NAME_CHARACTERS = 80


@dataclass(frozen=True)
class Project:
    """A project: its folder, from which workloads are named, and settings.

    The folder is that of pyproject.toml, else the working folder.
    """

    root: Path
    settings: GateSettings


def read_project(folder: Path, seed: int | None = None) -> Project:
    """Reads the project that a folder belongs to.

    ``seed`` replaces that of the settings. Raises as ``read_settings``.
    """
    pyproject = find_pyproject(folder)
    settings = read_settings(pyproject)
    if seed is not None:
        settings = replace(settings, seed=seed)
    return Project(folder if pyproject is None else pyproject.parent, settings)


def read_settings(pyproject: Path | None) -> GateSettings:
    """Reads the settings, with defaults for what they leave out.

    UsageError names a wrong key, and what to write.

    Without a file, or without the table in it, all settings are defaults.
    """
    if pyproject is None:
        return GateSettings(budgets=default_budgets())
    root = read_toml(pyproject, UsageError, _FIX)
    section = root.section("tool").section("bottleneck").section("gate")
    section.refuse_others(_KEYS)
    usual = GateSettings()
    return GateSettings(
        workloads=_workloads(section),
        against=_against(section, usual.against),
        lock=_lock(section, usual.lock),
        alpha=section.value("alpha", _Alpha, "the chance of a false alarm, above 0, at most 0.2", usual.alpha),
        on_undecided=section.value("on_undecided", Policy, _POLICIES, usual.on_undecided),
        on_new=section.value("on_new", Policy | None, _POLICIES, usual.on_new),
        time_limit_s=_seconds(section, "time_limit", usual.time_limit_s),
        setup=section.text("setup", usual.setup),
        seed=section.whole("seed", usual.seed),
        environment=_environment(section.section("env")),
        budgets={**default_budgets(), **read_limits(section.section("budget"))},
        creep=read_limits(section.section("creep"), of_anchor=True),
        numerics=section.value("numerics", bool, "true or false", usual.numerics),
    )


def find_pyproject(folder: Path) -> Path | None:
    """Finds the nearest pyproject.toml within the repository."""
    for place in (folder.resolve(), *folder.resolve().parents):
        if (place / _FILE).is_file():
            return place / _FILE
        if (place / ".git").exists():
            return None
    return None


def workload_name(words: Sequence[str]) -> str:
    """The name of a workload, fit for a file: 'examples-mlp', 'bench-decode-tokens-64'.

    From its command line: the file without '.py', or the module, then its options and arguments, joined by '-'.
    """
    options, (first, *others) = _split(words)
    path = PurePosixPath(first)
    stem = path.with_suffix("") if path.suffix == ".py" else path
    parts = [*(part for part in stem.parts if part not in {"/", "."}), *options, *others]
    name = "-".join(filter(None, (_NOT_IN_NAMES.sub("-", part).strip("-.") for part in parts))) or "workload"
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[:_NAME_CHARACTERS]}-{hashlib.sha256(shlex.join(words).encode()).hexdigest()[:8]}"


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits off the options before the file and its arguments."""
    options: list[str] = []
    rest = list(words)
    while len(rest) > 1 and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag in {"--set", "-m"}:
            flag = rest.pop(0) if flag == "--set" and len(rest) > 1 else ""
        options.append(flag)
    return options, rest or [""]


def lock_path(settings: GateSettings, root: Path, name: str) -> Path:
    """The path of a workload's lock-file."""
    return root / settings.lock.replace(_PLACEHOLDER, name)


def _workloads(section: TomlTable) -> tuple[str, ...]:
    texts = section.texts("workloads")
    names: dict[str, str] = {}
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as exc:
            raise section.error("workloads", f"{shown(text)} is no command line: {exc}") from exc
        if not words:
            raise section.error("workloads", "one of them is empty", 'name files: workloads = ["bench/train.py"]')
        other = names.setdefault(workload_name(words), text)
        if other is not text:
            raise section.error("workloads", f"{shown(other)} and {shown(text)} would have the same lock-file")
    return texts


def _against(section: TomlTable, usual: str) -> str:
    text = section.text("against", usual)
    if not text or text.startswith("-"):
        raise section.error("against", f'this has to be "merge-base", a git ref or a folder, and is {shown(text)}')
    return text


def _lock(section: TomlTable, usual: str) -> str:
    text = section.text("lock", usual)
    path = PurePosixPath(text)
    if _PLACEHOLDER not in path.name or path.is_absolute() or ".." in path.parts or "\0" in text:
        why = f"this has to be a path inside the repository whose last part holds {_PLACEHOLDER}, and is {shown(text)}"
        raise section.error("lock", why, f'write lock = "{usual}"')
    return text


def _seconds(section: TomlTable, key: str, usual: float) -> float:
    if key not in section.data:
        return usual
    match = _DURATION.fullmatch(section.text(key).strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise section.error(key, f"this has to be a duration, and is {shown(section.data[key])}", 'write "90s", "5min"')
    return seconds


def _environment(section: TomlTable) -> dict[str, str]:
    for key, value in section.plain_texts().items():
        if not _VARIABLE.fullmatch(key) or "\0" in value:
            raise section.error(key, "this cannot be an environment variable")
    return section.plain_texts()


def find_program(text: str, project: Project) -> Program:
    """Finds the program that a command line names, from the project's folder."""
    root = project.root
    words = [text] if (root / text).is_file() or Path(text).is_file() else shlex.split(text)
    settings, train, target, arguments = _split_argument(words, text)
    path = _from_root(target, root)
    if not (root / path).is_file():
        raise UsageError(
            f"there is no workload {target}",
            why=f"it is looked for from {root}",
            fix="name a file with workload(), with `model` and `inputs`, or a script",
        )
    program = make_program(str(root / path), arguments, settings, train=train, seed=project.settings.seed)
    return replace(program, target=path)


def _split_argument(words: Sequence[str], text: str) -> tuple[list[str], bool, str, list[str]]:
    """Splits a command line: --set, --train, file and arguments."""
    settings, train, rest = [], False, list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--set" and rest:
            settings.append(rest.pop(0))
        elif option.startswith("--set="):
            settings.append(option.removeprefix("--set="))
        elif option == "--train":
            train = True
        else:
            raise UsageError(
                f"the gate does not know {option} of the workload {text}",
                fix="write --set NAME=VALUE or --train before the file, the program's own arguments behind it",
            )
    if not rest:
        raise UsageError(f"the workload {text!r} names no file", fix="write it as [--set NAME=VALUE] FILE [ARGUMENTS]")
    return settings, train, rest[0], rest[1:]


def _from_root(target: str, root: Path) -> str:
    """The path relative to the root, if the file lies inside it."""
    path = Path(target)
    if not path.is_absolute() and (root / path).is_file():
        return path.as_posix()
    full_path = path.absolute()
    return full_path.relative_to(root).as_posix() if full_path.is_relative_to(root) else str(full_path)
