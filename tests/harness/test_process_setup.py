import random
from types import SimpleNamespace

from bottleneck.harness.process_setup import seeders, sow


def test_a_plan_without_a_seed_leaves_random_numbers_alone() -> None:
    before = random.getstate()
    assert seeders(None) == {}
    sow(None, SimpleNamespace())
    assert random.getstate() == before


def test_a_seed_is_set_at_once_and_as_soon_as_torch_and_numpy_are_loaded() -> None:
    before = random.getstate()
    told: dict[str, int] = {}
    torch = SimpleNamespace(manual_seed=lambda seed: told.update(torch=seed))
    numpy = SimpleNamespace(random=SimpleNamespace(seed=lambda seed: told.update(numpy=seed)))
    watchers = seeders(2**32 + 5)
    drawn = random.random()
    seeders(2**32 + 5)
    assert random.random() == drawn
    watchers["numpy"](numpy)
    assert told == {"numpy": 5}
    watchers["numpy"](SimpleNamespace())  # half loaded
    told.clear()
    watchers["torch"](torch)
    assert told["torch"] == 2**32 + 5
    random.setstate(before)
