"""Time as a tree: what is folded adds up, small parts are one, and order is by time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.schema.time_tree import TreePiece, fold_pieces

NAMES = st.sampled_from(["a", "b", "c"])
PIECES = st.builds(
    TreePiece,
    st.lists(st.tuples(NAMES, st.just("frame")), min_size=1, max_size=5).map(tuple),
    st.sampled_from(["compute", "overhead.python"]),
    st.floats(1e-3, 1e6),
    st.integers(-1, 3),
)


@given(pieces=st.lists(PIECES, min_size=1, max_size=30))
def test_times_of_the_nodes_add_up_by_account_whatever_is_folded(pieces: list[TreePiece]) -> None:
    tree = fold_pieces(pieces, "frames")
    for account in ("compute", "overhead.python"):
        placed = math.fsum(node.us.get(account, 0.0) for node in tree.nodes)
        assert placed == pytest.approx(math.fsum(piece.us for piece in pieces if piece.account == account))
    assert {row for node in tree.nodes for row in node.kernels} == {piece.kernel for piece in pieces} - {-1}
    assert all(node.parent < at for at, node in enumerate(tree.nodes))


def test_same_path_is_one_node_and_the_larger_stands_first() -> None:
    path = (("main", "frame"), ("step", "frame"))
    pieces = [TreePiece((("other", "frame"),), "compute", 1.0)] + [TreePiece(path, "compute", 2.0)] * 2  # type: ignore[arg-type]
    tree = fold_pieces(pieces, "frames")
    assert [(node.name, node.parent, node.us) for node in tree.nodes] == [
        ("main", -1, {}),
        ("step", 0, {"compute": 4.0}),
        ("other", -1, {"compute": 1.0}),
    ]


def test_parts_below_a_pixel_are_one() -> None:
    small = [TreePiece((("main", "frame"), (f"tiny {at}", "op")), "compute", 0.01, at) for at in range(5)]
    tree = fold_pieces([TreePiece((("main", "frame"),), "memory", 1000.0), *small], "ops")
    assert [(node.name, node.kind, node.kernels) for node in tree.nodes] == [
        ("main", "frame", ()),
        ("5 smaller", "rest", (0, 1, 2, 3, 4)),
    ]
