"""Rules on the whole run: what is between steps comes first where it is most of the run, and growth is named."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.run_steps import growing_steps, time_between_steps, work_outside_of_calls
from bottleneck.pipeline import analyse
from bottleneck.report.analysis_document import describe_run
from bottleneck.schema.compile_health import CompileHealth, GraphHealth, Recompile
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BetweenPlace, PiledHooks, RunSteps, StepGrowth
from bottleneck.schema.records import replace
from bottleneck.schema.start_up import StartLedger, StartPart
from tests.advice.cases import case_of, with_analysis
from tests.builders import complete, frame, op

PLACE = BetweenPlace("train.py:88", 0.9, "evaluate", None, "evaluate(net)")


def run_of(elsewhere_us: float, *places: BetweenPlace, **more: Any) -> RunSteps:
    return RunSteps(100, 1e6, 1000.0, elsewhere_us, 10, places, **more)


def evidence_of(folder: Path, run: RunSteps | None) -> Evidence:
    return case_of(folder, [op("aten::mul", 0, 50), op("aten::mul", 60, 40)], run=run, unprofiled_us=100.0)


def test_most_of_the_run_between_steps_is_the_first_thing_to_say(tmp_path: Path) -> None:
    draft = time_between_steps(evidence_of(tmp_path, run_of(8e5, PLACE)))
    assert draft is not None
    assert draft.comes_first
    assert draft.advice.startswith("Look between the steps, 80.0 % of the run: run evaluate(), train.py:88 less often")
    assert draft.gain_us is None
    assert draft.gain_reason is not None
    assert "would take 280 ms instead of 1.00 s: by its samples about 3.57 times as fast" in draft.gain_reason
    verdict = analyse([tmp_path]).verdict.sentence
    assert "First: do less between steps (train.py:88): the run up to 4.81 times as fast" in verdict


def test_a_tenth_of_the_run_is_told_and_less_is_not(tmp_path: Path) -> None:
    draft = time_between_steps(evidence_of(tmp_path / "some", run_of(1.5e5, PLACE)))
    assert draft is not None
    assert not draft.comes_first
    assert time_between_steps(evidence_of(tmp_path / "little", run_of(5e4, PLACE))) is None
    assert time_between_steps(evidence_of(tmp_path / "unsampled", run_of(9e5))) is None
    assert time_between_steps(evidence_of(tmp_path / "unknown", None)) is None


def test_a_program_whose_calls_are_its_steps_is_told_how_to_have_the_rest_of_its_work_in_them(tmp_path: Path) -> None:
    """An encoder between the calls of a decoder is work, and nothing to do less often."""
    encoder = BetweenPlace("whisper.py:137", 0.9, None, None, "audio = encoder(mel)")
    ops = [op("aten::mul", 0, 50), op("aten::mul", 60, 40)]
    case = case_of(
        tmp_path, ops, run=run_of(3e5, encoder), unprofiled_us=100.0, step_source="module", step_name="call of Decoder"
    )
    draft = work_outside_of_calls(case)
    assert time_between_steps(case) is None
    assert draft is not None and draft.brief is not None and not draft.comes_first and draft.equal_gain_us is None
    assert draft.brief.startswith("Call bottleneck.step() at the end of each unit of work: 30.0 % of the run is at")
    assert "each step is a call of Decoder" in draft.evidence[0]


def test_time_between_steps_that_comes_again_is_weighed_against_the_gain_of_a_step(tmp_path: Path) -> None:
    """Half of 40 ms in 100 ms shortens the run as a step does that gains a third: 20 of the other 60 ms."""
    draft = time_between_steps(evidence_of(tmp_path / "much", run_of(4e5, PLACE)))
    assert draft is not None
    assert draft.equal_gain_us == pytest.approx(100.0 / 3)
    assert draft.brief == (
        "Do less between steps (train.py:88): the run up to 1.66 times as fast; 40.0 % of it is there"
    )
    assert "First: do less between steps" in analyse([tmp_path / "much"]).verdict.sentence
    once = replace(run_of(4e5, PLACE), gaps=2)
    for name, run in {"little": run_of(1.5e5, PLACE), "once": once}.items():
        draft = time_between_steps(evidence_of(tmp_path / name, run))
        assert draft is not None
        assert draft.equal_gain_us is None


EVALUATION = BetweenPlace("train.py:88", 0.4, "evaluate", None, "evaluate(net)", "train.py:30", "score(net)")
WORKERS = BetweenPlace("train.py:88", 0.1, "evaluate", "workers", "evaluate(net)")
HISTOGRAMS = tuple(BetweenPlace(f"train.py:{line}", 0.2, "log_weights", None, None) for line in (85, 86))


def test_places_of_one_name_are_told_as_one_and_lines_of_one_function_together(tmp_path: Path) -> None:
    run = run_of(4e5, WORKERS, EVALUATION, *HISTOGRAMS, BetweenPlace("train.py:90", 0.05))
    draft = time_between_steps(evidence_of(tmp_path, run))
    assert draft is not None
    assert draft.evidence[1] == (
        "evaluate(), train.py:88 [evaluate(net)]: 50.0 % of it, most at train.py:30 [score(net)]; 10.0 % of it starts "
        "the loader's workers, which persistent_workers=True keeps"
    )
    assert "run evaluate(), train.py:88, and log_weights(), train.py:85 and train.py:86 less often" in draft.advice
    assert describe_run(run, 5).endswith(
        "elsewhere: evaluate(), train.py:88 (20.0 %), log_weights(), train.py:85 (8.0 %)"
    )


def test_the_line_that_calls_the_model_is_the_step_itself(tmp_path: Path) -> None:
    events = [
        complete("train.py(12): train", "python_line", 0.5, 99),
        frame("nn.Module: Net_0", 1, 98),
        op("aten::mul", 2, 90),
    ]
    place = BetweenPlace("train.py:12", 0.9, None, None, "scores.append(model(row))")
    assert time_between_steps(case_of(tmp_path / "model", events, run=run_of(3e5, place), unprofiled_us=100.0)) is None
    other = BetweenPlace("train.py:13", 0.9, None, None, "scores.sort()")
    assert time_between_steps(case_of(tmp_path / "other", events, run=run_of(3e5, other), unprofiled_us=100.0))


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("workers", "keep the loader's workers from one epoch to the next", "persistent_workers=True"),
        ("checkpoint", "write checkpoints less often", ""),
        ("compile", "TORCH_LOGS=recompiles", ""),
        ("input", "prefetch", ""),
    ],
)
def test_what_torch_does_there_makes_the_advice(kind: Any, words: str, code: str, tmp_path: Path) -> None:
    draft = time_between_steps(evidence_of(tmp_path, run_of(8e5, BetweenPlace("a.py:3", 1.0, None, kind))))
    assert draft is not None
    assert words in draft.advice
    assert code in (draft.code or "")


def test_what_is_compiled_again_between_steps_is_told_with_its_guard_and_the_change_against_it(tmp_path: Path) -> None:
    again = Recompile("0/1", "forward", "a.py:3", "size", "g", "84", "78", subject="ids", index=1, seconds=0.7)
    health = CompileHealth((GraphHealth("0/0", "forward", "a.py:3"),), recompiles=(again,))
    run = run_of(8e5, BetweenPlace("a.py:3", 1.0, "forward", "compile"))
    evidence = with_analysis(evidence_of(tmp_path, run), compile_health=health)
    draft = time_between_steps(evidence)
    assert draft is not None
    assert draft.title == "80.0 % of the run is between its steps: compiling forward(), a.py:3"
    assert draft.advice.startswith("Mark the size that changes")
    assert draft.code == "torch._dynamo.mark_dynamic(ids, 1)"
    assert draft.evidence[-1] == "the guard that failed: size 1 of ids: 84, then 78 at a.py:3"


GROWTH = StepGrowth(54.0, 20, 2000.0, 500, 27_000.0, "hooks.py:20", "got[name] = output.mean((2, 3))")


def test_growing_steps_are_said_with_their_slope_and_their_hooks(tmp_path: Path) -> None:
    draft = growing_steps(evidence_of(tmp_path, run_of(0.0, growth=GROWTH, hooks=PiledHooks("Conv2d", 500, "a.py:21"))))
    assert draft is not None
    assert draft.comes_first
    assert draft.evidence[:2] == (
        "each step takes 54.0 us longer than the one before: 2.00 ms at step 20, 27.0 ms at 500",
        "a Conv2d holds 500 hooks at the end of the run",
    )
    assert "Remove the hooks that each step registers (a.py:21)" in draft.advice
    assert "handle.remove()" in (draft.code or "")


def test_growth_without_hooks_names_what_may_grow_and_no_growth_nothing(tmp_path: Path) -> None:
    draft = growing_steps(evidence_of(tmp_path / "one", run_of(0.0, growth=GROWTH)))
    assert draft is not None
    assert "a list of losses" in draft.advice
    assert GROWTH.source is not None and f"Work only on what is new at {GROWTH.source}" in draft.advice
    assert growing_steps(evidence_of(tmp_path / "two", run_of(0.0))) is None


def test_the_report_has_one_line_on_the_run() -> None:
    assert describe_run(None, 5) == ""
    assert describe_run(run_of(0.0), 5) == "the 5 recorded steps are typical of 100.0 % of the run"
    told = describe_run(run_of(9.4e5, PLACE), 20)
    assert told == (
        "the 20 recorded steps are typical of 6.0 % of the run; 94.0 % from its first step to its last is elsewhere: "
        "evaluate(), train.py:88 (84.6 %)"
    )


def test_recorded_steps_far_from_the_usual_one_of_the_run_are_not_called_typical() -> None:
    usual_us = run_of(0.0).typical_us
    assert "typical" in describe_run(run_of(0.0), 5, step_us=1.4 * usual_us)
    told = describe_run(run_of(0.0), 5, step_us=2 * usual_us)
    assert told.startswith("the 5 recorded steps are longer than usual: half of the run's steps take ")
    assert "shorter than usual" in describe_run(run_of(0.0), 5, step_us=usual_us / 2)


def test_first_steps_that_were_not_sampled_compiled_code_where_that_took_as_long() -> None:
    start = StartLedger(2.0, 0.0, (StartPart("compile", "forward()", 0.9, "train.py:19"),))
    told = describe_run(run_of(9.4e5), 5, start)
    assert told.endswith("94.0 % is in first steps, most of it compiling code (900 ms of the whole start)")
    short = StartLedger(2.0, 0.0, (StartPart("compile", "forward()", 0.1, "train.py:19"),))
    assert describe_run(run_of(9.4e5), 5, short).endswith("far longer than usual, which were not sampled")


def test_steps_that_grow_are_typical_of_no_part_of_the_run() -> None:
    told = describe_run(run_of(2e5, PLACE, growth=GROWTH), 5)
    assert told.startswith(
        "each step takes 54.0 us longer than the one before: 2.00 ms at step 20, 27.0 ms at 500; 20.0 %"
    )
    assert "typical" not in told


def test_a_loop_over_elements_between_steps_is_to_work_on_plain_numbers(tmp_path: Path) -> None:
    loop = BetweenPlace(
        "ppo.py:45", 0.7, "compute_gae", "elements", "adv = compute_gae(rewards)", "ppo.py:28", "delta = rewards[t]"
    )
    draft = time_between_steps(evidence_of(tmp_path, run_of(6e5, loop)))
    assert draft is not None
    # GAE took 54 % of a run where samples gave it 45 %: all of the time between steps is the bound.
    assert draft.brief == "Loop over plain numbers at ppo.py:28 (the run about 1.72, at most 2.46 times as fast)"
    assert "compute_gae() reads elements one by one at ppo.py:28 [delta = rewards[t]]" in draft.advice
    assert draft.code is not None and "tolist()" in draft.code


def test_workers_that_start_anew_are_kept_at_the_line_that_makes_the_loader(tmp_path: Path) -> None:
    """First steps of an epoch wait for workers that start: they are held up, and gain too."""
    place = BetweenPlace("train.py:42", 1.0, None, "workers", "for step, (x, y) in enumerate(loader):")
    case = evidence_of(tmp_path, run_of(2.8e5, place, held_us=2e5))
    recording = case.recording
    assert recording is not None
    case = replace(case, recording=dataclasses.replace(recording, setting_lines={"loader": ("train.py:38",)}))
    draft = time_between_steps(case)
    assert draft is not None
    assert draft.brief == ("Set persistent_workers=True at train.py:38 (the run up to 1.92 times as fast)")
    assert draft.places[-1] == "train.py:38"
