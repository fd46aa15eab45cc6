"""Accounts of the ledger, for analysis, advice and reports.

Each is one row with its group, texts and default advice.

A new cause of idle time is a row here and the rule that finds it (``analysis/host.py`` by names of events, or
``analysis/idle.py``); nothing else lists the accounts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

UNMODELLED = "unknown"
"""Group of the accounts of unmodelled work: one per kind of work that names show, and one for the rest."""

_RECORD_SHAPES = "record with shapes (record_shapes=True), so that more of the work can be modelled"

IDLE = "overhead."
"""Prefix of the accounts of idle time; what follows is the cause."""

SILENCE = "long stretches without any record"
"""Detail of idle time in which a thread calls nothing that was recorded."""


@dataclass(frozen=True)
class Account:
    """One account of the ledger.

    ``key`` is its group and what follows, of which the last part is its label unless it has a ``title``. ``meaning``
    explains it in a table, ``phrase`` names it inside a sentence, ``device_waits_for`` is what a device waits for in it
    (empty where it waits for nothing that can be named). ``advice`` is the first thing to try where no finding
    is better; '' becomes ' at file.py:57' where the line is known. ``host_advice`` takes its place in programs
    without a device, which save no launches.

    ``bound`` is the bound of kernels and ops whose time goes here, null for accounts of idle time only. ``cause`` is
    the cause of idle time, null for accounts of work only. ``is_host_state`` marks causes that a host thread shows by
    its events; ``is_scaled`` those whose time the profiler stretches. ``families`` are the families of kernels and ops
    whose unmodelled time goes here, ``kind`` names their work, ``likely`` is the bound that such work usually
    has: products reuse each operand, everything else does a few operations per element that it moves.
    """

    key: str
    meaning: str
    phrase: str
    advice: str
    title: str | None = None
    host_advice: str | None = None
    bound: str | None = None
    is_host_state: bool = False
    is_scaled: bool = True
    families: tuple[str, ...] = ()
    likely: str | None = None
    host_likely: str | None = None
    kind: str | None = None
    device_waits_for: str = ""

    @property
    def label(self) -> str:
        """Its name beside that of its group."""
        return self.title or self.key.rpartition(".")[2]

    @property
    def group(self) -> str:
        """The group of the ledger that it belongs to."""
        return self.key.partition(".")[0]

    def likely_bound(self, *, host_only: bool) -> str | None:
        """Returns the bound that such unmodelled work usually has."""
        return self.host_likely if host_only and self.host_likely is not None else self.likely

    @property
    def cause(self) -> str | None:
        """Cause of idle time that this account collects.

        Null where it holds the time of kernels.
        """
        is_idle = self.key.startswith(IDLE) and self.bound in {None, "dispatch"}
        return self.key.removeprefix(IDLE) if is_idle else None


def _idle(cause: str, meaning: str, phrase: str, advice: str, **more: str) -> Account:
    """Makes the account of an idle cause that host events show."""
    return Account(f"{IDLE}{cause}", meaning, phrase, advice, **more, is_host_state=True)  # type: ignore[arg-type]


def _unmodelled(
    kind: str, words: str, families: tuple[str, ...], likely: str, host_likely: str | None = None
) -> Account:
    """Makes the account of one kind of unmodelled work.

    The kind follows from the names of kernels and ops.
    """
    return Account(
        f"{UNMODELLED}.{kind}",
        meaning=f"unmodelled {words}",
        phrase=f"unmodelled {words}",
        advice=_RECORD_SHAPES,
        families=families,
        likely=likely,
        host_likely=host_likely,
        kind=words,
    )


# In the order of the ledger. Causes that host threads show are in the order in which they claim an instant where
# several apply: a compilation launches and waits, a loader runs ops, an allocator that frees synchronises, so what
# contains others of its kind stands before them.
_ROWS = (
    Account(
        "compute",
        meaning="arithmetic is the limit",
        phrase="compute",
        advice="run products in a lower precision, or give them sizes that fill the tiles of the device",
        bound="compute",
    ),
    Account(
        "memory",
        title="bandwidth",
        meaning="moving bytes is the limit",
        phrase="memory bandwidth",
        advice="fuse neighbouring pointwise ops (torch.compile) or move fewer bytes with a lower precision",
        bound="memory",
    ),
    Account(
        "memory.copy",
        meaning="copies and fills on the device",
        phrase="copies",
        advice="copy less: work in place, on views, and in one memory format",
        bound="copy",
    ),
    Account(
        "overhead.launch_floor",
        title="launch floor",
        meaning="kernels too small to pay for their launch",
        phrase="kernels too small to be worth a launch",
        advice="fuse the small kernels (torch.compile, fused optimizers) or raise the batch size",
        host_advice="run fewer, larger ops: torch.compile or a larger batch",
        bound="overhead",
    ),
    _idle(
        "profiler",
        meaning="the profiler itself",
        phrase="the profiler itself",
        advice="record fewer details: this time is the profiler's own",
    ),
    _idle(
        "start_up",
        title="start-up",
        meaning="a first call, paid once",
        phrase="start-up that is paid once",
        advice="record later steps, after warm-up: this time is not paid again",
    ),
    _idle(
        "gc",
        meaning="garbage collection",
        phrase="garbage collection",
        device_waits_for="Python's garbage collection",
        advice="keep the garbage collector out of the step: gc.freeze() after start-up, gc.collect() between steps",
    ),
    _idle(
        "compile",
        meaning="compiling code, or loading kernels",
        phrase="compiling or loading kernels",
        device_waits_for="code to be compiled or loaded",
        advice="record after warm-up; if it stays, find the recompilations with TORCH_LOGS=recompiles",
    ),
    _idle(
        "allocator",
        meaning="allocating and freeing memory",
        phrase="allocating and freeing memory",
        device_waits_for="memory to be allocated and freed",
        advice="keep memory between steps: no empty_cache() in the loop, expandable_segments:True",
        host_advice="allocate less: write into tensors that exist (out=, in-place ops)",
    ),
    _idle(
        "sync",
        meaning="idle after the host waited for it",
        phrase="waiting in synchronisations",
        device_waits_for="the host to go on after a synchronisation",
        advice="remove or defer the synchronisation",
    ),
    _idle(
        "launch",
        meaning="in launch calls, and until the work starts",
        phrase="launching",
        device_waits_for="kernels to be launched",
        advice="issue fewer launches: CUDA graphs, torch.compile, or a larger batch",
    ),
    _idle(
        "input",
        meaning="waiting for input data",
        phrase="waiting for data",
        device_waits_for="data",
        advice="give the data loader more workers or let it prefetch further ahead",
    ),
    _idle(
        "wait",
        title="waiting",
        meaning="waiting for work, a timer or a lock",
        phrase="waiting for work, a timer or a lock",
        device_waits_for="work, a timer or a lock of the host",
        advice="find what the program waits for, and begin that earlier",
    ),
    _idle(
        "stall",
        title="stalled",
        meaning="calls held up: the process did not run",
        phrase="calls that are held up",
        advice="find what keeps the process from running: other programs, a limit on processors, swapping",
    ),
    _idle(
        "host_compute",
        title="host compute",
        meaning="ops computing on the CPU",
        phrase="computing on the CPU",
        device_waits_for="ops that compute on the CPU",
        advice="move this computation to the device, or into the workers of the data loader",
    ),
    _idle(
        "dispatch",
        meaning="framework work around the ops",
        phrase="dispatching ops",
        device_waits_for="PyTorch to dispatch ops",
        advice="dispatch less per step: torch.compile, CUDA graphs, or a larger batch",
        host_advice="run fewer, larger ops: torch.compile or a larger batch",
        bound="dispatch",
    ),
    _idle(
        "python",
        meaning="Python code between ops",
        phrase="Python between ops",
        device_waits_for="Python",
        advice="run less Python between the ops: torch.compile, CUDA graphs, or a larger batch",
        host_advice="run less Python between the ops: torch.compile or a larger batch",
    ),
    Account(
        "overhead.unknown",
        meaning="idle, cause not known",
        phrase="idle time without a recorded cause",
        advice="record again with CPU activity, so that the trace shows what the host did",
        host_advice="record again while nothing else runs; what stays is a wait for a file, a lock or a process",
    ),
    Account(
        "overhead.kernel_gap",
        title="kernel gap",
        meaning="device starting the next queued kernel",
        phrase="gaps between queued kernels",
        advice="run fewer kernels: CUDA graphs shorten the gaps, torch.compile removes kernels",
        is_scaled=False,  # the device keeps its own pace
    ),
    Account(
        "overhead.dependency",
        meaning="work was queued but had to wait",
        phrase="queued work that the device did not start",
        advice="find what the queued work waits for: another stream, another rank, a host callback",
        is_scaled=False,  # the device keeps its own pace: the profiler does not slow what it waits for itself
    ),
    Account(
        "communication",
        meaning="between ranks, not hidden by work",
        phrase="collectives that nothing hides",
        device_waits_for="collectives between ranks",
        advice="overlap the collectives with computation, or send less: larger buckets, gradients less often",
        bound="communication",
    ),
    Account(
        "transfer",
        meaning="copies over PCIe or NVLink, not hidden by work",
        phrase="copies between host and device that nothing hides",
        device_waits_for="copies between host and device",
        advice="copy from pinned memory with non_blocking=True while the device computes, and copy fewer bytes",
        bound="transfer",
    ),
    _unmodelled("matmul", "matrix products", ("matmul", "recurrent", "linear algebra"), likely="compute"),
    _unmodelled("attention", "attention", ("attention",), "compute"),
    _unmodelled("convolution", "convolutions", ("convolution",), "compute"),
    _unmodelled(
        "normalization",
        "normalization and softmax",
        ("normalization", "normalisation", "softmax"),
        likely="memory",
    ),
    _unmodelled(
        "pointwise",
        "pointwise work",
        ("pointwise", "elementwise", "triton", "loss", "random", "primitive"),
        likely="memory",
    ),
    _unmodelled("copies", "copies and layout changes", ("copy", "auxiliary"), likely="memory"),
    _unmodelled("creation", "random numbers and fills", ("fill",), likely="memory"),
    _unmodelled("pooling", "pooling and interpolation", ("pooling", "interpolation"), likely="memory"),
    _unmodelled(
        "reductions",
        "reductions, scans and FFTs",
        ("reduction", "scan", "fft", "passes"),
        likely="memory",
    ),
    _unmodelled("sorts", "sorts and selections", ("sort",), likely="memory", host_likely="compute"),
    _unmodelled("lookups", "indexing and embedding lookups", ("indexing", "recommendation"), likely="memory"),
    _unmodelled("optimizer", "optimizer updates", ("optimizer",), "memory"),
    Account(
        "unknown",
        meaning="unmodelled work",
        phrase="unmodelled work",
        advice=_RECORD_SHAPES,
        bound="unknown",
    ),
)

# Products that compute less per byte read their operands once for few rows. Below the ridge of most CPUs (their range:
# devices/match.py); that of a GPU is higher.
FEW_FLOPS_PER_BYTE = 8.0
ACCOUNTS: Mapping[str, Account] = {row.key: row for row in _ROWS}
UNMODELLED_ACCOUNTS = tuple(row.key for row in _ROWS if row.group == UNMODELLED)
# Account of unmodelled work by the family of its kernel or op.
UNMODELLED_BY_FAMILY = {family: row.key for row in _ROWS for family in row.families}
# The states of a host thread, the first of which owns an instant where several apply, and all causes of idle time.
HOST_STATES = tuple(row.cause for row in _ROWS if row.is_host_state and row.cause is not None)
IDLE_CAUSES = tuple(row.cause for row in _ROWS if row.cause is not None)


def label_of(account: str) -> str:
    """Returns the name of an account beside its group.

    For an account that this version does not know, it is the last part of the key.
    """
    return ACCOUNTS[account].label if account in ACCOUNTS else account.partition(".")[2] or account


def meaning_of(account: str) -> str:
    """Returns the meaning of an account's time.

    Empty for an account that this version does not know.
    """
    return ACCOUNTS[account].meaning if account in ACCOUNTS else ""


def phrase_of(account: str) -> str:
    """Returns an account in words that continue a sentence.

    For an account that this version does not know, it is the key.
    """
    return ACCOUNTS[account].phrase if account in ACCOUNTS else account
