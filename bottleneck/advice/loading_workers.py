"""Findings about the workers of a data loader: none where they would help, or started again and again.

Workers hide a wait only as far as there are processors for them: what they compute, they take from training.
"""

from dataclasses import dataclass

from bottleneck.advice.draft import Draft, up_to
from bottleneck.advice.loading import INPUT, LOADER, MODERATE, ONE_PROCESS, loader_kinds, start_up
from bottleneck.advice.measures import account_us, claims_of, host_scale, runs_on_host, share_of_step
from bottleneck.case import Case
from bottleneck.records import Interval
from bottleneck.units import format_us

# Handing a batch from a worker to the training process: a message, and a shared file per tensor. (ours: 1.6 ms of CPU
# time for two tensors on a crowded machine)
_HANDOVER_US = (200.0, 1500.0)
# A worker that shares its caches, and copies its batch into shared memory, is this much slower than no worker. (ours)
_WORKER_TAX = 1.25
# Training that shares caches and processors with workers is this much slower.
_BESIDE_WORKERS = 1.25
# More of them seldom help; `verify` tries no more either.
_MOST_WORKERS = 4
_WORTH_TELLING = 0.1  # processors
# Below this share of the step, what workers win is lost in handing over what they made.
_WORTH_HANDING = 0.02


@dataclass(frozen=True)
class _Side:
    """What loading in workers would share: times per step in microseconds, processors (null: unknown), threads.

    ``others`` is how many processors other programs kept busy while the steps ran: whether they do when the change is
    tried, nobody knows. ``busy_share`` is the part of the loading that needs a processor, from and to.
    """

    load_us: float
    rest_us: float
    workers: int
    processors: int | None
    others: float
    threads: int
    busy_share: tuple[float, float]

    def best_us(self) -> float:
        """The step at best: the slowest of training, of loading, and of the processors, all of which both need."""
        handed_us = self.rest_us + _HANDOVER_US[0]
        if self.processors is None:
            return max(handed_us, self.load_us / _MOST_WORKERS)
        shared_us = (self.busy_share[0] * self.load_us + self.rest_us) / self.processors
        return max(handed_us, self.load_us / self.workers, shared_us)

    def worst_us(self) -> float:
        """The step at worst: dearer batches, slower training, and threads that all want a processor."""
        load_us = _WORKER_TAX * self.load_us
        handed_us = _BESIDE_WORKERS * self.rest_us + _HANDOVER_US[1]
        wanted_us = self.busy_share[1] * load_us + self.threads * self.rest_us
        return max(handed_us, load_us / self.workers, wanted_us / max((self.processors or 2) - self.others, 1.0))


def loader_without_workers(case: Case) -> Draft | None:
    """Rule 39: batches are loaded by the process that trains, between its steps."""
    wait_us = account_us(case, INPUT)
    if share_of_step(case, wait_us) < MODERATE or ONE_PROCESS not in loader_kinds(case):
        return None
    side = _side(case, wait_us)
    high_us = min(wait_us, max(0.0, case.step_us - side.best_us()))
    low_us = min(high_us, max(0.0, case.step_us - side.worst_us()))
    if share_of_step(case, high_us) < _WORTH_HANDING:
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
        code=f"loader = DataLoader(dataset, num_workers={max(side.workers, 2)}, persistent_workers=True)",
        gain_us=Interval(low_us, high_us),
        claims=claims_of(case, INPUT, most_us=high_us),
        tries=("workers",),
        confidence="low" if side.processors is None else "medium",
    )


def _side(case: Case, wait_us: float) -> _Side:
    recording = case.recording
    processors = None if recording is None else recording.processors or recording.threads or None
    each = None if processors is None else max(1, processors // _ranks(case))
    loading_us = sum(
        mark.us for sums in (case.mark_sums, case.op_sums) for name, mark in sums.items() if LOADER.match(name)
    )
    return _Side(
        load_us=max(wait_us, min(loading_us * host_scale(case), case.step_us)),
        rest_us=case.step_us - wait_us,
        workers=max(1, min(each or 1, _MOST_WORKERS)),
        processors=each,
        others=_used_by_others(case, processors or 0) / _ranks(case),
        threads=1 if recording is None or not runs_on_host(case) else recording.threads or 1,
        busy_share=_busy_share(case, wait_us),
    )


def _ranks(case: Case) -> int:
    """Ranks of this program on this machine, which share its processors; at least one."""
    return max(1, 0 if case.recording is None else len(case.recording.traces))


def _used_by_others(case: Case, processors: int) -> float:
    """Processors that other programs of this machine kept busy while the steps ran; 0 where that is not known."""
    told = case.analysis.telemetry
    if told is None or told.host_utilization is None or told.process_processors is None:
        return 0.0
    return max(0.0, told.host_utilization * processors - told.process_processors)


def _busy_share(case: Case, wait_us: float) -> tuple[float, float]:
    """Part of the loading in which it needs a processor, from and to: (0, 1) where nothing tells reading from work."""
    told = case.analysis.telemetry
    if told is None or told.process_processors is None or wait_us <= 0:
        return 0.0, 1.0
    used_us = told.process_processors / _ranks(case) * case.step_us - (case.step_us - wait_us)
    return min(max(used_us / wait_us, 0.0), 1.0), 1.0


def _processors_in_words(side: _Side) -> str:
    if side.processors is None:
        return "how many processors the program may use is not recorded: at worst one worker beside the training"
    others = f"; other programs kept {side.others:.1f} of them busy" if side.others >= _WORTH_TELLING else ""
    return f"{side.processors} processors are there for loading and training{others}"


def restarted_workers(case: Case) -> Draft | None:
    """Rule 39, its second half: worker processes are started inside the steps that are explained."""
    found = start_up(case)
    waited_us = min(found.own_us + found.first_us, account_us(case, INPUT, "overhead.python"))
    if not found.processes or share_of_step(case, waited_us) < MODERATE:
        return None
    one_step = case.linked.window.source == "whole"
    return Draft(
        slug="loader-restarts",
        title="Worker processes of the loader are started while the step waits",
        evidence=(
            f"{found.processes} processes were started: that, and ending them, took {format_us(found.own_us)} per step",
            f"the wait for their first batch took {format_us(found.first_us)}",
            "workers that are not kept are started again for each epoch",
        ),
        advice="Keep the workers of the loader alive between epochs.",
        code="loader = DataLoader(dataset, num_workers=4, persistent_workers=True)",
        gain_us=None if one_step else up_to(waited_us),
        gain_reason="it is saved once per epoch, from the second one on, and this trace has no steps to tell epochs by"
        if one_step
        else None,
        claims=claims_of(case, INPUT, "overhead.python", most_us=waited_us),
    )


RULES = (loader_without_workers, restarted_workers)
