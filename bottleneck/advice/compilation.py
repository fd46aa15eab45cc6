"""Rules of whole programs and their compilers.

They concern recompiles, graph breaks, repeated forward passes and untried backends.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bottleneck.advice.dispatch import (
    COMPILE_PAYS,
    compile_gain_us,
    compiled_call_us,
    eager_overhead,
    host_overhead,
    made_by_model,
    pays,
)
from bottleneck.advice.fusion import chain_passes_us, part_between_ops
from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, has_backward_pass, work_of
from bottleneck.advice.measured import measured_layout_us
from bottleneck.advice.no_gain import compile_without_gain
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_per_step,
    format_times,
    idle_lines,
    is_compiled,
    issue_us,
    rows_of_events,
)
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.compile_causes import BREAKS, RECOMPILES
from bottleneck.schema.compile_health import BreakHealth
from bottleneck.schema.evidence import Evidence, counted_faults_us, remembered
from bottleneck.schema.op_names import BACKWARD_NODE, at_known
from bottleneck.schema.records import replace
from bottleneck.units import US_PER_S, counted, format_share, format_us, format_us_range

_REGION = re.compile(r"^Torch-Compiled Region: (?P<frame>\d{1,9})/")
_LEAST = 0.01
# One call of compiled code for a device, in times of its smallest kernel (rule 4 has those for a CPU).
_CALL_KERNELS = (30.0, 100.0)
_KERNEL_US = 0.54
# What compiling a small model takes when nothing is cached: 9 to 30 s for 7 to 60 ops (torch 2.13, 2 shared cores).
_COMPILE_S = 10.0
_OVERHEAD_MATTERS = 0.3


_COMPILING_CALL = re.compile(r"(?i)compile\w*$")
_DYNAMIC = "Keep shapes from changing, or mark the ones that do; if these were first steps, record later ones."
_MARKED = "torch._dynamo.mark_dynamic(inputs, 0)\n# diagnosis: TORCH_LOGS=recompiles names what changed"
# The runtime compiles an operator when it is called, for each of its sizes anew.
_READY_MADE = (
    "Stop the runtime from compiling operators when they are called: use precompiled ones "
    "(torch.{kind}.set_compile_mode(jit_compile=False)), and keep shapes from changing."
)
_NO_COMPILING = "torch.{kind}.set_compile_mode(jit_compile=False)  # precompiled operators, once at the start"


def compiling_in_step(evidence: Evidence) -> Draft | None:
    """Finds code compiled, autotuned or loaded while the step waits (rule 11).

    Later steps should not see it again.
    """
    spent_us = evidence.account_us("overhead.compile")
    if evidence.share_of_step(spent_us) < _LEAST:
        return None
    health = evidence.analysis.compile_health
    compiling_calls, again = _compiling_calls(evidence), () if health is None else health.named_recompiles
    change, code = (_READY_MADE, _NO_COMPILING) if compiling_calls else (_DYNAMIC, _MARKED)
    if again and not compiling_calls:
        change, code = f"{RECOMPILES[again[0].cause].change} {_DYNAMIC}", again[0].code
    return Draft(
        slug="compiling-in-step",
        title="Code is compiled or loaded during the step",
        evidence=(
            format_per_step(evidence, spent_us),
            *compiling_calls,
            *idle_lines(evidence, "compile"),
            *(
                f"compiled again{at_known(one.source)}: {one.guard_words}"
                + ("" if one.seconds is None else f" ({format_us(one.seconds * US_PER_S)})")
                for one in again[:_MOST_BREAKS]
            ),
        ),
        advice=change.replace("{kind}", evidence.analysis.device.kind),
        code=code.replace("{kind}", evidence.analysis.device.kind),
        gain_us=Interval(spent_us / 2 if evidence.steps > 1 else 0.0, spent_us),
        claims=claims_of(evidence, "overhead.compile"),
        confidence="low",
    )


def graph_breaks(evidence: Evidence) -> Draft | None:
    """Finds graph breaks that cut the compiled program into parts (rule 11).

    Each part is entered through guards and Python. The gain is one call of compiled code per break, and on a device at
    most its wait for the host.
    """
    if (named := _named_breaks(evidence)) is not None:
        return named
    frames = {match["frame"]: 0.0 for name in evidence.op_sums if (match := _REGION.match(name))}
    for name, op_sum in evidence.op_sums.items():
        if match := _REGION.match(name):
            frames[match["frame"]] += op_sum.calls
    if len(frames) < 2:
        return None
    breaks = sum(frames.values()) - 1
    if evidence.is_host_only:
        call_us, most_us = compiled_call_us(evidence), evidence.account_us(*ISSUE_ACCOUNTS)
    else:
        kernel_us = evidence.analysis.device.launch_floor_us or _KERNEL_US
        call_us = Interval(*(kernels * kernel_us for kernels in _CALL_KERNELS))
        most_us = evidence.idle_us("dispatch", "python", "launch")
    low, high = breaks * call_us.low, breaks * call_us.high
    if evidence.share_of_step(min(high, most_us)) < _LEAST:
        return None
    return Draft(
        slug="graph-breaks",
        title="The compiled program is in pieces",
        evidence=(
            f"{len(frames)} compiled regions are entered {format_count(sum(frames.values()))} times per step",
            *idle_lines(evidence, "python", "dispatch"),
        ),
        advice="Find what breaks the graph, and take it out of the compiled part.",
        code="y = torch.where(x > 0, x, scale * x)  # for `if x.sum() > 0:`; print() and .item() after it\n"
        "# diagnosis: torch.compile(model, fullgraph=True) names the first break, TORCH_LOGS=graph_breaks all",
        gain_us=Interval(min(low, most_us), min(high, most_us)),
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, most_us=min(high, most_us)),
        confidence="low",
    )


def _compiling_calls(evidence: Evidence) -> tuple[str, ...]:
    """Gives evidence on the runtime's calls that compile.

    They are those of one name that take longest; none without any.
    """
    events = evidence.linked.trace.events
    rows = rows_of_events(evidence, _COMPILING_CALL)
    calls = events.iloc[rows[(events["category"] == "runtime").to_numpy()[rows]]]
    if calls.empty:
        return ()
    us = calls.groupby(calls["name"].astype(str))["dur_us"].agg(["sum", "count"]).sort_values("sum").iloc[-1]
    words = f"{us.name}, {format_times(float(us['count']) / evidence.steps)} per step"
    return (f"{words}: {format_us(float(us['sum']) / evidence.steps)} of the host",)


# Findings that one call of `torch.compile` answers on a CPU.
_ANSWERED = ("host-overhead", "unfused-chain", "unfused-norm")
_WHOLE_STEP = ("compile-step",)


# A product of a transposed matrix with a vector takes longer under Inductor, which reads the matrix against the order
# of its elements: by so many times the eager product (torch 2.13, one thread, 4 to 16 million numbers). With AVX-512
# that was nothing with 256 columns, 0.7 times with 512, and 1.6 to 4 times with 1000 to 2048; with AVX2 2.0 times with
# 128 columns, 1.4 times with 256, 2.8 times with 512 and 8.1 times with 1024. From more than so many columns on.
_BY_COLUMNS: Mapping[int, tuple[float, float]] = {256: (0.7, 8.0), 100: (0.0, 2.0)}
_TIMES_VECTOR = re.compile(r"^aten::(?:addmv_?|mv)$")
_BACKWARD = re.compile(f"^{BACKWARD_NODE}")


@remembered
def whole_gain_us(evidence: Evidence) -> Interval | None:
    """Gives the time that compiling the model of a CPU step saves.

    It is the time of its calls and passes over memory. Null on a device.
    """
    calls = compile_gain_us(evidence)
    if calls is None:
        return None
    passes, pages, work = chain_passes_us(evidence), _spared_pages_us(evidence), work_of(evidence)
    least, most = _by_columns_us(work)
    low, high = (getattr(calls, end) + getattr(passes, end) + getattr(pages, end) for end in ("low", "high"))
    return Interval(low - most, high + _gathered_us(work) - least)


def _spared_pages_us(evidence: Evidence) -> Interval:
    """Gives the time of new pages for results between fused ops.

    Counted as far as unprofiled steps touch them and profiled ones do not. A process that gives freed memory back to
    the system gets its results in new pages in each step. Under the profiler, whose records lie between them, it may
    not, and no op of the trace shows these pages. They are taken to lie in all results alike, by bytes. A fused loop
    has no results between its ops. At worst half of the pages stay. None are counted in training, where the backward
    pass reads these results too.
    """
    unseen_us = counted_faults_us(evidence) - counted_faults_us(evidence, profiled=True)
    if unseen_us <= 0 or has_backward_pass(evidence):
        return Interval(0.0, 0.0)
    spared_us = unseen_us * part_between_ops(evidence, made_by_model(evidence)[work_of(evidence).row])
    return Interval(spared_us / 2, spared_us)


def _gathered_us(work: KernelWork) -> float:
    """Gives the time beyond their bytes of ops that work by index.

    They pick or add up rows, which a compiled loop may do without. Measured with Inductor (torch 2.13, EPYC, one
    thread): a fifth of the time to pick 8000 rows of 32 and scale them, half of it to add them up, and two to three
    times as much for 8000 single numbers, which take little either way. At worst nothing is gained. Those of the
    backward pass stay.
    """
    rows = work.family("indexing") & ~work.inside(_BACKWARD) & work.in_model
    return float(np.clip(work.us - work.memory_us(), 0.0, None)[rows].sum())


def _by_columns_us(work: KernelWork) -> tuple[float, float]:
    """Gives the least and most extra time of compiled vector products.

    The times are per step, in us.

    They are products of a vector with the transposed view of a matrix by rows, which take longer compiled.
    """
    least = most = 0.0
    products = work.op_like(_TIMES_VECTOR)
    for signature in np.unique(work.signature[products]).tolist():
        columns = _columns_below(work, signature)
        low, high = next((times for fewer, times in _BY_COLUMNS.items() if columns > fewer), (0.0, 0.0))
        us = work.us_of(products & (work.signature == signature))
        least, most = least + low * us, most + high * us
    return least, most


def _columns_below(work: KernelWork, signature: int) -> int:
    """Counts the columns of the matrix that a call reads transposed.

    The matrix lies by rows and the call takes its transposed view. 0 where it takes none.
    """
    places = [(size, at) for at, size in enumerate(work.sizes_of(signature)) if len(size) == 2]
    strides = work.text_column("strides", signature)
    if not places or len(strides) <= places[0][1]:
        return 0
    (rows, others), at = places[0]
    return int(rows) if others > 1 and strides[at] == [1, rows] else 0


def join_compiled(evidence: Evidence, drafts: Sequence[Draft]) -> list[Draft]:
    """Joins the drafts that `torch.compile` answers on a CPU into one.

    It has the gain of the whole change. Each of them sees a part: calls, or passes over memory. The change makes all of
    it, and enters compiled code, which costs. The one with the larger part stays, and none where the whole does not
    pay. Compiling the whole step makes one call of its optimizer too, which that finding then names.
    """
    gain = whole_gain_us(evidence)
    if gain is None:
        return list(drafts)
    layout = _layout_us(evidence, drafts)
    gain = Interval(gain.low + min(layout.low, 0.0), gain.high + min(layout.high, 0.0))
    gain = _as_measured(evidence, gain, drafts)
    return _with_whole_step(evidence, gain, _with_whole_model(evidence, gain, drafts))


def _as_measured(evidence: Evidence, gain: Interval, drafts: Sequence[Draft]) -> Interval:
    """Limits the gain of compiling to what timed pieces saved.

    Passes over memory count for no more than timed pieces of them saved when compiled.
    """
    calls = compile_gain_us(evidence)
    timed = [draft for draft in drafts if draft.slug in _ANSWERED and draft.basis == "timed"]
    if calls is None or not timed:
        return gain
    high = min(gain.high, calls.high + math.fsum(max(draft.gain_us.high, 0.0) for draft in timed if draft.gain_us))
    return Interval(min(gain.low, high), high)


def _layout_us(evidence: Evidence, drafts: Sequence[Draft]) -> Interval:
    """Gives the gain of a step whose images Inductor lays by pixels.

    Only a loss of it counts for compiling. A gain of the layout is another finding's: programs do not get both. A small
    network of convolutions was promised 1.32 times at least by both together, and took twice as long compiled.

    Inductor does so for every convolution on a CPU (torch 2.13, ``decide_layout_opt``), and turns them once at the ends
    of the model, not at each convolution. Where it was measured that counts, also where the finding on it gave up.
    """
    layout = next((draft for draft in drafts if draft.slug == "channels-first"), None)
    if layout is None:
        return Interval(0.0, 0.0)
    stated_us = None if layout.only_measured else layout.gain_us
    return measured_layout_us(evidence) or stated_us or Interval(0.0, 0.0)


def _with_whole_step(evidence: Evidence, gain: Interval, drafts: Sequence[Draft]) -> list[Draft]:
    """Adds compiling the whole step as another way to the drafts' gain.

    It is added where it pays with the model in it.
    """
    optimizer = next((draft for draft in drafts if draft.slug == "unfused-optimizer"), None)
    named = []
    if optimizer is not None and optimizer.gain_us is not None:
        whole = Interval(gain.low + optimizer.gain_us.low, gain.high + optimizer.gain_us.high)
        named = ["unfused-optimizer"] if pays(evidence, whole) else []
    adds = dict.fromkeys((*_ANSWERED, *named), _WHOLE_STEP)
    lacks = _WHOLE_STEP if named else ()
    return [
        replace(draft, tries=tuple(name for name in draft.tries if name not in lacks))
        if draft.slug == "compile-does-not-pay"
        else replace(draft, tries=(*draft.tries, *adds.get(draft.slug, ())))
        for draft in drafts
    ]


def _with_whole_model(evidence: Evidence, gain: Interval, drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts that compiling the model answers as one, with this gain."""
    named = [draft for draft in drafts if draft.slug in _ANSWERED]
    if not named:
        return list(drafts)
    layout = [draft for draft in drafts if draft.slug == "channels-first"]
    largest = max(named, key=lambda draft: 0.0 if draft.gain_us is None else draft.gain_us.low + draft.gain_us.high)
    if not pays(evidence, gain):
        return [draft for draft in drafts if draft not in named]
    claims = {claim: us for draft in (*layout, *named) for claim, us in draft.claims.items()}
    pages_us = _spared_pages_us(evidence).high
    for account, us in claims_of(evidence, "overhead.unknown", "overhead.allocator", most_us=pages_us).items():
        claims[account] = max(claims.get(account, 0.0), us)
    others = tuple(draft.title[0].lower() + draft.title[1:] for draft in named if draft is not largest)
    joined = replace(
        largest,
        gain_us=gain,
        claims=claims,
        evidence=(*largest.evidence, *(f"the same change answers that {title}" for title in others)),
    )
    return [joined if draft is largest else draft for draft in drafts if draft is largest or draft not in named]


_MOST_BREAKS = 4


def _priced_breaks(evidence: Evidence) -> list[BreakHealth]:
    """Returns the lines that break graphs of the step, the dearest first."""
    health = evidence.analysis.compile_health
    priced = [] if health is None else [one for one in health.breaks if one.price_us is not None]
    return sorted(priced, key=lambda one: -_price(one).high)


def _price(one: BreakHealth) -> Interval:
    return Interval(*(one.price_us or (0.0, 0.0)))


def _named_breaks(evidence: Evidence) -> Draft | None:
    """Finds graph breaks whose lines the recording tells.

    Their prices are the host time between the graphs of each.
    """
    breaks = _priced_breaks(evidence)
    if not breaks:
        return None
    accounts_us = (
        evidence.account_us(*ISSUE_ACCOUNTS)
        if evidence.is_host_only
        else evidence.idle_us("dispatch", "python", "launch")
    )
    low, high = (math.fsum(getattr(_price(one), end) for one in breaks) for end in ("low", "high"))
    most_us = min(high, accounts_us)
    if evidence.share_of_step(most_us) < _LEAST:
        return None
    more = "" if len(breaks) <= _MOST_BREAKS else counted(len(breaks) - _MOST_BREAKS, "more line")
    causes = list(dict.fromkeys(one.cause for one in breaks))
    first = BREAKS[causes[0]]
    return Draft(
        slug="graph-breaks",
        title="The compiled program is in pieces",
        evidence=(
            *(
                f"{BREAKS[one.cause].words}{at_known(one.source)}: {format_us_range(*_price_ends(one))} per step"
                for one in breaks[:_MOST_BREAKS]
            ),
            *([f"and {more}"] if more else []),
        ),
        advice=f"{first.change[:-1]}{at_known(breaks[0].source)}."
        + (f" Then the other {counted(len(breaks) - 1, 'line')} that the evidence names." if len(breaks) > 1 else ""),
        brief=f"{first.change[:-1]}{at_known(breaks[0].source)}",
        code="\n".join(BREAKS[cause].code for cause in causes[:3]),
        gain_us=Interval(min(low, most_us), most_us),
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, most_us=most_us),
        confidence="medium",
        places=tuple(one.source for one in breaks[:_MOST_BREAKS]),
    )


def _price_ends(one: BreakHealth) -> tuple[float, float]:
    price = _price(one)
    return price.low, price.high


def compile_does_not_pay(evidence: Evidence) -> Draft | None:
    """Finds a CPU step that compiling would not make faster (rule 12).

    Calls or passes over memory hold the step back, and yet compiling costs about what it saves.
    """
    gain = whole_gain_us(evidence)
    overhead_us = issue_us(evidence) + evidence.account_us("overhead.launch_floor")
    if gain is None or evidence.is_broken or evidence.share_of_step(overhead_us) < _OVERHEAD_MATTERS:
        return None
    if evidence.share_of_step((gain.low + gain.high) / 2) >= COMPILE_PAYS:
        return None
    return Draft(
        slug="compile-does-not-pay",
        title="Compiling this model is not expected to make the step faster",
        evidence=(
            f"{format_us(overhead_us)} of every step ({format_share(evidence.share_of_step(overhead_us))}) is Python "
            "and dispatching, of which compiling removes only what lies between ops that it fuses",
            _saved_words(gain),
        ),
        advice="Leave torch.compile out until each call has more to do, or compile the whole step and measure it.",
        code=None,
        gain_reason="what compiled code costs per call (guards, wrappers) is about what it saves here",
        tries=("compile", "compile-step"),
        confidence="low",
    )


def _saved_words(gain: Interval) -> str:
    """The gain of compiling in words that keep its sign."""
    low, high = (f"{'saves' if us > 0 else 'costs'} {format_us(abs(us))}" for us in (gain.low, gain.high))
    return f"compiling {low} per step at worst and {high} at best, by the number of its ops and calls"


def compile_break_even(evidence: Evidence) -> Draft | None:
    """Finds a run that is too short for compiling (rule 12).

    Known for scripts, whose steps are counted.
    """
    seen = evidence.analysis.steps.seen
    advised = host_overhead(evidence) or eager_overhead(evidence)
    if seen is None or advised is None or advised.gain_us is None or advised.gain_us.high <= 0:
        return None
    saved_s = advised.gain_us.high * seen / US_PER_S
    if saved_s >= _COMPILE_S:
        return None
    steps = _COMPILE_S * US_PER_S / advised.gain_us.high
    return Draft(
        slug="compile-break-even",
        title="This run is too short for compiling to pay",
        evidence=(
            f"{counted(seen, 'step')} seen, and compiling would save {saved_s:.2g} s of them at best; it takes some "
            f"{_COMPILE_S:.0f} s by itself",
        ),
        advice=f"Compile for runs of more than about {counted(round(steps), 'step')}, and keep the cache between runs.",
        code="TORCHINDUCTOR_FX_GRAPH_CACHE=1 TORCHINDUCTOR_CACHE_DIR=/var/cache/inductor python train.py",
        gain_reason="it is about the length of the run, not about a step",
    )


_MOST_OF_STEP = 0.3


_BACKENDS_CPU = ("torchscript", "backend-openvino", "backend-onnxrt", "backend-tvm")
_BACKENDS_GPU = ("torchscript", "backend-onnxrt", "backend-tensorrt", "backend-tvm", "backend-openxla")


def other_backends(evidence: Evidence) -> Draft | None:
    """Finds inference by eager ops, most of it in products (rule 37).

    Only a trial shows which compiler is fastest.
    """
    work = work_of(evidence)
    rows = work.family(*PRODUCTS)
    if has_backward_pass(evidence) or is_compiled(evidence) or work.share(rows) < _MOST_OF_STEP:
        return None
    backends = _BACKENDS_CPU if evidence.is_host_only else _BACKENDS_GPU
    inductor = ("compile",) if compile_without_gain(evidence) is None else ()
    return Draft(
        slug="other-backends",
        title="Other compilers may run these products faster",
        evidence=(
            f"{format_share(work.share(rows))} of the step are products of an eager forward pass",
            *work.describe(rows),
        ),
        advice="Compare the whole-program compilers that are installed, over the batch sizes that you serve.",
        gain_reason="not predicted: what a compiler makes of these shapes is only known once it has run them",
        code="bottleneck sweep model.py --param batch_size=1,4,16,64 --backends eager,inductor,torchscript",
        tries=(*inductor, *backends),
        confidence="low",
        on_request=True,
    )


RULES = (compiling_in_step, graph_breaks, compile_does_not_pay, compile_break_even)

# Findings on other ways to run the same program, shown before those on its compilation.
ALTERNATIVES = (other_backends,)
