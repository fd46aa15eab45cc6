"""Every public trace end to end: what is told adds up, keeps to its schema, and says what is known of the program."""

import csv
import gzip
import json
import math
import re
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len

from bottleneck.advice import RULES
from bottleneck.advice.ranking import rank
from bottleneck.errors import TraceError
from bottleneck.gate.count import count
from bottleneck.pipeline import Options, analyse, explain
from bottleneck.report.analysis_document import to_terminal
from bottleneck.report.json_text import to_json
from bottleneck.report.screen import SCREEN_LINES, to_screen
from bottleneck.schema.analysis import Analysis, KernelSummary
from scripts.write_schema import ANALYSIS
from tests.trace_cache import analysed, evidence

# Tests are named by file when they are collected, before there are fixtures; the fixture 'traces' says why it skips.
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(ANALYSIS.file.read_text(encoding="utf-8")))

TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
EAGER = [
    f"{TRACELENS}{device}__{model}.json.gz"
    for device in ("h100", "mi300")
    for model in (
        "gaunernst_bert-small-uncased__1016001",
        "facebook_timesformer-base-finetuned-k400__1016002",
        "Falconsai_nsfw_image_detection__1016002",
    )
]
BERT_SMALL, TIMESFORMER = EAGER[:2]
SLEEPING_RANK = "pytorch+torchrec__examples__golden_training__trace__sst_sleep_*"
COPIED_IDS = "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__control__control.json.gz"


def catalogue() -> dict[str, dict[str, str]]:
    """Rows of the catalogue by file; none where the folder is absent."""
    if not TRACES.is_dir():
        return {}
    with (TRACES / "catalog.csv").open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


ROWS = catalogue()
FOREIGN = sorted(name for name, row in ROWS.items() if row["kind"].startswith("neg"))
READABLE = sorted(ROWS.keys() - set(FOREIGN))
NAMELESS = sorted(name for name, row in ROWS.items() if row["devices"].startswith(" x"))
UNTRUSTED_IDS = sorted(name for name, row in ROWS.items() if int(row["gpu_ext_link_WRONG"] or 0) > 10)


def shares_of(analysis: Analysis) -> list[float]:
    """Every number of an analysis that is a share."""
    told = (*analysis.ledger, *analysis.kernels, *analysis.idle, *analysis.ops, *analysis.modules, *analysis.lines)
    folds = (*analysis.ops, *analysis.modules, *analysis.lines, *analysis.phases, *analysis.ranges)
    optional = (
        *(caveat.share for caveat in analysis.caveats),
        *(kernel.explained for kernel in analysis.kernels),
        analysis.coverage.linked_share,
        analysis.coverage.modelled_share,
        analysis.totals.model_flops_utilization,
        analysis.totals.bandwidth_utilization,
    )
    return [
        analysis.verdict.share,
        *analysis.verdict.shares.values(),
        *(one.share for one in told),
        *(share for fold in folds for share in fold.shares.values()),
        *(share for share in optional if share is not None),
    ]


def test_the_catalogue_knows_every_file(traces: Path) -> None:
    assert {path.name for path in traces.iterdir()} - {"catalog.csv"} == set(ROWS)
    assert len(READABLE) > 80 and len(FOREIGN) > 5


@pytest.mark.parametrize("name", READABLE)
def test_the_report_of_every_trace_fits_one_screen(traces: Path, name: str) -> None:
    analysis = analysed(traces / name)
    text = to_screen(analysis)
    assert len(text.splitlines()) <= SCREEN_LINES
    assert [line for line in text.splitlines() if cell_len(line) > 80] == []
    screen, whole = (set(re.findall(r"^([123])[.] ", each, re.MULTILINE)) for each in (text, to_terminal(analysis)))
    assert whole <= screen


@pytest.mark.parametrize("name", READABLE)
def test_a_trace_gives_an_analysis_that_adds_up_and_keeps_to_its_schema(traces: Path, name: str) -> None:
    analysis = analysed(traces / name)
    assert math.fsum(entry.us for entry in analysis.ledger) == pytest.approx(analysis.steps.wall_us, rel=1e-9, abs=0)
    assert math.fsum(entry.share for entry in analysis.ledger) == pytest.approx(1.0, rel=1e-9)
    assert analysis.totals.busy_us + analysis.totals.idle_us == pytest.approx(analysis.steps.wall_us, rel=1e-9)
    if analysis.phases:
        assert math.fsum(phase.us for phase in analysis.phases) == pytest.approx(analysis.steps.wall_us, rel=1e-9)
    outside = [share for share in shares_of(analysis) if not 0 <= share <= 1]
    assert outside == []
    VALIDATOR.validate(json.loads(to_json(analysis)))


@pytest.mark.parametrize("name", READABLE)
def test_no_floor_stands_above_the_time_of_its_kernel(traces: Path, name: str) -> None:
    """3 % are for clocks above the data sheet's, half a microsecond per call for traces that count whole ones."""
    kernels = analysed(traces / name).kernels
    above = [
        (kernel.name, kernel.us, kernel.compute_us, kernel.memory_us)
        for kernel in kernels
        if max(kernel.compute_us or 0.0, kernel.memory_us or 0.0) > 1.03 * kernel.us + 0.5 * kernel.calls
    ]
    assert above == []
    assert [kernel.name for kernel in kernels if "faster than its floor" in (kernel.reason or "")] == []


@pytest.mark.parametrize("name", READABLE)
def test_no_finding_promises_more_than_the_step_holds_of_what_it_claims(traces: Path, name: str) -> None:
    case = evidence(traces / name)
    drafts = {draft.slug: draft for rule in RULES if (draft := rule(case)) is not None}
    found = rank(list(drafts.values()), case.analysis)
    held = {entry.account: entry.us for entry in case.analysis.ledger}
    of_name: dict[str, float] = {}  # rows of one name bear its claims together
    for kernel in case.analysis.kernels:
        of_name[kernel.name] = of_name.get(kernel.name, 0.0) + kernel.us
    held |= {f"kernel:{at}": of_name[kernel.name] for at, kernel in enumerate(case.analysis.kernels)}
    assert math.fsum(one.added_gain_us.high for one in found if one.added_gain_us) < case.step_us
    for finding in (one for one in found if one.predicted_gain_us is not None):
        gain, speedup, claims = finding.predicted_gain_us, finding.predicted_speedup, drafts[finding.slug].claims
        assert gain is not None and speedup is not None
        claimed_us = math.fsum(min(us, held.get(account, 0.0)) for account, us in claims.items())
        assert 0 <= gain.low <= gain.high <= min(claimed_us * (1 + 1e-6), 0.991 * case.step_us), finding.slug
        # All that it does not claim stays: the step cannot become shorter.
        assert case.step_us / speedup.high >= case.step_us - claimed_us - 1e-6 * case.step_us
        words = finding.describe_speedup() or ""
        shown = [float(number) for number in re.findall(r"\d+\.\d+", words)]
        assert "may help little or much" in words if not shown else shown[-1] <= 3.01 * shown[0], words


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_program_is_refused_by_name_and_with_a_remedy(traces: Path, name: str) -> None:
    with pytest.raises(TraceError) as refused:
        analyse([traces / name])
    assert name in str(refused.value)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("part", "cut_us", "busy"), [("sglang_decode__sglang", 463e3, 0.93), ("vllm_decode_full__graph", 8.4e3, 0.99)]
)
def test_servers_are_judged_from_their_own_work_on(traces: Path, part: str, cut_us: float, busy: float) -> None:
    explained = explain([next(traces.glob(f"*{part}*"))])
    analysis, window = explained.analysis, explained.linked.window
    assert window.lead_in_us == pytest.approx(cut_us, rel=0.01)
    # Their products have 32 rows, and arithmetic limits those of 16-bit weights from 246 on.
    assert analysis.verdict.bound == "memory" and analysis.verdict.is_guess
    assert analysis.totals.busy_us / analysis.steps.wall_us == pytest.approx(busy, abs=0.01)


def test_modules_of_one_class_are_one_row(traces: Path) -> None:
    analysis = analysed(traces / TIMESFORMER)
    assert len(analysis.modules) > 150 and len(analysis.module_classes) < 25
    assert (
        "TimesformerLayer x 12 > TimeSformerAttention x 2 > TimesformerSelfAttention" in analysis.module_classes[0].name
    )
    for field in ("us", "idle_us"):
        whole, folded = (
            math.fsum(getattr(fold, field) for fold in folds) for folds in (analysis.modules, analysis.module_classes)
        )
        assert folded == pytest.approx(whole)


def test_lines_of_the_model_are_told_where_one_line_of_the_program_calls_it(traces: Path) -> None:
    analysis = analysed(traces / TIMESFORMER)
    assert sum(fold.share for fold in analysis.lines if "(modeling_timesformer.py:" in fold.name) > 0.3
    waits = {cause.source: cause.share for cause in analysis.idle if cause.cause == "python"}
    assert max(waits, key=lambda place: waits[place]) == "normalize() (image_transforms.py:390)"


def test_phases_agree_with_the_ranges_that_a_program_names_after_them(traces: Path) -> None:
    analysis = analysed(next(traces.glob("*deepseek_v3_trace*")))
    ranges = {each.name: each.us for each in analysis.ranges}
    told = {phase.name: phase.us for phase in analysis.phases}
    assert told["backward"] == pytest.approx(ranges["backward"], rel=1e-3)
    assert told["optimizer"] == pytest.approx(ranges["optimizer_step"], rel=1e-3)


@pytest.mark.parametrize("name", ["resnet50_num_workers_0__*", "resnet50_autograd_api_*", "control__control*"])
def test_phases_of_training_are_told_by_ops_and_annotations(traces: Path, name: str) -> None:
    told = {phase.name: phase.share for phase in analysed(next(traces.glob(f"*{name}"))).phases}
    assert min(told[phase] for phase in ("data", "forward", "backward", "optimizer")) > 0.01
    assert told["backward"] > told["forward"] and told["other"] < 0.02


def test_small_bert_on_an_h100_keeps_the_device_busy_a_fifteenth_of_its_step(traces: Path) -> None:
    analysis = analysed(traces / BERT_SMALL)
    assert analysis.totals.busy_us == pytest.approx(309, abs=0.5)
    assert analysis.totals.kernel_count == 60
    assert sum(kernel.calls for kernel in analysis.kernels if kernel.bound not in {"copy", "transfer"}) == 60
    assert analysis.verdict.bound == "overhead"
    assert analysis.verdict.share > 0.95


def test_the_video_transformer_is_reported_as_a_host_bound_start_and_a_busy_device(traces: Path) -> None:
    analysis = analysed(traces / TIMESFORMER)
    assert analysis.totals.busy_us == pytest.approx(158_400, abs=50)
    caveats = [caveat.message for caveat in analysis.caveats if caveat.slug == "two-sided-step"]
    told = [analysis.verdict.sentence, *caveats]
    assert all("For the first 57.0 % of the step the device is idle, after that it works" in text for text in told)
    assert len(told) == 2
    # Each step has both sides, so that it is judged whole.
    assert analysis.findings[0].slug == "python-call"
    assert analysis.verdict.first_step is not None and "apart" not in analysis.verdict.first_step


def test_of_a_cold_start_and_busy_work_the_longer_is_explained_and_the_other_one_named(traces: Path) -> None:
    path = traces / "CodingPlatelets+SwitchTransformers__result__trace_100Kpar_4exp_8batch_128seq_1024.json.gz"
    analysis = analysed(path)
    assert analysis.totals.busy_us / analysis.steps.wall_us > 0.9
    assert (analysis.verdict.bound, analysis.findings[0].slug) == ("compute", "half-precision")
    (told,) = [caveat for caveat in analysis.caveats if caveat.slug == "one-side"]
    assert told.message.endswith("is judged here; for the earlier one, run again with --window :434.881ms")
    other = analyse([path], Options(stretch_us=(None, 434_881.0)))
    whole = analyse([path], Options(whole=True))
    assert analysis.totals.busy_us + other.totals.busy_us == pytest.approx(whole.totals.busy_us)
    assert analysis.steps.wall_us + other.steps.wall_us == pytest.approx(whole.steps.wall_us)


def test_the_attention_of_the_video_transformer_has_untapped_bandwidth_and_says_why(traces: Path) -> None:
    analysis = analysed(traces / TIMESFORMER)

    def largest(op: str) -> list[KernelSummary]:
        return [kernel for kernel in analysis.kernels if kernel.op == op and kernel.us > 10_000]

    softmax, products = largest("aten::_softmax"), largest("aten::bmm")
    assert [kernel.calls for kernel in (*softmax, *products)] == [12, 12, 12]
    assert {(kernel.bound, kernel.regime) for kernel in (*softmax, *products)} == {("memory", "far_below_roof")}
    assert all("align1" in kernel.name and "align1" in (kernel.reason or "") for kernel in products)
    assert "align1" not in (softmax[0].reason or "")


def test_the_rank_that_sleeps_is_named_as_the_one_that_the_others_wait_for(traces: Path) -> None:
    analysis = analysed(*sorted(traces.glob(SLEEPING_RANK)))
    assert analysis.verdict.sentence.startswith(
        "Rank 2 is late: ranks 0, 1 and 3 wait 1.01 of 1.10 s per step in collectives"
    )
    late_us = {rank.rank: rank.skew_us or 0.0 for rank in analysis.ranks}
    assert sorted(late_us) == [0, 1, 2, 3]
    assert late_us[2] > 100 * max(late_us[rank] for rank in (0, 1, 3))
    assert [rank.verdict for rank in analysis.ranks] == ["communication", "communication", "overhead", "communication"]
    assert analysis.verdict.bound == "overhead"


def test_a_rank_alone_does_not_know_whom_it_waits_for_and_says_so(traces: Path) -> None:
    alone = analysed(min(traces.glob(SLEEPING_RANK)))
    assert alone.verdict.bound == "communication"
    assert "rank 2" not in alone.verdict.sentence
    assert "one-rank" in {caveat.slug for caveat in alone.caveats}


@pytest.mark.parametrize("name", EAGER)
def test_almost_all_time_of_eager_models_is_modelled(traces: Path, name: str) -> None:
    assert (analysed(traces / name).coverage.modelled_share or 0) >= 0.99


@pytest.mark.parametrize("name", NAMELESS)
def test_a_device_without_a_name_is_found_by_its_properties(traces: Path, name: str) -> None:
    analysis = analysed(traces / name)
    assert analysis.device.name == "AMD Instinct MI300X"
    assert analysis.device.peaks_flops_per_s
    told = [caveat.message for caveat in analysis.caveats if caveat.slug == "device-by-fingerprint"]
    assert told and "the device has no name" in told[0]


def test_devices_that_have_a_name_are_not_guessed(traces: Path) -> None:
    assert "device-by-fingerprint" not in {caveat.slug for caveat in analysed(traces / BERT_SMALL).caveats}
    assert len(NAMELESS) >= 2


@pytest.mark.parametrize("name", [COPIED_IDS, *UNTRUSTED_IDS])
def test_ids_that_only_repeat_the_correlation_do_not_spoil_the_links(traces: Path, name: str) -> None:
    told = [(args["External id"], args["correlation"]) for args in device_args(traces / name) if "External id" in args]
    assert told and all(external_id == correlation for external_id, correlation in told)
    assert (analysed(traces / name).coverage.linked_share or 0) > 0.9


def device_args(path: Path) -> list[dict[str, object]]:
    """Arguments of the device work in a file, which say on which stream it ran."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["args"] for event in events if event.get("ph") == "X" and "stream" in event.get("args", {})]


@pytest.mark.parametrize("name", ["resnet50_num_workers_0__*", "resnet50_autograd_api_*"])
def test_comparisons_count_the_flops_that_reports_count(traces: Path, name: str) -> None:
    """Recorded by torch 1.9, whose engine marked no nodes. What a loader adds up ahead of its step is not counted."""
    told = explain([next(traces.glob(f"*{name}"))])
    assert count(told).values["flops"] == pytest.approx(told.analysis.totals.flops, rel=1e-3)
