"""Puts findings in the order in which people read them.

So the verdict's first step and the reports' first finding agree. Reports and verdict may not import one another, so
that the order lies here.
"""

from collections.abc import Sequence

from bottleneck.schema.analysis import Bound, Finding, is_certain

# Findings that rest on what the program does, so that a busy machine does not make them doubtful.
SURE_FINDINGS = frozenset(
    {
        "anomaly-detection",
        "blocking-launches",
        "broadcast-product",
        "caching-allocator-off",
        "class-by-class",
        "compiling-in-step",
        "constant-in-step",
        "debug-settings",
        "dense-experts",
        "derivative-by-component",
        "diagonal-product",
        "discarded-branches",
        "double-precision",
        "evaluation-in-step",
        "every-rank-reads-all",
        "expanded-product",
        "features-in-step",
        "frozen-features",
        "gc-pauses",
        "gradient-check",
        "graph-breaks",
        "growing-steps",
        "host-sync",
        "item-calls",
        "late-upsampling",
        "loader-without-workers",
        "logged-parameters",
        "long-convolution",
        "looped-op",
        "masked-attention",
        "masked-positions",
        "moved-buffer",
        "no-kv-cache",
        "one-hot-product",
        "other-threads",
        "padded-inputs",
        "printed-tensor",
        "product-order",
        "read-in-rounds",
        "recurring-search",
        "remade-weights",
        "repeated-backward",
        "repeated-call",
        "repeated-module",
        "repeated-parametrization",
        "repeated-result",
        "object-made-anew",
        "onednn-products",
        "repeated-tensor",
        "same-in-step",
        "side-work",
        "slow-argmax",
        "slow-call",
        "slow-convolution",
        "state-copies",
        "step-sleeps",
        "too-few-threads",
        "too-many-threads",
        "traced-python",
        "unfused-attention",
        "unfused-optimizer",
        "untrained-parameters",
        "unused-gradients",
        "unused-result",
        "whole-spectrum",
        "written-convolution",
        "written-function",
        "picked-parts",
        "zero-matrix-product",
    }
)
# A finding that adds less than this part of its gain is another way to the same end.
_SAME_TIME = 0.1
# Of the step: less does not stand before another way to save more.
LITTLE = 0.02
# Of the step: a gain below it that may be a loss is no first step.
SMALL_HOPE = 0.15
# Findings that ask for another look, or say what to leave alone: they are remarks, and no first step.
_REMARKS = frozenset({"padding-not-known", "compile-does-not-pay", "half-precision-does-not-pay", "profiler-distorts"})
# Findings on what arithmetic is made of, which only a trial can put into figures: behind gains, before small hopes.
_OF_PRODUCTS = frozenset({"slow-convolution", "half-precision-not-known"})
# Of the step: a gain whose middle is below it stands behind them, where arithmetic limits the step.
_BESIDE_PRODUCTS = 0.06
# Findings on the machine, which leave the program as it is.
_OF_MACHINE = frozenset({"host-stalls"})


def in_reading_order(found: Sequence[Finding], wall_us: float, bound: Bound) -> tuple[Finding, ...]:
    """Returns the findings that noise does not hide, in reading order.

    ``found`` is in order of rank. Those that add to the ones above come first, then other ways to save the same time
    and gains that may be losses, then what adds too little of the step to be worth a place before those, then those
    without a gain, then small hopes that may be losses. A finding on the machine stands behind the sure ones on the
    program that may gain as much: those last, and the machine may be quiet next time.
    """
    seen = [
        finding for finding in beyond_noise(found, wall_us) if not finding.on_request and finding.slug not in _REMARKS
    ]
    asks = bound in {"compute", "mixed"} and any(
        one.predicted_gain_us is None and one.slug in _OF_PRODUCTS for one in seen
    )
    places = [_place(finding, wall_us, bound, asks_for_products=asks) for finding in seen]
    of_program = [pair for pair in zip(seen, places, strict=True) if pair[0].slug in SURE_FINDINGS]

    def key(at: int) -> tuple[int, bool]:
        if seen[at].slug not in _OF_MACHINE:
            return places[at], False
        ahead = [place for finding, place in of_program if _most_us(finding) >= _most_us(seen[at])]
        return max([places[at], *ahead]), bool(ahead)

    return tuple(seen[at] for at in sorted(range(len(seen)), key=key))


def _most_us(finding: Finding) -> float:
    return -1.0 if finding.predicted_gain_us is None else finding.predicted_gain_us.high


def put_in_reading_order(found: Sequence[Finding], wall_us: float, bound: Bound) -> tuple[Finding, ...]:
    """Returns all findings, those to read first in their order.

    Those that noise hides or that are shown on request follow.
    """
    first = in_reading_order(found, wall_us, bound)
    return (*first, *(finding for finding in found if not any(finding is listed for listed in first)))


def beyond_noise(found: Sequence[Finding], wall_us: float) -> Sequence[Finding]:
    """Returns the findings that the run's own noise does not hide.

    Where noise hides every gain, the first large one is kept, and the first that changes the program. They are still
    the best that is known to do. Noise does not hide that results are wrong.
    """
    seen = [advice for advice in found if advice.corrects_results or advice.comes_first or not advice.within_noise]
    if any(finding.predicted_gain_us is not None for finding in seen):
        return seen
    gains = ((advice, advice.predicted_gain_us) for advice in found)
    large = [advice for advice, gain in gains if gain is not None and gain.low + gain.high >= 2 * LITTLE * wall_us]
    of_program = [advice for advice in large if advice.slug not in _OF_MACHINE]
    shown = (*large[:1], *of_program[:1])
    return [finding for finding in found if not finding.within_noise or any(finding is other for other in shown)]


def adds(finding: Finding) -> bool:
    """True unless the findings ranked above it save nearly all of the same time."""
    gain, added = finding.predicted_gain_us, finding.added_gain_us
    return gain is None or added is None or added.high >= _SAME_TIME * gain.high


# It says what a longer run would gain, and nothing of this one.
_OF_LONGER_RUNS = frozenset({"compile-break-even"})


def _place(finding: Finding, wall_us: float, bound: Bound, *, asks_for_products: bool) -> int:
    """The group of a finding.

    A guess that may as well hurt, and would not gain much, comes last. Where the device limits a step that cannot be
    modelled, a change without a figure comes before little gains.
    """
    gain, speedup = finding.predicted_gain_us, finding.predicted_speedup
    if finding.corrects_results or finding.comes_first or finding.slug in _OF_LONGER_RUNS:
        return 7 if finding.slug in _OF_LONGER_RUNS else 0
    if gain is None:
        is_first = bound == "device" and finding.code is not None and finding.confidence != "low"
        return 1 if bound in {"compute", "mixed"} and finding.slug in _OF_PRODUCTS else 3 if is_first else 5
    may_hurt = gain.low < 0 and speedup is not None and not is_certain(speedup)
    if may_hurt and gain.high < SMALL_HOPE * wall_us:
        return 6
    if not adds(finding) or may_hurt:
        return 2
    if asks_for_products and gain.low + gain.high < 2 * _BESIDE_PRODUCTS * wall_us:
        return 2
    added = finding.added_gain_us or gain
    return 1 if added.low + added.high >= 2 * LITTLE * wall_us else 4
