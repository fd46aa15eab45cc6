"""The sample recordings: their verdicts are what the programs were written to show, and their reports do not drift."""

from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.report.screen import SCREEN_LINES, to_screen
from tests import samples
from tests.trace_cache import analysed

EXPECTED = {
    "mlp": "overhead",
    "pointwise": "memory",
    "matmul": "compute",
    "slow_loader": "overhead",
    "train_script": "overhead",
}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(samples.ROOT)


@pytest.mark.parametrize(("name", "bound"), EXPECTED.items(), ids=str)
def test_a_sample_is_bound_by_what_it_was_written_to_show(name: str, bound: str) -> None:
    assert analysed(samples.SAMPLES / name).verdict.bound == bound


def test_the_slow_loader_waits_for_its_data() -> None:
    idle = analysed(samples.SAMPLES / "slow_loader").idle
    assert max(idle, key=lambda cause: cause.us).cause == "input"


def test_every_sample_has_a_line_on_its_origin() -> None:
    page = (samples.SAMPLES / "README.md").read_text()
    assert samples.recordings()
    assert all(f"`{recording.name}`" in page for recording in samples.recordings())


@pytest.mark.parametrize("recording", samples.recordings(), ids=lambda path: path.name)
def test_the_report_of_a_sample_is_its_golden_text(recording: Path) -> None:
    golden = samples.GOLDEN / f"{recording.name}.txt"
    assert samples.tell(Path("sample_traces") / recording.name) == golden.read_text()


def test_the_example_in_the_readme_is_the_report_of_its_sample() -> None:
    page = (samples.ROOT / "README.md").read_text(encoding="utf-8")
    example = page.split("```\n$ bottleneck run examples/mlp.py\n")[1].split("```")[0].splitlines()
    assert example == to_screen(analyse([Path("sample_traces/mlp")])).splitlines()


@pytest.mark.parametrize("recording", samples.recordings(), ids=lambda path: path.name)
def test_the_report_of_a_sample_fits_one_screen(recording: Path) -> None:
    text = to_screen(analysed(recording))
    assert sum(max(1, -(-len(line) // 80)) for line in text.splitlines()) <= SCREEN_LINES


def test_the_finding_that_the_reference_explains_is_that_of_its_sample() -> None:
    page = (samples.ROOT / "docs" / "reference" / "findings.md").read_text(encoding="utf-8")
    block = page.split("The finding of `bottleneck report sample_traces/pointwise --full`:\n\n```\n")[1].split("```")[0]
    assert block in (samples.GOLDEN / "pointwise.txt").read_text(encoding="utf-8")
