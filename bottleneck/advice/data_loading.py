"""Rules of data loading: the wait, the line behind it, the workers.

Workers hide a wait only as far as there are processors for them: what they compute, they take from training.
"""

import math
import re
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from bottleneck.advice.hot_lines import hot_lines
from bottleneck.advice.quantities import claims_of, event_spans, idle_lines, idle_rows, outermost, rows_of_events
from bottleneck.advice.ranking import Draft, Transformation, up_to
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Spans
from bottleneck.schema.loading import HANDOVER_US, LOADER, WORKERS_ITERATOR, were_there
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_share, format_us

INPUT = "overhead.input"

# What the input pipeline analysis of XProf calls moderately and highly input-bound (advice_rules).
MODERATE, _SEVERE = 0.05, 0.2

ONE_PROCESS = "_SingleProcessDataLoaderIter"
_STARTS_WORKERS = re.compile(r"multiprocessing[/\\]process\.py\(\d+\): start$")
_ENDS_WORKERS = re.compile(r"dataloader\.py\(\d+\): _shutdown_workers$")

# The profiler stretches a loader written in Python more than the work around it: what is left of a wait at least.
_LEAST_REMOVED = 0.85
# Where loading can only be made cheaper: another resampling took a third of it away, a simpler augmentation two thirds.
_LEAST_CHEAPER = 0.3
# Below so many batches, or rounds of all workers, waits at regular distances are a coincidence. A batch that was there
# already takes this part of the longest wait at most.
_LEAST_BATCHES, _LEAST_ROUNDS, _SHORT = 6, 2, 0.2
_NAMED_WORKERS = 64

_AHEAD = "ready = executor.submit(next, batches)  # a ThreadPoolExecutor(1); after the step: ready.result()"
_REPLAYED = "# diagnosis, no remedy: replay one batch = next(iter(loader)); the step is then without its loader"


def input_wait(evidence: Evidence) -> Draft | None:
    """Bounds the gain of any change to the loader (rule 38).

    The replay of one cached batch shows it.
    """
    wait_us = evidence.account_us(INPUT)
    share, starts = evidence.share_of_step(wait_us), start_up(evidence)
    if share < MODERATE or starts.is_for_few:
        return None
    several, first_us = WORKERS_ITERATOR in loader_kinds(evidence), starts.first_us
    slow_workers = (
        "the loader's workers keep up: each call takes as long as the others, no longer than taking a batch over"
        if _keep_up(evidence)
        else f"{format_us(first_us)} of it is the wait for the first batch of workers that had just been started"
        if _is_mostly_start(evidence, wait_us)
        else "the loader has worker processes, and they do not keep up"
    )
    change = _change(evidence, wait_us)
    workers, bunch = _bunches(evidence) or (None, None)
    enough = None if workers is None else _enough_workers(evidence, workers)
    return Draft(
        slug="input-wait",
        title="The step waits for its data",
        evidence=(
            f"waiting for data takes {format_us(wait_us)} of the {format_us(evidence.step_us)} step "
            f"({format_share(share)}): {'severe' if share >= _SEVERE else 'moderate'}",
            *((slow_workers,) if several else ()),
            *(() if bunch is None else (bunch,)),
            *(() if enough is None else (f"about {counted(enough, 'worker')} would keep up, on as many processors",)),
            *idle_lines(evidence, "input", most=2),
        ),
        advice=change.advice,
        code=f"{_remedy(evidence, wait_us, enough)}\n{_REPLAYED}",
        gain_us=Interval(_least_removed(evidence) * wait_us, wait_us),
        claims=claims_of(evidence, INPUT),
        brief=change.brief,
        tries=("replay-batch",) if loader_kinds(evidence) else (),
        remedies=(*_by_line(evidence), "slow-call", "loader-without-workers"),
        confidence="high" if share >= _SEVERE else "medium",
        transformation=Transformation(("remove input",), _LEAST_REMOVED),
    )


def _by_line(evidence: Evidence) -> tuple[str, ...]:
    """Gives the findings that say what to do at a line.

    They come before the general ones, where that line is most of the loading.
    """
    is_most = ONE_PROCESS in loader_kinds(evidence) and _slowest_line(evidence)[1] >= MOST_OF_LOADING
    return ("row-fetching", *(["slow-call", "loader-hot-spot"] if is_most or _is_crowded(evidence) else []))


def _is_crowded(evidence: Evidence) -> bool:
    """True on a CPU whose threads take all processors.

    A worker holds one of them up, and each op waits for all: there workers have to gain at worst, as where loading is
    nearly all of the step.
    """
    if not evidence.is_host_only or evidence.recording is None:
        return False
    return _loader_resources(evidence, evidence.account_us(INPUT)).worst_us() >= evidence.step_us


def _least_removed(evidence: Evidence) -> float:
    """Returns the part of a wait for data that goes at least."""
    return _LEAST_CHEAPER if _is_crowded(evidence) or _may_be_crowded(evidence) else _LEAST_REMOVED


def _may_be_crowded(evidence: Evidence) -> bool:
    """True on a CPU whose processors the trace does not count.

    Two workers beside a training on two processors made it 0.85 to 0.9 times as fast.
    """
    return evidence.is_host_only and evidence.recording is None


def _keep_up(evidence: Evidence) -> bool:
    """True if each batch of a loader's workers was there in time."""
    rows = rows_of_events(evidence, LOADER)
    calls_us = evidence.linked.trace.events["dur_us"].to_numpy()[rows]
    return loader_kinds(evidence) == {WORKERS_ITERATOR} and bool(were_there(calls_us).all())


class _LoaderChange(Struct, frozen=True):
    """A change to a loader, at length and in brief, and where it fits."""

    fits: Callable[[Evidence, float], bool]
    advice: str
    brief: str


def _change(evidence: Evidence, wait_us: float) -> _LoaderChange:
    return next(change for change in _CHANGES if change.fits(evidence, wait_us))


def _is_mostly_start(evidence: Evidence, wait_us: float) -> bool:
    """True if most of the wait is for the first batch of started workers."""
    return WORKERS_ITERATOR in loader_kinds(evidence) and start_up(evidence).first_us > wait_us / 2


def _is_short(evidence: Evidence, wait_us: float) -> bool:
    """True if one process loads and a worker's handover would take longer.

    The wait for a batch is shorter than the handover.
    """
    batches = rows_of_events(evidence, LOADER).size / evidence.steps
    return loader_kinds(evidence) == {ONE_PROCESS} and wait_us < HANDOVER_US[0] * max(batches, 1.0)


# The first that fits.
_CHANGES = (
    _LoaderChange(
        lambda evidence, _: _keep_up(evidence),
        "Make a batch cheaper to take over: fewer and larger tensors in it, made by the worker; or keep a small data "
        "set on the device and index it there. More workers change nothing.",
        "Make a batch cheaper to take over from the loader's workers",
    ),
    _LoaderChange(
        _is_mostly_start,
        "Ask for the first batch before the step needs it, and keep the workers between epochs. More workers take "
        "longer to start.",
        "Ask for the first batch before the step needs it, and keep the workers between epochs",
    ),
    _LoaderChange(
        lambda evidence, _: WORKERS_ITERATOR in loader_kinds(evidence),
        "Give the loader more workers, let them read further ahead, or make a sample cheaper to load. Where samples "
        "lie in memory and are only picked, index whole batches in this process: that needs no workers.",
        "Give the loader more workers, or make a sample cheaper to load",
    ),
    _LoaderChange(
        _is_short,
        "Make a batch cheaper to load: a worker process takes longer to hand one over than this wait.",
        "Load batches more cheaply: index tensors once for a whole batch",
    ),
    _LoaderChange(
        lambda evidence, _: _is_crowded(evidence),
        "Make a sample cheaper to load. Workers take processors from the ops of the step, which run on them too: they "
        "help where processors are left, for example with fewer threads (torch.set_num_threads).",
        "Make a sample cheaper to load",
    ),
    _LoaderChange(
        lambda evidence, _: _may_be_crowded(evidence),
        "Make a sample cheaper to load; or, where the machine has processors that the step leaves idle, load the next "
        "batches while it computes. The gain at best is that of a loader which never keeps the step waiting.",
        "Make a sample cheaper to load, or load ahead where processors are left",
    ),
    _LoaderChange(
        lambda *_: True,
        "Load the next batches while the step computes, or make a sample cheaper to load. The gain is that of a loader "
        "which never keeps the step waiting.",
        "Load the next batches while the step computes, or make a sample cheaper to load",
    ),
)


def _remedy(evidence: Evidence, wait_us: float, enough: int | None) -> str:
    """Gives code that loads ahead.

    It has more workers, the first ones, or a thread for a loader that is no DataLoader. A wait that is too brief for
    workers gets code for a batch that is cheaper to make.
    """
    kinds = loader_kinds(evidence)
    if _is_short(evidence, wait_us):
        return "batch = tensors[rows]  # one indexing for the whole batch, instead of a sample at a time"
    if _keep_up(evidence):
        return "batch = images_on_device[rows], labels_on_device[rows]  # a data set that fits there: no loader"
    if _is_mostly_start(evidence, wait_us):
        return "batches = iter(loader)  # starts the workers, long before the loop that calls next(batches)"
    if WORKERS_ITERATOR in kinds:
        return f"loader = DataLoader(dataset, num_workers={enough or 8}, prefetch_factor=4, persistent_workers=True)"
    return _some_workers(_loader_resources(evidence, wait_us)) if kinds else _AHEAD


def _bunches(evidence: Evidence) -> tuple[int, str] | None:
    """Counts the workers that deliver their batches together, with words for it.

    Null where waits are even, or too few. Workers that begin together and take equally long deliver together: the
    program waits for the first batch, has the others at once, and waits again.
    """
    events, rows = evidence.linked.trace.events, rows_of_events(evidence, LOADER)
    waits_us = events["dur_us"].to_numpy()[rows]
    if WORKERS_ITERATOR not in loader_kinds(evidence) or waits_us.size < _LEAST_BATCHES:
        return None
    is_long = waits_us > waits_us.max() / 2
    apart = np.diff(np.flatnonzero(is_long))
    if apart.size < _LEAST_ROUNDS or apart.min() < 2 or apart.min() != apart.max():
        return None
    first_us, others_us = (float(np.median(waits_us[mask])) * evidence.host_scale for mask in (is_long, ~is_long))
    workers = int(apart[0])
    words = (
        f"one batch in {workers} is waited for {format_us(first_us)}, the others {format_us(others_us)}: {workers} "
        "workers begin, and deliver, at the same time"
    )
    return (workers, words) if others_us < _SHORT * first_us else None


def _enough_workers(evidence: Evidence, workers: int) -> int | None:
    """Counts the workers that would keep up with the step.

    Each is taken to need as long for a batch as now. Null where they would be too many to name. So many workers deliver
    as many batches in that many steps: the time of one. The step without its wait needs more.
    """
    needed_us = evidence.step_us - evidence.account_us(INPUT)
    count = math.ceil(workers * evidence.step_us / needed_us) if needed_us > 0 else _NAMED_WORKERS + 1
    return count if count <= _NAMED_WORKERS else None


def code_for_twice_the_batch(evidence: Evidence) -> str:
    """Gives the line of code that doubles the batch.

    A loader makes it, or the program itself.
    """
    if rows_of_events(evidence, LOADER).size:
        return "loader = DataLoader(dataset, batch_size=2 * batch_size)"
    return "batch_size = 2 * batch_size  # where the inputs of a step are made"


def loader_kinds(evidence: Evidence) -> frozenset[str]:
    """Class names of the loaders' iterators whose marks are in the window."""
    matches = (LOADER.match(name) for name in (*evidence.mark_sums, *evidence.op_sums))
    return frozenset(match["kind"] for match in matches if match)


class StartUp(Struct, frozen=True):
    """Worker processes started in the window, and their time.

    Times are in microseconds per unprofiled step. ``own_us`` is what the training process spent on starting and ending
    them, ``first_us`` its wait for their first batch. ``is_for_few`` is true where the window holds their start and
    their end, and no more batches between than processes: each of them was started for one batch at most.
    """

    processes: int
    own_us: float
    first_us: float
    is_for_few: bool


@remembered
def start_up(evidence: Evidence) -> StartUp:
    """Gives the time spent on starting workers in the window.

    Zero where the trace has no Python frames.
    """
    events = evidence.linked.trace.events
    starts, ends, loads = (rows_of_events(evidence, pattern) for pattern in (_STARTS_WORKERS, _ENDS_WORKERS, LOADER))
    at_us = events["ts_us"].to_numpy()
    follows = np.unique(np.searchsorted(at_us[loads], at_us[starts]))
    first = loads[follows[follows < loads.size]]
    scale = evidence.host_scale / evidence.steps
    own_us = event_spans(evidence, np.concatenate((starts, ends))).total() * scale
    return StartUp(
        starts.size,
        own_us,
        event_spans(evidence, first).total() * scale,
        bool(starts.size and ends.size and first.size) and loads.size <= starts.size,
    )


# One line, op or function of the loader is worth naming when it holds this part of the loading.
_DOMINANT = 0.5
# So much of it, and the line comes before advice on the loading as a whole.
MOST_OF_LOADING = 0.6

_CALLS_NEXT = re.compile(r"dataloader\.py: __next__$")
_COLLATES = re.compile(r"_utils[/\\]collate\.py\(\d+\): default_collate$")
_NOTHING = ("", 0.0)


def loader_hot_spot(evidence: Evidence) -> Draft | None:
    """Finds the place with most of a loader's wait (rule 44).

    It is one line, function or op of a loader without workers.
    """
    wait_us = evidence.account_us(INPUT)
    if evidence.share_of_step(wait_us) < MODERATE or ONE_PROCESS not in loader_kinds(evidence):
        return None
    line = _slowest_line(evidence)
    what, share = max(line, _collating(evidence), _slowest_op(evidence), key=lambda candidate: candidate[1])
    if share < _DOMINANT:
        return None
    hot = next((hot_line for hot_line in hot_lines(evidence, "input") if hot_line.source == what == line[0]), None)
    where = what if hot is None else f"{hot.source}{hot.quoted()}"
    sampled = None if hot is None else hot.sampled()
    return Draft(
        slug="loader-hot-spot",
        title=f"Most of the loading is {what if hot is None else hot.source}",
        evidence=(
            f"{what} takes {format_share(share)} of the {format_us(wait_us)} that the step waits for its data",
            *(() if sampled is None else (sampled,)),
        ),
        advice=f"Do what {where} does once and keep the result, or for a whole batch at a time, or with a faster "
        "library.",
        places=(None if hot is None else hot.source,),
        code="def __getitems__(self, indices):\n    return self.samples[indices]  # all samples of a batch at once",
        gain_us=up_to(share * wait_us),
        claims=claims_of(evidence, INPUT, most_us=share * wait_us),
        waits=tuple(row for row in idle_rows(evidence, "input") if row.source == what),
    )


def _slowest_line(evidence: Evidence) -> tuple[str, float]:
    """Finds the program's line inside the loader with most of the wait.

    The line that calls the loader does not count.
    """
    rows = idle_rows(evidence, "input")
    calling = {row.source for row in rows if row.detail and _CALLS_NEXT.search(row.detail)}
    us = {line.source: line.us for line in hot_lines(evidence, "input") if line.source not in calling}
    return _largest(us, sum(row.us for row in rows))


def _collating(evidence: Evidence) -> tuple[str, float]:
    """Gives the share of the loading in which default_collate makes batches.

    It makes a batch of samples.
    """
    spans, rows = _loading_spans(evidence), rows_of_events(evidence, _COLLATES)
    if spans is None or not rows.size:
        return _NOTHING
    inside = rows[spans.hold(evidence.linked.trace.events["ts_us"].to_numpy()[rows])]
    inside_us = event_spans(evidence, inside).total()
    return "default_collate, which makes a batch of samples,", min(inside_us / spans.total(), 1.0)


def _slowest_op(evidence: Evidence) -> tuple[str, float]:
    spans = _loading_spans(evidence)
    if spans is None:
        return _NOTHING
    ops = evidence.linked.ops
    names = [str(name) for name in ops["name"].cat.categories]
    codes = ops["name"].cat.codes.to_numpy()
    rows = np.flatnonzero(spans.hold(ops["ts_us"].to_numpy()) & ~text_matches(ops["name"], LOADER.match))
    rows = outermost(evidence, rows)
    us = np.bincount(codes[rows], weights=ops["dur_us"].to_numpy()[rows], minlength=len(names))
    return _largest(dict(zip(names, us.tolist(), strict=True)), spans.total())


def _largest(us: Mapping[str, float], of_us: float) -> tuple[str, float]:
    if not us or of_us <= 0:
        return _NOTHING
    name = max(us, key=lambda candidate: us[candidate])
    return name, min(us[name] / of_us, 1.0)


def _loading_spans(evidence: Evidence) -> Spans | None:
    """Gives the spans of the loaders, by their marks in the window.

    Null without marks.
    """
    spans = event_spans(evidence, rows_of_events(evidence, LOADER))
    return spans if spans.start.size else None


# A worker that shares its caches, and copies its batch into shared memory, is this much slower than no worker. (ours)
_WORKER_SLOWDOWN = 1.25
# Training that shares caches and processors with workers is this much slower.
_BESIDE_WORKERS = 1.25
# And where its threads take all processors: each op waits for the thread that a worker holds up. A step of 18.5 ms, of
# which 9 ms were loading, took 19.9 to 24.7 ms with one or two workers (torch 2.13, two threads of two processors).
_CROWDED = 2.5
# More of them seldom help; `verify` tries no more either.
_MOST_WORKERS = 4
_LEAST_SHARE = 0.1  # processors
# Where the middle of what workers gain is below this share of the step, it is lost in handing over what they made.
_LEAST_HANDED = 0.02


class _LoaderResources(Struct, frozen=True):
    """Resources that loading in workers would share.

    Times are per step in us. Processors are null where unknown. ``others`` is how many processors other programs kept
    busy while the steps ran. Nobody knows whether they do when the change is tried. ``busy_share`` is the part of the
    loading that needs a processor, from and to.
    """

    load_us: float
    rest_us: float
    workers: int
    processors: int | None
    others: float
    threads: int
    busy_share: tuple[float, float]

    def best_us(self) -> float:
        """Gives the step at best, the slowest of training, loading and processors.

        Training and loading both need the processors.
        """
        handed_us = self.rest_us + HANDOVER_US[0]
        if self.processors is None:
            return max(handed_us, self.load_us / _MOST_WORKERS)
        shared_us = (self.busy_share[0] * self.load_us + self.rest_us * (1 + self.threads) / 2) / self.processors
        return max(handed_us, self.load_us / self.workers, shared_us)

    def worst_us(self) -> float:
        """Gives the step at worst: longer batches, slower training, contending threads.

        All threads want a processor.
        """
        load_us = _WORKER_SLOWDOWN * self.load_us
        is_crowded = self.threads > 1 and self.threads >= (self.processors or 0)
        handed_us = (_CROWDED if is_crowded else _BESIDE_WORKERS) * self.rest_us + HANDOVER_US[1]
        wanted_us = self.busy_share[1] * load_us + self.threads * self.rest_us
        return max(handed_us, load_us / self.workers, wanted_us / max((self.processors or 2) - self.others, 1.0))


def loader_without_workers(evidence: Evidence) -> Draft | None:
    """Finds batches loaded by the training process (rule 39).

    It loads them between its steps.
    """
    wait_us = evidence.account_us(INPUT)
    if evidence.share_of_step(wait_us) < MODERATE or ONE_PROCESS not in loader_kinds(evidence):
        return None
    side = _loader_resources(evidence, wait_us)
    high_us = min(wait_us, max(0.0, evidence.step_us - side.best_us()))
    low_us = min(high_us, evidence.step_us - side.worst_us())
    if side.processors is None:
        low_us = max(low_us, 0.0)  # a loss on a machine that the trace does not tell would be a guess
    if evidence.share_of_step(max(low_us + high_us, 0.0) / 2) < _LEAST_HANDED:
        return None
    return Draft(
        slug="loader-without-workers",
        title="The process that trains also loads the data",
        evidence=(
            f"the DataLoader has no workers ({ONE_PROCESS}), and the step waits {format_us(wait_us)} for it",
            f"a batch takes {format_us(side.load_us)} to load, the rest of the step {format_us(side.rest_us)}",
            _processors_in_words(side),
        ),
        advice="Load in worker processes, as many as there are processors to spare, and keep them between epochs.",
        brief="Load in worker processes, one for each free processor (num_workers, persistent_workers=True)",
        code=_some_workers(side),
        gain_us=Interval(low_us, high_us),
        claims=claims_of(evidence, INPUT, most_us=high_us),
        tries=("workers",),
        remedies=_by_line(evidence),
        confidence="low" if side.processors is None else "medium",
    )


def _some_workers(side: _LoaderResources) -> str:
    return f"loader = DataLoader(dataset, num_workers={max(side.workers, 2)}, persistent_workers=True)"


def _loader_resources(evidence: Evidence, wait_us: float) -> _LoaderResources:
    recording = evidence.recording
    processors = None if recording is None else recording.processors or recording.threads or None
    per_rank = None if processors is None else max(1, processors // _ranks(evidence))
    loading_us = sum(
        mark.us for sums in (evidence.mark_sums, evidence.op_sums) for name, mark in sums.items() if LOADER.match(name)
    )
    return _LoaderResources(
        load_us=max(wait_us, min(loading_us * evidence.host_scale, evidence.step_us)),
        rest_us=evidence.step_us - wait_us,
        workers=max(1, min(per_rank or 1, _MOST_WORKERS)),
        processors=per_rank,
        others=_used_by_others(evidence, processors or 0) / _ranks(evidence),
        threads=_threads(evidence),
        busy_share=_busy_share(evidence, wait_us),
    )


def _threads(evidence: Evidence) -> int:
    """Counts the threads that ops of a CPU compute on.

    Two where the trace does not tell.
    """
    if not evidence.is_host_only:
        return 1
    return 2 if evidence.recording is None else evidence.recording.threads or 1


def _ranks(evidence: Evidence) -> int:
    """Counts the program's ranks on this machine, which share its processors.

    At least one.
    """
    return max(1, 0 if evidence.recording is None else len(evidence.recording.traces))


def _used_by_others(evidence: Evidence, processors: int) -> float:
    """Counts processors that other programs kept busy while the steps ran.

    0 where that is not known.
    """
    telemetry = evidence.analysis.telemetry
    if telemetry is None or telemetry.host_utilization is None or telemetry.process_processors is None:
        return 0.0
    return max(0.0, telemetry.host_utilization * processors - telemetry.process_processors)


def _busy_share(evidence: Evidence, wait_us: float) -> tuple[float, float]:
    """Gives the part of the loading that needs a processor.

    It is a lower and an upper bound, (0, 1) where that is unknown.
    """
    telemetry = evidence.analysis.telemetry
    if telemetry is None or telemetry.process_processors is None or wait_us <= 0:
        return 0.0, 1.0
    used_us = telemetry.process_processors / _ranks(evidence) * evidence.step_us - (evidence.step_us - wait_us)
    return min(max(used_us / wait_us, 0.0), 1.0), 1.0


def _processors_in_words(side: _LoaderResources) -> str:
    if side.processors is None:
        return "how many processors the program may use is not recorded: at worst one worker beside the training"
    others = f"; other programs kept {side.others:.1f} of them busy" if side.others >= _LEAST_SHARE else ""
    return f"the program may use {counted(side.processors, 'processor')} for loading and training{others}"


def loader_restarts(evidence: Evidence) -> Draft | None:
    """Finds worker processes that start inside the steps (rule 39).

    This is the second half of that rule. The steps are those that are explained.
    """
    starts = start_up(evidence)
    took_us = starts.own_us + starts.first_us
    # Where most of it is the wait for data, the little that other Python took is not promised.
    accounts = (INPUT,) if 2 * evidence.account_us(INPUT) > took_us else (INPUT, "overhead.python")
    waited_us = min(took_us, evidence.account_us(*accounts))
    if not starts.processes or evidence.share_of_step(waited_us) < MODERATE:
        return None
    batches = rows_of_events(evidence, LOADER).size
    is_unknown = evidence.linked.window.source in {"whole", "time"} and not starts.is_for_few
    return Draft(
        slug="loader-restarts",
        title=f"Worker processes of the loader are started for {counted(batches, 'batch', 'batches')}"
        if starts.is_for_few
        else "Worker processes of the loader are started while the step waits",
        evidence=(
            f"starting and ending {counted(starts.processes, 'process', 'processes')} took {format_us(starts.own_us)} "
            "per step",
            f"the wait for their first batch took {format_us(starts.first_us)}",
            *(() if starts.is_for_few else ("workers that are not kept are started again for each epoch",)),
        ),
        advice="Load in this process, without workers: so few batches do not pay for starting them. Keep the workers "
        "of the loader between epochs where later ones read more."
        if starts.is_for_few
        else "Keep the workers of the loader alive between epochs.",
        brief="Set num_workers=0: starting the workers takes longer than loading these few batches"
        if starts.is_for_few
        else None,
        code="loader = DataLoader(dataset, num_workers=0)"
        if starts.is_for_few
        else "loader = DataLoader(dataset, num_workers=4, persistent_workers=True)",
        gain_us=None if is_unknown else up_to(waited_us),
        gain_reason="it is saved once per epoch, from the second one on, and this trace does not show epochs"
        if is_unknown
        else None,
        claims=claims_of(evidence, *accounts, most_us=waited_us),
    )


RULES = (input_wait, loader_without_workers, loader_restarts, loader_hot_spot)
