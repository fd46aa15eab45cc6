"""Finds norms, softmax and GELU written out op by op.

It goes by the order of the names of a program's ops.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Ops by name without "aten::" and without the mark of ops in place, each followed by a space. On a CPU a mean is
# recorded as a sum and a division. Ops on one number per row may be too small to be seen.
_MEAN = "(?:mean |sum div )"
_SQUARE = "(?:pow |square |mul )"
_ROOT = "(?:add )?(?:rsqrt |sqrt )?"
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    # (x - x.mean()) / (x.var() + eps).sqrt() * weight + bias, with the variance written out or not
    "layer_norm": (
        f"{_MEAN}sub {_SQUARE}{_MEAN}{_ROOT}(?:sub )?(?:mul |div )(?:mul )?(?:add )?",
        f"{_MEAN}(?:var |std )(?:sub )?(?:mul )?{_ROOT}(?:sub )?(?:mul )?(?:div |mul )(?:mul )?(?:add )?",
    ),
    # x * (x.pow(2).mean() + eps).rsqrt() * weight
    "rms_norm": (
        f"(?:pow |square ){_MEAN}{_ROOT}(?:mul |div )(?:copy )?(?:mul )?",
        f"mul {_MEAN}add (?:rsqrt |sqrt )(?:mul |div )(?:copy )?(?:mul )?",
    ),
    # (x - x.max()).exp(), divided by its sum
    "softmax": ("(?:(?:amax |max )sub )?exp sum div ",),
    "gelu_tanh": ("(?:mul )?(?:pow |mul mul )mul add (?:mul )?tanh add mul (?:mul )?",),
    "gelu": ("(?:mul )?(?:div |mul )erf add mul (?:mul )?",),
}
# The first that matches at a place counts: a layer norm holds what looks like an RMS norm.
_ANY = re.compile("(?<![^ ])(?:" + "|".join(f"(?P<{op}>{'|'.join(forms)})" for op, forms in _PATTERNS.items()) + ")")


@dataclass(frozen=True)
class HandWritten:
    """Neighbouring ops that do the work of one library op.

    They have its name, the first op, and how many there are.
    """

    op: str
    first: int
    count: int


def find_hand_written(names: Sequence[str]) -> Iterator[HandWritten]:
    """Finds what these neighbouring ops write out, from the first on."""
    text = "".join(f"{name.removeprefix('aten::').removesuffix('_')} " for name in names)
    for match in _ANY.finditer(text):
        assert match.lastgroup is not None, "each pattern has a name"
        yield HandWritten(match.lastgroup, text.count(" ", 0, match.start()), match[0].count(" "))
