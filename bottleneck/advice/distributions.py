"""Rules of torch.distributions: normal distributions with full covariances, and checks of arguments."""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.quantities import format_count, format_per_step, outermost_frames
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    backward_of,
    issued_by,
    main_source,
    removal_of,
    top_rows,
    with_python,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source, place_of
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

_FULL = re.compile(r"distributions[/\\]multivariate_normal\.py\(\d+\): |: _kl_multivariatenormal_|: _batch_trace_XXT$")
_CHECKS = re.compile(
    r"distributions[/\\](?:constraints\.py\(\d+\): check|distribution\.py\(\d+\): (?:__init__|_validate_sample))$"
)
_FACTOR = re.compile(r"^aten::(?:linalg_)?(?:cholesky|cholesky_ex|solve_triangular|triangular_solve)$")
_MADE_DIAGONAL = frozenset({"aten::diag_embed", "aten::diag", "aten::eye"})
# An identity that is added to a matrix so many ops later makes no diagonal one.
_ADDS, _ADDED_WITHIN = frozenset({"aten::add", "aten::add_"}), 3
_LEAST_SHARE = 0.05
# Of a covariance that is not known to be diagonal so much goes at least: its Cholesky factor, given as scale_tril.
_NOT_KNOWN = 0.25


class _FullNormal(Struct, frozen=True):
    """Outermost ops of normal distributions with full covariances: those ops, their lines, and sizes.

    ``matrices`` covariances of ``width`` numbers are factorised or solved with per step. ``diagonal`` is the line that
    makes diagonal matrices of this width; null where none does.
    """

    rows: tuple[int, ...]
    lines: tuple[str, ...]
    matrices: float
    width: int
    diagonal: str | None


@remembered
def _full_normal(evidence: Evidence) -> _FullNormal | None:
    """Gives the work in frames of MultivariateNormal.

    It includes the ops of the same lines that make its matrices.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    frames = outermost_frames(evidence, _FULL)
    mine = top[frames.hold(ops["ts_us"].to_numpy()[top])]
    factors = mine[text_matches(ops["name"], _FACTOR.search)[mine]]
    if not factors.size:
        return None
    sizes = [
        work.tensors_of(int(entry))[0] for entry in as_integers(ops["signature"])[factors] if work.tensors_of(entry)
    ]
    sizes = [size for size in sizes if len(size) >= 2 and size[-1] == size[-2]]
    if not sizes:
        return None
    width = max(size[-1] for size in sizes)
    matrices = sum(int(np.prod(size[:-2])) for size in sizes) / evidence.steps
    lines = {str(entry) for entry in ops["source"].iloc[mine].dropna() if place_of(str(entry)) is not None}
    makes = text_matches(ops["name"], _MADE_DIAGONAL.__contains__)[top]
    made = [row for row in top[makes].tolist() if width in _widths(evidence, row) and not _is_jitter(evidence, row)]
    diagonal = main_source(evidence, made) if made else None
    rows = sorted({*mine.tolist(), *(row for row in made if str(ops["source"].iloc[row]) in lines)})
    us = ops.iloc[mine].groupby("source", observed=True)["dur_us"].sum().sort_values(ascending=False)
    return _FullNormal(tuple(rows), tuple(str(entry) for entry in us.index[:3]), matrices, width, diagonal)


def _is_jitter(evidence: Evidence, row: int) -> bool:
    """True for an identity that its line adds to a matrix.

    Both have the same size. That is done as to make the matrix positive.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    if str(ops["name"].iloc[row]) != "aten::eye":
        return False
    at = int(np.searchsorted(top, row))
    for later in top[at + 1 : at + 1 + _ADDED_WITHIN].tolist():
        sizes = work.tensors_of(int(as_integers(ops["signature"])[later]))[:2]
        is_sum = str(ops["name"].iloc[later]) in _ADDS and len(sizes) == 2 and sizes[0][-1:] == sizes[1][-1:]
        if is_sum and all(len(size) >= 2 for size in sizes):
            return True
    return False


def _widths(evidence: Evidence, row: int) -> set[int]:
    """Gives the width of the diagonal matrix that an op makes.

    It is read from its sizes or its numbers.
    """
    signature, work = int(as_integers(evidence.linked.ops["signature"])[row]), work_of(evidence)
    numbers = [str(number) for number in work.text_column("concrete", signature)[:1]]
    return {size[-1] for size in work.tensors_of(signature)[:1] if size} | {
        int(number) for number in numbers if number.isdecimal() and len(number) < 10
    }


def full_covariance(evidence: Evidence) -> Draft | None:
    """Finds a MultivariateNormal that factorises its covariances in every step.

    It also solves with them. Gain: the time of its ops, of the ops at its lines that make the matrices, and of their
    backward nodes. It is counted from 90 % where the step makes diagonal matrices of this width, else from a quarter.
    """
    normal = _full_normal(evidence)
    if normal is None:
        return None
    rows = [*normal.rows, *backward_of(evidence, normal.rows)]
    removal, work = with_python(evidence, removal_of(evidence, rows), normal.rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_SHARE:
        return None
    where = ", ".join(normal.lines)
    made = normal.diagonal
    advice = (
        f"The covariance is made diagonal {at_source(made)}: use Independent(Normal(mean, std), 1), whose samples, "
        f"log_prob and KL divergence are elementwise, in place of the MultivariateNormal at {where}."
        if made is not None
        else f"If the covariance at {where} is diagonal, use Independent(Normal(mean, std), 1). If it is full, give "
        "its factor as scale_tril (of one matrix that serves a whole batch, torch.linalg.cholesky once), and pass "
        "validate_args=False once it works."
    )
    gain = removal.gain if made is not None else Interval(_NOT_KNOWN * removal.gain.low, removal.gain.high)
    return Draft(
        slug="full-covariance",
        title="Diagonal normal distributions are made with full covariance matrices"
        if made is not None
        else "Normal distributions with full covariance matrices take much of the step",
        evidence=(
            f"MultivariateNormal at {where} works on {counted(format_count(normal.matrices), 'matrix', 'matrices')} of "
            f"{normal.width}x{normal.width} per step: Cholesky factors, triangular solves, and checks of its arguments",
            f"that takes {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=advice,
        places=(made,),
        code="q = Independent(Normal(mean, std), 1)  # in place of MultivariateNormal(mean, diag_embed(std ** 2))",
        gain_us=gain,
        claims=removal.claims,
        removes=True,
        confidence="high" if made is not None else "low",
    )


def argument_checks(evidence: Evidence) -> Draft | None:
    """Distributions check all of their arguments and samples in every step.

    Gain: the time of the ops in these checks and of the Python between them, from 90 % of it. Those of a distribution
    with a full covariance are told with it.
    """
    ops, top = evidence.linked.ops, top_rows(evidence)
    mine = top[outermost_frames(evidence, _CHECKS).hold(ops["ts_us"].to_numpy()[top])]
    if not mine.size or full_covariance(evidence) is not None:
        return None
    removal, work = with_python(evidence, removal_of(evidence, mine.tolist()), mine.tolist()), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_SHARE:
        return None
    line = main_source(evidence, mine.tolist())
    return Draft(
        slug="argument-checks",
        title="Distributions check all of their arguments in every step",
        evidence=(
            f"{counted(format_count(mine.size / evidence.steps), 'op')} of checks per step, most of them "
            f"{at_source(line)}",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, mine.tolist())),
        ),
        advice=f"Pass validate_args=False to the distribution {at_source(line)} once the program works.",
        places=(line,),
        code="torch.distributions.Distribution.set_default_validate_args(False)",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
    )


RULES = (full_covariance, argument_checks)
