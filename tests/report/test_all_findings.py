"""The option that shows what noise would hide, from the command line to the report."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bottleneck import pipeline
from bottleneck.analysis import step_tracks
from bottleneck.cli import _run
from bottleneck.commands import run
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.recorder import finish_run as telling
from bottleneck.recorder.finish_run import ReportSettings
from bottleneck.report import render_report
from bottleneck.report.screen import Extent, report_text
from tests.report.samples import gpu_overhead


@pytest.mark.parametrize("form", ["terminal", "markdown"])
@pytest.mark.parametrize(("options", "is_shown"), [([], False), (["--all-findings"], True)], ids=["without", "with"])
@pytest.mark.parametrize("to_file", [False, True], ids=["stdout", "file"])
def test_report_shows_what_noise_hides_only_where_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str, options: list[str], is_shown: bool, to_file: bool
) -> None:
    saved, target = tmp_path / "analysis.json", tmp_path / "report.txt"
    saved.write_text(render_report(gpu_overhead(), "json"))
    output = ["-o", str(target)] if to_file else []
    assert _run(["report", str(saved), "--format", form, *options, *output]) == 0
    text = target.read_text() if to_file else capsys.readouterr().out
    assert ("[pageable-copy]" in text) is is_shown
    assert ("not shown" in text or "others gain less than the noise" in text) is not is_shown


@pytest.mark.parametrize(
    ("options", "extent"), [([], "screen"), (["--full"], "full"), (["--full", "--all-findings"], "all findings")]
)
def test_run_takes_the_option_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], extent: str
) -> None:
    asked: list[tuple[object, tuple[str, ...]]] = []

    def note(program: Program, _: RecordOptions, settings: run.RunOptions) -> int:
        assert isinstance(settings.render, partial)
        asked.append((settings.render.keywords["extent"], program.arguments))
        return 0

    monkeypatch.setattr(run, "run", note)
    (tmp_path / "train.py").write_text("")
    assert _run(["run", *options, str(tmp_path / "train.py"), "--all-findings"]) == 0
    assert asked == [(extent, ("--all-findings",))]


@pytest.mark.parametrize(("extent", "is_shown"), [("screen", False), ("full", False), ("all findings", True)])
def test_what_run_says_follows_the_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extent: Extent, is_shown: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pipeline, "explain", lambda *_: SimpleNamespace(analysis=gpu_overhead()))
    monkeypatch.setattr(step_tracks, "lay_out", lambda _: None)
    telling._report(tmp_path, ReportSettings(said.append, lambda _: None, partial(report_text, extent=extent)))
    assert ("[pageable-copy]" in said[-1]) is is_shown
    assert ("Top kernels" in said[-1]) is (extent != "screen")
    assert "pageable-copy" in (tmp_path / "analysis.json").read_text()
