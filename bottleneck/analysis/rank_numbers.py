"""Gives each digest its rank and picks one file per rank.

A rank is what its trace states, else what the recording or the name of its file says.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from msgspec import Struct

from bottleneck.schema.digest import RankDigest
from bottleneck.schema.job import LeftOut
from bottleneck.schema.records import replace


class NumberedRanks(Struct, frozen=True):
    """The digests that are used, and the others.

    Each used one has its rank (null for all where they cannot be told apart).

    ``positions`` are those of the used ones among all that there were.
    """

    digests: tuple[RankDigest, ...]
    positions: tuple[int, ...]
    left_out: tuple[LeftOut, ...]


_CUT_OFF = "the file is cut off: what was recorded last is missing"
_NO_STEP = "the file is cut off before the end of its first step"


def number_ranks(digests: Sequence[RankDigest], named: Sequence[int | None]) -> NumberedRanks:
    """Gives the digests with their ranks.

    ``named`` are the ranks that recordings or names of files tell.

    A file that is cut off is left out where another one is whole: what it lacks would be taken for time without work.
    Of several files of a rank the newest is used. A file that does not tell its rank among others that do gets the only
    one that is missing, and is left out where several are.
    """
    ranks = _ranks(digests, named)
    left_out = _cut_off(digests, ranks)
    used = [at for at in range(len(digests)) if at not in left_out]
    if not _are_told(ranks, used):
        ranks = [None] * len(digests)
    else:
        left_out |= _older(digests, ranks, used)
        used = [at for at in used if at not in left_out]
        unknown = [at for at in used if ranks[at] is None]
        missing = _missing(digests, {ranks[at] for at in used})
        if len(unknown) == 1 and len(missing) == 1:
            ranks[unknown[0]] = missing[0]
        elif unknown:
            why = "it does not say which rank it is of"
            left_out |= {at: LeftOut(digests[at].path, None, why) for at in unknown}
            used = [at for at in used if ranks[at] is not None]
    return NumberedRanks(
        tuple(replace(digests[at], rank=ranks[at]) for at in used), tuple(used), tuple(left_out.values())
    )


def _ranks(digests: Sequence[RankDigest], named: Sequence[int | None]) -> list[int | None]:
    """Gives the rank of each digest.

    Names that repeat on several hosts count from 0 on each of them and tell nothing.
    """
    by_name = [at for at, digest in enumerate(digests) if digest.rank is None and named[at] is not None]
    hosts: dict[int | None, set[str | None]] = {}
    for at in by_name:
        hosts.setdefault(named[at], set()).add(digests[at].host)
    is_local = any(len(several) > 1 for several in hosts.values())
    return [digest.rank if digest.rank is not None or is_local else named[at] for at, digest in enumerate(digests)]


def _cut_off(digests: Sequence[RankDigest], ranks: Sequence[int | None]) -> dict[int, LeftOut]:
    """Gives files that are cut off and cannot be used.

    Others are whole, or have steps where these have none.
    """
    have_steps = any(one.steps.source != "whole" for one in digests)
    is_whole = any(not one.is_cut_off for one in digests)
    left_out = {}
    for at, one in enumerate(digests):
        lacks_steps = one.steps.source == "whole" and have_steps
        if one.is_cut_off and (is_whole or lacks_steps):
            left_out[at] = LeftOut(one.path, ranks[at], _NO_STEP if lacks_steps else _CUT_OFF)
    return left_out


def _are_told(ranks: Sequence[int | None], kept: Sequence[int]) -> bool:
    """Tells whether most files say their rank.

    They must not all say the same one.
    """
    numbers = [ranks[at] for at in kept if ranks[at] is not None]
    return 2 * len(numbers) >= len(kept) and (len(set(numbers)) > 1 or len(kept) == 1)


def _older(digests: Sequence[RankDigest], ranks: Sequence[int | None], kept: Sequence[int]) -> dict[int, LeftOut]:
    """Gives the files of a rank that has a newer one.

    The clock of the trace tells, else the name of the file.
    """
    left_out = {}
    several = {rank for rank, count in Counter(ranks[at] for at in kept).items() if count > 1 and rank is not None}
    for rank in sorted(several):
        files = sorted(
            (at for at in kept if ranks[at] == rank), key=lambda at: (digests[at].start_unix_ns or 0, digests[at].path)
        )
        newest = digests[files[-1]]
        for at in files[:-1]:
            is_older = (digests[at].start_unix_ns or 0) < (newest.start_unix_ns or 0)
            kind = "a newer file" if is_older else "another file"
            left_out[at] = LeftOut(
                digests[at].path, rank, f"{kind} of rank {rank} is used, {_apart(newest.path, digests[at].path)}"
            )
    return left_out


def _apart(path: str, other: str) -> str:
    """Gives the name of a file.

    Its folder stands before it where the other one has the same name.
    """
    one, two = PurePath(path), PurePath(other)
    return path if one.name == two.name else one.name


def _missing(digests: Sequence[RankDigest], known: set[int | None]) -> list[int]:
    """Gives at most two ranks of the job that no file tells.

    Empty where the size of the job is not known.
    """
    world = max((one.world_size or 0 for one in digests), default=0)
    missing: list[int] = []
    for rank in range(world):
        if rank not in known:
            missing.append(rank)
        if len(missing) > 1 or rank > len(digests) + 1:
            break
    return missing
