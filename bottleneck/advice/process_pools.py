"""Names waits of the step for processes that get their data by call.

They are pools, queues, pipes and managers.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.hot_lines import line_at_source
from bottleneck.advice.quantities import claims_of, format_per_step, idle_rows, rows_of_events
from bottleneck.advice.ranking import Draft, Transformation, up_to
from bottleneck.schema.analysis import IdleCause
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.request_waits import MANAGER_ACCESS, PIPE_CALL, POOL_CALL, WAIT, serving_of
from bottleneck.units import format_us

_LEAST = 0.02
SLEEPS = re.compile(r"^(?:time\.)?sleep$")
# Processors that threads of this process beside the step's own kept busy: below this it is not worth a word.
_LEAST_BESIDE = 0.1
# Frames of workers that are threads of this process: what they work on is not sent anywhere.
_WORKER_THREADS = re.compile(
    r"multiprocessing[/\\](?:pool\.py\(\d+\): (?:worker|mapstar|starmapstar)|dummy[/\\])"
    r"|concurrent[/\\]futures[/\\]thread\.py\(\d+\): "
)
_SAYS_THREADS = re.compile(r"ThreadPool|multiprocessing\.dummy|asyncio")


class Exchange(Struct, frozen=True):
    """Way to exchange data with other processes.

    How it is recognised at a line, and what to do.
    """

    functions: "re.Pattern[str]"
    text: "re.Pattern[str]"
    title: str
    brief: str
    advice: str
    code: str


EXCHANGES: Sequence[Exchange] = (
    Exchange(
        re.compile(r"(?:^|/)multiprocessing/managers\.py: "),
        MANAGER_ACCESS,
        "Each access to a manager's object is a message to another process",
        "Keep the data of {place} in this process, or in shared memory",
        "Keep the data of {place} in this process, or in shared memory: each access to an object of a manager is "
        "pickled, sent to the manager's process, and answered.",
        "values = dict(shared)  # one message; work on values, and shared.update(values) once",
    ),
    Exchange(
        re.compile(r"(?:^|/)(?:multiprocessing/pool\.py: |concurrent/futures/process\.py: |joblib/|ray/|dask/|loky/)"),
        POOL_CALL,
        "The step waits for a pool of processes",
        "Send little to the processes of {place}: share large data once, and send indices in larger chunks",
        "Send little to the processes of {place}: arguments and results of each call are pickled, sent through a pipe "
        "and unpickled, and so is what the function holds (a partial, a bound method) with each chunk of tasks. Share "
        "large data once (a module global before the fork, the pool's initializer, shared memory, tensors of "
        "torch.multiprocessing), send indices in larger chunks, or do small work in this process.",
        "def work(rows):\n    return table[rows]  # table: a global of the module, made before the pool is forked\n"
        "pool.map(work, rows, chunksize=64)  # or, without a pool: [work(each) for each in rows]",
    ),
    Exchange(
        re.compile(r"(?:^|/)multiprocessing/(?:queues|connection|synchronize|sharedctypes)\.py: "),
        PIPE_CALL,
        "The step waits for another process, which sends its data through a queue or a pipe",
        "Send less through the queue or pipe of {place}: arrays, tensors in shared memory, or only indices",
        "Send less through the queue or pipe of {place}: each object is pickled, written, read and unpickled. Arrays "
        "in place of lists, tensors in shared memory (a queue of torch.multiprocessing), or only indices; and "
        "let the other process, or several, work some items ahead.",
        "queue = torch.multiprocessing.Queue(8)  # tensors go by their place in shared memory\nqueue.put(tensor)",
    ),
)


class _PoolWait(Struct, frozen=True):
    source: str
    rows: tuple[IdleCause, ...]
    exchange: Exchange


def waits_for_others(evidence: Evidence) -> tuple[IdleCause, ...]:
    """Returns waits of the step for threads, processes or sockets.

    The longest come first; those of a server for requests are none.
    """
    if serving_of(evidence) is not None:
        return ()
    return tuple(row for row in idle_rows(evidence, "wait") if not SLEEPS.match(row.detail or ""))


def waits_beside_pools(evidence: Evidence) -> tuple[IdleCause, ...]:
    """Returns the waits for others that are not for a process sent its data."""
    pool = _pool_wait(evidence)
    return tuple(row for row in waits_for_others(evidence) if pool is None or row.source != pool.source)


@remembered
def _pool_wait(evidence: Evidence) -> _PoolWait | None:
    """Returns the waits at the line that waits longest.

    Null where that line does not exchange data with other processes.
    """
    us: dict[str, float] = {}
    rows = waits_for_others(evidence)
    for row in rows:
        if row.source is not None:
            us[row.source] = us.get(row.source, 0.0) + row.us
    source = max(us, key=lambda name: us[name], default=None)
    if source is None or evidence.share_of_step(us[source]) < _LEAST or _has_worker_threads(evidence):
        return None
    line = line_at_source(evidence, source)
    for exchange in EXCHANGES:
        if any(exchange.functions.search(callee) for callee in line.callees) or exchange.text.search(line.text):
            return _PoolWait(source, tuple(row for row in rows if row.source == source), exchange)
    return None


def _has_worker_threads(evidence: Evidence) -> bool:
    texts = evidence.source_texts.values()
    return any(_SAYS_THREADS.search(text) for text in texts) or rows_of_events(evidence, _WORKER_THREADS).size > 0


def pool_waits(evidence: Evidence) -> Draft | None:
    """Finds waits at a call that sends data to other processes.

    It gets some back: a pool, a queue, a manager. Gain: that time, from half of it; what of it is the work of the
    others is in no trace.
    """
    pool = _pool_wait(evidence)
    if pool is None:
        return None
    spent_us, line = math.fsum(row.us for row in pool.rows), line_at_source(evidence, pool.source)
    return Draft(
        slug="pool-waits",
        title=pool.exchange.title,
        evidence=(
            f"{line.source} waits {format_per_step(evidence, spent_us)}{line.quoted()}",
            *(f"{format_us(row.us)} in {row.detail}" for row in pool.rows[:2] if row.detail),
            *_threads_beside(evidence),
        ),
        advice=pool.exchange.advice.format(place=line.place()),
        brief=pool.exchange.brief.format(place=line.place()),
        places=(line.source,),
        code=pool.exchange.code,
        gain_us=up_to(spent_us),
        claims=claims_of(evidence, WAIT, most_us=spent_us),
        waits=pool.rows,
        transformation=Transformation(("remove host:wait",)),
        lines=(pool.source,) if any(fold.name == pool.source for fold in evidence.analysis.lines) else (),
    )


def _threads_beside(evidence: Evidence) -> tuple[str, ...]:
    """Words the processors that other threads of this process kept busy.

    Only where torch computes with one thread.
    """
    recording, telemetry = evidence.recording, evidence.analysis.telemetry
    if recording is None or telemetry is None or recording.other_threads is None or recording.threads != 1:
        return ()
    beside = (telemetry.process_processors or 0.0) - recording.other_threads.cpu_share
    if beside < _LEAST_BESIDE or not evidence.is_host_only:
        return ()
    return (
        f"threads of this process beside the step's own kept {beside:.1f} processors busy: threads of a pool or a "
        "queue pickle and send arguments, and unpickle results",
    )


RULES = (pool_waits,)
