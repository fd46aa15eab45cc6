"""The document of a judgement: what each medium shows, and one line for several workloads."""

import json

from bottleneck.report.judgement import MARK, build, exit_code_of, render, sentence_of, sentence_of_all
from bottleneck.schema.counters import Site
from bottleneck.schema.gate_result import Culprit, TimeResult
from bottleneck.schema.judgement import CountChange, PatchJudgement, PatchRisk, WorkloadJudgement
from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.schema.numerics import NumericsResult, OutputChange
from bottleneck.schema.records import replace

CLOSEST = OutputChange("returned of step 3", "norm 2 to 2.0000001", 5e-8, 2e-5)
STEP = Timing(12_000.0, 11_900.0, 12_100.0, 14)
FASTER = WorkloadJudgement(
    "bench",
    ("bench.py",),
    "faster",
    speedup=Ratio(1.24, 1.21, 1.27, 14),
    smallest_visible=0.004,
    is_same=True,
    time=TimeResult(
        "faster",
        ratio=Ratio(1 / 1.24, 1 / 1.27, 1 / 1.21, 14),
        base_us=STEP,
        candidate_us=replace(STEP, median=9_700.0),
        confirming=7,
    ),
    numerics=NumericsResult("same", 12, gradients=4, closest=CLOSEST),
    counts=(
        CountChange(
            "syncs", 276, 0, (Culprit("syncs (aten::item)", 276, None, Site("model.py", 8, "x.item()"), False),)
        ),
    ),
    risks=(PatchRisk("memory", "80.0 MB more peak memory (1.80 times as much)"),),
)


def judgement(*results: WorkloadJudgement) -> PatchJudgement:
    """The judgement of these workloads."""
    worded = tuple(replace(result, sentence=sentence_of(result)) for result in results)
    return PatchJudgement(
        worded,
        exit_code_of(worded),
        sentence_of_all(worded),
        "main (1a2b3c4)",
        "the working tree",
        {"model.py": (6,)},
        61.0,
    )


def test_a_terminal_shows_the_answer_and_its_evidence_in_a_screen() -> None:
    text = render(judgement(FASTER), "terminal")
    lines = text.splitlines()
    assert lines[1].startswith("Faster 1.24x (1.21 to 1.27), same results, 276 fewer syncs")
    words = " ".join(text.split())
    assert "12.0 ms to 9.70 ms per step, 14 pairs of processes in turns, 7 of them fresh ones to confirm" in words
    assert "12 outputs, 4 of them gradients; the largest difference is 5.0e-08 of its size" in words
    assert "276 fewer syncs (model.py:8 of the base)" in words
    assert "80.0 MB more peak memory" in words and "1 in 1 file: model.py:6" in words
    assert len(lines) <= 24 and "Counters that differ" not in text
    assert "Exit code 0: nothing is slower" in text
    assert "Counters that differ" in render(judgement(FASTER), "terminal", full=True)


def test_markdown_has_a_mark_and_folds_its_tables() -> None:
    text = render(judgement(FASTER), "markdown")
    assert text.startswith(MARK) and "<details>" in text and "| syncs |" in text


def test_json_holds_every_field_and_the_name_of_its_format() -> None:
    document = json.loads(render(judgement(FASTER), "json"))
    assert document["schema"] == "bottleneck/judge/1" and document["results"][0]["is_same"] is True
    assert document["touched"] == {"model.py": [6]}


def test_several_workloads_are_one_line_by_verdict() -> None:
    slower = replace(FASTER, name="eval", verdict="slower", speedup=Ratio(0.9, 0.88, 0.92, 14))
    other = replace(FASTER, name="train", is_same=False)
    judged = judgement(FASTER, slower, other)
    assert judged.sentence == "results differ: train; slower: eval; faster: bench, train"
    assert judged.exit_code == 1
    text = render(judged, "terminal")
    assert text.index("train: results differ, faster") < text.index("eval: slower") < text.index("bench: faster")


def test_hostile_names_change_neither_page_nor_terminal() -> None:
    name = "<script>alert(1)</script>\x1b[31m"
    hostile = replace(FASTER, counts=(replace(FASTER.counts[0], culprits=(Culprit(name, 1),)),), name=name)
    page = render(judgement(hostile), "html")
    assert "<script>alert" not in page
    assert "\x1b[31m" not in render(judgement(hostile), "terminal", full=True)


def lines_of(result: WorkloadJudgement) -> dict[str, str]:
    return {line.label: line.text for line in build(judgement(result)).lines}


def test_the_first_thing_to_do_follows_from_the_verdict() -> None:
    assert "First" not in lines_of(FASTER)
    changed = OutputChange("returned of step 1", "norm 2 to 2.1", 0.05, 2e-5)
    other = replace(FASTER, is_same=False, numerics=NumericsResult("differs", 12, (changed,)))
    assert lines_of(other)[""].startswith("Results differ, faster 1.24x")
    assert lines_of(other)["First"].startswith("See why returned of step 1 differs")
    more = CountChange("syncs", 0, 8, (Culprit("syncs (aten::item)", 8, None, Site("mlp.py", 28, "x"), True),))
    slower = replace(FASTER, verdict="slower", speedup=Ratio(0.9, 0.88, 0.92, 14), counts=(more,))
    assert lines_of(slower)["First"] == "Undo +8 syncs (aten::item) at mlp.py:28, changed here"
    undecided = replace(FASTER, verdict="undecided", reason="few pairs", budget_to_decide=100.0)
    assert lines_of(undecided)["First"].startswith("Judge again with --budget 120")
    assert "few pairs" not in lines_of(undecided)[""] and lines_of(undecided)["Why"].startswith("Few pairs")
    assert "--budget" not in lines_of(replace(undecided, budget_to_decide=None))["First"]
