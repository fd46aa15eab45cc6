"""Lines of ops that operators and subscripts called, from the text between two calls."""

from textwrap import dedent

import pytest

from bottleneck.harness.operator_lines import OperatorLines

LOOP = """\
    for start in range(0, 100, 10):
        x = images[order][start:start + 10]
        y = labels[order][start:start + 10]
        out = net(x)
        loss = criterion(out, y) * 2
        loss.backward()
        total += loss.item()
    print(total)
"""


def lines_of(text: str, before: int | None, after: int | None, ops: list[str], function: str = "<module>") -> object:
    names = [f"aten::{op}" for op in ops]
    return OperatorLines(lambda _: dedent(text).splitlines()).lines_of("train.py", function, before, after, names)


def test_ops_before_the_first_call_of_a_loop_belong_to_its_subscripts() -> None:
    # From the last call of the loop's body to the first one of the next round.
    assert lines_of(LOOP, 7, 4, ["index", "slice", "index", "slice"]) == [2, 2, 3, 3]
    assert lines_of(LOOP, 1, 4, ["index", "slice", "index", "slice"]) == [2, 2, 3, 3]
    assert lines_of(LOOP, 5, 6, ["mul"]) == [5]
    # No operator of the text makes such an op.
    assert lines_of(LOOP, 5, 6, ["sort"]) == [None]
    assert lines_of(LOOP, 6, 7, ["mul"]) == [None]


FORWARD = """\
    import torch

    def other(x):
        return x + 1

    class Net:
        def forward(self, x, h):
            for t in range(3):
                pre = x[:, t] + self.rec(h)
                h = -pre * self.gate
                h = h @ self.weight
            mask = h > 0
            h[mask] = 0
            return self.head(h[..., None, 0])
"""


def test_operators_of_a_function_are_told_in_their_order() -> None:
    assert lines_of(FORWARD, None, 9, ["select"], "forward") == [9]
    assert lines_of(FORWARD, 9, 9, ["add", "neg", "mul", "matmul", "select"], "forward") == [9, 10, 10, 11, 9]
    ends = ["neg", "mul", "matmul", "gt", "index_put_", "unsqueeze", "select"]
    assert lines_of(FORWARD, 9, 14, ends, "forward") == [10, 10, 11, 12, 13, 14, 14]
    assert lines_of(FORWARD, 14, None, ["add"], "forward") == [None]


@pytest.mark.parametrize("function", ["<listcomp>", "missing", "other"])
def test_function_that_does_not_hold_the_lines_has_none(function: str) -> None:
    assert lines_of(FORWARD, 9, 14, ["neg"], function) == [None]


@pytest.mark.parametrize("text", ["", "for x in :\n    y", "x = " + "(" * 500])
def test_text_that_cannot_be_read_tells_nothing(text: str) -> None:
    assert lines_of(text, 1, 2, ["add"]) == [None]
    assert lines_of("x = y + 1", None, None, ["add"]) == [None]
