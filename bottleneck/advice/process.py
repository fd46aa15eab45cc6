"""Rules on the set-up of the process: threads, replicas, unused gradients."""

import math
import re

import numpy as np

from bottleneck.advice.kernel_work import PRODUCTS, work_of
from bottleneck.advice.quantities import (
    SMALLEST_OP_US,
    claims_of,
    format_count,
    format_per_step,
    has_backward_marks,
    ops_in_window,
    outermost_us,
    setting_line,
    smallest_op_us,
)
from bottleneck.advice.ranking import Draft, SourcedLine, up_to
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, counted_faults_us
from bottleneck.schema.intervals import grouped, union
from bottleneck.schema.op_names import IN_PLACE, TRAINING, at_known, at_source
from bottleneck.schema.tables import FRESH_FROM_BYTES
from bottleneck.units import US_PER_S, counted, format_share, format_si, format_us

_REPLICATES = re.compile(r"^(Broadcast|Scatter|Gather|ReduceAddCoalesced)(Backward)?$|^DataParallel\.forward$")
# What autograd's record of one op costs, in times of the smallest op of the machine (0.54 us): 1.8 us (linear layers of
# 64 to 256 on 1 to 64 rows, torch 2.13, one thread: 3.1 us without gradients, 4.9 us with), 3 to 6 us in LeNet.
NODE_OPS = (2.5, 7.0)
_NODES = 4
# What autograd keeps for a backward pass is not reused by the next op: on a CPU part of it comes in new pages in each
# step, and without gradients in next to none. That was 0 to 53 % of the results below 32 MiB, which are new pages
# anyway (nine models of 0.2 to 535 MB of results, one process for each; torch 2.13, glibc 2.36, EPYC, one thread): 1.00
# to 1.59 times as fast without gradients. A page took 1.9 to 5 us.
_IN_NEW_PAGES, _NEW_BYTES_PER_S = 0.5, 2e9
_LEAST_SMALL, _LEAST = 0.1, 0.01
_REDUCIBLE = ("compute", "memory", "overhead.launch_floor")


def too_many_threads(evidence: Evidence) -> Draft | None:
    """Finds more threads than torch may use processors (rule 15).

    Threads that work wait for others then. At most what ops take beyond their largest floor is waiting for one another;
    a quarter of it at least.
    """
    recording = evidence.recording
    if recording is None or recording.threads is None or recording.processors is None or not evidence.is_host_only:
        return None
    if recording.threads <= recording.processors:
        return None
    beyond_us = min(
        sum(
            max(row.us - max(row.compute_us or 0.0, row.memory_us or 0.0, row.launch_us or 0.0), 0.0)
            for row in evidence.analysis.kernels
            if row.bound != "dispatch"
        ),
        evidence.account_us(*_REDUCIBLE, *UNMODELLED_ACCOUNTS),
    )
    return Draft(
        slug="too-many-threads",
        title="More threads compute than there are processors for them",
        evidence=(
            f"{counted(recording.threads, 'thread')} on {counted(recording.processors, 'processor')}",
            f"ops take {format_per_step(evidence, beyond_us)} longer than their arithmetic and bytes need",
        ),
        advice="Use one thread per core at most, and leave one to the data loader's workers.",
        code=f"torch.set_num_threads({recording.processors})  # or OMP_NUM_THREADS={recording.processors}",
        gain_us=Interval(beyond_us / 4, beyond_us),
        claims=claims_of(evidence, *_REDUCIBLE, *UNMODELLED_ACCOUNTS, most_us=beyond_us),
        tries=("threads-cores", "threads-half"),
        confidence="low",
    )


# Ops that take so long are worth a second thread.
_LONG_OP_US, _LEAST_LONG = 200.0, 0.3
# Of the ideal, where processors may be threads of one core, and where each is a core of its own: four networks on one
# of two processors gained 1.5, 1.75, 1.84 and 1.9 times with both (torch 2.13, a Xeon and an EPYC).
_SURE_OF_THREADS, _SURE_OF_CORES = 0.2, 0.5


def too_few_threads(evidence: Evidence) -> Draft | None:
    """Finds long ops of a CPU on fewer threads than processors.

    Gain: with t threads on p processors, a fifth of (1 - t/p) of their time to all of it, or from half where each
    processor is a core. Nothing is said where other programs or ranks have the other processors.
    """
    recording = evidence.recording
    if recording is None or recording.threads is None or recording.processors is None or not evidence.is_host_only:
        return None
    threads, processors = recording.threads, recording.processors
    if threads >= processors or evidence.is_disturbed or evidence.analysis.ranks:
        return None
    rows = [
        row
        for row in evidence.analysis.kernels
        if row.bound in {"compute", "memory"} and row.us >= _LONG_OP_US * max(row.calls, 1.0)
    ]
    work = work_of(evidence)
    # Products share their work among threads, whether their cost is known or not.
    unknown = (
        work.is_text(evidence.roofline, "family", *PRODUCTS)
        & work.bound("unknown")
        & (work.us * evidence.steps >= _LONG_OP_US)
    )
    long_us = sum(row.us for row in rows) + work.us_of(unknown)
    if evidence.share_of_step(long_us) < _LEAST_LONG:
        return None
    spared_us = long_us * (1 - threads / processors)
    asks = setting_line(evidence, "threads")
    sure = _SURE_OF_CORES if (recording.cores or 0) >= processors else _SURE_OF_THREADS
    return Draft(
        slug="too-few-threads",
        title=f"Ops compute on {threads} of {processors} processors",
        evidence=(
            f"torch has {counted(threads, 'thread')}, and the program may use {counted(processors, 'processor')}",
            f"{format_per_step(evidence, long_us)} goes into ops that take {_LONG_OP_US:g} us and more",
            *(SourcedLine(f"{row.name} {at_source(row.source)}: {format_us(row.us)}", row.source) for row in rows[:3]),
        ),
        advice="Let torch compute on all processors: take out torch.set_num_threads and OMP_NUM_THREADS where they ask "
        f"for fewer{at_known(asks)}. Two processors that are threads of one core give little.",
        brief=f"Let torch compute on all {processors} processors"
        + (f": take out what asks for fewer{at_known(asks)}" if asks else ""),
        places=(asks,),
        code=f"torch.set_num_threads({processors})  # or OMP_NUM_THREADS={processors}",
        gain_us=Interval(sure * spared_us, spared_us),
        claims=claims_of(evidence, *_REDUCIBLE, *UNMODELLED_ACCOUNTS, most_us=spared_us),
        tries=("threads-cores",),
        cannot_lose=True,
    )


def threads_for_small_work(evidence: Evidence) -> Draft | None:
    """Finds products too small to be handed to several threads (rule 15).

    They are much of the step, and handing them over may cost more than it gives. No gain is predicted: the library
    decides per product how many threads take part.
    """
    threads = None if evidence.recording is None else evidence.recording.threads
    if not evidence.is_host_only or threads is None or threads < 2:
        return None
    rows = [row for row in evidence.analysis.kernels if row.reason_code == "small_product"]
    spent_us = sum(row.us for row in rows)
    # Larger products want the threads that these do not.
    work = work_of(evidence)
    others_us = work.us_of(work.family(*PRODUCTS)) - spent_us
    if evidence.share_of_step(spent_us) < _LEAST_SMALL or others_us > spent_us:
        return None
    return Draft(
        slug="threads-for-small-work",
        title="Matmuls too small for several threads",
        evidence=(
            f"{format_per_step(evidence, spent_us)} in small products, with {threads} thread{'s' * (threads != 1)}",
            *(
                SourcedLine(f"{row.name} {at_source(row.source)}: {format_us(row.us)}, {row.reason}", row.source)
                for row in rows[:3]
            ),
        ),
        advice="Try one thread, and keep it only if the step gets no slower.",
        code="torch.set_num_threads(1)",
        gain_reason="only a trial shows it: it depends on how many threads such a product gets",
        tries=("threads-1",),
    )


def data_parallel(evidence: Evidence) -> Draft | None:
    """Finds `DataParallel` (rule 13).

    It copies the model to every device in each step, and drives all from one process.
    """
    names = tuple(name for name in evidence.op_sums if _REPLICATES.search(name))
    marks = [name for name in evidence.mark_sums if _REPLICATES.search(name)]
    if not names and not marks:
        return None
    devices = int(evidence.linked.kernels["device"].nunique())
    spent_us = outermost_us(evidence, *names)
    most_us = min(spent_us, evidence.idle_us("dispatch", "python", "launch", "sync"))
    several = devices > 1 and not evidence.is_host_only
    return Draft(
        slug="data-parallel",
        title="DataParallel copies the model to every device in each step",
        evidence=(f"{', '.join((*names, *marks))}: {format_us(spent_us)} of the host per step, {devices} devices",),
        advice="Use DistributedDataParallel, one process per device.",
        code="model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])  # started by torchrun",
        gain_us=up_to(most_us) if several else None,
        claims=claims_of(evidence, "overhead.dispatch", "overhead.python", "overhead.launch", most_us=most_us),
        gain_reason=None if several else "on one device there is nothing to gain yet",
    )


def unused_gradients(evidence: Evidence) -> Draft | None:
    """Finds a step without a backward pass that records a graph for one.

    It records a node per op (rule 4). Nodes are counted by autograd's sequence numbers. On a device the record is worth
    what the device waits for it. On a CPU the memory of what is kept counts too: the page faults of the steps where
    they were counted, else those of half of the results, at most.
    """
    if has_backward_marks(evidence) or any(
        TRAINING.search(str(name)) for name in evidence.linked.trace.events["name"].cat.categories
    ):
        return None
    nodes = _recorded_nodes(evidence)
    if nodes < _NODES:
        return None
    low, high = (
        nodes * ops * (smallest_op_us(evidence) if evidence.is_host_only else SMALLEST_OP_US) for ops in NODE_OPS
    )
    most_us = (
        evidence.account_us("overhead.dispatch", "overhead.python", "overhead.launch_floor")
        if evidence.is_host_only
        else evidence.idle_us("dispatch")
    )
    low, high = min(low, most_us), min(high, most_us)
    kept_bytes = _kept_bytes(evidence, nodes) if evidence.is_host_only else 0.0
    pages_us = min(_new_pages_us(evidence, kept_bytes), evidence.account_us("memory", *UNMODELLED_ACCOUNTS))
    if evidence.share_of_step(high + pages_us) < _LEAST:
        return None
    results = (
        f"it keeps {format_si(kept_bytes, 'B')} of results for that, which new memory may have to hold in each step"
    )
    return Draft(
        slug="unused-gradients",
        title="The step records a backward pass that it never runs",
        evidence=(
            f"autograd records {counted(format_count(nodes), 'op')} per step, and nothing goes backward",
            *((results,) if pages_us > 0 else ()),
        ),
        advice="Run inference in inference mode.",
        code="with torch.inference_mode():\n    out = model(inputs)",
        gain_us=Interval(low, high + pages_us),
        claims={
            **claims_of(evidence, "overhead.dispatch", "overhead.python", "overhead.launch_floor", most_us=high),
            **claims_of(evidence, "memory", *UNMODELLED_ACCOUNTS, most_us=pages_us),
        },
        tries=("inference-mode",),
        removes=True,
    )


def _recorded_nodes(evidence: Evidence) -> float:
    """Ops per step that autograd gave a place in its order."""
    args = evidence.linked.trace.op_args
    low, high = evidence.linked.window.host_us
    at_us = evidence.linked.trace.events["ts_us"].to_numpy()[args["event"].to_numpy()]
    sequence = args["sequence"][(at_us >= low) & (at_us < high)].dropna()
    return float(np.unique(sequence.to_numpy(dtype=np.int64)).size) / evidence.steps - 1


def _kept_bytes(evidence: Evidence, nodes: float) -> float:
    """Gives the bytes of results that autograd keeps per step.

    An op's first matrix is the result of an op before it. Those of 32 MiB and more are left out.
    """
    work = work_of(evidence)
    rows = (work.op >= 0) & ~work.op_like(IN_PLACE) & ~work.family("view")
    of_call = np.zeros(len(evidence.costs) + 1)
    for signature in np.unique(work.signature[rows & (work.signature >= 0)]).tolist():
        matrix = next((size for size in work.sizes_of(signature) if len(size) > 1), ())
        taken = 4.0 * math.prod(map(float, matrix)) if matrix else 0.0
        of_call[signature] = taken if taken < FRESH_FROM_BYTES else 0.0
    outermost = int(np.count_nonzero(ops_in_window(evidence) & (evidence.linked.ops["depth"] == 0).to_numpy()))
    share = min(nodes * evidence.steps / max(outermost, 1), 1.0)
    return float(share * of_call[work.signature[rows]].sum()) / evidence.steps


def _new_pages_us(evidence: Evidence, kept_bytes: float) -> float:
    """Gives what new pages for so many bytes cost per step at most."""
    rate = evidence.analysis.device.fresh_bytes_per_s or _NEW_BYTES_PER_S
    most_us = _IN_NEW_PAGES * kept_bytes / rate * US_PER_S
    faults = None if evidence.recording is None else evidence.recording.page_faults
    is_counted = faults is not None and faults.unprofiled is not None
    return float(min(most_us, counted_faults_us(evidence)) if is_counted else most_us)


# Threads of a program that run ops side by side, and the part of the window in which each does.
_SEVERAL, _BUSY_THREAD = 3, 0.5


def threads_side_by_side(evidence: Evidence) -> Draft | None:
    """Finds several threads that run ops at once on a CPU.

    As those of a server's pool do. No gain is predicted: a trace does not tell how many processors they share.
    """
    if not evidence.is_host_only:
        return None
    ops, window = evidence.linked.ops, evidence.linked.window
    outer = (ops["depth"] == 0).to_numpy() & ops_in_window(evidence)
    start, thread = ops["ts_us"].to_numpy()[outer], ops["thread"].cat.codes.to_numpy()[outer].astype(np.int64)
    end = start + ops["dur_us"].to_numpy()[outer]
    busy_us = [union(start[rows], end[rows]).total() for _, rows in grouped(thread)]
    busy = [us for us in busy_us if us >= _BUSY_THREAD * window.wall_us > 0]
    if len(busy) < _SEVERAL or has_backward_marks(evidence):
        return None
    return Draft(
        slug="threads-side-by-side",
        title=f"Ops of {counted(len(busy), 'thread')} run side by side",
        evidence=(
            f"{counted(len(busy), 'thread')} run ops for {format_share(min(busy) / window.wall_us)} of the window and "
            "more, each of them",
            "each op may take several processors itself (intra-op threads), which then wait for one another",
        ),
        advice="Collect the requests of these threads into one batch for a single call of the model; else give each "
        "thread one processor: torch.set_num_threads(1), and as many threads as there are processors.",
        brief="Collect the requests of these threads into one batch for a single call of the model",
        code="torch.set_num_threads(1)  # at the start; then compare requests per second",
        gain_reason="a trace does not tell how many processors there are, nor how many threads an op takes",
        tries=("threads-1",),
        comes_first=True,
    )


RULES = (
    unused_gradients,
    too_many_threads,
    too_few_threads,
    threads_side_by_side,
    threads_for_small_work,
    data_parallel,
)
