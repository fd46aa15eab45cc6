"""Comparisons made by hand: a slower step of the same program, a lock-file, other devices, and hostile names."""

from collections.abc import Mapping
from dataclasses import replace

from bottleneck.schema.analysis import Verdict
from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison, Condition, CounterStep
from bottleneck.schema.counters import Counts, Fingerprint

VERDICT = Verdict("overhead", None, 0.625, "Overhead holds the step back.", {"overhead": 0.625}, "compile")


def row(name: str, calls: tuple[float, float], us: tuple[float, float], **more: object) -> ChangeRow:
    """A row whose parts by count and by time follow from its calls and times."""
    mean = us[0] / calls[0] if calls[0] else us[1] / calls[1]
    count = (calls[1] - calls[0]) * mean
    base = ChangeRow(
        name=name,
        module=None,
        shapes=None,
        family=None,
        kind="slower",
        matched_by="module and op",
        calls_before=calls[0],
        calls_after=calls[1],
        before_us=us[0],
        after_us=us[1],
        count_us=count,
        mean_us=us[1] - us[0] - count,
    )
    return replace(base, **more)  # type: ignore[arg-type]  # the fields of a row, by name


def slower() -> Comparison:
    """A step of 18.2 ms that became 19.6 ms: 24 new copies in one module, two syncs, and a gain elsewhere."""
    rows = (
        row("aten::copy_", (0, 24), (0.0, 1100.0), module="decoder.rotary", kind="new", matched_by="nothing",
            shapes="[[32, 1024], [32, 1024]]", source="model/rope.py:88", is_touched=True),
        row("aten::addmm", (48, 48), (9000.0, 8800.4), module="decoder.0.mlp", kind="faster",
            shapes="[[4096], [2048, 1024], [1024, 4096]]", source="model/mlp.py:31", is_touched=False),
        row("aten::softmax", (12, 10), (1200.0, 1050.3), module="decoder.0.attn", kind="fewer", matched_by="op"),
        row("aten::gelu", (1, 0), (50.3, 0.0), kind="gone", matched_by="nothing", module="decoder.0.mlp"),
        *(row(f"aten::op{index}", (1, 1), (10.0, 10.0 + 0.01 * index), module="decoder.norm") for index in range(12)),
        *(row("aten::dropout", (1, 1), (30.0, 40.0), module=f"decoder.{index}.drop") for index in (0, 1)),
        row("aten::add", (3, 3), (400.0, 400.0), kind="same"),
    )  # fmt: skip
    bars = (
        Bar("compute", "compute", 9000.0, 8800.4),
        Bar("memory", "memory", 1250.3, 1070.3 + 0.66),
        Bar("memory.copy", "memory", 0.0, 1100.0),
        Bar("overhead.launch_floor", "overhead", 520.0, 520.0),
        Bar("overhead.sync", "overhead", 100.0, 320.0),
        Bar("overhead.python", "overhead", 7329.7, 7809.24),
        Bar("overhead.input", "overhead", 0.0, 0.004),
    )
    idle = bars[4:]
    return Comparison(
        before=CompareSide("main (1a2b3c4)", "main", "NVIDIA H200", 18200.0, VERDICT, Counts({}, Fingerprint())),
        after=CompareSide("HEAD (5d6e7f8)", "HEAD", "NVIDIA H200", 19620.604, VERDICT,
            Counts({}, Fingerprint(), unknown={"flops": "the trace has no shapes"})),
        conditions=(Condition("batch size", "32", "64", "colours", "a larger step is no slower code"),),
        bars=bars,
        rows=rows,
        modules=(
            row("decoder.rotary", (0, 24), (0.0, 1100.0), module="decoder.rotary", kind="new"),
            row("decoder.0.mlp", (49, 48), (9050.3, 8800.4), module="decoder.0.mlp"),
            row("decoder.0.attn", (12, 10), (1200.0, 1050.3), module="decoder.0.attn"),
            row("decoder.norm", (12, 12), (120.0, 120.66), module="decoder.norm"),
            *(row("", (1, 1), (30.0, 40.0), module=f"decoder.{index}.drop") for index in (0, 1)),
            row("", (3, 3), (400.0, 400.0), kind="same"),
        ),
        idle=idle,
        counters=(
            CounterStep("ops", 2629, 2653),
            CounterStep("launches", 303, 311),
            CounterStep("syncs", 0, 2),
            CounterStep("h2d_bytes", 0, 12_582_912),
            CounterStep("graph_breaks", 0, 0),
            CounterStep("flops", 344_571_904, None),
        ),
        notes=("the two were recorded one after the other, not in turns",),
        version="0.1",
    )  # fmt: skip


def devices() -> Comparison:
    """The same program on two devices, faster; nothing but an account moved."""
    bars = (Bar("compute", "compute", 5000.0, 2000.0), Bar("overhead.dispatch", "overhead", 10.0, 12.0))
    return Comparison(
        before=CompareSide("h100.json.gz", "traces/h100.json.gz", "NVIDIA H100 80GB HBM3", 5010.0),
        after=CompareSide("mi300x.json.gz", "traces/mi300x.json.gz", "AMD Instinct MI300X", 2012.0),
        conditions=(
            Condition("device", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "breaks", "its kernels are others"),
            Condition("torch", "2.7.0", "2.8.0", "colours"),
        ),
        bars=bars,
        rows=(row("aten::mm", (100, 100), (5000.0, 2000.0), kind="faster", matched_by="kernel family"),),
        idle=bars[1:],
        sentence="The step takes 2.01 ms instead of 5.01 ms (-59.8 %).",
    )


def lock() -> Comparison:
    """A lock-file against a recording: counters only."""
    return Comparison(
        before=CompareSide("mlp.lock.toml", ".bottleneck/mlp.lock.toml", "cpu", None),
        after=CompareSide("recording", "recording", "AMD EPYC", 826.0, VERDICT),
        counters=(CounterStep("ops", 100, 101), CounterStep("syncs", 0, 0)),
    )


def unchanged() -> Comparison:
    """A recording against itself."""
    bars = (Bar("compute", "compute", 700.0, 700.0), Bar("overhead.python", "overhead", 300.0, 300.0))
    side = CompareSide("recording", "recording", "cpu", 1000.0)
    return Comparison(
        side,
        side,
        bars=bars,
        rows=(row("aten::mm", (2, 2), (700.0, 700.0), kind="same"),),
        idle=bars[1:],
        counters=(CounterStep("ops", 2, 2),),
    )


HOSTILE = "\x1b[31m</pre>|`x`\n# h1 @user [l](http://x) $x$ \u202e" + "long" * 60


def hostile() -> Comparison:
    """Every name an attack."""
    bars = (Bar(HOSTILE, HOSTILE, 1.0, 2.0), Bar("compute", "compute", 0.5, 0.5))
    more = {"module": HOSTILE, "shapes": HOSTILE, "source": HOSTILE, "is_touched": True}
    return Comparison(
        before=CompareSide(HOSTILE, HOSTILE, HOSTILE, 1.5),
        after=CompareSide("a", "b", "c", 2.5),
        conditions=(Condition(HOSTILE, HOSTILE, HOSTILE, "breaks", HOSTILE),),
        bars=bars,
        rows=(row(HOSTILE, (1, 2), (1.5, 2.5), **more),),
        modules=(row(HOSTILE, (1, 2), (1.0, 2.0), module=HOSTILE), row("b", (1, 1), (0.5, 0.5))),
        counters=(CounterStep(HOSTILE, 1, 2), CounterStep("x" + HOSTILE, 1, 1), CounterStep("ops", None, 1)),
        notes=(HOSTILE,),
        sentence=HOSTILE,
    )


COMPARISONS: Mapping[str, Comparison] = {
    "slower": slower(),
    "devices": devices(),
    "lock": lock(),
    "unchanged": unchanged(),
    "hostile": hostile(),
}
