"""Which element of one sequence stands for which of another: the widest surroundings that both share decide."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sequences:
    """Elements of several sequences, one after the other and each in its order.

    ``token`` says what an element looks like, ``kind`` what it stands for: elements of the same kind may stand for one
    another. ``sequence`` numbers the sequence, ``asks`` marks elements that look for another to stand for them, and
    ``answers`` those that may.
    """

    token: Rows
    sequence: Rows
    kind: Rows
    asks: Flags
    answers: Flags


def align(elements: Sequences) -> Rows:
    """For each element that asks, the row of an answer, -1 where there is none or where it cannot be told.

    Answers share with the element a stretch of neighbours of 0, 1, 3, 7 … on either side, as many as any answer does.
    Where those of the widest stretch are of different kinds, nothing is told: a guess is no evidence.
    The time grows with n log n: each stretch is made of three of the stretch before.
    """
    count = len(elements.token)
    found = np.full(count, -1, np.int64)
    stretch, radius = pd.factorize(elements.token)[0].astype(np.int64), 0
    answers, asking = np.flatnonzero(elements.answers), np.flatnonzero(elements.asks)
    while len(asking) and len(answers) and radius < count:
        first, agree = _answers(stretch, elements.kind, answers)
        match = first[stretch[asking]]
        met = match >= 0
        asking, match = asking[met], match[met]
        found[asking] = np.where(agree[stretch[asking]], match, -1)
        stretch, radius = _wider(stretch, elements.sequence, radius), 2 * radius + 1
    return found


def _answers(stretch: Rows, kind: Rows, answers: Rows) -> tuple[Rows, Flags]:
    """Per stretch the first answer (-1: none), and whether all its answers are of one kind."""
    size = int(stretch.max()) + 1
    first = np.full(size, -1, np.int64)
    first[stretch[answers[::-1]]] = answers[::-1]
    other = kind[answers] != kind[first[stretch[answers]]]
    agree = np.ones(size, bool)
    agree[stretch[answers[other]]] = False
    return first, agree


def _wider(stretch: Rows, sequence: Rows, radius: int) -> Rows:
    """The number of each element's stretch of more than twice the radius; where a sequence ends, that is part of it."""
    size = np.int64(stretch.max()) + 2
    step = radius + 1
    before, after = np.full(len(stretch), -1, np.int64), np.full(len(stretch), -1, np.int64)
    before[step:] = np.where(sequence[step:] == sequence[:-step], stretch[:-step], -1)
    after[:-step] = np.where(sequence[:-step] == sequence[step:], stretch[step:], -1)
    left = pd.factorize((before + 1) * size + stretch)[0].astype(np.int64)
    return pd.factorize((after + 1) * (np.int64(left.max()) + 1) + left)[0].astype(np.int64)
