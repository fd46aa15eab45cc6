"""Which rank each file of a job is of, and which files are left out: no rank is called by the number of another."""

from collections.abc import Sequence

from bottleneck.analysis.rank_numbers import NumberedRanks, number_ranks
from bottleneck.analysis.ranks import Reduced, reduce_ranks
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.records import replace
from tests.digests import Job

SLOW, LATE_NS = 5, 1_000_000_000


def _job(ranks: int = 16, slow: int = 13) -> list[RankDigest]:
    return Job(ranks=ranks, pace={slow: 1.5}).digests()


def _numbered(digests: Sequence[RankDigest], named: Sequence[int | None] | None = None) -> NumberedRanks:
    return number_ranks(digests, named or [None] * len(digests))


def _reduced(numbered: NumberedRanks) -> Reduced:
    return reduce_ranks(numbered.digests, numbered.left_out)


def _caveats(numbered: NumberedRanks) -> dict[str, str]:
    return {caveat.slug: caveat.message for caveat in _reduced(numbered).caveats}


def _slow(numbered: NumberedRanks) -> list[str]:
    return [one.name for one in _reduced(numbered).job.slow]


def test_a_second_file_of_a_rank_moves_no_number() -> None:
    digests = _job()
    assert digests[5].start_unix_ns is not None
    second = replace(digests[5], path="again.json", start_unix_ns=digests[5].start_unix_ns - LATE_NS)
    numbered = _numbered([*digests, second])
    assert [one.rank for one in numbered.digests] == [*range(16)] and numbered.positions == (*range(16),)
    assert _slow(numbered) == _slow(_numbered(digests)) == ["rank 13"]
    told = _caveats(numbered)
    assert "rank 5 has several files; not used is again.json: a newer file of rank 5" in told["repeated-ranks"]
    assert not {"unnumbered-ranks", "missing-ranks", "left-out-ranks"} & told.keys()


def test_the_newest_whole_file_of_a_rank_is_used() -> None:
    digests = _job()
    assert digests[5].start_unix_ns is not None
    newer = replace(digests[5], path="newer.json", start_unix_ns=digests[5].start_unix_ns + LATE_NS)
    assert [one.path for one in _numbered([*digests, newer]).digests if one.rank == 5] == ["newer.json"]
    cut = replace(newer, is_cut_off=True)
    numbered = _numbered([*digests, cut])
    assert [one.path for one in numbered.digests if one.rank == 5] == [digests[5].path]
    assert "newer.json: the file is cut off" in _caveats(numbered)["repeated-ranks"]


def test_a_rank_whose_file_is_cut_off_is_left_out_and_named() -> None:
    digests = _job()
    digests[3] = replace(digests[3], is_cut_off=True)
    numbered = _numbered(digests)
    assert [one.rank for one in numbered.digests] == [rank for rank in range(16) if rank != 3]
    assert _caveats(numbered)["left-out-ranks"].startswith(f"left out: rank 3, {digests[3].path}: the file is cut off")
    assert _slow(numbered) == ["rank 13"]


def test_ranks_that_are_all_cut_off_are_compared() -> None:
    numbered = _numbered([replace(one, is_cut_off=True) for one in _job()])
    assert len(numbered.digests) == 16 and not numbered.left_out


def test_missing_ranks_are_named_and_move_no_number() -> None:
    numbered = _numbered([one for one in _job() if one.rank not in {2, 9}])
    assert _caveats(numbered)["missing-ranks"] == "of 16 ranks, no trace was given of 2 and 9"
    assert _slow(numbered) == ["rank 13"]


def test_the_name_of_a_file_tells_the_rank_that_the_trace_does_not() -> None:
    silent = [replace(one, rank=None, world_size=None) for one in _job()]
    numbered = _numbered(silent[::-1], [*range(16)][::-1])
    assert _slow(numbered) == ["rank 13"] and "unnumbered-ranks" not in _caveats(numbered)
    states_other = [replace(one, rank=15 - (one.rank or 0)) for one in _job()]
    assert _slow(_numbered(states_other, [*range(16)])) == ["rank 2"]


def test_names_that_count_from_0_on_each_host_tell_nothing() -> None:
    silent = [replace(one, rank=None) for one in _job()]
    numbered = _numbered(silent, [at % 8 for at in range(16)])
    assert {one.rank for one in numbered.digests} == {None}
    assert "unnumbered-ranks" in _caveats(numbered)


def test_files_that_all_state_one_rank_are_counted_as_given() -> None:
    numbered = _numbered([replace(one, rank=0) for one in _job()])
    assert len(numbered.digests) == 16 and "unnumbered-ranks" in _caveats(numbered)


def test_the_only_file_without_a_rank_is_of_the_only_rank_without_a_file() -> None:
    digests = _job()
    digests[13] = replace(digests[13], rank=None)
    numbered = _numbered(digests)
    assert _slow(numbered) == ["rank 13"] and not _caveats(numbered)
    without_another = _numbered([one for one in digests if one.rank != 4])
    assert [one.path for one in without_another.left_out] == [digests[13].path]
    told = _caveats(without_another)
    assert told["missing-ranks"] == "of 16 ranks, no trace was given of 4 and 13"
    assert "it does not say which rank it is of" in told["left-out-ranks"]
