"""Sums up an analysis for an agent.

It says what holds the step back, and gives the first findings.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from bottleneck.agent.results import (
    Amount,
    AmountRange,
    Basis,
    NextCall,
    ToolResult,
    TraceText,
    all_from_trace,
    amount,
    fitted,
    from_trace,
    marked,
    measured,
    predicted_range,
)
from bottleneck.report.analysis_document import headline
from bottleneck.report.findings import titled
from bottleneck.schema.analysis import Analysis, Finding, LedgerEntry
from bottleneck.schema.finding_order import in_reading_order, put_in_reading_order


class AccountShare(ToolResult):
    """Time of one account of the ledger."""

    account: str = Field(description="`bottleneck explain ACCOUNT` says what it holds")
    time: Amount
    share: Amount


class FindingInBrief(ToolResult):
    """One finding: observation, advice and predicted gain."""

    id: str
    title: TraceText
    advice: TraceText | None = None
    speedup: AmountRange | None = Field(
        default=None, description="old time / new time; absent where none can be predicted"
    )
    of_samples: bool | None = Field(default=None, description="true: the speedup is of samples per second")
    no_gain_reason: TraceText | None = None
    confidence: str
    changes_results: bool | None = Field(default=None, description="true: it changes what the program computes")
    command: TraceText | None = Field(default=None, description="tries the change, measured in turns with the original")


class RunOutcome(ToolResult):
    """End of the program that this call ran."""

    status: int = Field(description="exit status of the program")
    log: str = Field(description="file with all that the program printed")


class Diagnosis(ToolResult):
    """Verdict on a step, its largest accounts and its first findings."""

    path: str = Field(description="what was diagnosed; other tools take it")
    verdict: str
    conclusion: TraceText
    device: TraceText | None = None
    step: Amount
    steps: Amount
    shares: dict[str, Amount] = Field(description="of the step, by group of the ledger; they add up to 1")
    accounts: list[AccountShare] = Field(description="the largest accounts of the ledger")
    findings: list[FindingInBrief] = Field(description="in reading order")
    more_findings: list[str] = Field(description="ids of those left out; `evidence` tells each")
    caveats: list[str] = Field(description="ids of what limits this analysis; `evidence` of 'caveats' tells them")
    next: NextCall
    run: RunOutcome | None = None


class _DiagnosisSize(NamedTuple):
    findings: int
    accounts: int
    characters: int
    ids: int


_SIZES = (
    _DiagnosisSize(4, 6, 240, 30),
    _DiagnosisSize(3, 5, 180, 20),
    _DiagnosisSize(3, 4, 130, 12),
    _DiagnosisSize(2, 3, 100, 8),
    _DiagnosisSize(1, 2, 80, 4),
)
_ALL = _DiagnosisSize(10_000, 10_000, 2_000, 10_000)
# Where the time of kernels belongs follows from a model of their cost; the rest was recorded as what it is.
_MODELLED = frozenset({"compute", "memory", "overhead.launch_floor"})


def diagnose(analysis: Analysis, path: str, *, full: bool = False, run: RunOutcome | None = None) -> Diagnosis:
    """The analysis in brief; ``full`` holds all findings and accounts."""
    ranking = analysis.findings, analysis.steps.wall_us, analysis.verdict.bound
    # Beyond those to read come what noise hides, and what is only shown on request.
    findings, worth_reading = put_in_reading_order(*ranking), len(in_reading_order(*ranking))
    sizes = (_ALL,) if full else [size._replace(findings=min(size.findings, worth_reading)) for size in _SIZES]
    return fitted(lambda size: _of_size(analysis, findings, path, size, run), sizes)


def basis_of(account: str) -> Basis:
    """Says what the time of an account or a group rests on."""
    return "modelled" if account in _MODELLED else "measured"


def _of_size(
    analysis: Analysis, findings: Sequence[Finding], path: str, size: _DiagnosisSize, run: RunOutcome | None
) -> Diagnosis:
    shown, others = findings[: size.findings], findings[size.findings :]
    verdict, steps = analysis.verdict, analysis.steps
    accounts = sorted((entry for entry in analysis.ledger if entry.us > 0), key=lambda entry: -entry.us)
    return Diagnosis(
        path=path,
        verdict=headline(verdict),
        conclusion=marked(verdict.sentence, 2 * size.characters),
        device=from_trace(analysis.device.name, 80),
        step=measured(steps.wall_us, "us"),
        steps=measured(steps.count, "steps"),
        shares={group: amount(share, "share", basis_of(group)) for group, share in verdict.shares.items() if share > 0},
        accounts=[_account(entry) for entry in accounts[: size.accounts]],
        findings=[in_brief(finding, size.characters) for finding in shown],
        more_findings=list(dict.fromkeys(finding.slug for finding in others))[: size.ids],
        caveats=list(dict.fromkeys(caveat.slug for caveat in analysis.caveats))[: size.ids],
        next=NextCall(tool="evidence", of=shown[0].slug if shown else "accounts"),
        run=run,
    )


def _account(entry: LedgerEntry) -> AccountShare:
    basis = basis_of(entry.account)
    return AccountShare(
        account=entry.account, time=amount(entry.us, "us", basis), share=amount(entry.share, "share", basis)
    )


def in_brief(finding: Finding, characters: int) -> FindingInBrief:
    """The finding with texts of at most so many characters."""
    return FindingInBrief(
        id=finding.slug,
        title=marked(titled(finding), characters),
        advice=from_trace(finding.brief or finding.advice, characters),
        speedup=predicted_range(finding.predicted_speedup, "ratio"),
        of_samples=True if finding.per == "sample" else None,
        no_gain_reason=from_trace(finding.gain_reason, characters),
        confidence=finding.confidence,
        changes_results=finding.changes_results or None,
        command=from_trace(finding.verify, 200),
    )


class FindingInFull(FindingInBrief):
    """One finding with the measurements behind it."""

    evidence: list[TraceText]
    code: list[TraceText] = Field(description="code to write, line by line")
    saves: AmountRange | None = Field(default=None, description="time per step, if nothing else is changed")
    saves_after_others: AmountRange | None = Field(
        default=None, description="time per step, once those ranked above are done"
    )
    whatif: list[TraceText] = Field(description="the change in words that `whatif` takes")


def in_full(finding: Finding, characters: int) -> FindingInFull:
    """The finding with its evidence, texts of at most so many characters."""
    return FindingInFull(
        **in_brief(finding, characters).model_dump(exclude={"advice"}),
        advice=from_trace(finding.advice, 2 * characters),
        evidence=all_from_trace(finding.evidence[:8], characters),
        code=all_from_trace((finding.code or "").splitlines(), characters),
        saves=predicted_range(finding.predicted_gain_us, "us"),
        saves_after_others=predicted_range(finding.added_gain_us, "us"),
        whatif=all_from_trace(finding.changes, 200),
    )
