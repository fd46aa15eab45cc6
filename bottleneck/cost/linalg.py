"""Costs of dense linear algebra: factorisations, solves, distances.

FLOPs are those of the textbook algorithm (Golub and Van Loan, Matrix Computations): the least that libraries take.
Blocked algorithms pass over the rest of the matrix once per block of columns, which is the high end of the bytes.
"""

import math
from collections.abc import Callable
from functools import partial

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import math_dtype, named
from bottleneck.schema.records import replace

FAMILY = "linear algebra"

# Columns that a blocked factorisation eliminates before it updates the rest.
_BLOCK = 64


def _matrices(tensor: Tensor) -> tuple[int, int, int]:
    """Rows, columns and count of the matrices in a tensor."""
    if len(tensor.shape) < 2:
        raise Unmodelled("no_matrix")
    return tensor.shape[-2], tensor.shape[-1], math.prod(tensor.shape[:-2])


def _cost(a: Tensor, flops: float, moved: float) -> Cost:
    _, columns, _ = _matrices(a)
    again = 2 * a.bytes * (columns // _BLOCK)
    return Cost(FAMILY, matrix_flops=flops, bytes_low=moved, bytes_high=moved + again, math_dtype=math_dtype(a))


def _factor(flops: Callable[[int, int], float], results: float, optional: float, call: OpCall) -> Cost:
    """Prices a factorisation of a(…, m, n).

    ``flops`` counts per matrix. ``results`` counts results of the size of a.

    ``optional`` results, such as vectors beside values, are in the high end only.
    """
    a = call.tensor(0)
    rows, columns, count = _matrices(a)
    # FLOPs are symmetric in m >= n: a wide matrix is factored like its transpose.
    cost = _cost(a, count * flops(max(rows, columns), min(rows, columns)), (1 + results) * a.numel * a.item_bytes)
    return replace(cost, bytes_high=cost.bytes_high + optional * a.numel * a.item_bytes)


def _solve(flops: Callable[[int, int], float], matrix: int, right: int, call: OpCall) -> Cost:
    """Prices a solve with matrix a and right side b.

    They are a(…, n, n) and b(…, n, k) or b(…, n). Both are read, a result like b is written.
    """
    a, b = call.tensor(matrix), call.tensor(right)
    size, _, count = _matrices(a)
    width = max(b.numel // max(count * size, 1), 1)
    return _cost(a, count * flops(size, width), a.bytes + b.bytes + b.numel * b.item_bytes)


def _distances(call: OpCall) -> Cost:
    """Prices _cdist_forward(x1 [.., p, m], x2 [.., r, m], p, …).

    There are three operations per coordinate of each pair.
    """
    left, right = call.tensor(0), call.tensor(1)
    rows, width, count = _matrices(left)
    pairs = count * rows * _matrices(right)[0]
    moved = left.bytes + right.bytes + pairs * left.item_bytes
    return Cost(
        FAMILY, vector_flops=3.0 * pairs * width, bytes_low=moved, bytes_high=moved, math_dtype=math_dtype(left)
    )


def _distances_backward(call: OpCall) -> Cost:
    """_cdist_backward(dy, x1, x2, p, distances): all read, a gradient like x1 written."""
    dy, left, right, distances = (call.tensor(position) for position in (0, 1, 2, 4))
    moved = dy.bytes + left.bytes + right.bytes + distances.bytes + left.numel * left.item_bytes
    flops = 4.0 * dy.numel * left.shape[-1]
    return Cost(FAMILY, vector_flops=flops, bytes_low=moved, bytes_high=moved, math_dtype=math_dtype(left))


FORMULAS: Formulas = named(
    {
        "linalg_cholesky_ex cholesky": partial(_factor, lambda _, n: n**3 / 3, 1.0, 0.0),
        "linalg_lu_factor_ex linalg_lu linalg_ldl_factor_ex _linalg_det _linalg_slogdet": partial(
            _factor, lambda m, n: m * n**2 - n**3 / 3, 1.0, 0.0
        ),
        "linalg_inv_ex": partial(_factor, lambda _, n: 2.0 * n**3, 1.0, 0.0),
        "linalg_qr geqrf": partial(_factor, lambda m, n: 2 * m * n**2 - 2 * n**3 / 3, 1.0, 0.0),
        "_linalg_svd": partial(_factor, lambda m, n: 4 * m * n**2 - 4 * n**3 / 3, 0.0, 3.0),
        "_linalg_eigh": partial(_factor, lambda _, n: 4 * n**3 / 3, 0.0, 2.0),
        "linalg_eig _linalg_eigvals": partial(_factor, lambda _, n: 10 * n**3 / 3, 0.0, 4.0),
        "linalg_matrix_exp": partial(_factor, lambda _, n: 2.0 * n**3, 1.0, 0.0),
        "_linalg_solve_ex": partial(_solve, lambda n, k: 2 * n**3 / 3 + 2 * n**2 * k, 0, 1),
        "linalg_solve_triangular": partial(_solve, lambda n, k: float(n**2 * k), 0, 1),
        "triangular_solve": partial(_solve, lambda n, k: float(n**2 * k), 1, 0),
        "_cholesky_solve_helper": partial(_solve, lambda n, k: 2.0 * n**2 * k, 1, 0),
        "linalg_lu_solve": partial(_solve, lambda n, k: 2.0 * n**2 * k, 0, 2),
        "_cdist_forward": _distances,
        "_cdist_backward": _distances_backward,
    }
)
