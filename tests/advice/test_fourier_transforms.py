"""Rules of Fourier transforms: slow lengths, and whole spectra of real signals."""

import math
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.fourier_transforms import next_fast_length, prime_factors, slow_fft_length, whole_spectrum
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import op


def case(folder: Path, length: int, *, signal: int = 6000, dur: float = 400) -> Evidence:
    """A transform at train.py:19 of signals that are padded to this length."""
    outer = op("aten::fft_rfft", 110, dur, dims=[[16, signal], [], [], []], concrete=["", str(length), "-1", ""])
    inner = op("aten::_fft_r2c", 112, dur - 4, dims=[[16, length], [], [], []], concrete=["", "[1]", "0", "True"])
    model = [program_line(50, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]
    return two_steps(folder, [program_line(19, 100, dur + 20), outer, inner, *model])


def test_a_length_that_is_a_prime_is_padded_to_small_factors(tmp_path: Path) -> None:
    evidence = case(tmp_path, 7919)
    draft = slow_fft_length(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes and not draft.changes_results
    assert "at train.py:19: pad to 8000 in place of 7919, which is a prime" in draft.advice
    assert "any length from 7919 on gives the same" in draft.advice
    assert 150 < draft.gain_us.low < draft.gain_us.high < 410
    assert advise(evidence)[0].slug == "slow-fft-length"


def test_a_spectrum_of_another_length_is_another_spectrum(tmp_path: Path) -> None:
    draft = slow_fft_length(case(tmp_path, 8072, signal=8072))
    assert draft is not None and draft.changes_results and "8072, which is 2 x 2 x 2 x 1009" in draft.advice
    outer = op("aten::stft", 110, 400, dims=[[8, 80000], [], [], [1009]])
    inner = op("aten::_fft_r2c", 112, 396, dims=[[8, 313, 1009], [], [], []], concrete=["", "[2]", "0", "True"])
    draft = slow_fft_length(two_steps(tmp_path / "stft", [program_line(19, 100, 420), outer, inner]))
    assert draft is not None and draft.changes_results and "pad to 1024 in place of 1009" in draft.advice


def test_the_length_of_an_inverse_transform_is_that_of_its_result(tmp_path: Path) -> None:
    inverse = op("aten::_fft_c2r", 110, 400, dims=[[16, 3960], [], [], []], concrete=["", "[1]", "2", "7919"])
    draft = slow_fft_length(two_steps(tmp_path, [program_line(20, 100, 430), inverse]))
    assert draft is not None and "at train.py:20: pad to 8000" in draft.advice


@pytest.mark.parametrize("length", [8000, 8192, 7936])
def test_lengths_of_small_factors_are_left_alone(tmp_path: Path, length: int) -> None:
    assert slow_fft_length(case(tmp_path, length)) is None


def test_transforms_of_little_time_are_left_alone(tmp_path: Path) -> None:
    assert slow_fft_length(case(tmp_path, 7919, dur=20)) is None


def test_factors_multiply_to_their_number_and_lengths_are_the_next_ones() -> None:
    for number in (2, 12, 97, 8072, 71999):
        assert math.prod(prime_factors(number)) == number
    fast = [each for each in range(1, 2000) if prime_factors(each)[-1] <= 5]
    for least in range(1, 1900):
        assert next_fast_length(least) == next(each for each in fast if each >= least)


def spectral(folder: Path, *, name: str = "aten::fft_fft2", dtype: str = "float") -> Evidence:
    """A spectrum of 64 x 64 numbers at train.py:20, a shift, and the way back."""
    size, whole = [[8, 20, 64, 64], [], [], []], ["c10::complex<float>", "", "ScalarList", ""]
    calls = [
        op(name, 110, 300, dims=size, types=[dtype, "", "ScalarList", ""]),
        op("aten::_fft_c2c", 112, 296, dims=size, types=whole, concrete=["", "[2, 3]", "0", "True"]),
        op("aten::fft_fftshift", 410, 100, dims=size, types=whole),
        op("aten::roll", 412, 96, dims=size, types=whole),
        op("aten::fft_ifft2", 510, 200, dims=size, types=whole),
        op("aten::_fft_c2c", 512, 196, dims=size, types=whole, concrete=["", "[2, 3]", "2", "False"]),
    ]
    model = [program_line(50, 720, 250), op("aten::mm", 730, 200, dims=[[64, 64], [64, 64]])]
    return two_steps(folder, [program_line(20, 100, 615), *calls, *model])


def test_a_real_signal_needs_half_a_spectrum(tmp_path: Path) -> None:
    draft = whole_spectrum(spectral(tmp_path))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "real signals at train.py:20" in draft.advice
    # 40 % of the 300 us there, up to 70 % of all 600.
    assert 110 < draft.gain_us.low <= 120 and 400 < draft.gain_us.high <= 420


def test_complex_signals_and_half_spectra_are_left_alone(tmp_path: Path) -> None:
    assert whole_spectrum(spectral(tmp_path / "complex", dtype="c10::complex<float>")) is None
    assert whole_spectrum(spectral(tmp_path / "half", name="aten::fft_rfft2")) is None
