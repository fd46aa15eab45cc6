"""The log of the sensors on disk."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.errors import TraceError
from bottleneck.schema.telemetry import COLUMNS, HOST, TELEMETRY_FILE, Sample, read_samples, sound, write_samples

SAMPLES = (
    Sample(1_700_000_000_000_000_001, 0.0, "GPU-0a", {"sm_clock_mhz": 1755.0, "energy_j": 123456.789}),
    Sample(1_700_000_000_020_000_001, 0.02, HOST, {"process_cpu_s": 0.0}),
    Sample(1_700_000_000_040_000_001, 0.04, "GPU-0a", {"temperature_c": -3.0, "throttle_bits": 4.0}),
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    assert write_samples(tmp_path, SAMPLES) == tmp_path / TELEMETRY_FILE
    assert tuple(read_samples(tmp_path)) == SAMPLES
    assert [path.name for path in tmp_path.iterdir()] == [TELEMETRY_FILE]


def test_the_file_names_its_format_and_its_columns(tmp_path: Path) -> None:
    first, second, *_ = write_samples(tmp_path, SAMPLES).read_text().splitlines()
    assert first == "# bottleneck/telemetry/1"
    assert second.split(",") == ["unix_ns", "elapsed_s", "sensor", *COLUMNS]


def test_what_no_sensor_read_is_empty_and_not_zero(tmp_path: Path) -> None:
    row = write_samples(tmp_path, SAMPLES[1:2]).read_text().splitlines()[2]
    assert row.split(",")[3:].count("") == len(COLUMNS) - 1
    assert read_samples(tmp_path)[0].values == {"process_cpu_s": 0.0}


def test_only_the_samples_of_the_spans_are_read(tmp_path: Path) -> None:
    write_samples(tmp_path, SAMPLES)
    at_ns = SAMPLES[1].unix_ns
    assert read_samples(tmp_path, [(at_ns - 10, at_ns + 10)]) == [SAMPLES[1]]
    assert read_samples(tmp_path, []) == []


def test_a_recording_without_a_log_has_no_samples(tmp_path: Path) -> None:
    assert read_samples(tmp_path) == []


def test_a_file_that_was_not_finished_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no name for a sensor"):
        write_samples(tmp_path, [Sample(1, 0.0, "GPU,0\n", {})])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "unix_ns,elapsed_s\n", "# bottleneck/telemetry/2\n", "# bottleneck/telemetry/1\na,b,c\n", "\x00" * 100],
    ids=range(5),
)
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / TELEMETRY_FILE).write_text(text)
    with pytest.raises(TraceError, match=r"telemetry\.csv"):
        read_samples(tmp_path)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / TELEMETRY_FILE).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(TraceError) as refused:
        read_samples(tmp_path)
    assert "too large" in (refused.value.why or "")


def test_lines_and_values_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    path = write_samples(tmp_path, SAMPLES)
    rows = [
        "x,0,host",
        "1,nan,host,1",
        "1,0,ho st,1",
        "1,0,\x1b[31m,1",
        "",
        ",,,,,",
        "7,0.5,host,1e999,-1,nan,,,,1.7,abc",
        "8,0.6,host," + "1," * 10_000,
        "9" * 5000 + ",0,host,1",
    ]
    with path.open("a") as file:
        file.write("\n".join(rows))
    odd = read_samples(tmp_path)[len(SAMPLES) :]
    assert [(sample.unix_ns, sample.elapsed_s) for sample in odd] == [(7, 0.5), (8, 0.6)]
    assert odd[0].values == {}
    assert set(odd[1].values) == set(COLUMNS)


def test_columns_that_a_later_version_adds_are_passed_over(tmp_path: Path) -> None:
    text = "# bottleneck/telemetry/1\nunix_ns,elapsed_s,sensor,fan_rpm,power_w\n5,0.1,GPU-0,3000,250\n"
    (tmp_path / TELEMETRY_FILE).write_text(text)
    assert read_samples(tmp_path) == [Sample(5, 0.1, "GPU-0", {"power_w": 250.0})]


@pytest.mark.parametrize(
    ("value", "kept"),
    [(1.004, 1.0), (1.02, None), (0.0, 0.0), (None, None), (float("nan"), None), (-0.1, None), (2**32 - 1, None)],
)
def test_a_share_is_between_nothing_and_all_or_absent(value: float | None, kept: float | None) -> None:
    assert sound({"utilization": value}).get("utilization") == kept


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("log")
    header = f"# bottleneck/telemetry/1\nunix_ns,elapsed_s,sensor,{','.join(COLUMNS)}\n"
    (folder / TELEMETRY_FILE).write_text(header + text, encoding="utf-8", errors="replace")
    for sample in read_samples(folder):
        assert sound(sample.values) == sample.values
