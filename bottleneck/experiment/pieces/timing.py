"""Times the ways to do a piece's work, in turns.

It does so in a process of its own.
"""

import math
import random
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from bottleneck.experiment.pieces.kinds import KINDS, ROUNDS_AT_LEAST, WARM_CALLS, PieceKind, Way, Ways
from bottleneck.experiment.pieces.recorded_calls import NotRebuilt
from bottleneck.experiment.pieces.specs import PieceSpec, from_values
from bottleneck.experiment.variants import RequestChannel
from bottleneck.harness.program import describe_error
from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.schema.statistics import summarise_durations

# A turn lasts at least so long, by a call that is short.
_TURN_S, _CALLS_AT_MOST, _PARTS = 0.003, 500, 3
_ROUNDS_AT_MOST, _ROUNDS_S = 25, 0.4


@dataclass(frozen=True)
class PieceTimes:
    """Times of one call in microseconds, and ratios.

    The ratios are of neighbours in time. See ``MeasuredPiece``.
    """

    as_is_us: Timing
    changed_us: Timing
    ratio: Ratio
    at_worst: Ratio | None


@dataclass
class PieceTimer:
    """Timer of the ways of a piece, in rounds by a clock.

    ``draw`` shuffles the order of each round.
    """

    clock: Callable[[], float] = time.perf_counter
    draw: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - an order, not a secret
    wait: Callable[[], object] = lambda: None

    def times(self, ways: Ways) -> PieceTimes:
        """The times of all ways in rounds, one turn of each in every round."""
        chosen = [way for way in (ways.as_is, ways.changed, ways.at_worst) if way is not None]
        counts = [self._count(way) for way in chosen]
        taken: list[list[float]] = [[] for _ in chosen]
        began = self.clock()
        while len(taken[0]) < _ROUNDS_AT_MOST:
            for place in self.draw.sample(range(len(chosen)), len(chosen)):
                taken[place].append(self._turn_us(chosen[place], counts[place]))
            if len(taken[0]) >= ROUNDS_AT_LEAST and self.clock() - began >= _ROUNDS_S:
                break
        summaries = [_timing(us) for us in taken]
        ratios = [_ratio(taken[0], us) for us in taken[1:]]
        return PieceTimes(summaries[0], summaries[1], ratios[0], ratios[1] if len(ratios) > 1 else None)

    def _count(self, way: Way) -> int:
        """Calls of a turn, by the time of a warm one."""
        for _ in range(WARM_CALLS):
            us = self._turn_us(way, 1)
        return max(1, min(_CALLS_AT_MOST, math.ceil(_TURN_S * 1e6 / max(us, 1e-3))))

    def _turn_us(self, way: Way, count: int) -> float:
        """Returns the time of one call in the turn's quickest part.

        The system may interrupt the other parts.
        """
        way.prepare()
        run, parts = way.run, []
        calls = max(1, count // _PARTS)
        for _ in range(min(_PARTS, count)):
            self.wait()
            began = self.clock()
            for _ in range(calls):
                run()
            self.wait()
            parts.append((self.clock() - began) / calls)
        return max(min(parts) * 1e6, 1e-3)


def _timing(us: Sequence[float]) -> Timing:
    timing = summarise_durations(us)
    assert timing is not None, "each way had a turn"
    return timing


def _ratio(as_is_us: Sequence[float], changed_us: Sequence[float]) -> Ratio:
    ratios = [after / before for before, after in zip(as_is_us, changed_us, strict=True)]
    timing = _timing(ratios)
    return Ratio(statistics.median(ratios), timing.low, timing.high, timing.n)


def serve_pieces(_program: str, descriptor: str) -> NoReturn:
    """Answers requests to measure a piece.

    It does so as long as there are any on this file descriptor.
    """
    channel, host = RequestChannel(descriptor), PieceHost()
    while True:
        channel.reply(**host.answer(channel.wait()))


def _load(threads: int | None) -> Any:
    """Torch in a process that belongs to the pieces alone."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    # Numbers that ops in place make smaller and smaller would slow them down.
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    return torch


class PieceHost:
    """Measures pieces as requested; ``load`` gives torch, ready for so many threads."""

    def __init__(self, kinds: Mapping[str, PieceKind] = KINDS, load: Callable[[int | None], Any] = _load) -> None:
        self._kinds, self._load = kinds, load
        self._torch: Any = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The times of a piece, or why there are none."""
        try:
            if request["do"] == "load":
                self._torch = self._load(request["threads"])
                return {"value": self._torch.__version__}
            return {"value": self._measure(from_values(request["piece"]), request["device"])}
        except NotRebuilt as state:
            return {"verdict": "not applicable", "reason": str(state)}
        except (Exception, SystemExit) as error:  # the ops of the user's program on sizes that may not fit any more
            traceback.print_exc()
            return {"verdict": "failed", "reason": describe_error(error)}

    def _measure(self, spec: PieceSpec, device: str) -> dict[str, Any]:
        torch = self._torch
        wait = torch.cuda.synchronize if device != "cpu" else (lambda: None)
        threads = torch.get_num_threads()
        try:
            with torch.no_grad() if not spec.settings.get("trains") else torch.enable_grad():
                ways = self._kinds[spec.kind].make(torch, spec, device)
                return asdict(PieceTimer(wait=wait).times(ways))
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
