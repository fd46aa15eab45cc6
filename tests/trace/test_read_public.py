"""The public traces against their catalogue, which another program counted."""

import csv
import gzip
import json
from pathlib import Path

import msgspec
import pytest

from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Trace
from bottleneck.trace.read import read_trace
from tests import trace_cache
from tests.trace.read_files import check_promises, slugs

# The catalogue counts raw categories. Where they say little, the reader goes by other words:
# legacy arrays and Ascend tasks have no category at all, MTIA has one for all that its processors do.
_BY_OTHER_WORDS = {"legacy-array", "npu-ascend", "mtia"}

# Damaged as the catalogue says: names with unescaped Windows paths; a grid written as a string.
_CAVEATS = {
    "DESKTOP-QEE21EV_9792": "repaired-json",
    "pytorch-trace-tui": "odd-arguments",
    # Programs of several GPUs, recorded without any of them.
    "distributed_info_not_found": "device-not-recorded",
    "rank_non_gpu": "device-not-recorded",
}


def catalogue(traces: Path) -> list[dict[str, str]]:
    with (traces / "catalog.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def read(traces: Path) -> list[tuple[dict[str, str], Trace]]:
    """Every file that the catalogue calls a trace."""
    rows = [row for row in catalogue(traces) if not row["kind"].startswith("neg")]
    return [(row, trace_cache.read(traces / row["file"])) for row in rows]


def test_every_foreign_file_is_refused(traces: Path) -> None:
    rows = [row for row in catalogue(traces) if row["kind"].startswith("neg")]
    assert len(rows) >= 9
    for row in rows:
        with pytest.raises(TraceError):
            trace_cache.read(traces / row["file"])


def test_every_trace_keeps_the_promises(read: list[tuple[dict[str, str], Trace]]) -> None:
    assert len(read) >= 90
    for _, trace in read:
        check_promises(trace)


def test_counts_are_those_of_the_catalogue(read: list[tuple[dict[str, str], Trace]]) -> None:
    for row, trace in read:
        if row["kind"] in _BY_OTHER_WORDS:
            continue
        found = trace.events["category"].value_counts()
        # The catalogue counts marks that old eras wrote as ops among the ops.
        marks = 0 if "user_annotation" in trace.counts else found["annotation"]
        # Collectives of host threads are ops in some traces and annotations in others.
        collectives = found["collective"] - trace.counts.get("host collective", 0)
        counted = {
            "n_cpu_op": found["op"] + marks + collectives,
            "n_kernels": found["kernel"],
            "n_python_function": found["python"],
            "n_memcpy": found["copy"],
            "n_memory_instants": len(trace.memory),
        }
        assert counted == {key: int(row[key]) for key in counted}, row["file"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("legacy-array", {"op": 6987, "kernel": 0, "annotation": 129}),
        ("npu-ascend", {"op": 706, "kernel": 276, "annotation": 5, "runtime": 678}),
        ("mtia", {"op": 10346, "kernel": 97, "copy": 877, "sync": 339}),
    ],
)
def test_traces_without_clear_categories_are_understood(
    read: list[tuple[dict[str, str], Trace]], kind: str, expected: dict[str, int]
) -> None:
    found = sum(trace.events["category"].value_counts() for row, trace in read if row["kind"] == kind)
    assert {name: found[name] for name in expected} == expected


def test_undamaged_files_read_without_a_word(read: list[tuple[dict[str, str], Trace]]) -> None:
    for row, trace in read:
        expected = [slug for part, slug in _CAVEATS.items() if part in row["file"]]
        if trace.flavour == "cpu" and trace.devices and "device-not-recorded" not in expected:
            expected.append("device-listed-alone")
        assert slugs(trace) == expected, row["file"]


def test_windows_paths_come_out_whole(read: list[tuple[dict[str, str], Trace]]) -> None:
    repaired = [trace for _, trace in read if "repaired-json" in slugs(trace)]
    assert len(repaired) == 2
    for trace in repaired:
        found = trace.events["name"][trace.events["category"] == "python"]
        assert found.str.contains(r"torch\\nn\\modules", regex=True).sum() > 100
        assert not found.str.contains(r"[\n\t\r\f\b\x07]", regex=True).any()


def test_vendors_and_wall_clocks_are_plausible(read: list[tuple[dict[str, str], Trace]]) -> None:
    expected = {"rocm": "rocm", "cuda": "cuda", "cpu-only": "cpu", "mtia": "mtia", "npu-ascend": "npu"}
    for row, trace in read:
        wanted = expected.get(row["kind"].split()[0])
        assert wanted in {None, trace.flavour}, row["file"]
        if trace.start_unix_ns is not None:
            assert 1.6e18 < trace.start_unix_ns < 1.8e18, row["file"]
        assert trace.events["ts_us"].iloc[-1] < 120e6, row["file"]


Row = tuple[float, float, str, str]


def _parsed_at_once(path: Path) -> list[Row]:
    """Time, duration, name and track of all complete events, sorted, by the plain way."""
    data = path.read_bytes()
    document = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = [event for event in document["traceEvents"] if event["ph"] == "X" and event["name"] != "[memory]"]
    starts = [round(event["ts"] * 1000) for event in events]
    return sorted(
        ((start - min(starts)) / 1000, event["dur"], event["name"], f"{event['pid']}/{event['tid']}")
        for start, event in zip(starts, events, strict=True)
    )


@pytest.mark.parametrize(
    "file",
    [
        "AMD-AGI+TraceLens__tests__traces__mi300__gaunernst_bert-small-uncased__1016001.json.gz",
        "CodingPlatelets+SwitchTransformers__result__trace.json.gz",
        "pytorch+ao__ref_ep_moe_fwd.json.gz",
        "pytorch+kineto__tb_plugin__test__gpu_metrics_input_at_71530b1.json.gz",
    ],
)
def test_streaming_gives_what_parsing_at_once_gives(traces: Path, file: str) -> None:
    events = trace_cache.read(traces / file).events[["ts_us", "dur_us", "name", "thread"]]
    assert sorted(events.itertuples(index=False, name=None)) == _parsed_at_once(traces / file)


def test_a_cut_public_trace_keeps_what_was_complete(traces: Path, tmp_path: Path) -> None:
    file = traces / "AMD-AGI+TraceLens__tests__traces__h100__Falconsai_nsfw_image_detection__1016002.json.gz"
    text = gzip.decompress(file.read_bytes())
    whole = json.loads(text)["traceEvents"]
    for share in (0.3, 0.55, 0.8):
        path = tmp_path / "cut.json"
        path.write_bytes(text[: int(len(text) * share)])
        # Every event of this file ends in a brace at this depth.
        complete = text[: int(len(text) * share)].count(b"\n    }") - 8
        expected = sum(event["ph"] == "X" for event in whole[:complete])
        assert abs(len(read_trace(path).events) - expected) <= 0.01 * expected
