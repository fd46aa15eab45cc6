"""Ranks the drafts of the advice rules.

It bounds gains by the step, sorts by time saved, and marks overlaps.
"""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from bottleneck.advice.widening import Basis, Widening, describe, widen
from bottleneck.schema.analysis import Confidence, Finding, IdleCause, Interval, PhaseName, StepAnalysis, is_certain
from bottleneck.schema.op_names import at_source
from bottleneck.schema.records import replace
from bottleneck.units import format_share, format_us


class Transformation(Struct, frozen=True):
    """Change of the replayed step that a finding's advice makes.

    It is in words that `bottleneck whatif` takes. The advice brings between ``least`` and ``most`` of what the change
    saves. ``accounts`` are those of the ledger that the gain comes from, where it may be more than the rule's formula;
    empty where the formula is a bound.
    """

    changes: tuple[str, ...]
    least: float = 0.5
    most: float = 1.0
    accounts: tuple[str, ...] = ()


class SourcedLine(str):
    """Adds to one line of evidence the source that it names.

    Reports show the text of that line of code beside it. Null where no source is known.
    """

    source: str | None

    def __new__(cls, words: str, source: str | None) -> "SourcedLine":
        """Keeps the source beside the words."""
        fact = super().__new__(cls, words)
        fact.source = source
        return fact


class Draft(Struct, frozen=True):
    """A finding as its rule makes it.

    Ranking adds the speedup, the additional gain, and whether noise would hide it. ``gain_us`` is the time saved per
    step if nothing else changes, null where only a trial can show it, for the reason in ``gain_reason``; ``by_formula``
    is why a formula gave it where timed pieces could. A remark without any gain to be had has no ``gain_us`` either.
    ``claims`` are the accounts of the ledger, or "kernel:N" for row N of the analysis' kernels, that the gain comes
    from, in microseconds per step at most: two findings that claim the same time do not add up. Empty claims mean the
    whole step. ``phase`` and ``lines`` are where all of the gain comes from, where it comes from one phase or from some
    source lines. ``most_us`` is what timed pieces say that the change saves at most. ``removes`` marks a gain that is
    the measured time of work that the change takes away: it stays as the rule states it. ``remedies`` are the slugs of
    findings that say how a part of this gain is had; it stands behind the first of them. The four fields before it are
    those of ``Finding``. ``transformation`` is the change whose replay gives the gain, ``basis`` the kind of evidence
    that gave it. No formula can tell the gain of a draft ``only_measured``: it becomes a finding only where timed
    pieces show that it gains. ``comes_first`` marks a draft that stands before all others: what they say is of a step
    that it disturbs. ``places`` are sources that title and advice name; evidence carries its own (``SourcedLine``).
    ``brief`` is the change in a few words, where ``advice`` is too long for the first lines of a report.
    ``waits`` are the idle times that the rule added up, where they are not all of an account. ``asks_again`` marks
    advice that begins with another recording, which has to show what to change. ``cannot_lose`` marks a change that
    leaves work out and adds none: however wide its gain, it does not make the step slower. ``equal_gain_us`` is for a
    change that no step gains from: a step that gains so much shortens the whole run as this does at least.
    """

    slug: str
    title: str
    evidence: tuple[str, ...]
    advice: str
    gain_us: Interval | None = None
    claims: Mapping[str, float] = field(default_factory=dict)
    code: str | None = None
    gain_reason: str | None = None
    by_formula: str | None = None
    tries: tuple[str, ...] = ()
    confidence: Confidence = "medium"
    changes_results: bool = False
    corrects_results: bool = False
    per: Literal["step", "sample"] = "step"
    on_request: bool = False
    remedies: tuple[str, ...] = ()
    transformation: Transformation | None = None
    basis: Basis = "formula"
    only_measured: bool = False
    phase: PhaseName | None = None
    lines: tuple[str, ...] = ()
    most_us: float = math.inf
    removes: bool = False
    comes_first: bool = False
    places: tuple[str | None, ...] = ()
    brief: str | None = None
    waits: tuple[IdleCause, ...] = ()
    asks_again: bool = False
    cannot_lose: bool = False
    equal_gain_us: float | None = None


# Advice that fits nearly every program, whatever its work is for: all of its ops, or those of one kind.
FITS_ALL = frozenset(
    {"half-precision", "fresh-pages", "larger-batch", "slow-cpu-products", "onednn-products", "channels-first"}
)
OF_KINDS = frozenset({"needless-copies", "unfused-chain", "unfused-norm", "scattered-lookups", "strided-access"})
GENERAL = FITS_ALL | OF_KINDS | {"unfused-optimizer", "host-overhead"}
# Of the step: a finding of needless work that gains less at least does not stand before general advice.
_LEAST_SPECIFIC = 0.05
# Advice that does the same work with less, or on more, where the program asks for that by mistake as a rule.
_ACCIDENTS = frozenset(
    {"double-precision", "slower-half-precision", "too-few-threads", "unfused-attention", "written-convolution"}
)


def put_general_behind(drafts: Sequence[Draft], step_us: float) -> list[Draft]:
    """Returns the drafts with general advice behind the rest.

    The rest names work which the step need not do. Work is done without before it is done faster; how much general
    advice then gains is another matter, unless it gains more at both ends than a guess does.
    """
    specific = [
        (draft.slug, draft.gain_us.high if draft.confidence == "low" else math.inf)
        for draft in drafts
        if (draft.removes or draft.slug in _ACCIDENTS)
        and draft.gain_us is not None
        and draft.gain_us.low >= _LEAST_SPECIFIC * step_us
    ]

    def ahead_of(draft: Draft) -> tuple[str, ...]:
        least_us = 0.0 if draft.gain_us is None else draft.gain_us.low
        return tuple(slug for slug, most_us in specific if most_us >= least_us)

    return [
        replace(draft, remedies=(*draft.remedies, *ahead_of(draft))) if draft.slug in GENERAL else draft
        for draft in drafts
    ]


def up_to(us: float) -> Interval:
    """Returns the interval for a gain of at most so much.

    It is from half of it, until a rule has a record (advice_rules).
    """
    return Interval(us / 2, us)


# No program becomes infinitely fast: what is left of a step at least.
_LEAST_LEFT = 0.01
# Step times do not show a gain below this share of the step: the same build differs by as much from run to run.
_LEAST_SHOWN = 0.005
_WHOLE = "step"
# No prediction is exact: two ends nearer than the first of these are parted by the second.
_A_POINT, _LEAST_OF_A_POINT = 0.99, 0.95


def rank(
    drafts: Sequence[Draft],
    analysis: StepAnalysis,
    program: Sequence[str] | None = None,
    widenings: Mapping[Basis, Widening] | None = None,
    *,
    on_cpu: bool = False,
) -> tuple[Finding, ...]:
    """Returns findings, most time saved first.

    Those without a predicted gain come last, in the order of the rules.

    No gain exceeds the time of the accounts, the phase or the lines that it comes from. A gain whose interval is wide,
    or reaches far below nothing, counts with its lower end only, so that it stands behind gains that are certain but
    for those that it exceeds at both ends. A finding that only bounds what its remedies can give comes behind the first
    of them.

    Advice that changes what the program computes counts for half of its gain in this order, so that it comes before
    advice that keeps the results only where it is worth more than twice as much; a larger batch that nobody tried
    counts for a quarter. Work in fp64 is asked for by mistake as a rule, and counts in full. Advice that begins with
    another recording counts for half. Advice that makes wrong results right comes before all others, and what shortens
    the whole run comes before what shortens its steps where the run gains as much from it.

    ``program`` are the words that name the program to `bottleneck verify`; null where it cannot try changes on it.
    ``widenings`` make gains as wide as trials of each kind of evidence showed; noise goes by the gains as the rules
    state them. Of work that is taken away on a CPU (``on_cpu``) the upper end also counts what the rest gains of it.
    """
    step_us = analysis.steps.wall_us
    noise_us = smallest_visible_us(analysis)
    accounts = {_WHOLE: step_us * (1 - _LEAST_LEFT), **_accounts(analysis)}
    claimed = [_by_name(draft.claims, analysis) for draft in drafts]
    limits = [_most_us(draft, analysis) for draft in drafts]
    stated = [_bounded(*row, accounts) for row in zip(drafts, claimed, limits, strict=True)]
    widened = [
        _widened(draft, gain_us, step_us, most_us, (widenings or {}).get(draft.basis))
        for draft, gain_us, most_us in zip(drafts, stated, limits, strict=True)
    ]
    reliefs_us = [
        _relief_us(draft, gain_us, analysis) if on_cpu and draft.removes and gain_us is not None else 0.0
        for draft, (gain_us, _) in zip(drafts, widened, strict=True)
    ]
    widened = [_relieved(*row, step_us) for row in zip(widened, reliefs_us, strict=True)]
    drafts = _put_run_ahead(drafts, [gain_us for gain_us, _ in widened], step_us)
    keys = _keys(drafts, [gain_us for gain_us, _ in widened], step_us)
    first = {draft.slug: key for key, draft in sorted(zip(keys, drafts, strict=True), key=lambda row: row[0])[::-1]}
    order = sorted(range(len(drafts)), key=lambda at: _behind_remedies(keys[at], drafts[at], first))
    left_us, left_of_step_us = dict(accounts), accounts[_WHOLE]
    findings = []
    for at in order:
        draft, stated_us, (gain_us, evidence) = drafts[at], stated[at], widened[at]
        added_us = None if stated_us is None else _take(left_us, claimed[at], stated_us)
        if gain_us is not None and stated_us is not None and added_us is not None:
            added_us = _scaled(gain_us, added_us.high / stated_us.high if stated_us.high else 1.0, left_of_step_us)
            left_of_step_us -= max(added_us.high, 0.0)
        findings.append(
            Finding(
                slug=draft.slug,
                title=draft.title,
                evidence=tuple(str(words) for words in (*draft.evidence, *evidence)),
                places=_named(draft.places),
                seen_at=_named(line.source for line in draft.evidence if isinstance(line, SourcedLine)),
                predicted_gain_us=gain_us,
                predicted_speedup=None if gain_us is None else speedup_of(gain_us, step_us),
                advice=_without_lacking_place(draft.advice),
                verify=_command(draft, program),
                code=draft.code,
                gain_reason=draft.gain_reason,
                by_formula=draft.by_formula,
                added_gain_us=None if gain_us is None else added_us,
                tries=draft.tries,
                confidence=draft.confidence,
                within_noise=stated_us is not None
                and (bool(stated_us.high < noise_us) or _is_small_hope(gain_us, step_us)),
                changes_results=draft.changes_results,
                corrects_results=draft.corrects_results,
                per=draft.per,
                on_request=draft.on_request,
                claims={claim: float(us) for claim, us in draft.claims.items()},
                changes=() if draft.transformation is None else draft.transformation.changes,
                measured=draft.basis == "timed",
                stated_speedup=None if stated_us is None else speedup_of(stated_us, step_us),
                comes_first=draft.comes_first,
                brief=None if draft.brief is None else _without_lacking_place(draft.brief),
                phase=draft.phase,
                lines=draft.lines,
                waits=tuple(at for at, row in enumerate(analysis.idle) if row in draft.waits),
                relief_us=reliefs_us[at],
            )
        )
    return tuple(findings)


# Of the step: what gains no more at best, and rather loses, is not worth a trial.
_SMALL_HOPE = 0.03


def _is_small_hope(gain_us: Interval | None, step_us: float) -> bool:
    """Tells whether a gain is little at best, and a loss is likelier."""
    return gain_us is not None and gain_us.low + gain_us.high < 0 and gain_us.high < _SMALL_HOPE * step_us


def _widened(
    draft: Draft, gain_us: Interval | None, step_us: float, most_us: float, widening: Widening | None
) -> tuple[Interval | None, tuple[str, ...]]:
    """Returns the gain as wide as its evidence asks for.

    And a line on the trials behind that. Time that was measured, and that the change removes, needs no trials.
    """
    if gain_us is None or not gain_us.high > 0 or widening is None or draft.removes:
        return gain_us, ()
    speedup = widen(speedup_of(gain_us, step_us), widening)
    low_us, high_us = (step_us * (1 - 1 / end) for end in (speedup.low, speedup.high))
    # No change gains more than the time that it takes from.
    claimed_us = math.fsum(draft.claims.values()) or most_us
    high_us = min(high_us, most_us, max(gain_us.high, claimed_us))
    low_us = max(low_us, min(gain_us.low, 0.0)) if draft.cannot_lose else low_us
    return Interval(min(low_us, high_us), high_us), (describe(draft.basis, widening),)


# Of the step: less than this of relief is not worth a line of evidence.
_LEAST_RELIEF = 0.02


def _relief_us(draft: Draft, gain_us: Interval, analysis: StepAnalysis) -> float:
    """Returns what the rest of the step gains at most.

    Work that is left out no longer pushes the data of the rest out of the caches, by its part of the step. Of four
    programs mended by hand, the rest took 11 to 25 % less than before: 0.7 to 1.1 times that part of its memory time.
    """
    claimed = {f"kernel:{at}": kernel.account for at, kernel in enumerate(analysis.kernels)}
    rest_us = math.fsum(entry.us for entry in analysis.ledger if _is_memory(entry.account)) - math.fsum(
        us for claim, us in draft.claims.items() if _is_memory(claimed.get(claim, claim))
    )
    step_us = analysis.steps.wall_us
    return max(min(gain_us.high / step_us * rest_us, step_us * (1 - _LEAST_LEFT) - gain_us.high), 0.0)


def _relieved(
    widened: tuple[Interval | None, tuple[str, ...]], relief_us: float, step_us: float
) -> tuple[Interval | None, tuple[str, ...]]:
    """Adds the relief of the rest to the upper end, with evidence."""
    gain_us, evidence = widened
    if gain_us is None or relief_us <= 0:
        return widened
    words = (
        f"up to {format_us(relief_us)} more in the rest of the step, whose data stays in the caches then: "
        f"{format_share(gain_us.high / step_us)} of its memory time"
    )
    shown = (words,) if relief_us >= _LEAST_RELIEF * step_us else ()
    return Interval(gain_us.low, gain_us.high + relief_us), (*evidence, *shown)


def _is_memory(account: str | None) -> bool:
    return account is not None and account.partition(".")[0] == "memory"


def _scaled(gain_us: Interval, part: float, most_us: float) -> Interval:
    """Returns this part of a gain, of no more than so much.

    A loss stays whole.
    """
    high = min(gain_us.high * part, most_us)
    return Interval(min(gain_us.low * part if gain_us.low > 0 else gain_us.low, high), high)


def speedup_of(gain_us: Interval, step_us: float) -> Interval:
    """Speedup of the step: step / (step - gain)."""
    return Interval(step_us / (step_us - gain_us.low), step_us / (step_us - gain_us.high))


def smallest_visible_us(analysis: StepAnalysis) -> float:
    """Returns the gain below which step times could not show it.

    Half the interval of this recording's step times, where that is known and not made by other programs; at least a
    small share of the step.
    """
    steps = analysis.steps
    if analysis.has_load_taken_off:
        return _LEAST_SHOWN * steps.wall_us
    timing = steps.unprofiled_us or steps.profiled_us
    half_us = 0.0 if timing is None or timing.n < 2 else (timing.high - timing.low) / 2
    return max(half_us, _LEAST_SHOWN * steps.wall_us)


def _by_name(claims: Mapping[str, float], analysis: StepAnalysis) -> Mapping[str, float]:
    """Returns the claims with those on rows of one kernel name as one.

    Rows that share the device share its time too.
    """
    pooled: dict[str, float] = {}
    for claim, us in claims.items():
        part, is_row, row = claim.partition("kernel:")
        name = f"kernel:{analysis.kernels[int(row)].name}" if is_row else part
        pooled[name] = pooled.get(name, 0.0) + us
    return pooled


def _most_us(draft: Draft, analysis: StepAnalysis) -> float:
    """Returns the most that a finding can save.

    The time of all that it names, and less than the step. Of an account, a phase or a line that is all of its time, not
    only what the formula expects to save of it.
    """
    limits = [analysis.steps.wall_us * (1 - _LEAST_LEFT), draft.most_us]
    if draft.claims:
        times = {f"kernel:{at}": kernel.us for at, kernel in enumerate(analysis.kernels)}
        times.update({entry.account: entry.us for entry in analysis.ledger})
        limits.append(math.fsum(times.get(claim, us) for claim, us in draft.claims.items()))
    if draft.phase is not None and analysis.phases:
        limits.append(math.fsum(phase.us for phase in analysis.phases if phase.name == draft.phase))
    if draft.lines:
        folds = (fold for fold in analysis.lines if fold.name in draft.lines)
        limits.append(math.fsum(fold.us + fold.idle_us for fold in folds))
    return min(limits)


def _bounded(
    draft: Draft, claims: Mapping[str, float], most_us: float, accounts: Mapping[str, float]
) -> Interval | None:
    """Returns the gain, no more than the step holds of its claims.

    And no more than so much. A loss stays whole. It is never a point: where that leaves one, its lower end is 5 %
    below.
    """
    if draft.gain_us is None:
        return None
    high = float(min(max(draft.gain_us.high, 0.0), most_us, _free_us(accounts, claims) if claims else most_us))
    low = float(min(draft.gain_us.low, high))
    return Interval(_LEAST_OF_A_POINT * high if low > _A_POINT * high else low, high)


def _free_us(left_us: Mapping[str, float], claims: Mapping[str, float]) -> float:
    return sum(min(claim, left_us.get(account, claim)) for account, claim in claims.items())


# Groups of findings in their order.
_CORRECTS, _GAINS, _MAY_HURT, _REMARK = range(4)
# The group of a finding, its worth negated, and whether it stands behind a remedy of it.
_Key = tuple[int, float, bool]


def _without_lacking_place(text: str) -> str:
    """Leaves an unknown place out of an advice: it stands with the evidence."""
    return text.replace(f" {at_source(None)}", "")


def _keys(drafts: Sequence[Draft], gains_us: Sequence[Interval | None], step_us: float) -> list[_Key]:
    """Returns places in the ranking.

    By the middle of a gain that is certain, or that comes first anyway, by the lower end of any other. One that is not
    certain, but better at both ends than one that is, stands before that one.
    """
    parts, pairs = [_counted_part(draft) for draft in drafts], list(zip(drafts, gains_us, strict=True))
    sure = [
        (gain_us, part * (gain_us.low + gain_us.high) / 2)
        for (_, gain_us), part in zip(pairs, parts, strict=True)
        if gain_us is not None and is_certain(speedup_of(gain_us, step_us))
    ]
    keys: list[_Key] = []
    for (draft, gain_us), part in zip(pairs, parts, strict=True):
        is_first = draft.corrects_results or draft.comes_first
        if gain_us is None or draft.corrects_results:
            keys.append((_CORRECTS if is_first else _REMARK, -math.inf if is_first else 0.0, False))
            continue
        worth_us = middle_us = part * (gain_us.low + gain_us.high) / 2
        if is_first:
            keys.append((_CORRECTS, -middle_us, False))
            continue
        if not is_certain(speedup_of(gain_us, step_us)):
            worse = (us for other, us in sure if part * gain_us.low >= other.low and part * gain_us.high >= other.high)
            worth_us = max(part * gain_us.low, max(worse, default=0.0) * (1 + 1e-9) if gain_us.low > 0 else 0.0)
        keys.append((_GAINS, -worth_us, False) if worth_us > 0 else (_MAY_HURT, -middle_us, False))
    return keys


def _put_run_ahead(drafts: Sequence[Draft], gains_us: Sequence[Interval | None], step_us: float) -> Sequence[Draft]:
    """Marks the draft that the run gains most from as coming first.

    No change of a step shortens the run more. Drafts that come first anyway stay first.
    """
    if any(draft.comes_first or draft.corrects_results for draft in drafts):
        return drafts
    keys = zip(drafts, _keys(drafts, gains_us, step_us), strict=True)
    best_us = max(
        (-worth for draft, (group, worth, _) in keys if group == _GAINS and not draft.on_request), default=0.0
    )
    return [
        replace(draft, comes_first=True)
        if draft.equal_gain_us is not None and draft.equal_gain_us >= best_us
        else draft
        for draft in drafts
    ]


def _counted_part(draft: Draft) -> float:
    """Returns the part of a gain that counts.

    Half where the results change, unless nobody asked for them as they are, and half of that of a batch that was not
    tried. Half where another recording has to show what to change.
    """
    untried = draft.per == "sample" and draft.confidence != "high"
    if draft.changes_results and draft.slug not in _ACCIDENTS:
        return 0.25 if untried else 0.5
    return 0.5 if draft.asks_again else 1.0


def _behind_remedies(key: _Key, draft: Draft, first: Mapping[str, _Key]) -> _Key:
    """Returns the key of a finding.

    One that bounds others comes right behind the first of them that has a gain.
    """
    remedies = [first[slug] for slug in draft.remedies if slug in first and first[slug][0] <= _GAINS]
    ahead = min(remedies, default=key)
    return (ahead[0], ahead[1], True) if key < ahead else key


def _accounts(analysis: StepAnalysis) -> dict[str, float]:
    accounts = {entry.account: entry.us for entry in analysis.ledger}
    for kernel in analysis.kernels:  # one name has a row per op, sizes and line
        account = f"kernel:{kernel.name}"
        accounts[account] = accounts.get(account, 0.0) + kernel.us
    return accounts


def _take(left_us: dict[str, float], claims: Mapping[str, float], gain_us: Interval) -> Interval:
    """Takes the part of the gain whose time no finding above has claimed.

    It is gone from what is left then.
    """
    free_us = _free_us(left_us, claims) if claims else gain_us.high
    high = min(gain_us.high, free_us, left_us[_WHOLE])
    for account, claim in claims.items():
        left_us[account] = max(0.0, left_us.get(account, claim) - claim)
    left_us[_WHOLE] -= high
    return Interval(min(gain_us.low * high / gain_us.high, high) if gain_us.high else 0.0, high)


def _named(sources: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(source for source in sources if source is not None))


def _command(draft: Draft, program: Sequence[str] | None) -> str | None:
    if not draft.tries or program is None:
        return None
    return f"bottleneck verify --try {','.join(draft.tries)} {shlex.join(program)}"
