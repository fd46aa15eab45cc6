"""Verdicts on numbers of other tools: their files, two lists, and files that are refused."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bottleneck.errors import TraceError, UsageError
from bottleneck.judge.other_results import judge_files, judge_numbers, read_results
from bottleneck.schema.statistics import estimate_shift


def times(middle: float, seed: int, count: int = 60) -> list[float]:
    """Times that scatter by one percent."""
    draw = random.Random(seed)
    return [middle * (1 + draw.gauss(0, 0.01)) for _ in range(count)]


def write(path: Path, data: object) -> Path:
    """The file that holds this as JSON."""
    path.write_text(json.dumps(data))
    return path


def pytest_file(path: Path, **middles: float) -> Path:
    """A file of pytest-benchmark with these benchmarks."""
    rows = [
        {"name": name, "fullname": f"tests/test_a.py::{name}", "stats": {"data": times(middle, place), "rounds": 60}}
        for place, (name, middle) in enumerate(middles.items())
    ]
    return write(path, {"machine_info": {}, "benchmarks": rows, "version": "5.1.0"})


def test_benchmarks_of_pytest_are_judged_by_name(tmp_path: Path) -> None:
    before = pytest_file(tmp_path / "a.json", test_a=0.010, test_b=0.020, test_gone=1.0)
    after = pytest_file(tmp_path / "b.json", test_a=0.008, test_b=0.0202)
    judged = judge_files(before, after, 0.01)
    assert [(result.name, result.verdict) for result in judged.results] == [
        ("tests/test_a.py::test_a", "faster"),
        ("tests/test_a.py::test_b", "slower"),
    ]
    assert judged.results[0].sentence.startswith("faster 1.25x (1.2")
    assert judged.exit_code == 1
    assert any("tests/test_a.py::test_gone" in warning for warning in judged.warnings)
    assert judge_files(before, before, 0.01).exit_code == 0


def serve_file(path: Path, factor: float) -> Path:
    """A file of `vllm bench serve` whose requests are of very different lengths."""
    draw, noise = random.Random(1), random.Random(factor)
    lengths = [draw.randint(10, 4000) for _ in range(100)]
    ttfts = [length * 1e-4 * factor * (1 + noise.gauss(0, 0.01)) for length in lengths]
    data = {"input_lens": lengths, "ttfts": ttfts, "itls": [[0.01, 0.011], []] * 50, "request_throughput": 4.0}
    return write(path, data)


def test_requests_of_the_same_lengths_are_compared_one_by_one(tmp_path: Path) -> None:
    judged = judge_files(serve_file(tmp_path / "a.json", 1.0), serve_file(tmp_path / "b.json", 0.95), 0.01)
    verdicts = {result.name: result.verdict for result in judged.results}
    assert verdicts == {"time to first token": "faster", "inter-token latency": "no difference"}


def test_requests_of_guidellm_that_failed_have_no_time(tmp_path: Path) -> None:
    rows = [{"request_latency": value, "time_to_first_token_ms": None} for value in times(2.0, 3)]
    data = {"benchmarks": [{"requests": {"successful": rows, "errored": [{"request_latency": 9.0}]}}]}
    (latency,) = read_results(write(tmp_path / "a.json", data))
    assert latency.name == "request latency" and max(latency.values) < 3


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (" ".join(map(str, times(10, 1))) + "\n" + ", ".join(map(str, times(8, 2))), "faster"),
        ("\n".join(f"{old} {old * 1.03}" for old in range(5, 40)), "slower"),
        (json.dumps({"base": times(10, 1), "changed": times(10, 2)}), "no difference"),
        ("1 2 3\n1 2 3", "undecided"),
        ("0 1 2 3 4 5 6\n1 2 3 4 5 6 7", "undecided"),
    ],
)
def test_two_lists_of_numbers_are_judged(text: str, verdict: str) -> None:
    judged = judge_numbers(text, 0.02)
    assert judged.results[0].verdict == verdict
    assert judged.exit_code == {"faster": 0, "no difference": 0, "slower": 1, "undecided": 5}[verdict]


@pytest.mark.parametrize("text", ["", "one two", "1 2 3\n4 5\n6 7 8", "[1, 2, 3]"])
def test_what_is_no_two_lists_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no two lists"):
        judge_numbers(text, 0.01)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.pkl", None, "runs code"),
        ("a.json", "no object", "holds no times"),
        ("a.json", {"benchmarks": [{"stats": 3}, 4]}, "holds no times"),
        ("a.json", {"ttfts": [True, None, "1", float("inf")]}, "holds no times"),
        ("a.json", {"traceEvents": []}, "holds no times"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, data: Any, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read_results(write(tmp_path / name, data))


def test_files_without_a_name_in_common_are_refused(tmp_path: Path) -> None:
    before, after = pytest_file(tmp_path / "a.json", test_a=1.0), pytest_file(tmp_path / "b.json", test_b=1.0)
    with pytest.raises(TraceError, match="no times of the same name"):
        judge_files(before, after, 0.01)


def test_the_shift_of_two_samples_is_symmetric_and_covers_the_truth() -> None:
    draw = random.Random(0)
    missed = 0
    for _ in range(300):
        old, new = [draw.gauss(0, 1) for _ in range(30)], [draw.gauss(0.5, 1) for _ in range(25)]
        shift, back = estimate_shift(old, new), estimate_shift(new, old)
        assert shift.middle == pytest.approx(-back.middle) and shift.low == pytest.approx(-back.high)
        missed += not shift.low <= 0.5 <= shift.high
    assert missed <= 30  # 15 of 300 at a coverage of 95 %
