"""Rules of matrix decompositions that cost far more than their use.

What the program takes from them is little.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, size_words, work_of
from bottleneck.advice.quantities import (
    format_count,
    format_per_step,
    ops_in_window,
    outermost_frames,
    outermost_spans,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    Removal,
    autograd_records,
    backward_of,
    issued_by,
    main_source,
    removal_of,
    roots_of,
    top_rows,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Floats
from bottleneck.schema.op_names import OPTIMIZER_STEP, at_known, at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# The ops that do the work of a decomposition, alone or inside of what was called.
_WORKS = re.compile(
    r"^aten::(?:_?linalg_(?:svd|eigh|eig|eigvals|qr|inv_ex|cholesky_ex|lu_factor_ex|solve_ex|lstsq|matrix_exp)"
    r"|geqrf|matrix_exp|linalg_matrix_exp|cholesky_inverse|_linalg_slogdet|_linalg_det)$"
)


class _CheaperWay(Struct, frozen=True):
    """A kind of call, and what is cheaper in its place.

    It has the names of its ops, its words, and code. ``basis`` is the call whose result an optimizer may keep instead,
    ``left`` the part of its time that the cheaper way takes at least. A call that is ``usual`` has none where the
    matrix depends on weights: it is only named where it may be done less often.
    """

    names: "re.Pattern[str]"
    words: str
    cheaper: str = ""
    code: str = ""
    left: float = 0.2
    usual: bool = False
    basis: str = ""


# In the order in which they are tried: what was called, before what that does inside.
_WAYS = (
    _CheaperWay(
        re.compile("pinv"),
        "pseudo-inverse",
        "solve for the right-hand side (torch.linalg.lstsq, or solve with the normal equations) instead of multiplying "
        "by a pseudo-inverse, which takes an SVD",
        "x = torch.linalg.lstsq(a, b).solution  # in place of torch.linalg.pinv(a) @ b",
        left=0.1,
    ),
    _CheaperWay(
        re.compile("matrix_rank|cond|norm"),
        "rank or norm by singular values",
        "compute it only where it is looked at, every so many steps; a Frobenius norm needs no decomposition",
        "if step % 100 == 0:\n    rank = torch.linalg.matrix_rank(a)",
        left=0.02,
    ),
    _CheaperWay(
        re.compile("svd"),
        "SVD",
        "take only what is used of it: torch.svd_lowrank(a, q=k) for the first k columns, torch.linalg.eigh of the "
        "small Gram matrix where one side is far smaller, torch.linalg.svdvals for values alone",
        "u, s, v = torch.svd_lowrank(a, q=k)  # the first k columns",
        basis="torch.linalg.svd(g, full_matrices=False)[0][:, :rank]",
    ),
    _CheaperWay(
        re.compile("eigh|eigvalsh|symeig"),
        "eigendecomposition",
        "take only what is used of it: torch.lobpcg(a, k=k) for a few vectors, torch.linalg.eigvalsh for values alone",
        "values, vectors = torch.lobpcg(a, k=k)  # the first k",
    ),
    _CheaperWay(
        re.compile("eig"),
        "eigendecomposition of a general matrix",
        "use torch.linalg.eigh where the matrix is symmetric, torch.linalg.eigvals for values alone, or repeated "
        "products for powers",
        "values, vectors = torch.linalg.eigh(a)  # of a symmetric matrix",
    ),
    _CheaperWay(
        re.compile("inv"),
        "inverse",
        "solve for the right-hand side instead of multiplying by an inverse (torch.linalg.solve, or "
        "torch.cholesky_solve where the matrix is symmetric and positive); of a rotation it is the transpose",
        "x = torch.linalg.solve(a, b)  # in place of torch.linalg.inv(a) @ b",
        left=1 / 3,
    ),
    _CheaperWay(
        re.compile("matrix_exp"),
        "matrix exponential",
        "compute it once per update of what it depends on, or take a cheaper map (for orthogonal matrices "
        'orthogonal(module, orthogonal_map="cayley") or "householder")',
        'orthogonal(layer, orthogonal_map="cayley")',
    ),
    _CheaperWay(re.compile("qr|householder|geqrf"), "QR decomposition", usual=True),
    _CheaperWay(re.compile("cholesky"), "Cholesky decomposition", usual=True),
    _CheaperWay(re.compile("lu|solve|lstsq|det"), "LU decomposition", usual=True),
)
_KEPT = 'if step % 50 == 0:\n    state["{name}"] = {call}  # kept in between'
# Of a decomposition that is renewed every 50 steps so much is gained.
_RENEWED, _SELDOM = 0.5, 0.98
_LEAST_DEAR = 0.08
# Of the time of decompositions of one matrix in a batch so much goes at least: right sides of their own stay.
_OF_COPIES = 0.75
_MOST_SIZES = 4
# Ops before a decomposition that may have copied one matrix to each place of a batch.
_MOST_BEFORE = 4
_COPIES, _REPEATS = re.compile(r"^aten::(?:clone|contiguous|reshape)$"), re.compile(r"^aten::(?:repeat|tile)$")
_LOOKS = re.compile(r"distributions[/\\](?:lowrank_)?multivariate_normal\.py\(|nn[/\\]utils[/\\]parametri\w+\.py\(")


class _DecompositionCall(Struct, frozen=True):
    """An outermost op that decomposes matrices.

    It has its row, the kind of call, and the sizes of the matrices. Of a batch in which one matrix stands several times
    ``copies`` is how often.
    """

    row: int
    name: str
    way: _CheaperWay
    size: Size
    signature: int
    copies: int = 1


@remembered
def _calls(evidence: Evidence) -> tuple[_DecompositionCall, ...]:
    """Gives the outermost ops that decompose matrices, in the window.

    They belong to the forward pass or to optimizers. Those that parametrizations and distributions make are other
    rules'.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    inner = np.flatnonzero(text_matches(ops["name"], _WORKS.search) & ops_in_window(evidence))
    roots = np.unique(roots_of(evidence)[inner])
    roots = roots[~outermost_frames(evidence, _LOOKS).hold(ops["ts_us"].to_numpy()[roots])]
    names = ops["name"].astype(object).to_numpy()[roots].tolist()
    inside: dict[int, str] = {}
    for row, root in zip(inner.tolist(), roots_of(evidence)[inner].tolist(), strict=True):
        inside.setdefault(root, str(ops["name"].iloc[row]))
    decompositions = []
    for root, name, signature in zip(roots.tolist(), names, as_integers(ops["signature"])[roots].tolist(), strict=True):
        way = next((way for text in (name, inside[root]) for way in _WAYS if way.names.search(text)), None)
        sizes = [size for size in work.tensors_of(signature) if len(size) >= 2]
        if way is not None and sizes and not ops["is_autograd"].iloc[root]:
            copies = _copies(evidence, root, sizes[0], signature)
            decompositions.append(_DecompositionCall(root, name, way, sizes[0], signature, copies))
    return tuple(decompositions)


def _copies(evidence: Evidence, root: int, size: Size, signature: int) -> int:
    """Counts the copies of one matrix in a batch.

    They show in strides of 0, or in a copy of such, or in a repeat, right before.
    """
    if len(size) < 3:
        return 1
    work, ops, top = work_of(evidence), evidence.linked.ops, top_rows(evidence)
    times = _expanded(work, signature, size)
    at = int(np.searchsorted(top, root))
    for before in reversed(top[max(at - _MOST_BEFORE, 0) : at].tolist()):
        name, number = str(ops["name"].iloc[before]), int(as_integers(ops["signature"])[before])
        if times == 1 and _COPIES.search(name):
            times = _expanded(work, number, size)
        elif times == 1 and _REPEATS.search(name):
            of = next(iter(work.tensors_of(number)), ())
            times = math.prod(size) // math.prod(of) if math.prod(of) and of[-2:] == size[-2:] else 1
    return times


def _expanded(work: KernelWork, signature: int, size: Size) -> int:
    """Counts the copies of one matrix in a batch of this size.

    Its first dimensions have strides of 0.
    """
    columns = (work.text_column(name, signature) for name in ("dims", "strides"))
    for dims, strides in zip(*columns, strict=False):
        if dims == list(size) and isinstance(strides, list) and len(strides) == len(dims):
            return math.prod(one for one, stride in zip(dims[:-2], strides[:-2], strict=True) if stride == 0)
    return 1


def _full_part(evidence: Evidence, call: _DecompositionCall) -> float:
    """Gives the part of an SVD's arithmetic for needless columns.

    Those are the columns of a square matrix beyond the shorter side. 0 for other calls. Of m x n, m the longer: 4 m^2 n
    + 22 n^3 with all columns, 6 m n^2 + 20 n^3 with those of the shorter side (Golub and Van Loan, Matrix Computations,
    table 8.6.1).
    """
    concrete = [str(argument) for argument in work_of(evidence).text_column("concrete", call.signature)]
    is_full = (call.name == "aten::linalg_svd" and concrete[1:2] == ["True"]) or (
        call.name == "aten::svd" and concrete[1:3] == ["False", "True"]
    )
    m, n = max(call.size[-2:]), min(call.size[-2:])
    if not is_full or m < 2 * n:
        return 0.0
    return max(0.0, 1 - (6 * m * n**2 + 20 * n**3) / (4 * m**2 * n + 22 * n**3))


class _DecompositionCase(Struct, frozen=True):
    """Words on some calls: title, advice, code, and the gain."""

    title: str
    advice: str
    code: str
    removal: Removal
    gain: Interval
    rows: tuple[int, ...]
    changes_results: bool = False
    high: bool = False
    brief: str | None = None


def _removed(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> Removal:
    rows = [call.row for call in calls]
    return removal_of(evidence, [*rows, *backward_of(evidence, rows)], certain=1.0)


def _of_full_matrices(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> _DecompositionCase | None:
    """SVDs of oblong matrices that make square factors."""
    parts = {call.row: _full_part(evidence, call) for call in calls}
    full = [call for call in calls if parts[call.row] > 0.5]
    if not full:
        return None
    removal, ops = _removed(evidence, full), evidence.linked.ops
    us = ops["dur_us"].to_numpy()[[call.row for call in full]]
    part = float(np.average([parts[call.row] for call in full], weights=np.maximum(us, 1e-9)))
    longest = max(full, key=lambda call: max(call.size[-2:]))
    m, n = max(longest.size[-2:]), min(longest.size[-2:])
    line = main_source(evidence, [call.row for call in full])
    return _DecompositionCase(
        title="An SVD makes far more columns than the matrix has",
        advice=f"Pass full_matrices=False {at_source(line)}: of {size_words(longest.size)} the full SVD makes a factor "
        f"of {m}x{m}, of which {n} columns belong to singular values. Where few of these are used, torch.svd_lowrank "
        "or torch.linalg.eigh of the small Gram matrix is cheaper still; in an optimizer, renew it only every so many "
        "steps.",
        code="u, s, vh = torch.linalg.svd(a, full_matrices=False)",
        brief=f"Pass full_matrices=False {at_source(line)}",
        removal=removal,
        gain=Interval(part * removal.gain.low / 2, part * removal.gain.high),
        rows=tuple(call.row for call in full),
        high=True,
    )


def _of_one_matrix(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> _DecompositionCase | None:
    """Decompositions of a batch that holds one matrix again and again."""
    mine = [call for call in calls if call.copies > 1]
    if not mine:
        return None
    removal, way = _removed(evidence, mine), _main_way(evidence, mine)
    most = max(mine, key=lambda call: call.copies)
    us = evidence.linked.ops["dur_us"].to_numpy()[[call.row for call in mine]]
    part = float(np.average([1 - 1 / call.copies for call in mine], weights=np.maximum(us, 1e-9)))
    function, line = _torch_call(mine), main_source(evidence, [call.row for call in mine])
    return _DecompositionCase(
        title="One matrix is decomposed for each place of a batch",
        advice=f"Call {function} {at_source(line)} with the matrix itself before it is expanded or repeated, and let "
        f"the result broadcast: the batch of {size_words(most.size)} holds one matrix {most.copies} times, and each "
        f"copy is taken through the {way.words} anew, in the backward pass too.",
        code=f"result = {function}(matrix)  # once: not of matrix.expand(batch, -1, -1); a number broadcasts",
        brief=f"Call {function} {at_source(line)} with the matrix before it is expanded or repeated",
        removal=removal,
        gain=Interval(_OF_COPIES * part * removal.gain.low, part * removal.gain.high),
        rows=tuple(call.row for call in mine),
        high=True,
    )


# Kinds of calls that one factorisation of the matrix serves: a solution, an inverse, a determinant.
_ONE_FACTOR = re.compile(r"^aten::(?:linalg_)?(?:inv|inverse|solve|det|slogdet|logdet|lu_factor|cholesky)(?:_ex)?$")
# Ops that read a matrix between two such calls and make no other one of its sizes.
_READS_MATRIX = re.compile(r"^aten::(?:matmul|mv|mm|t|transpose|numpy_T|diagonal|linalg_solve_triangular)$")
# Of the shorter calls on one matrix this part goes at least.
_OF_SHORTER = 0.5


def _of_same_matrix(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> _DecompositionCase | None:
    """Calls of several functions on one matrix, each of which factorises it anew."""
    groups = _same_matrices(evidence, calls)
    mine = [call for group in groups for call in group]
    us = evidence.linked.ops["dur_us"].to_numpy()
    longest = {max(group, key=lambda call: us[call.row]).row for group in groups}
    if not mine:
        return None
    shorter = _removed(evidence, [call for call in mine if call.row not in longest])
    removal, line = _removed(evidence, mine), main_source(evidence, [call.row for call in mine])
    names = " and ".join(dict.fromkeys(_torch_call([call]) for call in groups[0]))
    return _DecompositionCase(
        title="One matrix is factorised several times in a step",
        advice=f"Factorise the matrix of {size_words(mine[0].size)} once{at_known(line)}, and take from the factor "
        f"what {names} give: torch.linalg.cholesky where it is symmetric and positive, with cholesky_solve for the "
        "right-hand side and the logarithms of its diagonal for the determinant; else lu_factor and lu_solve. No "
        "inverse is needed for a product with it.",
        code="factor = torch.linalg.cholesky(k)  # once\n"
        "x, logdet = torch.cholesky_solve(y[:, None], factor), 2 * factor.diagonal().log().sum()",
        brief=f"Factorise the matrix once{at_known(line)}, and take from the factor what {names} give",
        removal=removal,
        gain=Interval(_OF_SHORTER * shorter.gain.low, max(2 / 3 * removal.gain.high, shorter.gain.low)),
        rows=tuple(call.row for call in mine),
    )


def _same_matrices(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> list[list[_DecompositionCall]]:
    """Groups calls on one matrix.

    They are on its sizes, and nothing between them may make another one.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    signatures, is_autograd = as_integers(ops["signature"]), ops["is_autograd"].to_numpy()
    place = list(zip(ops["thread"].cat.codes.tolist(), as_integers(ops["step"]).tolist(), strict=True))
    groups: list[list[_DecompositionCall]] = []
    for call in calls:
        last = groups[-1][-1] if groups else None
        is_near = last is not None and place[last.row] == place[call.row] and not is_autograd[last.row : call.row].any()
        if last is not None and is_near and last.size == call.size and len(call.size) == 2:
            between = top[(top > last.row) & (top < call.row)].tolist()
            others = [row for row in between if call.size in work.tensors_of(int(signatures[row]))]
            others = [row for row in others if not _only_reads(evidence, row, call.size)]
            if not others and _ONE_FACTOR.search(last.name) and _ONE_FACTOR.search(call.name):
                groups[-1].append(call)
                continue
        groups.append([call])
    return [group for group in groups if len({call.name for call in group}) > 1]


def _only_reads(evidence: Evidence, row: int, size: Size) -> bool:
    """True for a view, or for a product of the matrix with fewer columns."""
    sizes = work_of(evidence).tensors_of(int(as_integers(evidence.linked.ops["signature"])[row]))
    return bool(_READS_MATRIX.search(str(evidence.linked.ops["name"].iloc[row]))) and sizes.count(size) == 1


def _in_optimizer(evidence: Evidence, mine: Sequence[_DecompositionCall]) -> _DecompositionCase | None:
    """Decompositions in the step of an optimizer: they may be renewed less often."""
    if not mine:
        return None
    removal, way = _removed(evidence, mine), _main_way(evidence, mine)
    line = main_source(evidence, [call.row for call in mine])
    cheaper = f" Or {way.cheaper}." if way.cheaper else ""
    return _DecompositionCase(
        title=f"The optimizer takes the {way.words} of its matrices in every step",
        advice=f"Renew what comes of the {way.words} {at_source(line)} only every 50 steps or more, and keep it in the "
        f"optimizer's state in between (a projection or a preconditioner changes slowly).{cheaper}",
        code=_KEPT.format(name="basis", call=way.basis)
        if way.basis
        else _KEPT.format(name="factor", call=f"{_torch_call(mine)}(g)"),
        brief=f"Renew what comes of the {way.words} {at_source(line)} only every 50 steps or more",
        removal=removal,
        gain=Interval(_RENEWED * removal.gain.low, _SELDOM * removal.gain.high),
        rows=tuple(call.row for call in mine),
        changes_results=True,
    )


def _of_no_weights(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> _DecompositionCase | None:
    """Gives the case of decompositions that autograd does not record.

    Their matrices may be the same in each step.
    """
    records = autograd_records(evidence, np.array([call.row for call in calls], dtype=np.int64))
    alone = [call for call, is_recorded in zip(calls, records.tolist(), strict=True) if not is_recorded]
    # A batch of matrices is data as a rule, and to solve or to factorise them is what is asked for.
    mine = [call for call in alone if not (call.way.usual and math.prod(call.size[:-2]) > 1)]
    if not mine:
        return None
    removal, way = _removed(evidence, mine), _main_way(evidence, mine)
    line = main_source(evidence, [call.row for call in mine])
    is_batch = all(math.prod(call.size[:-2]) > 1 for call in mine)
    cheaper = f" Otherwise {way.cheaper}." if way.cheaper else ""
    closed = " Matrices of so few rows have closed forms." if all(max(call.size[-2:]) <= 4 for call in mine) else ""
    return _DecompositionCase(
        title=f"The {way.words} of matrices that no weight changes is taken in every step",
        advice=f"Take the {way.words} {at_source(line)} once, ahead of the loop, and keep it where the matrix is the "
        f"same in each step, or renew it only when the matrix changes.{closed}{cheaper}",
        code=f"factor = {_torch_call(mine)}(a)  # once, before the loop",
        brief=f"Take the {way.words} {at_source(line)} once, ahead of the loop, or only when the matrix changes",
        removal=removal,
        gain=Interval((0.25 if is_batch else 0.5) * removal.gain.low, _SELDOM * removal.gain.high),
        rows=tuple(call.row for call in mine),
    )


def _cheaper(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> _DecompositionCase | None:
    """Gives the case of decompositions for which a cheaper way is common.

    They depend on weights.
    """
    records = autograd_records(evidence, np.array([call.row for call in calls], dtype=np.int64))
    recorded = [call for call, is_recorded in zip(calls, records.tolist(), strict=True) if is_recorded]
    mine = [call for call in recorded if not call.way.usual]
    if not mine:
        return None
    way = _main_way(evidence, mine)
    mine = [call for call in mine if call.way == way]
    removal, line = _removed(evidence, mine), main_source(evidence, [call.row for call in mine])
    high = (1 - way.left) * removal.gain.high
    return _DecompositionCase(
        title=f"The {way.words} of a matrix takes much of the step",
        advice=f"Where the result allows it {at_source(line)}, {way.cheaper}.",
        code=way.code,
        removal=removal,
        gain=Interval(high / 3, high),
        rows=tuple(call.row for call in mine),
        changes_results=True,
    )


def _torch_call(calls: Sequence[_DecompositionCall]) -> str:
    """The function of torch behind the first of these calls: 'torch.linalg.eigh'."""
    name = calls[0].name.removeprefix("aten::")
    return f"torch.linalg.{name.removeprefix('linalg_')}" if name.startswith("linalg_") else f"torch.{name}"


def _main_way(evidence: Evidence, calls: Sequence[_DecompositionCall]) -> _CheaperWay:
    """The kind of call with the most time."""
    us = evidence.linked.ops["dur_us"].to_numpy()
    return max(dict.fromkeys(call.way for call in calls), key=lambda way: _us_of(us, calls, way))


def _us_of(us: Floats, calls: Sequence[_DecompositionCall], way: _CheaperWay) -> float:
    return math.fsum(float(us[call.row]) for call in calls if call.way == way)


def _matrices(evidence: Evidence, rows: Sequence[int]) -> str:
    """Gives the matrices' number per step and sizes: '2 of 192x384'."""
    wanted, counts = set(rows), dict[Size, int]()
    for call in _calls(evidence):
        if call.row in wanted:
            counts[call.size] = counts.get(call.size, 0) + 1
    ranked = sorted(counts, key=lambda size: -counts[size] * math.prod(size) * min(size[-2:]))
    shown = [f"{format_count(counts[size] / evidence.steps)} of {size_words(size)}" for size in ranked[:_MOST_SIZES]]
    return ", ".join(shown) + (" and others" if len(ranked) > _MOST_SIZES else "")


def _dearest_case(evidence: Evidence) -> _DecompositionCase | None:
    """Gives the words on the decompositions of the step.

    They are on square factors if these are most of them, else by place.
    """
    calls, ops = _calls(evidence), evidence.linked.ops
    if not calls:
        return None
    at_us = ops["ts_us"].to_numpy()[[call.row for call in calls]]
    inside = outermost_spans(evidence, OPTIMIZER_STEP).hold(at_us).tolist()
    stepping = [call for call, is_inside in zip(calls, inside, strict=True) if is_inside]
    others = [call for call, is_inside in zip(calls, inside, strict=True) if not is_inside]
    full, one = _of_full_matrices(evidence, calls), _of_one_matrix(evidence, calls)
    made = (_in_optimizer(evidence, stepping), _of_no_weights(evidence, others), _cheaper(evidence, others))
    case = max(
        (possible for possible in made if possible is not None), key=lambda possible: possible.gain.high, default=None
    )
    same = _of_same_matrix(evidence, others)
    for first in (one, same):
        if first is not None and (case is None or first.gain.high >= case.gain.high / 2):
            return first
    is_full = full is not None and (case is None or full.gain.high >= case.gain.high / 2)
    return full if is_full else case


def matrix_decomposition(evidence: Evidence) -> Draft | None:
    """Finds decompositions of matrices that take 8 % of the step.

    SVD, eigenvectors, inverses and others, where less would do. The gain is a part of their time with that of their
    backward nodes:

    - of several calls on one matrix two thirds, from half of the shorter ones,
    - with columns beyond the shorter side, their part of the arithmetic, from half of it,
    - in an optimizer 98 %, from half,
    - of matrices without weights the same, of batches from a quarter,
    - else what is left by the cheaper way, from a third.
    """
    case = _dearest_case(evidence)
    if case is None or evidence.share_of_step(case.removal.us) < _LEAST_DEAR:
        return None
    if evidence.share_of_step(case.gain.high) < LEAST_SHARE:
        return None
    work, line = work_of(evidence), main_source(evidence, case.rows)
    part = case.gain.high / case.removal.us if case.removal.us > 0 else 0.0
    count = format_count(len(case.rows) / evidence.steps)
    return Draft(
        slug="matrix-decomposition",
        title=case.title,
        evidence=(
            f"{counted(count, 'decomposition')} per step {at_source(line)}: {_matrices(evidence, case.rows)}",
            f"that takes {format_per_step(evidence, case.removal.us)}"
            + (", with the backward pass" if backward_of(evidence, case.rows) else ""),
            *work.describe(issued_by(evidence, work, case.rows)),
        ),
        advice=case.advice,
        brief=case.brief,
        places=(line,),
        code=case.code,
        gain_us=case.gain,
        claims={name: us * min(part, 1.0) for name, us in case.removal.claims.items()},
        removes=True,
        changes_results=case.changes_results,
        confidence="high" if case.high else "medium",
    )


RULES = (matrix_decomposition,)
