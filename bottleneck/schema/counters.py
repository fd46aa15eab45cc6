"""Counters that a gate can lock, and the records of their values.

Each has a name, a unit and a tier.

A counter is a whole number per step that every measured step agrees on. Those of tier ``portable`` depend on the
program and on torch, those of tier ``backend`` on the device and its libraries too (gate statistics, section 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.numerics import Numerics
from bottleneck.schema.records import Doc

LOCK_SCHEMA = 1

Tier = Literal["portable", "backend"]
Value = str | int | float | bool


@dataclass(frozen=True)
class Counter:
    """Kind of count: its tier, its words and its meaning.

    The words stand in a sentence ("3 more syncs"). ``must_exist``: a step that does less than half as much as before
    has lost its measurement, not its work.
    """

    name: str
    tier: Tier
    one: str
    many: str
    meaning: str
    unit: str | None = None
    must_exist: bool = False


# Those first whose growth costs a step most; counters of no name here come after them.
COSTLIEST = (
    "syncs",
    "launches",
    "copies",
    "h2d_copies",
    "d2h_copies",
    "graph_breaks",
    "recompiles",
    "cudagraph_skips",
    "ops",
    "module_calls",
)

COUNTERS: Mapping[str, Counter] = {
    counter.name: counter
    for counter in (
        Counter("ops", "portable", "op", "ops", "calls of torch's dispatcher, inner ones included", must_exist=True),
        Counter(
            "launches",
            "portable",
            "kernel launch",
            "kernel launches",
            "kernels that the host launched",
            must_exist=True,
        ),
        Counter(
            "syncs",
            "portable",
            "sync",
            "syncs",
            "waits of the host: `.item()` and its like, on a CPU too, and for the device",
        ),
        Counter("copies", "portable", "copy", "copies", "tensors copied: calls of aten::copy_"),
        Counter("h2d_copies", "portable", "copy to the device", "copies to the device", "copies from host to device"),
        Counter("h2d_bytes", "portable", "byte to the device", "bytes to the device", "their size", "B"),
        Counter("d2h_copies", "portable", "copy to the host", "copies to the host", "copies from device to host"),
        Counter("d2h_bytes", "portable", "byte to the host", "bytes to the host", "their size", "B"),
        Counter("flops", "portable", "FLOP", "FLOPs", "arithmetic by the shapes of the ops", "FLOP", must_exist=True),
        Counter("float64_ops", "portable", "float64 op", "float64 ops", "ops that take a float64 tensor"),
        Counter("graphs", "portable", "compiled graph", "compiled graphs", "graphs that torch.compile captured in all"),
        Counter("graph_breaks", "portable", "graph break", "graph breaks", "graph breaks of torch.compile in all"),
        Counter("recompiles", "portable", "recompile", "recompiles", "graphs compiled again for other inputs, in all"),
        Counter(
            "cudagraph_skips",
            "portable",
            "skipped CUDA graph",
            "skipped CUDA graphs",
            "graphs that torch.compile did not capture as CUDA graphs, in all",
        ),
        Counter(
            "autograd_nodes",
            "portable",
            "autograd node",
            "autograd nodes",
            "nodes of the backward pass",
            must_exist=True,
        ),
        Counter(
            "module_calls", "portable", "module call", "module calls", "forward calls of nn.Modules", must_exist=True
        ),
        Counter("allocations", "backend", "allocation", "allocations", "blocks requested from torch's allocators"),
        Counter("allocated_bytes", "backend", "byte allocated", "bytes allocated", "their size", "B"),
        Counter("peak_bytes", "backend", "byte of peak memory", "bytes of peak memory", "most in use at once", "B"),
        Counter("kernel_names", "backend", "distinct kernel", "distinct kernels", "kernels of different names"),
    )
}

# Counters that are broken down by module path, besides the whole step.
MODULE_COUNTERS = ("ops", "launches", "syncs", "copies")


@dataclass(frozen=True)
class Fingerprint:
    """Facts that the counts depend on.

    Counters of a tier are compared where this tier's facts are equal.

    ``host`` is information only and never refuses a comparison.
    """

    portable: Annotated[Mapping[str, Value], Doc("facts that all counters depend on")] = field(default_factory=dict)
    backend: Annotated[Mapping[str, Value], Doc("facts that counters of the device and its libraries depend on")] = (
        field(default_factory=dict)
    )
    host: Annotated[Mapping[str, Value], Doc("for information; never refuses a comparison")] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Site:
    """Line of the user's program with its calls' counters per step.

    ``file`` is relative to the working folder, ``text`` the line without its indent (empty where the file is not at
    hand), by which a line is known again after it has moved; lock-files keep the text alone, and ``line`` is 0.
    ``ops`` holds the ops called from it.
    """

    file: Annotated[str, Doc("path relative to the repository")]
    line: Annotated[int, Doc("line number, from 1")]
    text: Annotated[str, Doc("the line without its indent; empty where the file is not available")]
    counts: Annotated[Mapping[str, int], Doc("counters of the calls from it, per step")] = field(default_factory=dict)
    ops: Annotated[Mapping[str, int], Doc("ops called from it, per step")] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """'train.py:57'; the file alone where the line is known by its text."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Counts:
    """All counters of one step, with the work that explains a change.

    That work is by op, module, kernel and line.

    ``values`` holds the counters by name; one that cannot be known of this recording is missing there, and has its
    reason in ``unknown``. ``unstable`` holds those whose steps, or whose calibration runs, disagree, with the range and
    the reason ("8..10: …"); they are in ``values`` no more, and ``lowest`` has the least of each. ``ops`` are calls per
    step by op, ``modules`` counters by module path, ``kernels`` launches by kernel name. ``input_sha`` is a digest of
    the shapes and dtypes of what the outermost call got, and of the program's settings; empty where unknown. ``runs``
    is how many processes agree. ``numerics`` are digests of the step's outputs, null where nobody asked for them.
    """

    values: Annotated[Mapping[str, int], Doc("counters by name, per step")]
    fingerprint: Annotated[Fingerprint, Doc("facts that the counters depend on")]
    unknown: Annotated[Mapping[str, str], Doc("counters that this recording cannot give, with the reason")] = field(
        default_factory=dict
    )
    unstable: Annotated[
        Mapping[str, str], Doc("counters on which steps or runs disagree, with the range and the reason; never gated")
    ] = field(default_factory=dict)
    lowest: Annotated[Mapping[str, int], Doc("least count of those on which steps or runs disagree, by name")] = field(
        default_factory=dict
    )
    ops: Annotated[Mapping[str, int], Doc("calls per step, by op")] = field(default_factory=dict)
    modules: Annotated[Mapping[str, Mapping[str, int]], Doc("counters per step, by module path")] = field(
        default_factory=dict
    )
    kernels: Annotated[Mapping[str, int], Doc("launches per step, by kernel name")] = field(default_factory=dict)
    sites: Annotated[tuple[Site, ...], Doc("lines of the program, with the counters of the calls from each")] = ()
    input_sha: Annotated[
        str, Doc("digest of the shapes and dtypes of the inputs, and of the settings; empty where not known")
    ] = ""
    steps: Annotated[int, Doc("number of steps that agree")] = 0
    runs: Annotated[int, Doc("number of processes that agree")] = 1
    numerics: Annotated[
        Numerics | None, Doc("digests of what the step returns and changes; null where not asked for")
    ] = None


@dataclass(frozen=True)
class Acceptance:
    """Change of a counter that somebody accepted, and the reason.

    ``date`` is a day. ``commit`` is empty where unknown.
    """

    date: str
    commit: str
    metric: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class Anchor:
    """Release that a creep budget counts from.

    It has the commit (or tag) and the counters at that time.
    """

    commit: str
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lock:
    """The committed lock-file of one workload: what its step may count. No timings.

    ``program`` is what names it on a command line ("examples/mlp.py", "--set", …), relative to the repository.
    ``counted`` names all counters that its writer knew, each of which it has a value of or a reason why not; null for
    one that was read from no file.
    """

    name: str
    program: tuple[str, ...]
    counts: Counts
    anchor: Anchor | None = None
    accepted: tuple[Acceptance, ...] = ()
    schema: int = LOCK_SCHEMA
    counted: tuple[str, ...] | None = None

    @property
    def removed(self) -> tuple[str, ...]:
        """The counters that its writer must have written, and that somebody has taken out."""
        counts = self.counts
        return tuple(
            name for name in self.counted or () if name not in {*counts.values, *counts.unstable, *counts.unknown}
        )


def cost_rank(name: str) -> int:
    """Ranks a counter by what its growth costs a step; 0 costs most."""
    return COSTLIEST.index(name) if name in COSTLIEST else len(COSTLIEST)
