"""Counts of several processes that ran the same program: what they agree on, and what no gate can hold them to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bottleneck.counters import Counts, Site
from bottleneck.counting.tally import spread
from bottleneck.errors import UndecidedError

DIFFER = "runs differ"
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
            unstable[f"{prefix}{name}"] = spread(min(seen), max(seen), DIFFER)
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
