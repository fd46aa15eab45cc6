"""Counts what the steps of a case did: one whole number per counter, with its breakdown by op, module and line."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bottleneck.errors import UndecidedError
from bottleneck.gate.counted_work import DIFFER, Tally, Unknown, Work, by_label, plain_module, plain_op, relabel, spread
from bottleneck.schema.case import Case
from bottleneck.schema.counters import Counts, Fingerprint, Site, Value
from bottleneck.schema.recording import Recording

_MINOR = re.compile(r"(\d+\.\d+)")
_DIGEST_LENGTH = 8
_OF_CPU = ("isa", "mkl")
_OF_GPU = ("cuda", "cudnn", "hip")
# With and without oneDNN a CPU's convolutions are other ops (gate statistics, section 4).
_DECIDES_OPS_OF_CPU = ("onednn",)


def fingerprint_of(case: Case) -> Fingerprint:
    """As much as the recording, or the trace alone, tells; what is unknown is left out."""
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


def input_digest(case: Case) -> str:
    """Digest of what the program is given: its form, options and arguments; empty for a bare trace.

    Not of shapes: a trace has no call that is surely the first of the program's own, so that an op added to the model
    would look like another input. What the settings leave open changes the counters themselves.
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


def _ranks(case: Case) -> dict[str, Value]:
    return _known(world_size=case.linked.trace.world_size)


def _of_device(case: Case) -> dict[str, Value]:
    """The device that the trace names; of a CPU nothing, whose instructions are among its libraries."""
    devices = case.linked.trace.devices
    if _is_host_only(case) or not devices:
        return {}
    return _known(device=devices[0].name, sm_count=devices[0].sm_count)


def _libraries(case: Case, recording: Recording) -> Mapping[str, Value]:
    everything = (*_OF_GPU, *_OF_CPU, *_DECIDES_OPS_OF_CPU)
    return _told(recording, _OF_CPU if _is_host_only(case) else everything)


def _told(recording: Recording, names: Sequence[str]) -> Mapping[str, Value]:
    return {name: recording.libraries[name] for name in names if name in recording.libraries}


def _is_host_only(case: Case) -> bool:
    return case.linked.trace.device_args.empty


RUNS_DIFFER = "runs differ"
_NOT_ALWAYS = "known in some runs only"


def merge(runs: Sequence[Counts]) -> Counts:
    """One record of runs of the same program on the same machine; the first one speaks where all agree.

    What differs is in ``unstable``, as ``count`` names it, and nowhere else; modules and lines keep only what all runs
    tell alike. UndecidedError where the runs were made under different circumstances.
    """
    first = runs[0]
    _check_circumstances(runs)
    unstable = {name: text for run in runs for name, text in run.unstable.items()}
    unknown = {name: text for run in runs for name, text in run.unknown.items()}
    for name in {name for run in runs for name in run.values} & unknown.keys():
        unstable[name] = f"{unknown.pop(name)}: {_NOT_ALWAYS}"
    values = _shared([run.values for run in runs], "", unstable)
    return replace(
        first,
        values={name: value for name, value in values.items() if name not in unknown},
        unknown=unknown,
        ops=_shared([run.ops for run in runs], "ops:", unstable),
        kernels=_shared([run.kernels for run in runs], "kernels:", unstable),
        modules=_shared_groups([run.modules for run in runs]),
        sites=_shared_sites([run.sites for run in runs]),
        unstable=dict(sorted(unstable.items())),
        steps=min(run.steps for run in runs),
        runs=sum(run.runs for run in runs),
    )


def _check_circumstances(runs: Sequence[Counts]) -> None:
    first = runs[0]
    for other in runs[1:]:
        for tier in ("portable", "backend"):
            one, two = getattr(first.fingerprint, tier), getattr(other.fingerprint, tier)
            if one != two:
                names = ", ".join(sorted(name for name in {*one, *two} if one.get(name) != two.get(name)))
                raise UndecidedError(
                    "two runs of the same program were made under different circumstances",
                    why=f"they differ in: {names}",
                    fix="run them on one machine, with the same environment",
                )
        if other.input_sha != first.input_sha:
            raise UndecidedError(
                "two runs that should be alike were given different settings or arguments",
                fix="count the same command line in all runs",
            )


def _shared(runs: Sequence[Mapping[str, int]], prefix: str, unstable: dict[str, str]) -> dict[str, int]:
    """What all runs agree on; the rest is added to ``unstable``, where an unstable name counts as any number."""
    names = dict.fromkeys(name for run in runs for name in run)
    kept = {}
    for name in names:
        seen = [run.get(name, 0) for run in runs]
        if f"{prefix}{name}" in unstable:
            continue
        if min(seen) == max(seen):
            kept[name] = seen[0]
        else:
            unstable[f"{prefix}{name}"] = spread(min(seen), max(seen), RUNS_DIFFER)
    return kept


def _shared_groups(runs: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, Mapping[str, int]]:
    shared = {name: _equal([run.get(name, {}) for run in runs]) for name in runs[0]}
    return {name: counts for name, counts in shared.items() if counts}


def _shared_sites(runs: Sequence[Sequence[Site]]) -> tuple[Site, ...]:
    by_place = [{site.place: site for site in run} for run in runs]
    sites = []
    for site in runs[0]:
        same = [run[site.place] for run in by_place if site.place in run]
        if len(same) == len(runs):
            counts, ops = _equal([each.counts for each in same]), _equal([each.ops for each in same])
            sites.append(replace(site, counts=counts, ops=ops))
    return tuple(site for site in sites if site.counts or site.ops)


def _equal(runs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: value for name, value in runs[0].items() if all(run.get(name) == value for run in runs)}


_FRAME = re.compile(r"^(?P<path>[^\n]{1,1000}?)\((?P<line>\d{1,9})\): ")
_LONGEST_TEXT = 200
_LARGEST_FILE = 5_000_000


class Sources:
    """Files of a working folder by the lines that a trace names; without a folder no file is looked for or opened."""

    def __init__(self, case: Case, root: Path | None) -> None:
        self._root = None if root is None else root.resolve()
        self._folders = _folders(case)
        self._paths = _paths_by_source(case)
        self._lines: dict[str, Sequence[str]] = {}

    def locate(self, source: str) -> tuple[str, int]:
        """File and line of 'train.py:57', the file relative to the working folder where it lies in it."""
        name, _, line = source.rpartition(":")
        paths = self._paths.get(source, ())
        # Two files of one name with code in the same line: nobody knows which.
        path = next(iter(paths)) if len(paths) == 1 else name
        return self.relative(path), int(line)

    def relative(self, path: str) -> str:
        """The path as seen from the working folder; what lies elsewhere keeps its name only."""
        path = path.replace("\\", "/")
        if self._root is not None:
            for folder in self._folders:
                found = self._inside(self._root / folder / path)
                if found is not None:
                    return found.relative_to(self._root).as_posix()
        is_elsewhere = path.startswith(("/", "..")) or re.match(r"^[A-Za-z]:", path) is not None
        return path.rpartition("/")[2] if is_elsewhere else path

    def text(self, file: str, line: int) -> str:
        """That line without its indent, cut; empty where the file is not at hand."""
        if file not in self._lines:
            self._lines[file] = self._read(file)
        lines = self._lines[file]
        return lines[line - 1].strip()[:_LONGEST_TEXT] if 1 <= line <= len(lines) else ""

    def _inside(self, path: Path) -> Path | None:
        """The file itself, if it is one and lies in the working folder once links are followed."""
        try:
            real = path.resolve()
            is_file = self._root is not None and real.is_relative_to(self._root) and real.is_file()
        except (OSError, ValueError, RuntimeError):  # a name that no system takes, a loop of links
            return None
        return real if is_file else None

    def _read(self, file: str) -> Sequence[str]:
        path = None if self._root is None else self._inside(self._root / file)
        try:
            if path is None or path.stat().st_size > _LARGEST_FILE:
                return ()
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ()


def _folders(case: Case) -> tuple[str, ...]:
    """Folders, relative to the working one, in which a name that the profiler has cut may begin."""
    recording = case.recording
    told = () if recording is None else recording.search_path
    return tuple(dict.fromkeys((*told, "")))


def _paths_by_source(case: Case) -> Mapping[str, set[str]]:
    """The paths that each 'train.py:57' of the tables stands for."""
    wanted = set(_used_sources(case))
    found: dict[str, set[str]] = {}
    for label in case.linked.trace.events["name"].cat.categories if wanted else ():
        match = _FRAME.match(label) if "): " in label else None
        if match is not None:
            path = match["path"].replace("\\", "/")
            source = f"{path.rpartition('/')[2]}:{match['line']}"
            if source in wanted:
                found.setdefault(source, set()).add(path)
    return found


def _used_sources(case: Case) -> Iterable[str]:
    tables = (case.linked.ops, case.linked.kernels, case.linked.places)
    return (label for table in tables if table is not None for label in table["source"].cat.categories)


Locate = Callable[[str], tuple[str, int]]


# What a module is told of; lines are told of all parts.
_OF_MODULES = ("ops", "launches", "syncs", "copies")


def ops_by_name(work: Work) -> Mapping[str, Tally]:
    """Calls of each op."""
    names = work.linked.ops["name"].cat
    code, labels = relabel(names.codes.to_numpy().astype(np.int64), [plain_op(name) for name in names.categories])
    return by_label(np.where(work.is_call, work.scope.op_step, -1), code, labels, work.steps)


def by_module(work: Work) -> Mapping[str, Mapping[str, int]]:
    """Counters of each module path; what happens in a module inside is that module's. Only what all steps agree on."""
    found: dict[str, dict[str, int]] = {}
    for counter in _OF_MODULES:
        if counter in work.parts:
            rows = work.parts[counter]
            code, labels = rows.places["module"]
            plain = relabel(code, [plain_module(label) for label in labels])
            for path, tally in by_label(rows.step, *plain, work.steps).items():
                if tally.is_stable:
                    found.setdefault(path, {})[counter] = tally.low
    return dict(sorted(found.items()))


def by_line(work: Work, sources: Sources) -> tuple[Site, ...]:
    """The lines that count anything, with the ops called from each. Only what all steps agree on."""
    counts: dict[str, dict[str, int]] = {}
    for counter, rows in work.parts.items():
        for source, tally in by_label(rows.step, *rows.places["source"], work.steps).items():
            if tally.is_stable:
                counts.setdefault(source, {})[counter] = tally.low
    ops = _ops_by_source(work)
    sites = [_site(source, counts[source], ops.get(source, {}), sources) for source in counts]
    return merged_sites((*sites, *_breaks(work, sources)))


def merged_sites(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """One site for each line, sorted; what is told of a line twice under different counters stands together."""
    found: dict[tuple[str, int], Site] = {}
    for site in sites:
        key = site.file, site.line
        known = found.get(key)
        found[key] = site if known is None else _add(known, site)
    return tuple(found[key] for key in sorted(found))


def _add(one: Site, other: Site) -> Site:
    return Site(one.file, one.line, one.text, {**other.counts, **one.counts}, {**other.ops, **one.ops})


def _site(source: str, counts: Mapping[str, int], ops: Mapping[str, int], sources: Sources) -> Site:
    file, line = sources.locate(source)
    return Site(file, line, sources.text(file, line), counts, dict(sorted(ops.items())))


def _ops_by_source(work: Work) -> Mapping[str, Mapping[str, int]]:
    """Calls of each op by line."""
    rows = work.parts["ops"]
    source, sources = rows.places["source"]
    names = work.linked.ops["name"].cat
    codes = names.codes.to_numpy().astype(np.int64)[work.is_call]
    op, labels = relabel(codes, [plain_op(name) for name in names.categories])
    pair = np.where(source >= 0, source * len(labels) + op, -1)
    keys, code = np.unique(pair, return_inverse=True)
    tallies = by_label(rows.step, np.where(pair >= 0, code, -1), list(map(str, range(len(keys)))), work.steps)
    found: dict[str, dict[str, int]] = {}
    for key, tally in tallies.items():
        of_source, of_op = divmod(int(keys[int(key)]), len(labels))
        if tally.is_stable:
            found.setdefault(sources[of_source], {})[labels[of_op]] = tally.low
    return found


def _breaks(work: Work, sources: Sources) -> Iterator[Site]:
    """The lines at which torch.compile broke a graph, as the recording tells."""
    recording = work.case.recording
    report = None if recording is None else recording.compilation
    for each in () if report is None else report.breaks:
        file = sources.relative(each.file)
        yield Site(file, each.line, sources.text(file, each.line), {"graph_breaks": each.count})


def count(case: Case, root: Path | None = None) -> Counts:
    """The counters of a step, on which all steps of the window agree; without steps, those of the whole window.

    Only what the step's own thread and autograd's do counts. Names of files are made relative to ``root``, and lines
    are read from files inside it; without it nothing is opened. ``unstable`` holds counters whose steps disagree, and
    ops that do under "ops:NAME"; kernels under "kernels:NAME".
    """
    work = Work(case)
    found = work.count()
    ops, kernels = ops_by_name(work), work.kernels()
    kernels = {} if isinstance(kernels, Unknown) else kernels
    tallies = {name: each for name, each in found.items() if isinstance(each, Tally)}
    named = {**_prefixed("ops", ops), **_prefixed("kernels", kernels)}
    return Counts(
        values=_agreed(tallies),
        fingerprint=fingerprint_of(case),
        unknown={name: each.reason for name, each in found.items() if isinstance(each, Unknown)},
        unstable={
            name: spread(each.low, each.high, DIFFER)
            for name, each in {**tallies, **named}.items()
            if not each.is_stable
        },
        ops=dict(sorted(_agreed(ops).items())),
        modules=by_module(work),
        kernels=dict(sorted(_agreed(kernels).items())),
        sites=by_line(work, Sources(case, root)),
        input_sha=input_digest(case),
        steps=len(case.linked.window.steps),
    )


def _agreed(tallies: Mapping[str, Tally]) -> dict[str, int]:
    return {name: tally.low for name, tally in tallies.items() if tally.is_stable}


def _prefixed(kind: str, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
    return {f"{kind}:{name}": tally for name, tally in tallies.items()}
