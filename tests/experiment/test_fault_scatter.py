"""Page faults explain scatter where slower turns have more of them, whatever else differs between the sides."""

import random

from bottleneck.experiment.fault_scatter import TimedTurn, describe_fault_scatter


def turns(us_per_fault: float, noise_us: float, faults: int = 2000, count: int = 20, seed: int = 1) -> list[TimedTurn]:
    """Turns of 10 ms and so much for each page fault, of which there are up to so many."""
    draw = random.Random(seed)
    drawn = [draw.uniform(0, faults) for _ in range(count)]
    return [TimedTurn(10_000 + us_per_fault * number + draw.gauss(0, noise_us), number) for number in drawn]


def test_the_share_is_that_of_the_variance() -> None:
    # Faults of 0 to 2,000 scatter by 577: 1 us each beside noise of 577 us is half of the variance.
    words = describe_fault_scatter([turns(1.0, 577.0, count=4000), turns(1.0, 577.0, count=4000, seed=2)])
    assert words is not None
    assert 48 <= float(words.split(" %")[0]) <= 52
    assert "(0 to 1,999 in a step)" in words


def test_a_side_that_is_slower_and_has_more_faults_explains_nothing_by_that() -> None:
    quick, slow = turns(0.0, 100.0), [TimedTurn(turn.us + 5000, turn.page_faults + 9000) for turn in turns(0.0, 100.0)]
    assert describe_fault_scatter([quick, slow]) is None


def test_nothing_is_said_of_little_scatter_of_few_turns_or_where_faults_come_with_quick_steps() -> None:
    assert describe_fault_scatter([turns(0.1, 577.0), turns(0.1, 577.0, seed=2)]) is None
    assert describe_fault_scatter([turns(1.0, 1.0, count=9), turns(1.0, 1.0, count=9)]) is None
    assert describe_fault_scatter([turns(-1.0, 1.0)]) is None
    assert describe_fault_scatter([[TimedTurn(10_000.0, 0.0)] * 30]) is None
    assert describe_fault_scatter([[], []]) is None
