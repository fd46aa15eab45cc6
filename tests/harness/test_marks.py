from collections.abc import Iterator

import pytest

import bottleneck
from bottleneck.harness import marks


class Loop:
    """Stands for whoever measures; the same method is a new object each time it is named."""

    def __init__(self) -> None:
        self.steps = 0

    def count(self) -> None:
        self.steps += 1


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    marks.forget(loop.count)


def test_a_step_that_nobody_measures_does_nothing() -> None:
    bottleneck.step()
    assert marks._listener is None


def test_a_step_reaches_who_listens(loop: Loop) -> None:
    marks.listen(loop.count)
    bottleneck.step()
    bottleneck.step()
    assert loop.steps == 2


def test_who_was_forgotten_hears_no_more(loop: Loop) -> None:
    marks.listen(loop.count)
    marks.forget(loop.count)
    bottleneck.step()
    assert loop.steps == 0


def test_forgetting_leaves_who_came_later(loop: Loop) -> None:
    later = Loop()
    marks.listen(loop.count)
    marks.listen(later.count)
    marks.forget(loop.count)
    bottleneck.step()
    marks.forget(later.count)
    assert (loop.steps, later.steps) == (0, 1)
