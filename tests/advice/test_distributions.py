"""Rules of torch.distributions: full covariances that are diagonal, and checks of arguments."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.distributions import argument_checks, full_covariance
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, frame, op

BATCH, WIDTH = 256, 64
MATRICES = [BATCH, WIDTH, WIDTH]


MODEL = [program_line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]
DIAGONAL = op("aten::diag_embed", 105, 40, dims=[[BATCH, WIDTH], [], [], []])


def normal() -> list[Event]:
    """A distribution with full covariances at train.py:21: checks of 100 us, a factor of 200 us."""
    return [
        program_line(21, 100, 500),
        frame("torch/distributions/multivariate_normal.py(135): __init__", 150, 400),
        frame("torch/distributions/distribution.py(46): __init__", 155, 120),
        op("aten::isclose", 160, 100, dims=[MATRICES, MATRICES, [], [], []]),
        op("aten::linalg_cholesky", 300, 200, dims=[MATRICES, []]),
        op("aten::linalg_cholesky_ex", 301, 198, dims=[MATRICES, [], []]),
    ]


def test_a_diagonal_covariance_needs_no_matrices(tmp_path: Path) -> None:
    evidence = two_steps(tmp_path, [*normal(), DIAGONAL, *MODEL])
    draft = full_covariance(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "made diagonal at train.py:21" in draft.advice and "Independent(Normal" in draft.advice
    assert "256 matrices of 64x64 per step" in draft.evidence[0]
    # The matrices that are made for it go too.
    assert 0.85 * 340 < draft.gain_us.low < draft.gain_us.high < 480
    assert advise(evidence)[0].slug == "full-covariance" and argument_checks(evidence) is None


def test_a_covariance_that_may_be_full_is_told_with_a_condition(tmp_path: Path) -> None:
    draft = full_covariance(two_steps(tmp_path, [*normal(), *MODEL]))
    assert draft is not None and draft.gain_us is not None and draft.confidence == "low"
    assert draft.advice.startswith("If the covariance at train.py:21 is diagonal") and "scale_tril" in draft.advice
    assert draft.gain_us.low < draft.gain_us.high / 3


def test_an_identity_that_is_added_makes_no_diagonal_matrix(tmp_path: Path) -> None:
    eye = op("aten::eye", 105, 5, dims=[[]], concrete=[str(WIDTH)])
    added = op("aten::add", 115, 5, dims=[[WIDTH, WIDTH], [WIDTH, WIDTH], []])
    alone = full_covariance(two_steps(tmp_path / "alone", [*normal(), eye, *MODEL]))
    assert alone is not None and "made diagonal" in alone.advice
    jitter = full_covariance(two_steps(tmp_path / "jitter", [*normal(), eye, added, *MODEL]))
    assert jitter is not None and jitter.advice.startswith("If the covariance")


def test_a_factor_outside_of_distributions_is_left_alone(tmp_path: Path) -> None:
    body = [event for event in normal() if event["cat"] != "python_function"]
    assert full_covariance(two_steps(tmp_path, [*body, DIAGONAL, *MODEL])) is None


@pytest.mark.parametrize("name", ["constraints.py(424): check", "distribution.py(310): _validate_sample"])
def test_checks_of_arguments_are_told_where_they_take_time(tmp_path: Path, name: str) -> None:
    check = [program_line(30, 100, 300), frame(f"torch/distributions/{name}", 110, 280)]
    ops = [op("aten::ge", 120, 120, dims=[[BATCH, WIDTH], []]), op("aten::all", 250, 100, dims=[[BATCH, WIDTH]])]
    draft = argument_checks(two_steps(tmp_path / "long", [*check, *ops, *MODEL]))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high >= 210
    assert "validate_args=False" in draft.advice and "at train.py:30" in draft.advice
    short = [op("aten::all", 120, 5, dims=[[8]]), op("aten::mm", 450, 200, dims=[[64, 64], [64, 64]])]
    assert (
        argument_checks(two_steps(tmp_path / "short", [check[0], frame("x.py(1): f", 110, 3), *short, *MODEL])) is None
    )
