"""What `bottleneck verify` shows of its progress: each trial, and on a terminal also its stages."""

from typing import TYPE_CHECKING, cast

import pytest

from bottleneck.commands.verify import _bar_teller, _progress, _Timer

if TYPE_CHECKING:
    from bottleneck.commands.progress_bar import ProgressBar


class Bar:
    """Stands in for the bar of a terminal."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, float | None]] = []

    def show(self, text: str, share: float | None) -> None:
        self.shown.append((text, share))


class Timer:
    """Stands in for the time that is left."""

    def left(self, share: float) -> str:
        return f"{1 - share:.0%} left"


TIMER = cast("_Timer", Timer())


def test_a_stage_stands_behind_its_trial_on_a_bar() -> None:
    bar = Bar()
    tell = _bar_teller(cast("ProgressBar", bar), TIMER)
    tell("trying bf16", 0.5)
    tell("measuring", is_stage=True)
    tell("trying compile", 0.75)
    assert bar.shown == [
        ("50% left: trying bf16", 0.5),
        ("50% left: trying bf16: measuring", None),
        ("25% left: trying compile", 0.75),
    ]


def test_a_log_has_a_line_for_each_trial_and_none_for_its_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with _progress(TIMER, quiet=False) as say:
        say("trying bf16", 0.5)
        say("measuring", is_stage=True)
    assert capsys.readouterr().err == "bottleneck: trying bf16, 50% left\n"


def test_nothing_is_shown_where_it_is_to_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with _progress(TIMER, quiet=True) as say:
        say("trying bf16", 0.5)
        say("measuring", is_stage=True)
    assert capsys.readouterr().err == ""
