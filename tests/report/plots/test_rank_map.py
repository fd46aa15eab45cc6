"""The picture of the ranks: outliers first, a bounded number of rows, and the reason where there is one rank."""

from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.report.job_section import shown_ranks
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.ledger_plots import ranks_figure
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.report.samples import cpu, multi_rank


def _many(count: int, slow: int) -> Analysis:
    """A job of so many ranks, of which it names one."""
    few = multi_rank()
    assert few.job is not None
    ranks = tuple(replace(few.ranks[0], rank=rank, skew_us=0.0) for rank in range(count))
    named = replace(few.job.slow[0], name=f"rank {slow}", ranks=(slow,))
    return replace(few, ranks=ranks, job=replace(few.job, slow=(named,), slow_links=()))


def test_few_ranks_are_all_shown_in_their_order() -> None:
    assert shown_ranks(multi_rank()) == [0, 1, 2, 3]


def test_of_many_ranks_the_named_come_first_and_none_twice() -> None:
    shown = shown_ranks(_many(1024, 515))
    assert shown[0] == 515
    assert len(shown) == len(set(shown)) == 64


def test_picture_has_a_row_per_rank_and_a_column_per_account() -> None:
    (axes,) = ranks_figure(_many(1024, 515)).axes
    assert axes.get_yticklabels()[0].get_text() == "rank 515"
    (image,) = axes.get_images()
    assert image.get_array() is not None
    assert image.get_array().shape == (64, 4)


def test_picture_of_some_ranks_says_how_many_there_are() -> None:
    some, every = (
        [text.get_text() for text in ranks_figure(analysis).texts] for analysis in (_many(1024, 515), multi_rank())
    )
    assert some[-1].endswith("64 of 1,024 ranks are shown, the slow ones first.")
    assert every[-1] == "Darker: more of the slowest step."


def test_one_rank_is_not_drawn() -> None:
    with pytest.raises(UsageError, match="no ranks to draw"):
        ranks_figure(cpu())


def test_picture_is_written(tmp_path: Path) -> None:
    save_figure(ranks_figure, tmp_path / "ranks.png", multi_rank())
    assert (tmp_path / "ranks.png").stat().st_size > 1000
