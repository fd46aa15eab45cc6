"""Small programs on one GPU whose ledger is known before there is a trace.

A program is a list of what the device's time *is*: first what the host did while the device had nothing to do, then
what the device did, microsecond by microsecond. ``known`` adds that list up; ``emit`` invents host calls and kernels
that make it true, in the words of the profiler. Neither knows how the analysis finds it out again.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step

MAIN, BACKWARD, PINNING = 100, 200, 300  # thread ids
# The profiler's clock counts microseconds since the machine started, with nanoseconds behind the point.
ORIGIN_US = 1_419_247_330_000.125
SECONDS_PER_US = 1e-6
# Of an H100's data sheet: what a saturating kernel of a known length moves or computes.
BYTES_PER_S, FLOPS_PER_S = 3.35e12, 989.4e12
EXPLAINED = 0.7
TINY_US, TINY = 2, 6  # kernels that do nothing but start, and how many come in a row
LAUNCH_US = 4  # an op with its launch call, when the queue is being filled


@dataclass(frozen=True)
class Scene:
    """The work in a stretch of the device's time, by track, and the parts of the instant that each account gets.

    An account in angle brackets is that of the kernel on this track.
    """

    runs: tuple[str, ...]
    owners: Mapping[str, float]


SCENES: Mapping[str, Scene] = {
    "one kernel": Scene(("front",), {"<front>": 1.0}),
    "two kernels": Scene(("front", "back"), {"<front>": 0.5, "<back>": 0.5}),
    "hidden collective": Scene(("front", "nccl"), {"<front>": 1.0}),
    "hidden copy": Scene(("front", "copy"), {"<front>": 1.0}),
    "everything": Scene(("front", "back", "nccl", "copy"), {"<front>": 0.5, "<back>": 0.5}),
    "exposed collective": Scene(("nccl",), {"communication": 1.0}),
    "copy under a collective": Scene(("nccl", "copy"), {"communication": 1.0}),
    "exposed copy": Scene(("copy",), {"transfer": 1.0}),
    "tiny kernels": Scene((), {"overhead.launch_floor": 1.0}),
    "next in the queue": Scene((), {"overhead.kernel_gap": 1.0}),
    "queued but held": Scene((), {"overhead.dependency": 1.0}),
}
STREAMS = {"front": 7, "back": 20, "nccl": 24, "copy": 28}
BOUNDS = ("compute", "memory", "unknown")
SHORTEST_UNKNOWN_US = 40  # a shorter kernel without a cost might be all launch floor


@dataclass(frozen=True)
class Stretch:
    """A stretch of the device's time after work began; ``cut`` ends the kernels that would run on into it.

    ``bounds`` are those of the kernels on the front and back tracks that begin in it.
    """

    scene: str
    us: int
    cut: bool = False
    bounds: tuple[str, str] = ("memory", "compute")


@dataclass(frozen=True)
class Burst:
    """The device has nothing to do while ``waits`` pass on the host; then a thread launches, and ``body`` runs."""

    waits: tuple[tuple[str, int], ...]
    lead_us: int
    call_us: int
    latency_us: int
    body: tuple[Stretch, ...]
    thread: int = MAIN
    synchronises: bool = False


@dataclass(frozen=True)
class Step:
    """Bursts, and what the host does after the last of them."""

    bursts: tuple[Burst, ...]
    closing: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Program:
    """Steps, and what a thread that has nothing to do with the device does meanwhile: (start, length) of its ops."""

    steps: tuple[Step, ...]
    noise: tuple[tuple[int, int], ...] = ()


@dataclass
class Work:
    """A piece of device work to be emitted; ``account`` is its own, whoever owns the instants in which it runs."""

    track: str
    start: int
    us: int
    account: str
    tiny: bool = False


@dataclass
class Told:
    """The known contents of a step: microseconds per account, and calls."""

    accounts: Counter[str] = field(default_factory=Counter)
    busy_us: float = 0.0
    kernels: int = 0
    copies: int = 0
    wall_us: int = 0


def lay_out(burst: Burst) -> tuple[list[tuple[int, Stretch]], list[Work]]:
    """The start of each stretch, counted from the start of the body, and the work that runs in them.

    The first stretch is long enough for the host to fill the queue meanwhile.
    """
    calls = len(_place(burst.body)[1]) - 1
    first = burst.body[0]
    fitting = Stretch(first.scene, max(first.us, LAUNCH_US * calls + 1), first.cut, first.bounds)
    return _place((fitting, *burst.body[1:]))


def _place(body: tuple[Stretch, ...]) -> tuple[list[tuple[int, Stretch]], list[Work]]:
    placed, done, at = [], [], 0
    running: dict[str, Work] = {}
    for stretch in body:
        runs = SCENES[stretch.scene].runs
        kept = {} if stretch.cut else {track: work for track, work in running.items() if track in runs}
        running = {track: kept.get(track) or _begin(track, at, stretch, done) for track in runs}
        for work in running.values():
            work.us += stretch.us
        if stretch.scene == "tiny kernels":
            done += [Work("front", at + TINY_US * i, TINY_US, "overhead.launch_floor", tiny=True) for i in range(TINY)]
        placed.append((at, stretch))
        at += stretch.us
    for work in done:
        if work.account == "unknown" and work.us < SHORTEST_UNKNOWN_US:
            work.account = "memory"
    return placed, sorted(done, key=lambda work: work.start)


def _begin(track: str, at: int, stretch: Stretch, done: list[Work]) -> Work:
    accounts = {"front": stretch.bounds[0], "back": stretch.bounds[1], "nccl": "communication", "copy": "transfer"}
    done.append(Work(track, at, 0, accounts[track]))
    return done[-1]


def body_us(burst: Burst) -> int:
    """Length of the body."""
    at, last = lay_out(burst)[0][-1]
    return at + last.us


def known(steps: Step) -> Told:
    """The contents of a step, added up from the account of each microsecond."""
    told = Told()
    for burst in steps.bursts:
        for cause, us in burst.waits:
            told.accounts[f"overhead.{cause}"] += us
        told.accounts["overhead.dispatch"] += burst.lead_us
        told.accounts["overhead.launch"] += burst.call_us + burst.latency_us
        placed, works = lay_out(burst)
        for at, stretch in placed:
            scene = SCENES[stretch.scene]
            for owner, part in scene.owners.items():
                told.accounts[_account(owner, at, works)] += part * stretch.us
            told.busy_us += stretch.us if scene.runs or stretch.scene == "tiny kernels" else 0
        told.kernels += sum(work.track != "copy" for work in works)
        told.copies += sum(work.track == "copy" for work in works)
    for cause, us in steps.closing:
        told.accounts[f"overhead.{cause}"] += us
    told.wall_us = step_us(steps)
    return told


def _account(owner: str, at: int, works: list[Work]) -> str:
    if not owner.startswith("<"):
        return owner
    return next(w.account for w in works if w.track == owner[1:-1] and w.start <= at < w.start + w.us)


def step_us(one: Step) -> int:
    """Length of a step."""
    return sum(map(burst_us, one.bursts)) + sum(us for _, us in one.closing)


def burst_us(burst: Burst) -> int:
    """Length of a burst from the first wait to the end of its work."""
    return sum(us for _, us in burst.waits) + burst.lead_us + burst.call_us + burst.latency_us + body_us(burst)


@dataclass
class Ids:
    """Correlations and op ids as they are given out."""

    last: int = 0

    def next(self) -> int:
        """The next one."""
        self.last += 1
        return self.last


def emit(program: Program) -> list[Event]:
    """The trace of a program."""
    events: list[Event] = []
    ids, at = Ids(), ORIGIN_US
    for number, one in enumerate(program.steps):
        events.append(step(number, at, step_us(one)))
        for burst in one.bursts:
            events += emit_burst(burst, at, ids)
            at += burst_us(burst)
        events += emit_waits(one.closing, at, MAIN, ids)
        at += sum(us for _, us in one.closing)
    events.append(frame("train.py(3): <module>", ORIGIN_US - 7, at - ORIGIN_US + 9))
    events.append(complete("PyTorch Profiler (0)", "Trace", ORIGIN_US - 20, at - ORIGIN_US + 40, pid="Spans", tid="P"))
    events.append(
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": ORIGIN_US, "args": {"name": "python3"}}
    )
    events += [
        op("aten::copy_", ORIGIN_US + start, us, tid=PINNING, external_id=ids.next(), dims=[[16], [16], []])
        for start, us in program.noise
    ]
    return events


def emit_waits(waits: tuple[tuple[str, int], ...], at: float, thread: int, ids: Ids) -> list[Event]:
    """The work of the host while the device has nothing to do."""
    events: list[Event] = []
    for cause, us in waits:
        events += _WAITS[cause](at, us, thread, ids)
        at += us
    return events


def _dispatch(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    return [op("aten::as_strided", at, us, dims=[[8, 8]], tid=tid, external_id=ids.next())]


def _sync(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    return [launch(ids.next(), at, us, "cudaStreamSynchronize", tid=tid)]


def _input(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    loader = complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", at, us, tid=tid)
    return [loader, op("aten::stack", at, us / 2, tid=tid, external_id=ids.next())]


def _allocator(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    empty = op("aten::empty", at, us, dims=[[]], tid=tid, external_id=ids.next())
    return [empty, launch(ids.next(), at, us, "cudaMalloc", tid=tid)]


def _compile(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    return [complete("cuModuleLoadData", "cuda_driver", at, us, tid=tid, args={"correlation": ids.next(), "cbid": 4})]


def _collect(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    return [frame("<built-in function collect>", at, us, tid=tid)]


def _flush(at: float, us: int, tid: int, ids: Ids) -> list[Event]:
    return [complete("Activity Buffer Request", "overhead", at, us, pid=-1, tid=0)]


_WAITS = {
    "python": lambda at, us, tid, ids: [],
    "dispatch": _dispatch,
    "sync": _sync,
    "input": _input,
    "allocator": _allocator,
    "compile": _compile,
    "gc": _collect,
    "profiler": _flush,
}
CAUSES = tuple(_WAITS)
# What a backward thread does by itself; the rest is the program's.
CAUSES_IN_BACKWARD = ("python", "dispatch", "allocator")


def emit_burst(burst: Burst, at: float, ids: Ids) -> list[Event]:
    """The waits, the calls that launch the work, and the work."""
    events = emit_waits(burst.waits, at, burst.thread, ids)
    at += sum(us for _, us in burst.waits)
    _, works = lay_out(burst)
    called = at + burst.lead_us
    begins = called + burst.call_us + burst.latency_us
    for order, work in enumerate(works):
        opens, lead, call = (at, burst.lead_us, burst.call_us) if order == 0 else (called, 1, 2)
        events += _issue(work, (opens, lead, call), begins + work.start, burst.thread, ids)
        called = opens + lead + call + 1
    ends = begins + body_us(burst)
    if burst.synchronises:
        events.append(launch(ids.next(), called, ends - called, "cudaDeviceSynchronize", tid=burst.thread))
    return events


def _issue(work: Work, host: tuple[float, int, int], starts: float, thread: int, ids: Ids) -> list[Event]:
    """The op, its launch call and the device work. ``host`` is when the op opens, and how long lead and call take."""
    opens, lead, call = host
    number = ids.next()
    name, dims, what = _described(work)
    types = ["c10::BFloat16" if shape else "Scalar" for shape in dims] if dims is not None else None
    issuer = op(name, opens, lead + call + 0.5, dims=dims, types=types, tid=thread, external_id=number)
    called = launch(
        number, opens + lead, call, "cudaMemcpyAsync" if work.track == "copy" else "cudaLaunchKernel", tid=thread
    )
    if work.track == "copy":
        done = memcpy(number, starts, work.us, copied_bytes(work))
        done |= {"tid": STREAMS["copy"], "args": done["args"] | {"stream": STREAMS["copy"]}}
    else:
        grid = [1, 1, 1] if work.tiny else [528, 1, 1]
        done = kernel(number, starts, work.us, what, stream=STREAMS[work.track], grid=grid)
    done["args"]["External id"] = number
    return [issuer, called, done]


def copied_bytes(work: Work) -> int:
    """Bytes that a copy moves, at 20 GB/s."""
    return work.us * 20_000


def _described(work: Work) -> tuple[str, list[list[int]] | None, str]:
    """Op, its dims and the kernel's name, for work that takes ``EXPLAINED`` of its time at the device's peak."""
    if work.track == "nccl":
        return "c10d::allreduce_", None, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    if work.track == "copy":
        return "aten::copy_", [[1024], [1024], []], ""
    if work.tiny:
        return "aten::relu", [[16]], _POINTWISE
    seconds = EXPLAINED * work.us * SECONDS_PER_US
    if work.account == "memory":
        return "aten::relu", [[round(seconds * BYTES_PER_S / 4)]], _POINTWISE
    if work.account == "compute":
        inner = round(seconds * FLOPS_PER_S / (2 * 2048 * 2048))
        return "aten::mm", [[2048, inner], [inner, 2048]], _PRODUCT
    return "custom::step", None, "custom_step_kernel(float*, int)"


_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::relu_kernel>(int)"
_PRODUCT = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
