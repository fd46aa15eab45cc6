import pytest

from bottleneck.errors import UsageError
from bottleneck.experiment.sweep_points import Parameter, Series, configurations_of, parse_parameter

EAGER = Series("eager")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("n=1", (1,)),
        ("n=1,2,4", (1, 2, 4)),
        ("n=4,1", (4, 1)),
        ("n=1:8:x2", (1, 2, 4, 8)),
        ("n=1:9:x2", (1, 2, 4, 8)),
        ("n=10:30:10,5", (10, 20, 30, 5)),
        ("n=1:3", (1, 2, 3)),
        ("n=0.1:0.3:0.1", (0.1, 0.2, 0.3)),
        ("n=1,1,2", (1, 2)),
        ("n=float32,bfloat16", ("float32", "bfloat16")),
        ("n=-2:2:2", (-2, 0, 2)),
        ("n=inf", ("inf",)),
    ],
)
def test_values_are_read_as_they_are_written(text: str, values: tuple[object, ...]) -> None:
    assert parse_parameter(text) == Parameter("n", values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["n", "n=", "=1", "1n=1", "n=1,,2", "n=2:1", "n=1:8:x1", "n=0:8:x2", "n=1:8:0", "n=1:8:-1", "n=a:b", "n=1:nan"],
)
def test_what_is_no_list_of_values_is_a_usage_error_that_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_parameter(text)
    assert "1:256:x2" in caught.value.fix


def test_two_parameters_make_every_pair_in_each_series() -> None:
    parameters = (Parameter("a", (1, 2)), Parameter("b", ("x", "y")))
    places = configurations_of(parameters, [EAGER, Series("other")])
    assert [(place.series.name, *place.values.values()) for place in places] == [
        (series, a, b) for series in ("eager", "other") for a in (1, 2) for b in ("x", "y")
    ]


def test_no_parameter_makes_one_place_in_each_series() -> None:
    assert [place.values for place in configurations_of((), [EAGER, Series("other")])] == [{}, {}]


def test_a_parameter_that_is_named_twice_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="given twice"):
        configurations_of((Parameter("a", (1,)), Parameter("a", (2,))), [EAGER])


@pytest.mark.parametrize("text", ["n=1:100000", "n=1:1e300:0.001"])
def test_more_points_than_a_night_has_time_for_are_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="more than 1000"):
        configurations_of((parse_parameter(text),), [EAGER])
