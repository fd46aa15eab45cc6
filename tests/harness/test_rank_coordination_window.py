from pathlib import Path

from bottleneck.harness.rank_coordination import SharedWindow, WindowAt


def test_a_program_of_one_rank_asks_nobody(tmp_path: Path) -> None:
    alone = SharedWindow(tmp_path, 0, 1)
    assert alone.is_alone and not alone.follows
    assert alone.may_open(20, 20)
    assert list(tmp_path.iterdir()) == []


def test_the_first_rank_names_a_step_ahead_and_the_others_find_it(tmp_path: Path) -> None:
    leader, follower = (SharedWindow(tmp_path, rank, 2) for rank in range(2))
    assert follower.follows and not leader.follows
    assert follower.opening() is None
    assert not leader.may_open(30, 20)
    assert follower.opening() == WindowAt(32, 22)
    assert [leader.may_open(step, step - 10) for step in (31, 32)] == [False, True]
    assert follower.opening() == WindowAt(32, 22)


def test_a_disk_that_takes_nothing_does_not_keep_the_window_shut(tmp_path: Path) -> None:
    assert SharedWindow(tmp_path / "gone", 0, 2).may_open(30, 20)


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    follower = SharedWindow(tmp_path, 1, 2)
    for text in ("", "{", "[]", '{"step": 1}', '{"step": 1, "timed": 2, "more": 3}'):
        (tmp_path / ".notes.window.json").write_text(text)
        assert follower.opening() is None


def test_each_rank_finds_the_least_budget_of_all(tmp_path: Path) -> None:
    ranks = [SharedWindow(tmp_path, rank, 3) for rank in range(3)]
    assert ranks[0].least_budget(9) == 9
    for rank, steps in zip(ranks, (9, 2, 30), strict=True):
        rank.tell_budget(steps)
    assert [rank.least_budget(own) for rank, own in zip(ranks, (9, 2, 30), strict=True)] == [2, 2, 2]
    (tmp_path / ".notes.window.budget.rank1").write_text("torn")
    assert ranks[0].least_budget(9) == 9


def test_a_window_that_one_rank_has_closed_is_closed_for_all(tmp_path: Path) -> None:
    one, other = (SharedWindow(tmp_path, rank, 2) for rank in range(2))
    assert not one.is_closed("full")
    other.close("full")
    assert one.is_closed("full") and not one.is_closed("light")


def test_a_program_of_one_rank_tells_nobody_of_its_windows(tmp_path: Path) -> None:
    alone = SharedWindow(tmp_path, 0, 1)
    alone.tell_budget(2)
    alone.close("full")
    assert alone.least_budget(9) == 9 and not alone.is_closed("full")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_keeps_each_rank_to_itself(tmp_path: Path) -> None:
    lost = SharedWindow(tmp_path / "gone", 0, 2)
    lost.tell_budget(2)
    lost.close("light")
    assert lost.least_budget(9) == 9 and not lost.is_closed("light")
