"""The reliability exam of `bottleneck run`: how many of each row's cases pass, as the tests of the repository say.

    python -m benchmarks.exam --row 1 --row 2 --write benchmarks/results/run.md
    python -m benchmarks.exam --row 3 --repeat 200          the nightly part: every case so many times

A row that is not run keeps the figure that the page has for it.
"""

import argparse
import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.pages import write_between_markers
from tests.harness.exam_profilers import FORKS, OWN_PROFILERS, forking_program, profiling_program
from tests.harness.exam_runs import run_plainly, run_quietly

_TESTS = "tests/harness/"
_NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """A row of the exam: what is examined, the figure asked, and the tests whose cases are counted."""

    what: str
    asked: str
    tests: tuple[str, ...]


ROWS: Mapping[int, Row] = {
    1: Row("general programs give python's bytes and status", "30/30", ("test_like_python.py",)),
    2: Row(
        "torch programs do, and leave a recording",
        "20/22",
        ("test_exam_torch.py::test_torch_script_gives_the_same_bytes_and_status_and_a_recording",),
    ),
    3: Row(
        "a profiler of the program's own counts the same events",
        "5/5",
        ("test_exam_profilers.py::test_a_profiler_of_the_programs_own_counts_the_same_events",),
    ),
    4: Row(
        "signals, to the process and to its group, once and thrice",
        "6/6",
        (
            "test_run_signals.py::test_a_signal_to_us_reaches_the_program_once",
            "test_run_signals.py::test_a_signal_has_the_effect_that_it_has_under_python",
            "test_run_signals.py::test_a_signal_that_our_caller_ignores_is_ignored_by_the_program",
            "test_run_signals.py::test_what_was_recorded_outlives_a_deadly_signal",
        ),
    ),
    5: Row(
        "the program has its terminal: input, Ctrl-C twice, Ctrl-Z and on, in the background",
        "4/4",
        (
            "test_run_signals.py::test_the_program_has_the_terminal",
            "test_run_signals.py::test_ctrl_c_twice_reaches_the_program_twice",
            "test_run_signals.py::test_the_program_can_be_stopped_and_resumed_from_the_terminal",
            "test_run_signals.py::test_a_program_in_the_background_stops_when_it_reads_and_goes_on_in_the_foreground",
        ),
    ),
    8: Row(
        "a fork that leaves by `sys.exit` does not hang",
        "100/100",
        ("test_exam_profilers.py::test_a_fork_ends_as_under_python_whatever_the_profiler_does",),
    ),
    9: Row("hostile names: valid traces, both exporters read", "15/15", ("test_exam_names.py",)),
    11: Row("folders that cannot be written to, exist, are links or devices", "8/8", ("test_folder.py",)),
    30: Row(
        "NVML's refusals, losses and nonsense",
        "25/25",
        ("test_exam_nvml.py::test_the_program_keeps_its_status_and_the_unknown_is_absent",),
    ),
    47: Row("clocks that jump by an hour", "all", ("test_exam_clock.py", "test_stopwatch.py")),
}


class Counted:
    """A pytest plugin that counts cases by outcome."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a case at its call, or at its set-up where it came no further."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.outcomes[report.outcome] += 1
            if report.failed:
                self.failed.append(report.nodeid.rpartition("::")[2])


def run_tests(row: Row) -> str:
    """The figure that the row's tests reach, with the cases that fail."""
    counted = Counted()
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *(_TESTS + test for test in row.tests)], [counted])
    passed, total = counted.outcomes["passed"], counted.outcomes["passed"] + counted.outcomes["failed"]
    return f"{passed}/{total}" + (f"; fails: {', '.join(counted.failed)}" if counted.failed else "")


def repeat(programs: Mapping[str, object], text: Callable[[str], str], times: int) -> str:
    """How many of so many runs of each program end as under python, which is run once."""
    right = 0
    for name in programs:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(textwrap.dedent(text(name)).lstrip("\n"))
            plain = run_plainly(Path(folder), "program.py")
            for number in range(times):
                recorded = run_quietly(Path(folder), "program.py", output=f"recording{number}")
                is_right = (recorded.stdout, recorded.status) == (plain.stdout, plain.status)
                right += is_right
                if not is_right:
                    print(f"{name}, run {number}: status {recorded.status}", file=sys.stderr)
    return f"{right}/{times * len(programs)}"


_NIGHTLY = {3: (OWN_PROFILERS, profiling_program), 8: (FORKS, forking_program)}


def table(found: Mapping[int, str], old: Mapping[int, str]) -> str:
    """The rows as Markdown; those not run now show what they showed before."""
    lines = ["| row | what | asked | reached | tests |", "|---|---|---|---|---|"]
    for number, row in ROWS.items():
        tests = ", ".join(f"`{file}`" for file in dict.fromkeys(test.partition("::")[0] for test in row.tests))
        reached = found.get(number, old.get(number, _NOT_RUN))
        lines.append(f"| {number} | {row.what} | {row.asked} | {reached} | {tests} |")
    return "\n".join(lines)


def figures_on(page: str) -> dict[int, str]:
    """What a page's table of the exam says of each row."""
    _, _, rest = page.partition("<!-- exam:begin -->")
    rows = re.findall(r"^\| (\d+) \|[^|]*\|[^|]*\| ([^|]*) \|", rest.partition("<!-- exam:end -->")[0], re.MULTILINE)
    return {int(number): reached for number, reached in rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the rows that are asked for, prints the table, and writes it to a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--row", type=int, action="append", choices=list(ROWS), help="only this row; repeat for several"
    )
    parser.add_argument("--repeat", type=int, help=f"rows {list(_NIGHTLY)}: run every case so many times")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the markers of this page")
    options = parser.parse_args(arguments)
    rows = options.row or list(_NIGHTLY if options.repeat else ROWS)
    if options.repeat:
        found = {row: repeat(*_NIGHTLY[row], options.repeat) for row in rows if row in _NIGHTLY}
    else:
        found = {row: run_tests(ROWS[row]) for row in rows}
    old = figures_on(options.write.read_text(encoding="utf-8")) if options.write else {}
    text = table(found, old)
    print(text)
    if options.write:
        write_between_markers(options.write, "exam", text)


if __name__ == "__main__":
    main()
