"""A caveat's share is one: what is none cannot be built or read."""

import json
from pathlib import Path

import pytest

from bottleneck.cli import _run
from bottleneck.schema.analysis import Caveat

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "matmul"


@pytest.mark.parametrize("share", [-0.07, 1.5, float("nan"), float("inf")])
def test_a_caveat_whose_share_is_none_cannot_be_built(share: float) -> None:
    with pytest.raises(ValueError, match="the share of the caveat one-side"):
        Caveat("one-side", "told", share)


@pytest.mark.parametrize(("share", "kept"), [(None, None), (0.0, 0.0), (1.0, 1.0), (1 + 1e-9, 1.0), (-1e-12, 0.0)])
def test_rounding_is_taken_from_the_share_of_a_caveat(share: float | None, kept: float | None) -> None:
    assert Caveat("holes", "told", share).share == kept


def test_a_saved_caveat_with_a_negative_share_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "analysis.json"
    assert _run(["report", str(SAMPLE), "--format", "json", "-o", str(saved)]) == 0
    tree = json.loads(saved.read_text())
    tree["caveats"].append({"slug": "holes", "message": "told", "share": -0.07})
    saved.write_text(json.dumps(tree))
    assert _run(["report", str(saved)]) == 3
    assert "has to lie between 0 and 1" in capsys.readouterr().err
