"""Names the line with most of the step where no other rule explains it."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.dominant_line import OP_KINDS, with_dominant_line
from bottleneck.advice.ranking import Draft
from bottleneck.pipeline import examine
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.advice.cases import program_line, two_steps, with_recording
from tests.builders import op, step, write_trace

TEXT = "loss = f(x)"


def case(folder: Path, name: str, dur: float = 600, work: str | None = None, text: str = TEXT) -> Evidence:
    """Two steps of 1 ms with this op on a million numbers at train.py:11, and another line."""
    dims = [[1024, 1024], [1024, 1024]]
    body = [
        program_line(11, 50, dur + 20),
        op(name, 60, dur, dims=dims),
        *([op(work, 61, dur - 2, dims=dims)] if work else []),
        program_line(14, 750, 200),
        op("aten::mm", 760, 150, dims=[[64, 64], [64, 64]]),
    ]
    return with_recording(two_steps(folder, body), source_texts={"train.py:11": text})


@pytest.mark.parametrize(
    ("name", "words", "way"),
    [
        ("aten::sort", "sorting", "topk"),
        ("aten::linalg_qr", "decompositions", "factorise once"),
        ("aten::_cdist_forward", "distances", "product of matrices"),
        ("aten::grid_sampler_2d", "resizing", "fewer channels"),
        ("aten::index_put_", "gathering", "whole rows"),
        ("aten::where", "masks", "compute only what the mask keeps"),
        ("aten::cumsum", "running sums", "ordinary sum"),
        ("aten::_fft_r2c", "Fourier", "rfft"),
        ("aten::_log_softmax", "softmax", "rows that are not padding"),
        ("aten::normal_", "random", "draw fewer"),
        ("aten::lgamma", "special", "table"),
        ("aten::sum", "reductions", "einsum"),
        ("aten::copy_", "copies", "kept"),
    ],
)
def test_a_kind_of_op_has_words_and_a_way(tmp_path: Path, name: str, words: str, way: str) -> None:
    (draft,) = with_dominant_line(case(tmp_path, name), [])
    assert draft.slug == "dominant-line" and words in draft.title and way in draft.advice
    assert "at train.py:11 (`loss = f(x)`)" in draft.advice and "60" in draft.title
    assert draft.gain_us is None and draft.gain_reason is not None and "at most the" in draft.gain_reason


def test_a_bilinear_form_is_told_though_it_runs_products(tmp_path: Path) -> None:
    (draft,) = with_dominant_line(case(tmp_path / "form", "aten::bilinear", work="aten::mm"), [])
    assert "bilinear forms" in draft.title and "low-rank" in draft.advice
    assert with_dominant_line(case(tmp_path / "layer", "aten::linear", work="aten::mm"), []) == []


def test_a_line_that_nothing_explains_is_named_first(tmp_path: Path) -> None:
    finding = advise(case(tmp_path, "aten::sort"))[0]
    assert finding.slug == "dominant-line" and finding.comes_first and finding.predicted_gain_us is None


def specific(us: float, slug: str = "constant-in-step") -> Draft:
    return Draft(slug=slug, title="", evidence=(), advice="", gain_us=Interval(us / 2, us))


def test_a_finding_that_explains_much_stands_alone(tmp_path: Path) -> None:
    evidence = case(tmp_path, "aten::sort")
    explained = [specific(300)]
    assert with_dominant_line(evidence, explained) == explained
    assert len(with_dominant_line(evidence, [specific(20)])) == 2
    # Advice for every program says nothing of a line; a loader that takes longer than the line does.
    assert len(with_dominant_line(evidence, [specific(500, "half-precision")])) == 2
    assert len(with_dominant_line(evidence, [specific(900, "input-wait")])) == 1


def test_layers_short_lines_and_calls_of_all_are_left_alone(tmp_path: Path) -> None:
    for name, work in (("aten::linear", "aten::addmm"), ("aten::dropout", "aten::bernoulli_"), ("aten::mm", None)):
        evidence = case(tmp_path / name.removeprefix("aten::"), name, work=work)
        assert with_dominant_line(evidence, []) == []
    assert with_dominant_line(case(tmp_path / "short", "aten::sort", 200), []) == []
    assert with_dominant_line(case(tmp_path / "all", "aten::sort", text="loss.backward()"), []) == []


def trace_without_lines(
    folder: Path, name: str, dur: float, *, work: str | None = None, dims: bool = False
) -> Evidence:
    """The trace of somebody else of two steps of 1 ms with this op, with no lines, and no sizes unless asked."""
    sizes = {"dims": [[1000, 1000]]} if dims else {}
    body = [
        op(name, 60, dur, **sizes),
        *([op(work, 61, dur - 2, **sizes)] if work else []),
        op("aten::mm", 760, 150, **({"dims": [[64, 64], [64, 64]]} if dims else {})),
    ]
    events = [step(number, 1000 * number, 999) for number in range(2)]
    events += [one | {"ts": one["ts"] + at} for at in (0, 1000) for one in body]
    folder.mkdir()
    return examine(find_traces(write_trace(folder / "trace.json", events, deviceProperties=[]))[0])


@pytest.mark.parametrize(("name", "words"), [("aten::sort", "torch.topk"), ("aten::cat", "write into its place")])
def test_an_op_without_lines_has_a_condition_and_no_figure(tmp_path: Path, name: str, words: str) -> None:
    (draft,) = with_dominant_line(trace_without_lines(tmp_path / "most", name, 600), [])
    assert draft.slug == "dominant-line" and draft.gain_us is None and draft.comes_first
    assert draft.advice.startswith("If ") and words in draft.advice and name in draft.title and "60" in draft.title
    (less,) = with_dominant_line(trace_without_lines(tmp_path / "less", name, 250), [])
    assert less.advice == draft.advice and not less.comes_first
    assert with_dominant_line(trace_without_lines(tmp_path / "few", name, 150), []) == []
    assert with_dominant_line(trace_without_lines(tmp_path / "told", name, 600), [specific(300)]) == [specific(300)]
    first = advise(trace_without_lines(tmp_path / "first", name, 600))[0]
    assert first.slug == "dominant-line"


@pytest.mark.parametrize(
    ("is_own", "slugs"), [(True, ["needless-copies"]), (False, ["dominant-line", "needless-copies"])]
)
def test_what_is_known_of_other_ops_says_nothing_of_the_one_that_takes_most(
    is_own: bool, slugs: list[str], tmp_path: Path
) -> None:
    """Of a queue that was joined anew in each step nothing was said, since other tensors were copied as long."""
    case = trace_without_lines(tmp_path / "trace", "aten::cat", 600)
    row = next(at for at, kernel in enumerate(case.analysis.kernels) if (kernel.op == "aten::cat") is is_own)
    copies = replace(specific(500), slug="needless-copies", claims={f"kernel:{row}": 500.0})
    assert [draft.slug for draft in with_dominant_line(case, [copies])] == slugs


def test_an_op_of_another_kind_without_lines_has_the_usual_ways(tmp_path: Path) -> None:
    (draft,) = with_dominant_line(trace_without_lines(tmp_path / "most", "aten::cumsum", 600, dims=True), [])
    assert draft.advice.startswith("Make aten::cumsum cheaper where that can be") and "ordinary sum" in draft.advice
    assert not draft.comes_first
    assert with_dominant_line(trace_without_lines(tmp_path / "less", "aten::cumsum", 250), []) == []
    # Products have advice of their own, and what a layer calls is what the network is for.
    assert with_dominant_line(trace_without_lines(tmp_path / "mm", "aten::mm", 600), []) == []
    layer = trace_without_lines(tmp_path / "layer", "aten::dropout", 600, work="aten::bernoulli_")
    assert with_dominant_line(layer, []) == []


def test_no_two_kinds_have_the_same_words() -> None:
    assert len({kind.words for kind in OP_KINDS}) == len(OP_KINDS) > 10
    assert all(kind.cheaper and kind.code for kind in OP_KINDS)
