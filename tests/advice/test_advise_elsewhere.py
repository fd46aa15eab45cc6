"""A program whose work is in processes that it started: said first, without advice on its own start."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.pipeline import finish
from bottleneck.schema.analysis import ELSEWHERE
from bottleneck.schema.measurements import ChildWork
from bottleneck.schema.recording import StepSource
from tests.advice.cases import case_of, cpu_events

WORKED = ChildWork(own_cpu_s=1.0, children_cpu_s=9.0, processes=2)


def test_work_of_other_processes_comes_first_and_the_start_of_the_program_gets_no_advice(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(200, 2.0, 20.0), step_source="whole program", child_work=WORKED)
    found = advise(case)
    assert case.is_elsewhere and [finding.slug for finding in found] == ["record-anew"]
    verdict = finish(case, found).analysis.verdict
    assert verdict.bound == "inconclusive"
    assert verdict.sentence == (
        "Inconclusive: 90.0 % of the CPU time was used by 2 processes that the program started, which were not "
        "recorded. First: record these processes, if they import torch: bottleneck run --follow-children "
        "train.py."
    )


@pytest.mark.parametrize(
    ("source", "work"),
    [("optimizer", WORKED), ("whole program", ChildWork(9.0, 1.0, 2)), ("whole program", None)],
    ids=["it has steps of its own", "it worked more", "not measured"],
)
def test_a_program_that_works_itself_gets_its_advice(
    source: StepSource, work: ChildWork | None, tmp_path: Path
) -> None:
    case = case_of(tmp_path, cpu_events(200, 2.0, 20.0), step_source=source, child_work=work)
    assert ELSEWHERE not in {caveat.slug for caveat in case.analysis.caveats}
    assert advise(case)


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (None, "by processes that the program started, which were"),
        (1, "by 1 process that the program started, which was"),
    ],
)
def test_the_number_of_processes_is_told_where_it_is_known(processes: int | None, words: str) -> None:
    assert words in ChildWork(1.0, 3.0, processes).describe()
