"""The cases of the corpus, and the pairs of predicted and measured speedups that it keeps."""

import importlib.util
import inspect
import math
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.corpus.__main__ import (
    AGAIN,
    AGAIN_ALONE,
    FIRST,
    FIRST_ALONE,
    Attempt,
    _done,
    _machine,
    most_useful_first,
    pairs_of_here,
    predict_again,
    unlike_changes,
)
from benchmarks.corpus.cases import CASES, WORKLOADS, Case
from benchmarks.corpus.pairs import Claim, Pair, append_pairs, claims_of, read_pairs, repredict
from bottleneck.experiment.variants import Built
from bottleneck.pipeline import analyse, explain
from bottleneck.schema.records import replace
from tests.report.samples import cpu
from tests.samples import recordings

PAIR = Pair("mlp", "mlp", "dense", {"batch_size": 4}, "compile", (Claim("chain", 1.1, 1.3),), (1.2, 1.15, 1.25))
FILES = {case.file: case for case in CASES}


def loaded(case: Case) -> ModuleType:
    spec = importlib.util.spec_from_file_location(case.file, case.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_sixty_cases_of_many_kinds_and_all_files_are_used() -> None:
    assert len(CASES) >= 60 and len({case.kind for case in CASES}) >= 10
    assert len({case.name for case in CASES}) == len(CASES)
    assert set(FILES) == {path.stem for path in WORKLOADS.glob("*.py")}


@pytest.mark.parametrize("file", sorted(FILES))
def test_every_workload_takes_its_settings_and_makes_a_step(file: str) -> None:
    if FILES[file].needs is not None:
        pytest.importorskip(FILES[file].needs)
    workload = loaded(FILES[file]).workload
    for case in CASES:
        assert case.file != file or set(case.parameters) <= set(inspect.signature(workload).parameters)
    workload(**FILES[file].parameters)()


def test_a_pair_is_noisy_by_its_interval_or_by_the_copies_of_the_unchanged_step() -> None:
    assert not PAIR.is_noisy
    assert replace(PAIR, speedup=(1.2, 1.0, 1.4)).is_noisy
    assert replace(PAIR, copies=-0.2).is_noisy
    assert not replace(PAIR, speedup=None, refused="missing: a package").is_noisy


def test_pairs_are_read_as_they_were_written_and_a_later_one_replaces_an_earlier(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    assert read_pairs(file) == []
    append_pairs(file, [PAIR, replace(PAIR, change="workers", claims=(), refused="not applicable", speedup=None)])
    again = replace(PAIR, speedup=(1.0, 0.99, 1.01))
    append_pairs(file, [again])
    assert read_pairs(file) == [
        again,
        replace(PAIR, change="workers", claims=(), refused="not applicable", speedup=None),
    ]


def test_a_noisy_pair_replaces_none_that_is_not(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    append_pairs(file, [PAIR, replace(PAIR, speedup=(1.0, 0.5, 2.0))])
    assert read_pairs(file) == [PAIR]


def test_cases_that_are_done_are_left_out_and_noisy_ones_come_again_where_that_is_asked() -> None:
    noisy = replace(PAIR, case="noisy", speedup=(1.0, 0.5, 2.0))
    assert _done([PAIR, noisy], noisy_again=False) == {"mlp", "noisy"}
    assert _done([PAIR, noisy, replace(noisy, case="mlp", change="workers")], noisy_again=True) == {"mlp"}


def test_a_new_prediction_keeps_the_measurement() -> None:
    renewed = repredict(PAIR, (), "new")
    assert (renewed.claims, renewed.predicted_by, renewed.speedup) == ((), "new", PAIR.speedup)


def test_a_case_is_predicted_again_only_where_its_recording_is_there(tmp_path: Path) -> None:
    sample = next(path for path in recordings() if any(finding.tries for finding in analyse([path]).findings))
    findings = analyse([sample]).findings
    change = next(name for finding in findings for name in finding.tries)
    (tmp_path / "here").symlink_to(sample)
    data = tmp_path / "pairs.jsonl"
    pair = replace(PAIR, case="here", change=change, machine=_machine(explain([sample])))
    elsewhere = replace(pair, machine="another processor")
    append_pairs(data, [pair, replace(PAIR, case="gone"), elsewhere])
    predict_again(data, tmp_path)
    here, gone, other = read_pairs(data)
    rounded = [(claim.slug, claim.low and pytest.approx(claim.low, rel=1e-4)) for claim in claims_of(change, findings)]
    assert [(claim.slug, claim.low) for claim in here.claims] == rounded
    assert gone == replace(PAIR, case="gone") and other == elsewhere


def test_a_machine_is_named_with_its_instruction_sets_and_its_pairs_decide_what_is_done(tmp_path: Path) -> None:
    explained = explain([next(iter(recordings()))])
    assert explained.recording is not None
    device, sets = explained.analysis.device, explained.recording.libraries
    assert _machine(explained).startswith(f"{device.name} ({sets.get('isa', '?')}")
    with_bf16 = replace(device, peaks_flops_per_s={"bf16_tensor": 2.0, "fp32_tensor": 1.0})
    narrow = replace(explained, analysis=replace(explained.analysis, device=with_bf16))
    assert " with bf16)" in _machine(narrow)
    pairs = [replace(PAIR, machine=_machine(explained)), replace(PAIR, machine="another processor")]
    assert pairs_of_here(pairs, tmp_path) == pairs
    (tmp_path / "made").symlink_to(next(iter(recordings())))
    assert pairs_of_here(pairs, tmp_path) == pairs[:1]


def test_a_change_is_measured_against_both_unchanged_steps_of_its_round_and_per_sample() -> None:
    attempt = Attempt(CASES[0], Path(), 1, 25.0, 3)
    attempt.built["batch-x2"] = Built(0.5, None, 2.0, 100.0)
    taken = {FIRST: [90.0] * 8, AGAIN: [110.0] * 8, "batch-x2": [100.0] * 8}
    pair = attempt.pair("batch-x2", taken, cpu(), (1.0, 2.0))
    assert pair.speedup is not None and pair.copies is not None
    assert pair.speedup[0] == pytest.approx(2 * math.sqrt(90 * 110) / 100)
    assert pair.copies == pytest.approx(math.log(90 / 110))


def test_a_change_that_could_not_be_tried_says_why() -> None:
    attempt = Attempt(CASES[0], Path(), 1, 25.0, 3)
    attempt.refused["workers"] = "not applicable: needs a loader"
    pair = attempt.pair("workers", {FIRST: [1.0] * 8, AGAIN: [1.0] * 8}, cpu(), (0.0, 0.0))
    assert (pair.speedup, pair.refused) == (None, "not applicable: needs a loader")


def test_cases_of_workloads_with_the_fewest_quiet_pairs_come_first() -> None:
    quiet = [replace(PAIR, file="graph_attention", change=str(number)) for number in range(3)]
    noisy = [replace(PAIR, file="two_towers", change=str(number), speedup=(1.0, 0.7, 1.4)) for number in range(9)]
    one = replace(PAIR, file="k_means")
    cases = [FILES[name] for name in ("graph_attention", "k_means", "two_towers")]
    ordered = most_useful_first(cases, [*quiet, *noisy, one])
    assert [case.file for case in ordered] == ["two_towers", "k_means", "graph_attention"]


def test_a_change_of_the_process_is_measured_against_copies_that_have_one_each() -> None:
    attempt = Attempt(CASES[0], Path(), 1, 25.0, 3)
    attempt.built["gc-freeze"] = Built(0.5, None, 1.0, 100.0)
    shared = {FIRST: [50.0] * 8, AGAIN: [50.0] * 8}
    pair = attempt.pair(
        "gc-freeze",
        {**shared, FIRST_ALONE: [90.0] * 8, AGAIN_ALONE: [110.0] * 8, "gc-freeze": [100.0] * 8},
        cpu(),
        (1, 2),
    )
    assert pair.speedup is not None and pair.speedup[0] == pytest.approx(math.sqrt(90 * 110) / 100)
    assert pair.is_usable is (not pair.is_noisy) and replace(pair, copies=0.0).is_usable


def test_a_change_of_the_process_against_copies_that_shared_one_is_not_used_and_comes_again() -> None:
    unlike = replace(PAIR, change="gc-freeze")
    assert PAIR.is_usable and not unlike.is_usable and replace(unlike, alone=True).is_usable
    assert unlike_changes([PAIR, unlike]) == {"mlp": frozenset({"gc-freeze"})}
    assert unlike_changes([PAIR, replace(unlike, alone=True)]) == {}
