import pytest

from bottleneck.errors import UsageError
from bottleneck.experiment import sweep_points as series
from bottleneck.experiment.interventions.change import Change
from bottleneck.experiment.sweep_points import Series, make_series, shared_words

COMPILE, LAYOUT = Change("compile", "torch.compile", "reordered"), Change("layout", "channels last", "reordered")
BATCH = Change("batch-x2", "twice the batch", "other work", settings=lambda values: values)


@pytest.fixture(autouse=True)
def changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "CHANGES", {each.name: each for each in (COMPILE, LAYOUT, BATCH)})


def test_without_anything_asked_there_is_one_series_as_the_program_is() -> None:
    assert make_series(None, None, None) == (Series("eager"),)


def test_backends_are_changes_by_the_names_that_people_use() -> None:
    assert make_series("eager,inductor", None, None) == (Series("eager"), Series("inductor", ("compile",)))


def test_one_backend_alone_is_named_too() -> None:
    assert make_series("inductor", None, None) == (Series("inductor", ("compile",)),)


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
