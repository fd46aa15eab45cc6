"""Builds the section of findings: ranked as in the analysis, those not shown counted."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import PurePath

from bottleneck.report.document import Action, ActionSection, LabelledLine
from bottleneck.report.text import as_sentence, cut_text, first_clauses
from bottleneck.schema.analysis import STEPS_VARY, Analysis, Finding, Interval, is_certain
from bottleneck.schema.finding_order import adds, in_reading_order
from bottleneck.schema.op_names import forward_of, is_backward, place_of
from bottleneck.schema.records import replace
from bottleneck.units import format_share, format_us

TITLE = "What to change"

_EXPLAIN = "bottleneck explain"
_MOST = 5
_EVIDENCE_CHARACTERS = 220  # three lines of a narrow terminal
_MOST_LINES = 3
_NOTHING = 0.01  # a finding that adds less than this part of its gain adds nothing

Groups = tuple[tuple[str, tuple[Action, ...]], ...]


def findings(analysis: Analysis, *, all_findings: bool = False) -> ActionSection | None:
    """The section of findings with their predicted gains; null where there are none.

    Without ``all_findings`` those that the run's own noise would hide are counted, not shown, as are those after the
    first few, and other ways to save the same time are shown in short form.
    """
    available = analysis.findings
    if not (available if all_findings else [finding for finding in available if not finding.on_request]):
        return None
    ordered = in_reading_order(available, analysis.steps.wall_us, analysis.verdict.bound)
    leading = _leading(ordered)
    ranked = [finding for finding in available if finding.predicted_gain_us is not None]
    remarks = [
        finding
        for finding in available
        if finding.predicted_gain_us is None and finding not in leading and (all_findings or not finding.on_request)
    ]
    visible = (
        ranked if all_findings else [candidate for candidate in ordered if candidate.predicted_gain_us is not None]
    )
    shown = [*leading, *(finding for finding in visible if all_findings or adds(finding))]
    others = [finding for finding in visible if not (all_findings or adds(finding))]
    most = len(available) if all_findings else _MOST
    more = _more(shown[most:] + others[most:], remarks[most:])
    hidden = () if all_findings else _hidden(ranked, visible)
    first = (shown or others or remarks or available)[0]
    characters = math.inf if all_findings else _EVIDENCE_CHARACTERS
    # Reasons for gains by formula that several findings give in the same words are said once.
    reasons = Counter(finding.by_formula for finding in shown[:most] if finding.by_formula)
    common = [reason for reason, count in reasons.items() if count > 1]
    return ActionSection(
        TITLE,
        tuple(_action(analysis, finding, characters, common) for finding in shown[:most]),
        (
            *(_doubts(analysis) if visible else ()),
            *(f"{as_sentence(_BY_FORMULA)}{reason}." for reason in common),
        ),
        _together(shown[:most], analysis.steps.wall_us),
        _groups(others[:most], remarks[:most]),
        (*more, *hidden, f"Why and how: `{_EXPLAIN} {first.slug}`"),
    )


def _stands_alone(finding: Finding, ordered: Sequence[Finding]) -> bool:
    """Tells whether the whole report ranks a finding.

    It does not list it as another way to save the same time.
    """
    return finding in _leading(ordered) if finding.predicted_gain_us is None else adds(finding)


def _leading(ordered: Sequence[Finding]) -> list[Finding]:
    """Gives findings without a gain that stand before the first with one.

    Where none has a gain, the first of them.
    """
    first = list(takewhile(lambda finding: finding.predicted_gain_us is None, ordered))
    return first[:1] if len(first) == len(ordered) else first


def _as_ranked(analysis: Analysis) -> list[Finding]:
    """Gives the findings to show, in the order of the whole report.

    It sets apart what saves the same time.
    """
    in_order = in_reading_order(analysis.findings, analysis.steps.wall_us, analysis.verdict.bound)
    return sorted(in_order, key=lambda finding: not _stands_alone(finding, in_order))


def first_findings(
    analysis: Analysis, most: int, characters: int, code: int, others: str = "with --full"
) -> ActionSection | None:
    """Builds the section of first findings in short form for one screen.

    Each has gain, advice, and the command that tries it. They are those of a terminal's screen. ``characters`` limits
    each text but the advice of the first, ``code`` the lines of code: code that has more is left out. ``others`` says
    where those are that are not shown.
    """
    ordered = _as_ranked(analysis)
    shown = ordered[:most]
    ranked = [finding for finding in analysis.findings if finding.predicted_gain_us is not None]
    hidden = _hidden(ranked, ordered)
    if not shown and not hidden:
        return None
    rest = f"{len(ordered) - most} more {others}. " if len(ordered) > most else ""
    more = (f"{rest}Why and how: {_EXPLAIN} {shown[0].slug}",) if shown else ()
    title = TITLE if len(shown) == len(ordered) else f"{TITLE} ({len(shown)} of {len(ordered)})"
    return ActionSection(
        title,
        tuple(_brief(analysis, finding, characters, code, is_first=at == 0) for at, finding in enumerate(shown)),
        _doubts(analysis) if shown else (),
        closing=(*more, *hidden),
    )


def _brief(analysis: Analysis, finding: Finding, characters: int, code: int, *, is_first: bool) -> Action:
    """The finding on a few lines."""
    same = "" if adds(finding) else "; this is another way to save the same time"
    gain = f"{_gain(finding)}{same}" or finding.gain_reason or ""
    advice = _advice(finding)
    lines = (("gain", gain), *_named_lines(analysis, finding.places, 1), ("do", advice))
    written, command = _to_write(finding)
    return Action(
        lead=cut_text(titled(finding), max(characters // 2, 60)),
        lines=tuple(
            LabelledLine(label, text if is_first and label == "do" else cut_text(text, characters))
            for label, text in lines
            if text
        ),
        code=written if len(written) <= code else (),
        command=command,
        key=finding.slug,
    )


_DIAGNOSIS = "# diagnosis: bottleneck "


def _to_write(finding: Finding) -> tuple[tuple[str, ...], str | None]:
    """Gives the lines of code to write, and the command to run.

    A diagnosis by this program alone is a command, and no comment.
    """
    code = (finding.code or "").rstrip()
    if finding.verify is None and code.startswith(_DIAGNOSIS) and "\n" not in code:
        return (), code.removeprefix("# diagnosis: ")
    return tuple(code.splitlines()), finding.verify


def findings_in_brief(
    analysis: Analysis, most: int, advised: int, characters: int, closing: tuple[str, ...] = ()
) -> ActionSection:
    """Builds the first findings on two lines each.

    The lines are what is wrong, then the gain and what to do.

    The verdict says what to do of the
    first, so that one has its title alone. After the first ``advised`` ones the gain stands beside the title, without
    what to do. ``closing`` are the sentences beneath them.
    """
    ordered = _as_ranked(analysis)
    hidden = _hidden([finding for finding in analysis.findings if finding.predicted_gain_us is not None], ordered)
    if not ordered:
        return ActionSection("", (), closing=(*hidden, *closing))
    said = {clause.source for clause in analysis.verdict.clauses if clause.role == "first"}
    counts = (
        f"{len(ordered) - most} more with --full" if len(ordered) > most else "",
        "others gain less than the noise" if hidden else "",
    )
    more = ", ".join(filter(None, counts))
    why = f"{more[:1].upper()}{more[1:]}{'. ' if more else ''}Why and how: {_EXPLAIN} {ordered[0].slug}"
    return ActionSection(
        "",
        (
            replace(_with_advice(ordered[0], characters, said), command=ordered[0].verify),
            *(_with_advice(finding, characters, said) for finding in ordered[1 : min(advised + 1, most)]),
            *(
                _in_a_row(finding, characters, said, is_named=advised >= 0)
                for finding in ordered[max(advised + 1, 1) : most]
            ),
        ),
        _doubts(analysis),
        closing=(why, *closing),
    )


_LEAST_TITLE = 110  # characters of a title that a screen shows
_ONE_ROW = 76  # characters behind the number of a finding that has one row of 80 cells


def titled(finding: Finding) -> str:
    """Gives the title with the place that its evidence names first.

    It has none where title or advice name one themselves.
    """
    source = next(iter(finding.seen_at), None)
    place = None if source is None or finding.places or is_backward(source) else place_of(source)
    return finding.title if place is None else f"{finding.title}: {PurePath(place[0]).name}:{place[1]}"


def _with_advice(finding: Finding, characters: int, said: Collection[str | None]) -> Action:
    """A finding with its gain and what to do in one line.

    It has no such line where the verdict said so.
    """
    same = "" if adds(finding) else " (saves the same time)"
    change = (finding.brief or finding.advice).rstrip(". ")
    shown = change if len(change) <= characters else first_clauses(change, characters)
    shown += "" if shown.endswith("…") else "."
    gain = _speedup(finding)
    text = f"{gain}{same}: {_continued(shown)}" if gain else shown
    lines = () if finding.slug in said else (LabelledLine("", text),)
    return Action(cut_text(titled(finding), max(characters, _LEAST_TITLE)), lines, key=finding.slug)


def _in_a_row(finding: Finding, characters: int, said: Collection[str | None], *, is_named: bool) -> Action:
    """A finding with its gain beside the title.

    Without its name it fits one row; the gain is brief where the title would be cut for it.
    """
    gain = None if finding.slug in said else _speedup(finding)
    beside = f" ({gain})" if gain else ""
    if not is_named:
        if gain and len(finding.title) + len(beside) > _ONE_ROW:
            beside = f" ({finding.describe_speedup_briefly()})"
        speedup = finding.predicted_speedup
        if len(finding.title) + len(beside) > _ONE_ROW and speedup is not None and not is_certain(speedup):
            beside = ""  # a gain that may be a loss is worth less than the end of the title
        return Action(cut_text(finding.title, _ONE_ROW - len(beside)) + beside)
    return Action(cut_text(titled(finding), max(characters, _LEAST_TITLE)) + beside, key=finding.slug)


def _speedup(finding: Finding) -> str | None:
    return finding.describe_speedup() if finding.predicted_gain_us is not None else None


def _continued(advice: str) -> str:
    """Gives advice as it goes on after a colon.

    Names such as CUDA keep their capitals.
    """
    return f"{advice[:1].lower()}{advice[1:]}" if advice[1:2].islower() else advice


# Begins the evidence that a formula gave the gain of a finding whose work could have been timed alone.
_BY_FORMULA = "estimated by formula: "


def _doubts(analysis: Analysis) -> tuple[str, ...]:
    """Warnings to read before the findings of an analysis whose verdict is uncertain."""
    if analysis.verdict.bound == "inconclusive":
        return ("The verdict is inconclusive: these go by the part of the step that is known.",)
    if any(caveat.slug == "two-sided" for caveat in analysis.caveats):
        return ("The device is idle in one part of the window and busy in the other: these take both as one.",)
    return ()


def _action(analysis: Analysis, finding: Finding, characters: float, common: Sequence[str]) -> Action:
    own = [f"{_BY_FORMULA}{finding.by_formula}"] if finding.by_formula and finding.by_formula not in common else []
    seen = "; ".join([_evidence(finding.evidence, characters), *own])
    lines = (
        ("gain", _gain(finding) or finding.gain_reason or ""),
        ("adds", _added(finding)),
        ("seen", seen),
        *_named_lines(analysis, (*finding.places, *finding.seen_at), _MOST_LINES),
        ("do", _advice(finding)),
    )
    code, command = _to_write(finding)
    return Action(
        lead=titled(finding),
        lines=tuple(LabelledLine(label, text) for label, text in lines if text),
        code=code,
        command=command,
        key=finding.slug,
    )


def _advice(finding: Finding) -> str:
    return as_sentence(finding.advice).rstrip(". ") + "."


def _named_lines(analysis: Analysis, sources: Sequence[str], most: int) -> tuple[tuple[str, str], ...]:
    """The text of the first of these source lines, labelled."""
    texts = ((line, analysis.text_of(line)) for line in dict.fromkeys(map(forward_of, sources)))
    return tuple(("line", f"{line}: {text}") for line, text in texts if text is not None)[:most]


def _gain(finding: Finding) -> str:
    gain, speedup = finding.predicted_gain_us, finding.describe_speedup()
    if gain is None or speedup is None:
        return ""
    doubt = " (low confidence)" if finding.confidence == "low" else ""
    noise = f"; {STEPS_VARY}" if finding.within_noise else ""
    of = "per step" if finding.per == "step" else "for the samples of a step"
    # Said wherever the speedup shows it too.
    costs = finding.predicted_speedup is not None and round(finding.predicted_speedup.low, 2) < 1
    worst = f", at worst {format_us(-gain.low)} lost" if gain.low < 0 and costs else ""
    return f"{_between(gain)} {of}{worst}{doubt}: {speedup}{noise}"


def _added(finding: Finding) -> str:
    """Gives the gain that remains once the findings above are applied.

    Empty where that is all of it.
    """
    gain, added = finding.predicted_gain_us, finding.added_gain_us
    if gain is None or added is None or format_us(added.high) == format_us(gain.high):
        return ""
    if added.high < _NOTHING * gain.high:
        return "nothing to those above, which save the same time"
    return f"{_between(added)} to those above, which save some of the same time"


def _evidence(evidence: Sequence[str], characters: float) -> str:
    """As much evidence as fits, the first of it always."""
    kept_parts = list(evidence[:1])
    for part in evidence[1:]:
        if sum(map(len, kept_parts)) + len(part) > characters:
            break
        kept_parts.append(part)
    left = len(evidence) - len(kept_parts)
    return "; ".join([*kept_parts, *([f"and {left} more"] if left else [])])


def _between(interval: Interval) -> str:
    if format_us(interval.low) == format_us(interval.high):
        return f"about {format_us(interval.high)}"
    if not interval.low > 0:
        return f"up to {format_us(interval.high)}"
    return f"{format_us(interval.low)} to {format_us(interval.high)}"


def _together(shown: Sequence[Finding], wall_us: float) -> tuple[str, ...]:
    """Gives the total gain of the findings shown.

    Findings cannot save the same time twice, and hardly all come out at the same end. Gains add up as independent ones
    do: their middles, and the squares of their half widths.
    """
    gains = [finding.added_gain_us for finding in shown if finding.added_gain_us is not None]
    middle_us = math.fsum(gain.low + gain.high for gain in gains) / 2
    half_us = math.hypot(*(gain.high - gain.low for gain in gains)) / 2
    low_us, high_us = max(middle_us - half_us, 0.0), min(middle_us + half_us, math.fsum(gain.high for gain in gains))
    if len(shown) < 2 or not high_us > 0 or not wall_us > 0:
        return ()
    shares = [format_share(us / wall_us) for us in (low_us, high_us)]
    share = f"up to {shares[1]}" if not low_us > 0 else " to ".join(dict.fromkeys(shares))
    between = _between(Interval(low_us, high_us))
    return (f"Together {between}, {share} of the step; that all gain their least or all their most is unlikely.",)


def _groups(others: Sequence[Finding], remarks: Sequence[Finding]) -> Groups:
    """Groups findings in one sentence each.

    They are other ways to save the same time, and those without a predicted gain.
    """
    groups = (
        ("Other ways to save some of the same time:", tuple(_short(finding, _gain(finding)) for finding in others)),
        ("Without a predicted gain:", tuple(_short(finding, finding.gain_reason or "") for finding in remarks)),
    )
    return tuple((title, actions) for title, actions in groups if actions)


def _short(finding: Finding, gain: str) -> Action:
    advice = _continued(finding.advice.rstrip(". "))
    code, command = _to_write(finding)
    return Action(
        f"{finding.title}: {advice}{f' ({gain})' if gain else ''}",
        code=code if len(code) == 1 else (),
        command=command,
        key=finding.slug,
    )


def _more(ranked: Sequence[Finding], remarks: Sequence[Finding]) -> tuple[str, ...]:
    parts = [f"{len(ranked)} more with smaller gains"] if ranked else []
    parts += [f"{len(remarks)} more without one"] if remarks else []
    return (f"{' and '.join(parts)}: see --all-findings.",) if parts else ()


def _hidden(ranked: Sequence[Finding], visible: Sequence[Finding]) -> tuple[str, ...]:
    """The number of findings that the noise hides, and their largest gain."""
    slugs = {finding.slug for finding in visible}
    gains = [
        candidate.predicted_gain_us.high
        for candidate in ranked
        if candidate.predicted_gain_us and candidate.slug not in slugs
    ]
    if not gains:
        return ()
    who = "1 finding is" if len(gains) == 1 else f"{len(gains)} findings are"
    most = f"at most {format_us(max(gains))} per step, " if max(gains) > 0 else ""
    return (f"{who} not shown: {most}less than the steps vary by; see --all-findings.",)
