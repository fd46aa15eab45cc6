"""The sections on a job of many ranks: worst first, with cause and cost, and nothing where there is one rank."""

from bottleneck.report.document import ListSection, TableSection
from bottleneck.report.job_section import job_sections, worst_ranks
from bottleneck.schema.job import LeftOut
from bottleneck.schema.records import replace
from tests.report.samples import cpu, multi_rank


def _tables() -> dict[str, TableSection]:
    return {section.title: section for section in job_sections(multi_rank()) if isinstance(section, TableSection)}


def test_one_rank_has_no_section_on_its_job() -> None:
    assert job_sections(cpu()) == ()


def test_slow_ranks_and_links_stand_with_cost_and_cause() -> None:
    table = _tables()["Slow ranks, hosts and links"]
    assert [row.cells for row in table.rows] == [("rank 2", "12.30", "0.3"), ("link of node-1", "6.00", "0.2")]
    assert table.rows[0].details[0] == "waiting for data 12.8 ms per step, median rank 400 us"
    assert "since step 3" in table.rows[0].details
    assert table.rows[1].details[0].endswith("in 1 equal group 3.00 ms, 3.0 times as long")
    assert table.notes[0].startswith("4 ranks on 2 hosts wait 10.4 % of their step in collectives")


def test_a_screen_names_the_most_costly_with_their_cost() -> None:
    section = worst_ranks(multi_rank(), most=1, characters=200)
    assert section is not None
    assert section.items == (
        ("rank 2 costs 12.3 ms per step: waiting for data 12.8 ms per step, median rank 400 us",),
        ("1 more with --full.",),
    )
    assert worst_ranks(cpu(), most=3, characters=200) is None


def test_a_job_without_slow_ranks_says_so() -> None:
    analysis = multi_rank()
    assert analysis.job is not None
    healthy = replace(analysis, job=replace(analysis.job, slow=(), slow_links=()))
    table = job_sections(healthy)[0]
    assert isinstance(table, TableSection)
    assert not table.rows
    assert worst_ranks(healthy, most=3, characters=200) is None
    assert table.notes[1] == "No rank, host or link is far slower than the others."


def test_groups_whose_calls_could_not_be_matched_have_no_transfer() -> None:
    rows = _tables()["Process groups, in ms per step"].rows
    assert rows[1].cells == ("mesh_ep", "expert", "2.50", "-", "-")
    assert "the busiest rank sends 1.31 times the mean" in rows[1].details


def test_traces_that_were_left_out_are_listed_up_to_ten() -> None:
    analysis = multi_rank()
    assert analysis.job is not None
    many = tuple(LeftOut(f"{at}.json", at, "is cut off") for at in range(12))
    *_, section = job_sections(replace(analysis, job=replace(analysis.job, left_out=many)))
    assert isinstance(section, ListSection)
    assert section.items[0] == ("0.json (rank 0): is cut off",)
    assert section.items[-1] == ("2 more",)
