"""Rules of Fourier transforms: slow lengths, and whole spectra of real signals."""

import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, Size, work_of
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import issued_by, main_source, removal_of, roots_of
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

_TRANSFORMS = re.compile(r"^aten::_fft_(?:r2c|c2r|c2c)$")
_NUMBERS = re.compile(r"\d{1,9}")
# From this prime factor on a transform took 2.5 to 18 times as long as one of a length next to it whose factors are 2,
# 3 and 5 (16 lengths, MKL, one thread); short ones are little work.
_LARGE_PRIME, _LEAST_LENGTH, _MOST_LENGTH = 41, 64, 2**31
# Of the time of these transforms another length saves so much; they take this part of the step at least.
_SAVES, _LEAST = (0.5, 0.9), 0.06


def slow_fft_length(evidence: Evidence) -> Draft | None:
    """Finds Fourier transforms with a prime factor of 41 or more.

    FFT has no short cut for such lengths. Gain: 50 to 90 % of these ops, with their backward pass.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    inner = np.flatnonzero(text_matches(ops["name"], _TRANSFORMS.search) & ops_in_window(evidence))
    signatures = as_integers(ops["signature"])[inner]
    lengths = {number: _slow_length(work, number, str(ops["name"].iloc[row])) for row, number in zip(
        inner.tolist(), signatures.tolist(), strict=True
    )}  # fmt: skip
    slow = np.array([lengths[number] or 0 for number in signatures.tolist()], dtype=np.int64)
    if not slow.any():
        return None
    mine = inner[slow > 0]
    roots = np.unique(roots_of(evidence)[mine]).tolist()
    removal = removal_of(evidence, roots, certain=1.0)
    if evidence.share_of_step(removal.us) < _LEAST:
        return None
    us = np.bincount(slow, weights=ops["dur_us"].to_numpy()[inner])
    length = int(np.argmax(us[1:])) + 1
    forward = [row for row in roots if not ops["is_autograd"].iloc[row]]
    line, better = main_source(evidence, forward or roots), next_fast_length(length)
    is_padded = _is_padded(evidence, forward, length)
    low, high = _SAVES
    return Draft(
        slug="slow-fft-length",
        title=f"Fourier transforms of length {length:,}, which {_in_factors(length)}",
        evidence=(
            f"{counted(format_count(len(mine) / evidence.steps), 'transform')} per step of a length with a prime "
            f"factor of {_LARGE_PRIME} and more: {format_per_step(evidence, removal.us)}",
            f"{length} {_in_factors(length)}; {better} = {' x '.join(map(str, prime_factors(better)))}",
            *work.describe(issued_by(evidence, work, roots)),
        ),
        advice=f"Use a length of small prime factors for the transforms {at_source(line)}: pad to {better} in place of "
        f"{length}, which {_in_factors(length)}. FFT splits a length into its prime factors, and has to take slow "
        "ways for a large one. "
        + (
            f"The signal is padded with zeros already: for a convolution any length from {length} on gives the same."
            if is_padded
            else "Padded, or cropped, the spectrum has its frequencies at other places; a convolution by FFT stays the "
            "same with more zeros."
        ),
        places=(line,),
        code=f"n = scipy.fft.next_fast_len({length})  # {better}: computed once, then rfft(x, n=n) and irfft(y, n=n)",
        gain_us=Interval(low * removal.gain.low, high * removal.gain.high),
        claims=removal.claims,
        removes=True,
        changes_results=not is_padded,
    )


def _slow_length(work: KernelWork, signature: int, name: str) -> int | None:
    """Gives the length of a transform that has a large prime factor.

    Null where no dimension has one.
    """
    size: Size = next(iter(work.sizes_of(signature)), ())
    concrete = [str(value) for value in work.text_column("concrete", signature)]
    dims = [int(value) for value in _NUMBERS.findall(concrete[1])] if len(concrete) > 1 else []
    lengths = [size[dim] for dim in dims if dim < len(size)]
    if name.endswith("c2r") and lengths and len(concrete) > 3 and _NUMBERS.fullmatch(concrete[3]):
        lengths[-1] = int(concrete[3])
    usual = (value for value in lengths if _LEAST_LENGTH <= value <= _MOST_LENGTH)
    slow = [value for value in usual if prime_factors(value)[-1] >= _LARGE_PRIME]
    return max(slow, default=None)


def _is_padded(evidence: Evidence, roots: list[int], length: int) -> bool:
    """True if no call that transforms numbers takes a signal this long.

    All signals are then padded to it.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    names = {row: str(ops["name"].iloc[row]) for row in roots}
    takes = [
        length in size
        for row, name in names.items()
        if not name.startswith("aten::fft_i")
        for size in work.tensors_of(int(as_integers(ops["signature"])[row]))[:1]
    ]
    return bool(takes) and not any(takes) and all(name.startswith("aten::fft_") for name in names.values())


def prime_factors(number: int) -> list[int]:
    """Gives the prime factors of a number, smallest first.

    Of 1 and less it is the number itself.
    """
    factors, factor, left = [], 2, number
    while factor * factor <= left:
        while left % factor == 0:
            factors.append(factor)
            left //= factor
        factor += 1
    return [*factors, left] if left > 1 or not factors else factors


def next_fast_length(least: int) -> int:
    """The smallest product of 2, 3 and 5 that is no less than this."""
    best, fives = 1 << max(least - 1, 0).bit_length(), 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = threes << max(-(-least // threes) - 1, 0).bit_length()
            best = min(best, twos)
            threes *= 3
        fives *= 5
    return best


def _in_factors(number: int) -> str:
    factors = prime_factors(number)
    return "is a prime" if len(factors) == 1 else f"is {' x '.join(map(str, factors))}"


_WHOLE_FORWARD = re.compile(r"^aten::fft_fft[2n]?$")
# What a whole spectrum goes through on its way back.
_WHOLE_AFTER = re.compile(r"^aten::fft_(?:ifft[2n]?|fftshift|ifftshift)$")
_REAL = frozenset({"float", "double", "c10::Half"})
# Half of a real signal's spectrum mirrors the other: of the transforms there at least, and of all calls and what is
# computed between them at most. A Fourier operator of 64 x 64 numbers lost 15 % of its step, where these calls were
# 22 % (torch 2.13, two threads of a Xeon).
_HALVED = (0.4, 0.7)


def whole_spectrum(evidence: Evidence) -> Draft | None:
    """Finds whole spectra of real signals, of which one half mirrors the other.

    Gain: 40 % of the transforms there, and up to 70 % of them with the transforms back and the shifts between, as what
    lies between is halved too; with their backward pass.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    inside = ops_in_window(evidence) & (ops["depth"] == 0).to_numpy() & ~ops["is_autograd"].to_numpy()
    calls = np.flatnonzero(text_matches(ops["name"], _WHOLE_FORWARD.search) & inside)
    signatures = as_integers(ops["signature"])
    forward = [row for row in calls.tolist() if _takes_real(work, int(signatures[row]))]
    if not forward:
        return None
    sizes = {tuple(size) for row in forward for size in work.sizes_of(int(signatures[row]))[:1]}
    others = np.flatnonzero(text_matches(ops["name"], _WHOLE_AFTER.search) & inside).tolist()
    after = [row for row in others if tuple(next(iter(work.sizes_of(int(signatures[row]))), ())) in sizes]
    there, both = (removal_of(evidence, rows, certain=1.0) for rows in (forward, [*forward, *after]))
    if evidence.share_of_step(both.us) < _LEAST:
        return None
    line, (low, high) = main_source(evidence, forward), _HALVED
    return Draft(
        slug="whole-spectrum",
        title="Fourier transforms of real signals compute both halves of a spectrum that mirrors itself",
        evidence=(
            f"{counted(format_count(len(forward) / evidence.steps), 'transform')} of real numbers per step with the "
            f"whole spectrum as result: {format_per_step(evidence, both.us)} with the way back",
            *work.describe(issued_by(evidence, work, forward)),
        ),
        advice=f"Use torch.fft.rfft2 (rfft, rfftn) and irfft2 for the real signals {at_source(line)}: the other half "
        "of their spectrum is the mirrored conjugate, and is neither computed nor multiplied. Weights on the spectrum "
        "are then those of one half.",
        brief=f"Use torch.fft.rfft2 and irfft2 (rfft, rfftn) for the real signals {at_source(line)}",
        places=(line,),
        code="spectrum = torch.fft.rfft2(x)  # its last dimension is n // 2 + 1\n"
        "y = torch.fft.irfft2(spectrum, s=x.shape[-2:])",
        gain_us=Interval(low * there.gain.low, high * both.gain.high),
        claims=both.claims,
        removes=True,
    )


def _takes_real(work: KernelWork, signature: int) -> bool:
    return str(next(iter(work.text_column("types", signature)), "")) in _REAL


RULES = (slow_fft_length, whole_spectrum)
