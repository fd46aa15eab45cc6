"""Sections on an inference server: limit, phases, metrics and settings in words, in every medium."""

from pathlib import Path
from typing import get_args

import pytest

from bottleneck.advice.servers import server_settings
from bottleneck.cli import main
from bottleneck.report import inference
from bottleneck.report.document import ListSection, TableSection
from bottleneck.report.inference import serving_sections
from bottleneck.schema.inference import Amount, Limit, Setting
from bottleneck.schema.records import replace
from tests.advice.cases import case_of
from tests.analysis.test_server_phases import BUSY, DECODE, serve, steps
from tests.builders import write_trace
from tests.server_pages import SITUATIONS, vllm_page


def test_each_code_has_its_words() -> None:
    assert set(inference.LIMITS) == set(get_args(Limit))
    assert set(inference._AMOUNTS) == set(get_args(Amount))
    assert set(inference._SETTINGS) == set(get_args(Setting))


def test_no_program_but_a_server_has_a_section() -> None:
    assert serving_sections(None) == ()


def test_sections_tell_the_limit_by_each_evidence_and_every_setting_once(tmp_path: Path) -> None:
    serving = serve(tmp_path, steps([DECODE, DECODE], BUSY, 1000.0), "cache full")
    limit, phases, metrics, settings = serving_sections(serving)
    assert isinstance(limit, ListSection) and isinstance(phases, TableSection)
    assert limit.items[0] == ("Limit: the KV cache is full.",)
    assert limit.items[1][0].startswith("By the trace: decode bound by memory bandwidth; the device works for 9")
    assert "requests waiting 87, KV cache in use 99.4 %" in limit.items[2][0]
    assert phases.rows[0].cells[0] == "decode" and "capture" in phases.notes[-1]
    assert isinstance(metrics, TableSection) and isinstance(settings, TableSection)
    assert metrics.rows[2].cells == ("KV cache in use", "99.4 %", "vllm:kv_cache_usage_perc")
    assert len({row.cells[0] for row in settings.rows}) == len(get_args(Setting)) == len(settings.rows)
    assert [row.cells[2] for row in settings.rows] == sorted(
        (row.cells[2] for row in settings.rows), key=("yes", "not known", "no").index
    )


def test_without_metrics_the_report_says_how_to_pass_them(tmp_path: Path) -> None:
    limit, *_ = serving_sections(serve(tmp_path, steps([DECODE, DECODE], BUSY, 1000.0)))
    assert isinstance(limit, ListSection) and "--metrics" in limit.items[2][0]


def test_metrics_change_what_the_finding_advises(tmp_path: Path) -> None:
    case = case_of(tmp_path, steps([DECODE, DECODE], BUSY, 1000.0))
    for situation, title in (("cache full", "The KV cache of vLLM is full"), ("too little load", "too few requests")):
        serving = serve(tmp_path, steps([DECODE, DECODE], BUSY, 1000.0), situation)
        draft = server_settings(replace(case, analysis=replace(case.analysis, serving=serving)))
        assert draft is not None and title in draft.title and draft.gain_us is None
        assert any("running by the server's metrics" in line for line in draft.evidence)


@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "html"])
def test_the_command_reads_a_page_into_every_format(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "trace.json", steps([DECODE, DECODE], BUSY, 1000.0))
    page = tmp_path / "metrics.txt"
    page.write_bytes(vllm_page(SITUATIONS["cache full"]) + b'vllm:x{host="<script>alert(1)</script>"} 1\n')
    with pytest.raises(SystemExit) as ended:
        main(["report", str(trace), "--metrics", str(page), "--format", form, "--full"])
    written = capsys.readouterr().out
    assert not ended.value.code
    assert ("kv-cache-full" if form == "json" else "the KV cache is full") in written
    assert "alert(1)" not in written


@pytest.mark.parametrize(("content", "code", "words"), [(None, 3, "none.txt"), (b"<html>", 3, "no page of metrics")])
def test_metrics_that_cannot_be_read_end_the_command(
    tmp_path: Path, content: bytes | None, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "trace.json", steps([DECODE], BUSY, 1000.0))
    page = tmp_path / "none.txt"
    if content is not None:
        page.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(trace), "--metrics", str(page)])
    assert ended.value.code == code
    assert words in capsys.readouterr().err


def test_a_finished_analysis_takes_no_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace.json", steps([DECODE, DECODE], BUSY, 1000.0))
    page, saved = tmp_path / "metrics.txt", tmp_path / "analysis.json"
    page.write_bytes(vllm_page(SITUATIONS["cache full"]))
    with pytest.raises(SystemExit):
        main(["report", str(trace), "--metrics", str(page), "-o", str(saved)])
    with pytest.raises(SystemExit):
        main(["report", str(saved), "--full"])
    assert "the KV cache is full" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["report", str(saved), "--metrics", str(page)])
    assert ended.value.code == 2
