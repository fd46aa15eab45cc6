from benchmarks.advice import Result, render


def result(predicted: tuple[float, float] | None, measured: tuple[float, float, float] | None, verdict: str) -> Result:
    return Result("mlp", "compile", ("eager-overhead",), predicted, measured, verdict, None)


def test_a_prediction_is_met_where_the_intervals_meet_and_inside_where_the_estimate_lies_in_it() -> None:
    inside = result((1.2, 1.6), (1.3, 1.4, 1.5), "faster")
    touching = result((1.2, 1.6), (1.5, 1.7, 1.9), "faster")
    beyond = result((1.2, 1.6), (1.0, 1.01, 1.1), "no effect")
    assert [each.is_inside for each in (inside, touching, beyond)] == [True, False, False]
    assert [each.is_met for each in (inside, touching, beyond)] == [True, True, False]


def test_what_could_not_be_measured_counts_neither_way() -> None:
    unmeasured = result((1.2, 1.6), None, "missing")
    assert unmeasured.is_met is None and unmeasured.is_inside is None
    assert "0 predictions tried" in render([unmeasured])


def test_the_page_counts_what_was_met_and_what_did_nothing() -> None:
    text = render(
        [
            result((1.2, 1.6), (1.3, 1.4, 1.5), "faster"),
            result((1.2, 1.6), (1.0, 1.01, 1.1), "no effect"),
            result(None, (0.99, 1.0, 1.01), "no effect"),
            result(None, (1.1, 1.2, 1.3), "faster"),
        ]
    )
    assert "2 predictions tried: 1 measured inside the predicted interval (50%), 1 with intervals that overlap" in text
    assert "2 changes that nothing was predicted for: 1 without a proven effect" in text
