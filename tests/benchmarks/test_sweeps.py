import pytest

from benchmarks.sweeps import knee_and_ridge, leave_one_out, tell_knee, tell_predictions

from ..report.sweeps import batches, chain, of


def test_every_size_between_the_ends_is_left_out_and_predicted_by_the_others() -> None:
    predictions = leave_one_out(batches(lambda size: 300.0 + 2.0 * size))
    assert [each.value for each in predictions] == [4.0, 16.0]
    assert [each.error for each in predictions] == pytest.approx([0.0, 0.0])
    text, holds = tell_predictions(predictions)
    assert holds and "2 of 2 sizes that were left out are predicted within 10%" in text


def test_a_size_that_does_not_follow_the_others_breaks_the_promise() -> None:
    predictions = leave_one_out(batches(lambda size: 1000.0 if size == 16 else 300.0 + 2.0 * size))
    assert min(each.error or 0.0 for each in predictions) < -0.5
    assert not tell_predictions(predictions)[1]


def test_a_size_beyond_the_range_of_the_line_is_not_predicted_and_counted_apart() -> None:
    sizes = tuple(2**power for power in range(10))
    found = batches(lambda size: 100.0 + (2.0 if size <= 64 else 40.0) * size, sizes)
    predictions = leave_one_out(found)
    assert [each.value for each in predictions if each.error is None] == [64.0, 128.0, 256.0]
    text, holds = tell_predictions(predictions)
    assert holds and "5 of 5 sizes" in text and "of 3 more the fit says itself" in text


def test_without_predictions_nothing_holds() -> None:
    assert not tell_predictions([])[1]


def test_the_knee_is_held_against_the_ridge_of_the_calibration() -> None:
    knee, ridge = knee_and_ridge(chain())
    assert (knee, ridge) == (pytest.approx(20.0), pytest.approx(20.0))
    text, holds = tell_knee(chain())
    assert holds and "crosses at" not in text and "+0%" in text


def test_without_a_ridge_the_promise_does_not_hold() -> None:
    bare = chain()
    assert not tell_knee(of(bare.points, "repeat"))[1]
