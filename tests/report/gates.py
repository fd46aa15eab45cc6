"""Gates made by hand: every verdict, every kind of counter, and names that would act if nobody escaped them."""

import math
from collections.abc import Mapping
from dataclasses import replace

from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison
from bottleneck.schema.counters import Counts, Fingerprint, Site
from bottleneck.schema.gate_result import Cause, CounterChange, Culprit, Fix, Gate, Limit, TimeResult, WorkloadResult
from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.schema.numerics import NumericsResult, OutputChange

EXACT = "+0"


def limit(metric: str, text: str = EXACT) -> Limit:
    """A limit of this text: '+0', '+2' or '+3%'."""
    number = float(text.rstrip("%"))
    return Limit(metric, number / 100, text=text) if text.endswith("%") else Limit(metric, None, number, text=text)


def change(metric: str, before: int | None, after: int | None, verdict: str, **other: object) -> CounterChange:
    """A counter held against an exact limit."""
    return CounterChange(metric, before, after, verdict, **{"limit": limit(metric), **other})  # type: ignore[arg-type]


def equal(*metrics: str) -> tuple[CounterChange, ...]:
    """Counters that did not change."""
    return tuple(change(metric, 7, 7, "same") for metric in metrics)


MOST = equal(
    "ops", "launches", "copies", "h2d_copies", "h2d_bytes", "d2h_copies", "d2h_bytes", "flops", "float64_ops", "graphs",
    "graph_breaks", "recompiles", "autograd_nodes", "module_calls", "syncs",
)  # fmt: skip

FINE = TimeResult(
    "fine",
    ratio=Ratio(1.004, 0.994, 1.013, 7),
    low_bound=-0.005,
    high_bound=0.012,
    base_us=Timing(18_200.0, 18_100.0, 18_300.0, 112),
    candidate_us=Timing(18_270.0, 18_180.0, 18_360.0, 112),
    budget=0.03,
    smallest_visible=0.018,
    pairs=(0.004, 0.003, -0.002, 0.005, 0.004, 0.01, 0.001),
    seconds=38.4,
    seed=7,
)
SLOWER = TimeResult(
    "slower",
    ratio=Ratio(1.076, 1.051, 1.099, 14),
    low_bound=0.052,
    high_bound=0.094,
    base_us=Timing(18_200.0, 18_100.0, 18_300.0, 112),
    candidate_us=Timing(19_600.0, 19_400.0, 19_700.0, 112),
    budget=0.03,
    floor_us=200.0,
    smallest_visible=0.024,
    pairs=(0.07, 0.08, 0.06, 0.075, 0.073, 0.09, 0.071, 0.07, 0.08, 0.06, 0.075, 0.073, 0.09, 0.071),
    confirming=7,
    is_confirmed=True,
    seconds=77.9,
    seed=7,
)
NO_TIME = TimeResult("not run", "no base: this is a shallow clone without the merge-base (git fetch --depth=200)")

ADVISORY = TimeResult(
    "advisory",
    "the two recordings did not take turns",
    base_us=Timing(18_200.0, 18_100.0, 18_300.0, 40),
    candidate_us=Timing(19_600.0, 19_400.0, 19_700.0, 40),
)

ROPE = Site("model/rope.py", 88, "cos = torch.cos(angles).to(x.device)", {"h2d_copies": 24}, {"aten::copy_": 24})
ITEM = Site("train.py", 141, "total += loss.item()", {"syncs": 2, "d2h_copies": 2}, {"aten::item": 2})
COPY = Culprit("aten::copy_", 24, "decoder.rotary", ROPE, True)


def comparison() -> Comparison:
    """A step of 18.2 ms that takes 1.4 ms more: copies, waiting for them, and the launches."""
    rows = (
        ChangeRow(
            "aten::copy_", "decoder.rotary", "32x128", "copy", "new", "nothing", 0.0, 24.0, 0.0, 1_100.0, 0.0, 1_100.0,
            "model/rope.py:88", True,
        ),
        ChangeRow(
            "aten::mm", "decoder.mlp", "512x512", "matmul", "same", "module and op", 24.0, 24.0, 14_000.0, 14_000.0,
            0.0, 0.0, "model/mlp.py:20", False,
        ),
    )  # fmt: skip
    idle = (Bar("overhead.sync", "overhead", 0.0, 200.0), Bar("overhead.launch", "overhead", 4_200.0, 4_300.0))
    bars = (
        Bar("compute", "compute", 14_000.0, 14_000.0),
        Bar("memory.copy", "memory", 0.0, 1_100.0),
        *idle,
    )
    return Comparison(
        CompareSide("merge-base 1a2b3c4", "base", "H200", 18_200.0),
        CompareSide("this tree", "candidate", "H200", 19_600.0),
        bars=bars,
        rows=rows,
        modules=(),
        idle=idle,
        sentence="the step takes 1.40 ms more, 1.10 ms of it copies",
    )


OTHER_DEVICE = "the lock-file is of sm 8.0, this is sm 9.0"
WAVERING = "715..716: the first step of a process allocates once more"
PORTABLE = Fingerprint({"torch": "2.13", "backend": "cuda"}, {"sm": "9.0"}, {"cpu": "a CPU"})
COUNTS = Counts(
    {"ops": 2629, "launches": 327, "syncs": 2},
    PORTABLE,
    unknown={"graphs": "nothing was compiled"},
    unstable={"allocations": WAVERING},
    ops={"aten::copy_": 24},
    modules={"decoder.rotary": {"ops": 61, "launches": 9}},
    kernels={"gemm": 24},
    sites=(ROPE, ITEM),
    input_sha="9f2c41d0",
    steps=5,
    runs=2,
)

PASSED = WorkloadResult(
    "examples/mlp.py",
    ("examples/mlp.py",),
    "pass",
    "",
    base="the lock-file; merge-base 1a2b3c4",
    lock=".bottleneck/examples-mlp.lock.toml",
    counters=MOST,
    time=FINE,
    seconds=41.2,
)

COUNTED = WorkloadResult(
    "bench/train_step.py",
    ("bench/train_step.py",),
    "fail",
    "h2d_copies 0 to 24, h2d_bytes 0 B to 12.6 MB, launches 303 to 327 and 1 more per step",
    (
        Cause("+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here", ROPE.text),
        Cause("+2 aten::item at train.py:141, changed here", ITEM.text),
    ),
    Fix(
        "undo that, or:",
        'bottleneck accept bench/train_step.py --metric h2d_bytes,h2d_copies,launches,syncs --reason "…"',
    ),
    base="the lock-file; merge-base 1a2b3c4",
    lock=".bottleneck/bench-train_step.lock.toml",
    counters=(
        *equal("ops", "flops", "graphs", "graph_breaks", "recompiles", "autograd_nodes", "module_calls"),
        change("h2d_copies", 0, 24, "broken", culprits=(COPY,)),
        change("h2d_bytes", 0, 12_600_000, "broken", culprits=(COPY,)),
        change("launches", 303, 327, "broken", culprits=(COPY,)),
        change("syncs", 0, 2, "broken", culprits=(Culprit("aten::item", 2, None, ITEM, True),)),
        change("module:decoder.*.launches", 18, 20, "within budget", limit=limit("module:decoder.*.launches", "+2")),
        change("copies", 31, 30, "improved"),
        change("peak_bytes", None, None, "not compared", reason=OTHER_DEVICE),
        change("kernel_names", None, None, "not compared", reason=OTHER_DEVICE),
        change("allocations", 716, None, "unstable", reason=WAVERING),
    ),
    time=NO_TIME,
    counts=COUNTS,
    seconds=12.0,
)  # fmt: skip

SLOWED = replace(
    COUNTED,
    what=f"{COUNTED.what}; step 18.2 ms to 19.6 ms, +7.6 % (+5.1 % to +9.9 %), budget 3.0 %",
    time=SLOWER,
    comparison=comparison(),
    seconds=91.0,
)

TIMED = WorkloadResult(
    "bench/decode.py --tokens 64",
    ("bench/decode.py", "--tokens", "64"),
    "fail",
    "step 18.2 ms to 19.6 ms, +7.6 % (+5.1 % to +9.9 %), budget 3.0 %",
    (Cause("+1.10 ms aten::copy_ (new) in decoder.rotary at model/rope.py:88, changed here"),),
    Fix("undo that, or raise the budget of step_us in pyproject.toml"),
    base="merge-base 1a2b3c4",
    lock=".bottleneck/bench-decode.lock.toml",
    counters=MOST,
    time=SLOWER,
    comparison=comparison(),
    seconds=91.0,
)

UNDECIDED = WorkloadResult(
    "bench/noisy.py",
    ("bench/noisy.py",),
    "undecided",
    "step +2.1 % (-3.3 % to +7.4 %) after 20 pairs: the budget of 3.0 % lies inside",
    (Cause("other processes kept 1.4 of 2 cores busy meanwhile"),),
    Fix("run it again on a quieter machine, or give it more time: time_limit in pyproject.toml"),
    base="merge-base 1a2b3c4",
    lock=".bottleneck/bench-noisy.lock.toml",
    counters=MOST,
    time=replace(
        FINE,
        verdict="undecided",
        ratio=Ratio(1.021, 0.967, 1.074, 20),
        smallest_visible=0.061,
        reason="20 pairs are the most that were asked for",
        seconds=287.0,
    ),
    seconds=301.5,
)

UNMEASURED = WorkloadResult(
    "bench/empty.py",
    ("bench/empty.py",),
    "nothing measured",
    "launches, flops: counted before, and no more",
    (Cause("launches fell from 303 to 0"),),
    Fix("see that the workload still does its work; if it really does without:", "bottleneck gate --update"),
    base="the lock-file",
    lock=".bottleneck/bench-empty.lock.toml",
    counters=(
        change("launches", 303, None, "gone", reason="launches fell from 303 to 0"),
        change("flops", 344_571_904, None, "gone", reason="no op of this recording has FLOPs"),
    ),
    time=TimeResult("not run", "the counters vanished"),
    seconds=9.0,
)

CRASHED = WorkloadResult(
    "bench/crash.py",
    ("bench/crash.py",),
    "failed",
    "bench/crash.py ended with status 1",
    (Cause("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x64 and 65x10)"),),
    Fix("run it alone: bottleneck run bench/crash.py"),
    lock=".bottleneck/bench-crash.lock.toml",
    seconds=3.1,
)

WAVERED = replace(COUNTED, time=replace(UNDECIDED.time or NO_TIME, reason="the pairs scatter"))

NEW = replace(
    PASSED,
    name="examples/new.py",
    program=("examples/new.py",),
    verdict="nothing measured",
    what="there is no lock-file yet: nothing to hold the counters against",
    fix=Fix("write the lock-file, and commit it:", "bottleneck gate --update"),
    counters=(change("ops", None, 160, "new", limit=None), change("syncs", None, 0, "new", limit=None)),
    time=TimeResult("not run", "asked for counters only"),
    warnings=("examples/new.py has no lock-file yet: bottleneck gate --update, and commit it",),
    is_new=True,
)

IMPROVED = replace(
    PASSED,
    name="examples/better.py",
    counters=(
        *equal("ops", "syncs", "flops"),
        change("launches", 311, 303, "improved"),
        change("d2h_bytes", 4, 0, "improved"),
        change("copies", 30, 31, "accepted", reason="per-head norm (#812)"),
        change("kernel_names", None, 12, "new", limit=None),
    ),
    time=replace(FINE, verdict="faster", ratio=Ratio(0.93, 0.91, 0.95, 7)),
)

REMOVED = replace(
    PASSED,
    verdict="fail",
    what="syncs: taken out of the lock-file",
    fix=Fix("undo that, or:", 'bottleneck accept examples/mlp.py --metric syncs --reason "…"'),
    counters=(*MOST[:-1], change("syncs", None, 2, "removed", reason="somebody took it out of the lock-file")),
)
OTHER_OUTPUTS = replace(
    PASSED,
    verdict="fail",
    what="1 of 9 outputs differs, the first is returned of step 1",
    why=(Cause("returned of step 1: norm 2.3 to 2.4, 4.2e-02 of its size; rounding explains 1.3e-05"),),
    fix=Fix("undo that, or:", 'bottleneck accept examples/mlp.py --metric numerics --reason "…"'),
    numerics=NumericsResult(
        "differs",
        9,
        (OutputChange("returned of step 1", "norm 2.3 to 2.4", 0.042, 1.3e-5), OutputChange("Net.bias", "it is new")),
        {"Net.noise": "runs differ: norm 3 to 4"},
    ),
)

HOSTILE_TEXTS = (
    "\x1b[31mred\x1b[0m",
    "]]>",
    "::error file=x,line=1::injected",
    "##[error]injected ##vso[task.complete]",
    "[link](https://evil.example)",
    "<script>alert(1)</script>",
    "<!-- bottleneck-gate -->",
    "</details>",
    "a\r\n::warning::injected",
    "@everyone",
    "%0A::error::x",
    'quote" \' \\ } {x="1"',
    "| cell |",
    "\u202ereversed",
    "\udc80",
    "\x00\x0b\ufffe",
    "`$(touch /tmp/x)`",
)
_HOSTILE = " ".join(HOSTILE_TEXTS)
_HOSTILE_SITE = Site(f"a,b:c/{_HOSTILE}.py", 3, f"x = '{_HOSTILE}'")
_HOSTILE_CULPRIT = Culprit(_HOSTILE, 1, _HOSTILE, _HOSTILE_SITE, True)
HOSTILE = WorkloadResult(
    _HOSTILE,
    (_HOSTILE,),
    "fail",
    _HOSTILE,
    (Cause(_HOSTILE, _HOSTILE), Cause("::error::at the start of a line", "::error::of code")),
    Fix(_HOSTILE, f"bottleneck accept {_HOSTILE}"),
    base=_HOSTILE,
    lock=f"../{_HOSTILE}",
    counters=(
        change("launches", 1, 2, "broken", reason=_HOSTILE, culprits=(_HOSTILE_CULPRIT,)),
        change(f"module:{_HOSTILE}.launches", 1, 2, "broken", limit=replace(limit("x"), text=_HOSTILE)),
        change(_HOSTILE, 1, None, "not compared", reason=_HOSTILE),
        change(f"{_HOSTILE}2", 2, 1, "improved"),
        change(f"{_HOSTILE}3", 2, None, "unstable", reason=_HOSTILE),
        change("syncs", 0, 1, "broken", culprits=(Culprit("x", 1, None, Site("/etc/passwd", 1, "root"), None),)),
        change("copies", 0, 1, "broken", culprits=(Culprit("x", 1, None, Site("../../up.py", 1, ""), None),)),
    ),
    time=replace(SLOWER, reason=_HOSTILE, ratio=Ratio(math.inf, -math.inf, math.nan, 7), smallest_visible=math.nan),
    counts=replace(COUNTS, unstable={_HOSTILE: _HOSTILE}, sites=(_HOSTILE_SITE,), kernels={_HOSTILE: 1}),
    warnings=(_HOSTILE,),
    seconds=1.0,
)  # fmt: skip


def gate(*results: WorkloadResult, exit_code: int, sentence: str, **other: object) -> Gate:
    """A gate over these workloads."""
    seconds = math.fsum(result.seconds for result in results)
    return Gate(
        results, exit_code, sentence, base="merge-base 1a2b3c4", candidate="this tree", seconds=seconds,
        version="0.1.0", **other,  # type: ignore[arg-type]
    )  # fmt: skip


_REGRESSED = "bench/train_step.py regressed."
GATES: Mapping[str, Gate] = {
    "passed": gate(PASSED, exit_code=0, sentence="examples/mlp.py passed."),
    "counters": gate(COUNTED, exit_code=1, sentence=_REGRESSED),
    "slowed": gate(SLOWED, exit_code=1, sentence=_REGRESSED),
    "timed": gate(TIMED, exit_code=1, sentence="bench/decode.py --tokens 64 regressed."),
    "undecided": gate(UNDECIDED, exit_code=5, sentence="bench/noisy.py remained undecided."),
    "tolerated": gate(
        UNDECIDED, PASSED, exit_code=0,
        sentence="1 of 2 workloads remained undecided: bench/noisy.py, which the settings let pass; 1 workload passed.",
    ),
    "wavered": gate(WAVERED, exit_code=1, sentence=_REGRESSED),
    "unmeasured": gate(UNMEASURED, exit_code=5, sentence="bench/empty.py remained unmeasured."),
    "crashed": gate(CRASHED, exit_code=4, sentence="bench/crash.py did not run."),
    "new": gate(
        NEW, exit_code=0, sentence="examples/new.py remained unmeasured, which the settings let pass"
    ),
    "new, timed": gate(
        replace(NEW, verdict="pass", what="", fix=Fix(), time=FINE), exit_code=0, sentence="examples/new.py passed."
    ),
    "advisory": gate(replace(PASSED, time=ADVISORY), exit_code=0, sentence="examples/mlp.py passed."),
    "improved": gate(IMPROVED, exit_code=0, sentence="examples/better.py passed."),
    "several": gate(
        PASSED, UNDECIDED, CRASHED, SLOWED, IMPROVED, exit_code=1,
        sentence="1 of 5 workloads regressed: bench/train_step.py; 1 of 5 workloads did not run: bench/crash.py; "
        "1 of 5 workloads remained undecided: bench/noisy.py; 2 workloads passed.",
        warnings=("the tree has changes that are not committed: they are gated too",),
    ),
    "removed": gate(REMOVED, exit_code=1, sentence=_REGRESSED),
    "other outputs": gate(OTHER_OUTPUTS, exit_code=1, sentence=_REGRESSED),
    "outputs not compared": gate(
        replace(PASSED, numerics=NumericsResult("not compared", reason="what a script computes is not known")),
        exit_code=0, sentence="examples/mlp.py passed.",
    ),
    "hostile": gate(HOSTILE, exit_code=1, sentence=_HOSTILE, warnings=(_HOSTILE,)),
    "none": gate(exit_code=5, sentence="No workload was gated."),
}  # fmt: skip
