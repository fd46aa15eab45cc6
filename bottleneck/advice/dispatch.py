"""Rules for a host that cannot keep up with its device: launches that come late, and kernels that are too small."""

from bottleneck.advice.draft import Draft, up_to
from bottleneck.advice.measures import (
    PER_CALL,
    account_us,
    claims_of,
    doubt,
    format_count,
    host_us_per_launch,
    idle_lines,
    is_broken,
    is_compiled,
    kernels_per_step,
    launch_floor_us,
    launches_per_step,
    median_kernel_us,
    per_call_us,
    replays_graphs,
    runs_on_host,
    share_of_step,
)
from bottleneck.case import Case
from bottleneck.records import Interval
from bottleneck.units import format_share, format_us

# Rule 1 of advice_rules: below this share of the step, late launches are not what holds it back.
_LATE_SHARE = 0.2
# Queued kernels follow one another after 1 to 3 us (NVIDIA: cost_model, section 7), in a graph after the least.
_GRAPH_GAP_US = 1.3
# What launching the graph itself takes: 2.5 us by NVIDIA ("Constant Time Launch for Straight-Line CUDA Graphs", 2024)
# for the call alone, and Python around it.
_GRAPH_LAUNCH_US = 10.0
# Rule 2: kernels too short for their launch, and enough of them to matter.
_SHORT_US, _MANY = 10.0, 500
# A compiled model still launches kernel by kernel, fewer of them and with less Python in between.
_COMPILED_LAUNCHES = (0.25, 0.8)
_WORTH_SAYING = 0.02
# A step of fewer kernels is a benchmark of them, and no program to compile.
_FEW = 4


def cuda_graphs(case: Case) -> Draft | None:
    """Rule 1: the device waits for launches, which one replayed graph would issue at once.

    The gain is the idle time in which the host dispatched, ran Python or launched, less one launch and the gap that a
    graph leaves between two kernels; half of it at least. With waiting calls inside, only the stretches between them
    can be replayed.
    """
    late_us = per_call_us(case)
    if runs_on_host(case) or is_broken(case) or replays_graphs(case) or share_of_step(case, late_us) < _LATE_SHARE:
        return None
    if case.linked.trace.flavour not in {"cuda", "rocm"} or kernels_per_step(case) < _FEW:
        return None
    high_us = late_us - _GRAPH_GAP_US * kernels_per_step(case) - _GRAPH_LAUNCH_US
    if share_of_step(case, high_us) < _WORTH_SAYING:
        return None
    waits = case.analysis.totals.sync_count
    stops = f"; {format_count(waits)} waiting calls per step stand in the way of one graph" if waits else ""
    return Draft(
        slug="late-launches",
        title="The device waits for the host to launch its next kernel",
        evidence=(
            f"idle for {format_us(late_us)} of each step ({format_share(share_of_step(case, late_us))}) while the host "
            f"prepares {format_count(launches_per_step(case))} launches{stops}",
            *_queue_words(case),
            *idle_lines(case, "dispatch", "python", "launch"),
        ),
        advice="Replay the step as a CUDA graph, so that one call launches all of its kernels.",
        code='model = torch.compile(model, mode="reduce-overhead")  # or torch.cuda.make_graphed_callables',
        gain_us=Interval(high_us * (0.25 if waits else 0.5), high_us),
        claims=claims_of(case, *PER_CALL, most_us=high_us),
        tries=("compile-reduce-overhead", "cuda-graph"),
        confidence="low" if waits else doubt(case),
    )


def _queue_words(case: Case) -> tuple[str, ...]:
    queue = case.analysis.queue
    if queue is None or queue.empty_idle_share is None:
        return ()
    return (f"no kernel was queued in {format_share(queue.empty_idle_share)} of the idle time",)


def eager_overhead(case: Case) -> Draft | None:
    """Rule 4 on a device: op by op, the host cannot issue the work as fast as the device does it."""
    late_us = per_call_us(case)
    if runs_on_host(case) or is_broken(case) or is_compiled(case) or replays_graphs(case):
        return None
    if share_of_step(case, late_us) < _LATE_SHARE or kernels_per_step(case) < _FEW:
        return None
    launches, each_us = launches_per_step(case), host_us_per_launch(case)
    issued = f"{format_count(launches or kernels_per_step(case))} {'launches' if launches else 'kernels'} per step"
    pace = "" if each_us is None else f", one each {format_us(each_us)}"
    low, high = _COMPILED_LAUNCHES
    return Draft(
        slug="eager-overhead",
        title="Ops are issued one by one, slower than the device runs them",
        evidence=(
            f"{issued}{pace}; the device idles "
            f"{format_us(late_us)} ({format_share(share_of_step(case, late_us))}) meanwhile",
            *idle_lines(case, "dispatch", "python", "launch"),
        ),
        advice="Compile the model: fewer kernels, and less Python and dispatching between them.",
        code="model = torch.compile(model)",
        gain_us=Interval(low * late_us, high * late_us),
        claims=claims_of(case, *PER_CALL, most_us=high * late_us),
        tries=("compile",),
        confidence=doubt(case),
    )


def tiny_kernels(case: Case) -> Draft | None:
    """Rule 2: many kernels that last hardly longer than any kernel must, on a device that is kept busy with them.

    Fusing takes away launches: half to all of the time that these kernels spend on their launch floor. Where the
    device waits for the host instead, that is the larger loss, and the rules above speak of it.
    """
    typical_us, floor_us = median_kernel_us(case), launch_floor_us(case)
    if runs_on_host(case) or typical_us is None or floor_us is None:
        return None
    count, paid_us = kernels_per_step(case), account_us(case, "overhead.launch_floor")
    late_us = per_call_us(case)
    if typical_us >= _SHORT_US or count <= _MANY or share_of_step(case, late_us) >= _LATE_SHARE:
        return None
    if share_of_step(case, paid_us) < _WORTH_SAYING:
        return None
    return Draft(
        slug="tiny-kernels",
        title="Many kernels are over as soon as they have begun",
        evidence=(
            f"{format_count(count)} kernels per step, half of them under {format_us(typical_us)}; none can take less "
            f"than {format_us(floor_us)}",
            f"{format_us(paid_us)} per step ({format_share(share_of_step(case, paid_us))}) goes into starting kernels",
        ),
        advice="Fuse the small kernels, or give each more work with a larger batch.",
        code="model = torch.compile(model)",
        gain_us=up_to(paid_us),
        claims=claims_of(case, "overhead.launch_floor"),
        tries=("compile", "compile-max-autotune"),
    )


RULES = (cuda_graphs, eager_overhead, tiny_kernels)
