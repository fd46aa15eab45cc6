"""The period of a sequence; used by ``repeats``."""

from bottleneck.trace.nesting import Ints


def period_of(codes: Ints) -> int:
    """The least distance at which the whole sequence repeats itself, its length where it does not.

    By the borders of its beginnings (Knuth, Morris and Pratt 1977): the time grows as the length does. The last repeat
    need not be complete.
    """
    sequence: list[int] = codes.tolist()
    borders = [0] * len(sequence)
    length = 0
    for row in range(1, len(sequence)):
        code = sequence[row]
        while length and code != sequence[length]:
            length = borders[length - 1]
        length += code == sequence[length]
        borders[row] = length
    return len(sequence) - length
