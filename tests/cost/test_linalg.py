"""FLOPs of textbook algorithms, and how they grow."""

import pytest

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.linalg import FORMULAS
from tests.cost.calls import cost_of, moved, tensor

N = 96


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("linalg_cholesky_ex", N**3 / 3),
        ("linalg_lu_factor_ex", 2 * N**3 / 3),
        ("linalg_inv_ex", 2 * N**3),
        ("linalg_qr", 4 * N**3 / 3),
        ("_linalg_svd", 8 * N**3 / 3),
        ("_linalg_eigh", 4 * N**3 / 3),
    ],
)
def test_factorisations_take_the_textbook_s_flops(name, flops):
    one, eight, batch = (cost_of(FORMULAS, name, tensor(*shape)) for shape in ((N, N), (2 * N, 2 * N), (5, N, N)))
    assert one.matrix_flops == pytest.approx(flops)
    assert eight.matrix_flops == pytest.approx(8 * flops)
    assert batch.matrix_flops == pytest.approx(5 * flops)


def test_a_wide_matrix_is_factored_like_its_transpose():
    wide, tall = (cost_of(FORMULAS, "linalg_qr", tensor(*shape)) for shape in ((N, 3 * N), (3 * N, N)))
    assert wide.matrix_flops == tall.matrix_flops == pytest.approx(2 * 3 * N**3 - 2 * N**3 / 3)


@pytest.mark.parametrize("width", [1, 7, 14])
def test_triangles_are_solved_column_by_column(width):
    cost = cost_of(FORMULAS, "linalg_solve_triangular", tensor(N, N), tensor(N, width), "True")
    assert cost.matrix_flops == N * N * width
    assert cost.bytes_low == 4 * (N * N + 2 * N * width)


def test_distances_of_all_pairs():
    cost = cost_of(FORMULAS, "_cdist_forward", tensor(3, 10, 4), tensor(3, 20, 4), "2.", "")
    assert cost.vector_flops == 3 * 3 * 200 * 4
    assert moved(cost) == (4 * (120 + 240 + 600),) * 2


def test_large_matrices_are_updated_block_by_block_at_worst():
    small, large = (cost_of(FORMULAS, "linalg_lu_factor_ex", tensor(size, size)) for size in (32, 256))
    assert small.bytes_low == small.bytes_high
    assert large.bytes_high == large.bytes_low + 4 * 2 * 4 * 256**2


def test_a_vector_is_no_matrix():
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, "linalg_inv_ex", tensor(N))
