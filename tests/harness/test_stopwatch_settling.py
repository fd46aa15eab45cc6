import pytest

from bottleneck.harness.stopwatch import find_trend, has_settled


@pytest.mark.parametrize(
    ("durations_us", "is_settled"),
    [
        ([], False),
        ([100.0, 100.0, 100.0], False),
        ([900.0, 100.0, 105.0, 101.0, 99.0], True),
        ([100.0, 105.0, 101.0, 120.0], False),
        ([100.0, 300.0] * 10, True),
        ([100.0, 300.0] * 9, False),
        ([1000.0 * 0.9**index for index in range(20)], False),
    ],
    ids=["none", "three", "calm", "one off", "two kinds in turns", "too few of them", "ever quicker"],
)
def test_steps_have_settled_when_they_show_no_trend(durations_us: list[float], is_settled: bool) -> None:
    assert has_settled(durations_us) is is_settled


def test_steps_that_get_quicker_are_reported_with_both_halves() -> None:
    assert find_trend([200.0, 190.0, 195.0, 180.0, 120.0, 110.0, 100.0, 105.0]) == (
        "192 us in the first half, 108 us in the second"
    )


@pytest.mark.parametrize(
    "durations_us",
    [[200.0, 100.0], [100.0, 200.0, 150.0, 120.0, 90.0, 210.0], [100.0, 101.0, 102.0, 106.0, 107.0, 108.0]],
    ids=["too few", "scattered", "less than a tenth"],
)
def test_steps_without_a_trend_beyond_chance_are_settled(durations_us: list[float]) -> None:
    assert find_trend(durations_us) is None
