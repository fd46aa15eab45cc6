import pytest

from bottleneck.errors import UsageError
from bottleneck.experiment import sweep as series
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.interventions.subject import Change
from bottleneck.experiment.sweep import (
    MeasuredPoint,
    Parameter,
    Series,
    SweepPlan,
    SweepProgress,
    configurations_of,
    make_series,
    parse_parameter,
    shared_words,
)
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.schema.measurements import Difference, Timing
from bottleneck.schema.trials import Point, SeriesResults

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


COMPILE, LAYOUT = Change("compile", "torch.compile", "reordered"), Change("layout", "channels last", "reordered")
BATCH = Change("batch-x2", "twice the batch", "other work", settings=lambda values: values)


@pytest.fixture(autouse=True)
def changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "CHANGES", {each.name: each for each in (COMPILE, LAYOUT, BATCH)})


def test_without_anything_asked_there_is_one_series_as_the_program_is() -> None:
    assert make_series(None, None, None) == (Series("eager"),)


def test_backends_are_changes_by_the_names_that_people_use() -> None:
    assert make_series("eager,inductor", None, None) == (Series("eager"), Series("inductor", ("compile",)))


def test_all_stands_for_every_backend_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "BACKENDS", {"eager": (), "inductor": ("compile",)})
    assert make_series("inductor,all", None, None) == (Series("inductor", ("compile",)), Series("eager"))


def test_one_backend_alone_is_named_too() -> None:
    assert make_series("inductor", None, None) == (Series("inductor", ("compile",)),)


def test_every_backend_of_all_exists() -> None:
    assert {change for changes in series.BACKENDS.values() for change in changes} <= CHANGES.keys()


def test_several_changes_are_joined_by_a_plus() -> None:
    assert make_series("inductor+layout", None, None) == (Series("inductor+layout", ("compile", "layout")),)


def test_devices_and_threads_make_every_combination_and_are_named_where_they_differ() -> None:
    made = make_series("eager,inductor", "cpu", "1,2")
    assert [each.name for each in made] == [
        "eager, 1 thread",
        "eager, 2 threads",
        "inductor, 1 thread",
        "inductor, 2 threads",
    ]
    assert {(each.device, each.threads) for each in made} == {("cpu", 1), ("cpu", 2)}
    assert shared_words(made) == "cpu"
    assert [each.name for each in make_series(None, "cpu,cuda", None)] == ["cpu", "cuda"]


def test_a_single_curve_is_named_by_what_was_asked_for() -> None:
    (one,) = made = make_series(None, "cpu", "1")
    assert (one.name, shared_words(made)) == ("cpu, 1 thread", "")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("egaer", None, None), "there is no such backend"),
        (("openvino", None, None), "there is no such backend"),
        (("eager,,inductor", None, None), "between two commas"),
        (("batch-x2", None, None), "sets parameters of the workload"),
        ((None, None, "0"), "no number of threads"),
        ((None, None, "two"), "no number of threads"),
    ],
)
def test_what_cannot_be_is_a_usage_error(asked: tuple[str | None, str | None, str | None], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_series(*asked)


def test_a_series_with_wrong_results_gets_no_times() -> None:
    configurations = configurations_of((), (EAGER, Series("tvm", ("compile",))))
    plan = SweepPlan(Program("net.py"), RecordOptions(), (), configurations)
    progress = SweepProgress(plan)
    for index, configuration in enumerate(configurations):
        point = Point(configuration.values, configuration.series.name, step_us=Timing(5.0, 5.0, 5.0, 9), repeats=1)
        progress.measured[index] = [MeasuredPoint(point)]
    assert [point.step_us is None for point in progress.sum_up().points] == [False, False]
    wrong = Difference("outputs", absolute=1.0, relative=0.5, allowed=1e-5, is_within=False)
    progress.results.append(SeriesResults("tvm", (wrong,)))
    eager, other = progress.sum_up().points
    assert eager.step_us is not None and other.step_us is None
    assert other.reason == "wrong: its outputs differ by 5.0e-01 of the largest value, where 1.0e-05 is allowed"
