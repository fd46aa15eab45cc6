"""Tells lines of a loop whose rounds need one another.

Each tensor is followed by the lines that it was made at. A line whose inputs were made, directly or through others, by
its own round just before cannot do its rounds side by side. A sum of all rounds is none: its terms can be made at once.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Rounds of a line in a step, and the part of them that need the round just before: of nested loops the inner one is
# free where the outer is not, and then only the first of its rounds needs the last one.
_LEAST_ROUNDS, _NEARLY_ALL = 4, 0.9
# Tensors that are followed at a time.
_MOST_TENSORS = 20_000

# Calls that put results of rounds together: sums, and what joins or fills in.
_COLLECTS = frozenset(
    {
        "add",
        "add_",
        "__add__",
        "__radd__",
        "__iadd__",
        "sub",
        "sub_",
        "__sub__",
        "__isub__",
        "cat",
        "stack",
        "__setitem__",
    }
)

_Rounds = dict[str, int]


@dataclass(frozen=True)
class CallPlace:
    """The place of a call of torch in the run of its line.

    ``frame`` is the number of the frame of the line's function, ``instruction`` how far that has come, and ``module``
    the call of a library's module inside of which it is, null outside of any.
    """

    frame: int
    instruction: int
    module: tuple[int, int] | None

    def begins_round_after(self, last: "CallPlace | None") -> bool:
        """True where the line was begun anew since its last call."""
        if last is None or (self.module is not None and self.module == last.module):
            return last is None
        return self.frame != last.frame or self.instruction <= last.instruction


class CarriedRounds:
    """Follows the tensors of one step.

    A line begins a new round where its function was called anew, or went back in its code.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, _Rounds]] = {}
        self._rounds: _Rounds = {}
        self._last: dict[str, CallPlace] = {}
        self._carried: dict[str, set[int]] = {}

    def note(self, name: str, line: str, place: CallPlace, given: Iterable[Any], gave: Iterable[Any]) -> None:
        """Notes the tensors that a call of torch read and made."""
        if place.begins_round_after(self._last.get(line)):
            self._rounds[line] = self._rounds.get(line, 0) + 1
        self._last[line] = place
        now = self._rounds[line]
        several = list(self._known(given))
        if name not in _COLLECTS and any(rounds.get(line) == now - 1 > 0 for rounds in several):
            self._carried.setdefault(line, set()).add(now)
        self._keep({**_latest(several), line: now}, gave)

    def pass_on(self, given: Iterable[Any], gave: Iterable[Any]) -> None:
        """Notes that tensors are views of others: no line made them anew."""
        self._keep(_latest(self._known(given)), gave)

    def lines(self) -> tuple[str, ...]:
        """The lines nearly all of whose rounds need the one just before."""
        return tuple(
            line
            for line, rounds in self._rounds.items()
            if rounds >= _LEAST_ROUNDS and len(self._carried.get(line, ())) >= _NEARLY_ALL * (rounds - 1)
        )

    def _known(self, tensors: Iterable[Any]) -> Iterator[_Rounds]:
        for tensor in tensors:
            reference, rounds = self._made.get(id(tensor), (None, None))
            if reference is not None and reference() is tensor and rounds is not None:
                yield rounds

    def _keep(self, rounds: _Rounds, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if len(self._made) < _MOST_TENSORS or id(tensor) in self._made:
                self._made[id(tensor)] = weakref.ref(tensor), rounds


def _latest(several: Iterable[_Rounds]) -> _Rounds:
    """Gives the last round of each line."""
    last: _Rounds = {}
    for rounds in several:
        for line, number in rounds.items():
            last[line] = max(number, last.get(line, 0))
    return last
