from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.fixture
def judgement(monkeypatch: pytest.MonkeyPatch) -> Any:
    from benchmarks import judgement

    monkeypatch.setattr(judgement, "NETWORKS", {"wide": judgement.NETWORKS["wide"]})
    return judgement


@pytest.mark.statistics
@pytest.mark.parametrize("name", ["bf16-autocast", "fused-optimizer", "checkpoint"])
def test_a_right_change_is_not_called_wrong(judgement: Any, name: str) -> None:
    assert list(judgement._called(judgement.CHANGES[name], 1)) == [("wide", False)] * 2


@pytest.mark.statistics
def test_changes_that_are_wrong_on_purpose_are_called_so(judgement: Any) -> None:
    for change in judgement.WRONG[:3]:
        assert list(judgement._called(change, 1)) == [("wide", True)] * 2


def test_a_network_that_a_change_does_not_apply_to_is_left_out(judgement: Any) -> None:
    assert list(judgement._called(judgement.CHANGES["channels-last"], 1)) == []
