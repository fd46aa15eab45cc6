"""The messages on versions of XLA; `test_compilers_backends` runs it where it is installed."""

import pytest

from bottleneck.experiment.interventions.xla import lacks_torch_xla, lacks_torchax


@pytest.mark.parametrize(
    ("torch", "torchax"),
    [("2.11.0", "0.0.13"), ("2.12.1+cpu", "0.0.9"), ("2.13.0+cpu", "0.0.14.dev20261026"), ("2.14.1", "0.1")],
)
def test_versions_that_fit_lack_nothing(torch: str, torchax: str) -> None:
    assert lacks_torchax(torch, torchax) is None


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.14.1", "3.0"])
def test_an_old_torchax_beside_a_new_torch_is_named_with_the_one_that_fits(torch: str) -> None:
    lacking = lacks_torchax(torch, "0.0.13")
    assert lacking is not None
    assert "torchax 0.0.13 does not import with torch 2.13 and later" in lacking
    assert "pip install 'torchax>=0.0.14.dev0' jax" in lacking


def test_the_command_is_that_for_this_torch() -> None:
    assert lacks_torchax("2.11.0", None) == "pip install torchax jax"
    assert str(lacks_torchax("2.13.0", None)).startswith("pip install 'torchax>=0.0.14.dev0' jax")
    assert lacks_torchax("2.11.0", "0.0.13", has_jax=False) == "pip install torchax jax"


def test_torch_xla_fits_its_own_torch_alone() -> None:
    assert lacks_torch_xla("2.9.1+cpu", "2.9.0") is None
    assert "torch_xla==2.8.*" in str(lacks_torch_xla("2.8.0", "2.9.0"))
    lacking = str(lacks_torch_xla("2.13.0", "2.9.0"))
    assert "none fits 2.13" in lacking and "'torch==2.9.*'" in lacking and "backend-xla" in lacking
