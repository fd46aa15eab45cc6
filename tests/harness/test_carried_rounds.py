"""Which lines of a loop need their own round just before, by the tensors that were made at them."""

from typing import Any

import pytest

from tests.harness.test_repeated_modules import looked_at

torch: Any = pytest.importorskip("torch")


def carried(step: Any) -> set[int]:
    """The lines of a step, counted from its `def`, whose rounds need one another."""
    return {int(line.rpartition(":")[2]) - step.__code__.co_firstlineno for line in looked_at(step).carried}


def test_a_recurrence_is_carried_also_through_a_function_a_list_and_a_view() -> None:
    layer = torch.nn.Linear(4, 4)

    def cell(x: Any, h: Any) -> Any:
        return torch.tanh(x + layer(h))

    def step() -> None:
        states = [torch.zeros(2, 4)]
        for x in torch.randn(6, 2, 4):
            states.append(cell(x, states[-1]).T.T)

    assert carried(step) == {cell.__code__.co_firstlineno + 1 - step.__code__.co_firstlineno}


def test_a_module_of_several_ops_that_is_called_for_each_row_is_free() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, rows: Any) -> Any:
            return [layer(row) for row in rows]

    model = Model()

    def step() -> None:
        model(torch.randn(6, 3, 8))

    def recurrent() -> None:
        h = torch.randn(3, 8)
        for _ in range(6):
            h = layer(h)

    assert carried(step) == set()
    assert carried(recurrent) == {3}


def test_rounds_that_only_add_up_or_are_joined_are_free() -> None:
    """A loss that is summed over samples can be computed for all of them at once."""

    def step() -> None:
        total, joined, x = torch.zeros(4), torch.zeros(1, 4), torch.randn(4)
        for at in range(6):
            total = total + torch.exp(x * at)
            joined = torch.cat([joined, total[None].detach() * 0.0])

    def average() -> None:
        mean = torch.zeros(4)
        for x in torch.randn(6, 4):
            mean = 0.9 * mean + x

    assert 3 not in carried(step)
    assert carried(average) == {3}


def test_of_nested_loops_the_inner_one_is_free() -> None:
    """The forward algorithm of a CRF: all tags of a word need those of the word before."""

    def step() -> None:
        state = torch.zeros(5)
        for word in torch.randn(4, 5):
            tags = []
            for tag in range(5):
                scores = state + word[tag]
                tags.append(scores.logsumexp(0))
            state = torch.tanh(torch.stack(tags)) * state

    assert carried(step) == {7}


def test_what_is_written_into_a_tensor_is_followed() -> None:
    def step() -> None:
        table = torch.zeros(8, 3)
        for at in range(1, 8):
            row = table[at - 1] * 0.5
            table[at] = row + 1.0

    assert carried(step) == {3}
