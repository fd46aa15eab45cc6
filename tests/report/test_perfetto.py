"""An exported trace is the trace with tracks of ours: on its clock, with safe names, and adding up to the ledger."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from bottleneck.cli import _run
from bottleneck.pipeline import analyse, annotate
from bottleneck.report.perfetto import BOUND, COUNTER, LEDGER, STEP, track_events
from bottleneck.schema.evidence import Annotations
from bottleneck.trace.extend import extend_trace
from tests.builders import kernel, launch, op, step, write_trace
from tests.samples import recordings

TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
PUBLIC = (
    f"{TRACELENS}h100__Falconsai_nsfw_image_detection__1016002.json.gz",
    f"{TRACELENS}inference__vllm_decode_full__graph_execution.json.gz",
    "facebookresearch+HolisticTraceAnalysis__tests__data__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace"
    ".json.gz",
)
EPOCH_US = 1_700_000_000_000_000
Event = dict[str, Any]


def exported(annotations: Annotations) -> list[Event]:
    """All events of the exported file, read with Python's own JSON reader."""
    top = json.loads(b"".join(extend_trace(annotations.trace, track_events(annotations))))
    found: list[Event] = top if isinstance(top, list) else top["traceEvents"]
    return found


def of(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event.get("cat") == category]


def assert_adds_up(annotations: Annotations) -> None:
    """The times per step of the ledger track are the ledger; where nothing was scaled, so are its durations."""
    events, analysis = exported(annotations), annotations.evidence.analysis
    told, lasted = defaultdict[str, float](float), defaultdict[str, float](float)
    for event in of(events, LEDGER):
        told[event["args"]["account"]] += event["args"]["ledger_us"]
        lasted[event["args"]["account"]] += event["dur"]
    ledger = {entry.account: entry.us for entry in analysis.ledger}
    placed = {account: us for account, us in ledger.items() if account in told}
    charged = {account: us for account, us in told.items() if us}
    assert charged == pytest.approx(placed, rel=1e-6, abs=1e-6 * analysis.steps.wall_us)
    [window] = [event for event in of(events, STEP) if event["name"] == "explained window"]
    assert {account: window["args"][account] for account in ledger} == pytest.approx(ledger)
    if analysis.steps.unprofiled_us is None:
        passes = max(len(annotations.evidence.linked.window.steps), 1) * annotations.timeline["device"].nunique()
        assert placed == ledger
        per_step = {account: us / passes for account, us in lasted.items()}
        # Viewers count whole nanoseconds.
        assert per_step == pytest.approx(ledger, abs=1e-3 * len(annotations.timeline) ** 0.5, rel=1e-3)


def small_trace(folder: Path, name: str = "some_kernel", start: float = 0.0) -> Path:
    """Two steps of one op that launches one kernel."""
    events = [step(1, start, 100), step(2, start + 100, 100)]
    for index, at in enumerate((start + 10, start + 110)):
        events += [op("aten::relu", at, 20, dims=[[64, 64]]), launch(index + 1, at + 5, 5)]
        events.append(kernel(index + 1, at + 20, 50, name))
    return write_trace(folder / "trace.json", events)


_OF_ONE_RANK = [path for path in recordings() if not (path / "trace.rank1.json.gz").exists()]


@pytest.mark.parametrize("recording", _OF_ONE_RANK, ids=lambda path: path.name)
def test_tracks_of_a_sample_add_up_to_its_ledger(recording: Path) -> None:
    assert_adds_up(annotate([recording]))


@pytest.mark.parametrize("name", PUBLIC)
def test_tracks_of_a_public_trace_add_up_to_its_ledger(traces: Path, name: str) -> None:
    assert_adds_up(annotate([traces / name]))


@pytest.mark.parametrize("name", PUBLIC)
def test_another_reader_finds_the_same_sums(
    traces: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HolisticTraceAnalysis reads the file; it is no requirement, so this runs where it is installed."""
    parser = pytest.importorskip("hta.common.trace_parser", reason="HolisticTraceAnalysis is not installed")
    from hta.configs.default_values import AttributeSpec, ValueType, YamlVersion
    from hta.configs.parser_config import ParserConfig

    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    annotations, path = annotate([traces / name]), tmp_path / "out.json"
    path.write_bytes(b"".join(extend_trace(annotations.trace, track_events(annotations))))
    oldest = YamlVersion(1, 0, 0)
    columns = [
        AttributeSpec("account", "account", ValueType.String, "", oldest),
        AttributeSpec("ledger_us", "ledger_us", ValueType.Float, 0.0, oldest),
    ]
    _, frame, symbols = parser.parse_trace_dataframe(str(path), ParserConfig(columns))
    mine = frame[frame["cat"] == symbols.get_sym_id_map()[LEDGER]]
    sums = mine.groupby("account")[["dur", "ledger_us"]].sum()
    passes = max(len(annotations.evidence.linked.window.steps), 1) * annotations.timeline["device"].nunique()
    ledger = {entry.account: entry.us for entry in annotations.evidence.analysis.ledger}
    assert sums["ledger_us"].to_dict() == pytest.approx(ledger, rel=1e-6)
    assert (sums["dur"] / passes).to_dict() == pytest.approx(ledger, rel=1e-3, abs=0.1)


def test_every_kernel_has_its_bound_at_its_own_time(tmp_path: Path) -> None:
    events = exported(annotate([small_trace(tmp_path, start=1_700_000_000_000_000)]))
    kernels = [(event["ts"], event["dur"]) for event in events if event.get("cat") == "kernel"]
    bounds = of(events, BOUND)
    assert [(event["ts"], event["dur"]) for event in bounds] == kernels
    assert {event["args"]["name"] for event in bounds} == {"some_kernel"}


def test_times_keep_all_digits_of_an_epoch_clock(tmp_path: Path) -> None:
    path = small_trace(tmp_path, start=EPOCH_US)
    text = b"".join(track_events(annotate([path]))).decode()
    assert f'"ts":{EPOCH_US + 30}.000,"dur":50.000' in text


def test_ids_of_the_tracks_are_not_those_of_the_trace(tmp_path: Path) -> None:
    events = exported(annotate([small_trace(tmp_path)]))
    ours = {event["pid"] for event in events if str(event.get("cat")).startswith("bottleneck")}
    theirs = {event["pid"] for event in events if event.get("cat") in {"cpu_op", "kernel", "cuda_runtime"}}
    assert ours and theirs and not ours & theirs


def test_steps_and_queue_are_tracks(tmp_path: Path) -> None:
    events = exported(annotate([small_trace(tmp_path)]))
    assert {"ProfilerStep#1", "ProfilerStep#2", "explained window"} >= {event["name"] for event in of(events, STEP)}
    assert {"queue depth"} == {event["name"] for event in of(events, COUNTER)}


def test_sensors_of_a_recording_are_counters() -> None:
    names = {event["name"] for event in of(exported(annotate([recordings()[1]])), COUNTER)}
    assert "host: processors of the program" in names


@pytest.mark.parametrize(
    "name",
    ['"}],"x":[{', "</script><script>alert(1)", "\u202eesrever", "line\nbreak\x00\x1b[31m", "k" * 10_000, "é☃😀"],
)
def test_hostile_names_stay_inside_their_event(tmp_path: Path, name: str) -> None:
    events = exported(annotate([small_trace(tmp_path, name)]))
    assert len(of(events, BOUND)) == 2
    assert all(event["args"]["name"].isprintable() and len(event["args"]["name"]) <= 200 for event in of(events, BOUND))


def test_the_report_of_an_export_is_that_of_the_trace(tmp_path: Path) -> None:
    path = small_trace(tmp_path)
    assert _run(["report", str(path), "-o", str(tmp_path / "out.json.gz")]) == 0
    assert gzip.decompress((tmp_path / "out.json.gz").read_bytes())
    before, after = analyse([path]), analyse([tmp_path / "out.json.gz"])
    assert before.ledger == after.ledger


def test_the_format_is_chosen_by_option_too(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert _run(["report", str(small_trace(tmp_path)), "--format", "perfetto"]) == 0
    assert of(json.loads(capsysbinary.readouterr().out)["traceEvents"], LEDGER)


def test_a_finished_analysis_cannot_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["report", str(small_trace(tmp_path)), "-o", str(tmp_path / "analysis.json")]) == 0
    assert _run(["report", str(tmp_path / "analysis.json"), "-o", str(tmp_path / "out.json.gz")]) == 2
    assert "without the events of its trace" in capsys.readouterr().err
    assert not (tmp_path / "out.json.gz").exists()


def test_several_traces_cannot_be_exported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    paths = [str(small_trace(folder)) for folder in (tmp_path, tmp_path / "other")]
    assert _run(["report", *paths, "-o", str(tmp_path / "out.json.gz")]) == 2
    assert "one trace" in capsys.readouterr().err
