"""Where the counts come from: by op, by module path and by line of the program."""

from collections.abc import Iterator, Mapping

import numpy as np

from bottleneck.counters import Site
from bottleneck.counting.names import plain_module, plain_op
from bottleneck.counting.sources import Sources
from bottleneck.counting.tally import Tally, by_label, relabel
from bottleneck.counting.work import Work

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
