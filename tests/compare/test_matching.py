"""Modules of two models as each other's: wrappers, numbers that moved by one, layers put in, and other class names."""

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.matching import align
from bottleneck.compare.pieces import Piece
from tests.compare.sides import side, work


def _pieces(*paths: str, op: str = "aten::mm", shapes: str = "[[1]]") -> list[Piece]:
    return [Piece(path, op, shapes, "matmul", "k", None, 1.0, 1.0, op) for path in paths]


def _pairs(before: list[Piece], after: list[Piece]) -> dict[str, str]:
    """Path before -> path after, of modules that are the same."""
    old, new = align(before, after)
    paths = {name: path for path, name in new.items()}
    return {path: paths[name] for path, name in old.items() if name in paths}


def _leaf(before: list[Piece], after: list[Piece]) -> dict[str, str]:
    """The same by the last part alone."""
    return {one.rpartition(".")[2]: other.rpartition(".")[2] for one, other in _pairs(before, after).items()}


@pytest.mark.parametrize(
    "wrapped",
    [
        "DistributedDataParallel_0.Net_0.Linear_0",
        "OptimizedModule_0.Net_0.Linear_0",
        "Trainer_0.Net_0.Linear_0",
        "module._orig_mod.Net_0.Linear_0",
        "OptimizedModule_0.DistributedDataParallel_0.Net_0.Linear_0",
    ],
)
def test_a_wrapper_around_a_model_changes_no_module(wrapped: str) -> None:
    assert _leaf(_pieces("Net_0.Linear_0"), _pieces(wrapped))["Linear_0"] == "Linear_0"
    assert _leaf(_pieces(wrapped), _pieces("Net_0.Linear_0"))["Linear_0"] == "Linear_0"


def test_a_wrapper_leaves_every_row_the_same() -> None:
    rows = [work("aten::mm", 10.0 * at, module=f"Net_0.Block_{at}.Linear_{at}") for at in range(1, 4)]
    wrapped = [work("aten::mm", 10.0 * at, module=f"DDP_0.Net_0.Block_{at}.Linear_{at}") for at in range(1, 4)]
    assert {(row.kind, row.matched_by) for row in compare(side(rows), side(wrapped)).rows} == {
        ("same", "module and op")
    }


def test_numbers_that_moved_by_one_are_followed() -> None:
    shapes = {0: "[[1, 2]]", 1: "[[3, 4]]", 2: "[[5, 6]]"}
    before = [piece for at in shapes for piece in _pieces(f"Net_0.Linear_{at}", shapes=shapes[at])]
    after = [piece for at in shapes for piece in _pieces(f"Net_0.Linear_{at + 1}", shapes=shapes[at])]
    after += _pieces("Net_0.Linear_0", shapes="[[7, 8]]")
    assert _leaf(before, after) == {f"Linear_{at}": f"Linear_{at + 1}" for at in shapes}


def test_a_layer_put_in_front_renames_the_rest_and_is_the_only_new_one() -> None:
    def layers(first: int, last: int, shift: int = 0) -> list[Piece]:
        """Blocks of two layers each, of sizes that tell them apart, numbered by the order of their calls."""
        numbers = [(at, at + shift) for at in range(first, last)]
        return [
            piece
            for size, at in numbers
            for part in (0, 1)
            for piece in _pieces(f"Net_0.Block_{at}.Linear_{2 * at + part}", shapes=f"[[{size}, {part}]]")
        ]

    pairs = _leaf(layers(1, 5, shift=-1), layers(0, 5))
    assert pairs == {f"Linear_{at}": f"Linear_{at + 2}" for at in range(8)}


def test_a_class_of_another_name_that_runs_the_same_is_the_same() -> None:
    before = [*_pieces("Net_0.Attention_0"), *_pieces("Net_0.Mlp_0", op="aten::gelu")]
    after = [*_pieces("Net_0.FastAttention_0"), *_pieces("Net_0.Mlp_0", op="aten::gelu")]
    assert _leaf(before, after)["Attention_0"] == "FastAttention_0"


def test_a_class_of_another_name_that_runs_other_ops_is_new() -> None:
    before = [*_pieces("Net_0.Attention_0"), *_pieces("Net_0.Mlp_0", op="aten::gelu")]
    after = [*_pieces("Net_0.Rotary_0", op="aten::sin"), *_pieces("Net_0.Mlp_0", op="aten::gelu")]
    assert "Attention_0" not in _leaf(before, after)


def test_modules_of_one_name_that_were_not_matched_are_not_taken_for_each_other() -> None:
    before = [*_pieces("Net_0.Linear_0", shapes="[[1]]"), *_pieces("Net_0.Linear_1", shapes="[[2]]")]
    after = [*_pieces("Net_0.Linear_0", shapes="[[2]]")]
    old, new = align(before, after)
    assert old["Net_0.Linear_0"] != new["Net_0.Linear_0"] == old["Net_0.Linear_1"]


@pytest.mark.parametrize("path", ["a." * 5000 + "b", "." * 50, "", " ", "Linear_" + "9" * 400, "Linear_٣", "module"])
def test_a_hostile_path_is_a_module_like_any_other(path: str) -> None:
    rows = [work("aten::mm", 5.0, module=path)]
    assert [row.kind for row in compare(side(rows), side(rows)).rows] == ["same"]


def test_very_many_siblings_keep_their_own_names() -> None:
    paths = [f"Net_0.Linear_{at}" for at in range(3000)]
    assert _pairs(_pieces(*paths), _pieces(*paths)) == {path: path for path in paths}
