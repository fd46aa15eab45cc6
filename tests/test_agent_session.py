"""The conversation on the page for agents is the one that was kept, and the tools of today still answer so."""

import json
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the SDK is not installed: pip install mcp")

from bottleneck.agent.diagnosis import Diagnosis
from bottleneck.agent.evidence import EvidencePage
from bottleneck.agent.judgements import JudgeAnswer
from bottleneck.agent.predictions import WhatIfAnswer
from bottleneck.agent.results import MOST_BYTES
from scripts import write_agent_session as written
from tests.agent.test_server import bytes_of, numbers_without_basis

SESSION: list[dict[str, Any]] = json.loads(written.KEPT.read_text(encoding="utf-8"))
CALLS = [turn for turn in SESSION if "tool" in turn]
RESULTS = {"diagnose": Diagnosis, "evidence": EvidencePage, "whatif": WhatIfAnswer, "judge": JudgeAnswer}


def test_the_page_holds_the_conversation_that_was_kept() -> None:
    page = written.PAGE.read_text(encoding="utf-8")
    assert written.with_session(page, SESSION) == page
    kinds = [turn.get("tool") or ("edit" if "edit" in turn else "words") for turn in SESSION]
    assert kinds == ["diagnose", "evidence", "whatif", "edit", "judge", "words"]


@pytest.mark.parametrize("turn", CALLS, ids=lambda turn: turn["tool"])
def test_an_answer_that_was_kept_is_one_of_today(turn: dict[str, Any]) -> None:
    RESULTS[turn["tool"]].model_validate(turn["result"])
    assert bytes_of(turn["result"]) <= MOST_BYTES
    assert numbers_without_basis({key: value for key, value in turn["result"].items() if key != "run"}) == []


def test_the_agent_claims_what_was_judged() -> None:
    (result,) = CALLS[-1]["result"]["results"]
    assert result["same_results"] is True
    assert SESSION[-1]["why"] == written.CLOSING[result["verdict"]]


def test_the_conversation_names_no_place_of_a_machine() -> None:
    text = written.KEPT.read_text(encoding="utf-8")
    assert '"/' not in text and "/tmp" not in text


def test_a_result_is_shown_with_its_units_and_wraps() -> None:
    amount = {"value": 826.5, "unit": "us", "basis": "measured"}
    table = {"kind": "idle", "columns": [{"name": "time", "unit": "us", "basis": "measured"}], "rows": [[1.5], [None]]}
    texts = [{"title": {"from_trace": "x " * 100}, "none": []}]
    shown = written.lines_of({"step": amount, "tables": [table], "findings": texts}).splitlines()
    assert shown[:4] == ["step: 826.5 us, measured", "idle (time, us, measured):", "  - 1.5", "  - -"]
    assert shown[5].startswith('  - title: from_trace "x x') and all(len(line) <= 150 for line in shown)
    assert "none" not in shown[-1]
