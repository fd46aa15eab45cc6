"""The gain of a finding from pieces that were timed: calls x (as it is - changed), never from a formula beside them."""

import math
from pathlib import Path

import pytest

from bottleneck.advice.fusion import unfused_chain
from bottleneck.advice.measured import LIBRARY_OP, MEASURABLE, measured_layout_us, with_measured_gain
from bottleneck.advice.ranking import Draft
from bottleneck.experiment.pieces.choose import CHOOSERS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import MeasuredPiece, MeasuredPieces, Ratio, Timing
from bottleneck.schema.records import replace
from tests.advice.cases import with_analysis, with_recording
from tests.advice.programs import Call, on_cpu

MS = 1000.0


def timing(us: float) -> Timing:
    return Timing(us, 0.99 * us, 1.01 * us, 9)


def piece(as_is_us: float, changed_us: float, spread: float = 0.0, **more: object) -> MeasuredPiece:
    """A chain that the step runs once, recorded at the time that it takes alone."""
    ratio = changed_us / as_is_us
    made = MeasuredPiece(
        kind="chain",
        finding="unfused-chain",
        change="compile",
        what="mul, mul on 25000000",
        calls=1.0,
        recorded_us=as_is_us,
        share=1.0,
        as_is_us=timing(as_is_us),
        changed_us=timing(changed_us),
        ratio=Ratio(ratio, ratio * (1 - spread), ratio * (1 + spread), 9),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def measured(*pieces: MeasuredPiece) -> MeasuredPieces:
    return MeasuredPieces(10.0, 3.0, "a CPU", 1, "2.13.0", pieces)


def after(case: Evidence, *pieces: MeasuredPiece) -> Draft:
    """The finding on the chain, once these pieces are in the recording."""
    made = unfused_chain(case)
    assert made is not None
    return with_measured_gain(with_recording(case, pieces=measured(*pieces) if pieces else None), made)


@pytest.fixture
def case(tmp_path: Path) -> Evidence:
    return on_cpu(tmp_path, [Call("aten::mul_", 20 * MS, [[25_000_000], []])] * 8)


def gain(draft: Draft) -> Interval:
    assert draft.gain_us is not None
    return draft.gain_us


def test_the_gain_is_what_the_piece_takes_less(case: Evidence) -> None:
    draft = after(case, piece(160 * MS, 100 * MS, spread=0.1))
    assert gain(draft).low == pytest.approx(50 * MS)
    assert gain(draft).high == pytest.approx(70 * MS)
    assert draft.basis == "timed"
    assert draft.evidence[-1] == ("measured here on these shapes: 160 ms to 100 ms per step (bottleneck run --probe)")


def test_the_least_favourable_change_is_the_lower_end(case: Evidence) -> None:
    draft = after(case, piece(160 * MS, 40 * MS, at_worst=Ratio(0.9, 0.9, 0.9, 9)))
    assert gain(draft) == Interval(pytest.approx(16 * MS), pytest.approx(120 * MS))


def test_the_formula_stays_for_what_was_not_measured(case: Evidence) -> None:
    formula = gain(after(case))
    draft = after(case, piece(80 * MS, 40 * MS, share=0.5))
    assert gain(draft).low == pytest.approx(40 * MS + formula.low / 2)
    assert gain(draft).high == pytest.approx(40 * MS + formula.high / 2)
    assert "1 piece, 50.0 % of this work" in draft.evidence[-1]


@pytest.mark.parametrize("recorded_us", [102 * MS, 160 * MS, 900 * MS])
def test_a_step_that_takes_longer_than_its_pieces_gains_no_more_than_they_save(
    case: Evidence, recorded_us: float
) -> None:
    draft = after(case, piece(100 * MS, 50 * MS, recorded_us=recorded_us))
    assert gain(draft).low == pytest.approx(50 * MS)
    assert gain(draft).high == pytest.approx(101 * MS / 2)  # a piece takes up to 101 ms, and half of it is saved


def test_a_time_alone_that_is_longer_promises_no_more_than_the_step_holds(case: Evidence) -> None:
    draft = after(case, piece(480 * MS, 240 * MS, recorded_us=160 * MS))
    assert gain(draft).high == pytest.approx(80 * MS)


def test_a_loss_promises_nothing_and_says_why(case: Evidence) -> None:
    draft = after(case, piece(160 * MS, 240 * MS))
    assert draft.gain_us is None
    assert draft.gain_reason == (
        "no gain is expected: mul, mul on 25000000 takes 240 ms with the change and 160 ms without, measured here"
    )
    assert not draft.claims


def test_a_gain_that_may_be_a_loss_says_so_and_one_whose_middle_is_a_loss_is_none(case: Evidence) -> None:
    worst = Ratio(1.2, 1.2, 1.2, 9)
    assert gain(after(case, piece(160 * MS, 100 * MS, at_worst=worst))) == Interval(
        pytest.approx(-32 * MS), pytest.approx(60 * MS)
    )
    assert after(case, piece(160 * MS, 150 * MS, at_worst=worst)).gain_us is None


def test_another_layout_gains_nothing_at_worst_where_it_gains_alone(case: Evidence) -> None:
    turned = Ratio(3.0, 3.0, 3.0, 9)
    pieces = [
        piece(160 * MS, 80 * MS, kind="layout", what="convolution on 8x3x32x32", at_worst=turned),
        piece(10 * MS, 30 * MS, kind="layout", what="mkldnn_convolution on 8x8x32x32"),
        piece(10 * MS, 5 * MS, kind="layout", what="native_batch_norm on 8x8x32x32"),
    ]
    known = with_recording(case, pieces=measured(*pieces))
    assert measured_layout_us(known) == Interval(pytest.approx(0.0), pytest.approx(60 * MS))
    losing = with_recording(case, pieces=measured(pieces[1]))
    assert measured_layout_us(losing) == Interval(pytest.approx(-20 * MS), pytest.approx(-20 * MS))
    assert measured_layout_us(case) is None
    assert measured_layout_us(with_recording(case, pieces=measured(pieces[2]))) is None


def test_entering_compiled_code_counts_once_for_a_compiled_model(case: Evidence) -> None:
    four = piece(40 * MS, 35 * MS, calls=4.0, recorded_us=160 * MS)
    plain = gain(after(case, four))
    device = replace(case.analysis.device, compiled_call_us=10 * MS)
    entering = gain(after(with_analysis(case, device=device), four))
    assert plain.high == pytest.approx(20 * MS)
    assert entering.high == pytest.approx(50 * MS)  # three of four calls are spared
    assert entering.low == plain.low


def test_a_gain_above_the_formula_raises_its_claims(case: Evidence) -> None:
    draft = after(case, piece(160 * MS, 1 * MS))
    assert math.fsum(draft.claims.values()) == pytest.approx(159 * MS)


def test_of_two_changes_the_better_one_counts(case: Evidence) -> None:
    poor = piece(160 * MS, 150 * MS, change="torchscript")
    assert gain(after(case, poor, piece(160 * MS, 40 * MS))).high == pytest.approx(120 * MS)


def test_a_finding_without_pieces_says_that_a_formula_gave_its_gain(case: Evidence) -> None:
    draft = after(case)
    assert draft.basis == "formula"
    assert (draft.by_formula or "").startswith("pieces of this step were not timed")


def test_a_finding_without_times_says_why(case: Evidence) -> None:
    failed = replace(piece(1.0, 1.0), ratio=None, as_is_us=None, changed_us=None, reason="RuntimeError: no")
    assert after(case, failed).by_formula == "mul, mul on 25000000 could not be timed: RuntimeError: no"
    other = piece(160 * MS, 100 * MS, finding="half-precision")
    assert after(case, other).by_formula == "its pieces found no time (bottleneck run --probe-budget 60 has more)"


LIBRARY = piece(160 * MS, 20 * MS, change=LIBRARY_OP, kind="library-op", what="rms_norm for 6 ops on 64x512")


def test_the_op_of_the_library_is_evidence_beside_the_gain_of_compiling(case: Evidence) -> None:
    draft = after(case, piece(160 * MS, 100 * MS), LIBRARY)
    assert gain(draft).high == pytest.approx(60 * MS)
    assert draft.tries == ("compile",)
    assert draft.evidence[-2] == (
        "the library has one op for it: rms_norm for 6 ops on 64x512: 160 ms to 20.0 ms per step, forward, measured "
        "here (bottleneck run --probe)"
    )


def test_the_op_of_the_library_alone_leaves_compiling_its_formula(case: Evidence) -> None:
    formula = gain(after(case))
    draft = after(case, LIBRARY)
    assert gain(draft) == formula
    assert draft.basis == "formula"


def test_where_compiling_loses_the_op_of_the_library_gives_the_gain(case: Evidence) -> None:
    draft = after(case, piece(160 * MS, 240 * MS), LIBRARY)
    assert gain(draft).high == pytest.approx(140 * MS)
    assert draft.tries == ()
    assert draft.evidence[-1].startswith("torch.compile gains nothing here: mul, mul on 25000000 takes 240 ms")
    poor = replace(LIBRARY, changed_us=timing(170 * MS), ratio=Ratio(1.1, 1.05, 1.15, 9))
    assert after(case, piece(160 * MS, 240 * MS), poor).gain_us is None


def test_a_finding_of_no_kind_is_left_alone(case: Evidence) -> None:
    other = Draft("host-sync", "a wait", (), "wait less", Interval(1.0, 2.0))
    assert with_measured_gain(case, other) is other


def test_every_finding_that_can_be_measured_has_a_way_to_choose_its_pieces() -> None:
    assert CHOOSERS.keys() == MEASURABLE


@pytest.mark.parametrize(("others", "is_used"), [(None, True), (1.2, True), (1.4, False)])
def test_pieces_that_were_timed_beside_other_programs_are_not_used(
    case: Evidence, others: float | None, is_used: bool
) -> None:
    """One thread on two processors: one is free for others."""
    made = unfused_chain(case)
    assert made is not None
    times = replace(measured(piece(160 * MS, 40 * MS)), other_processors=others)
    draft = with_measured_gain(with_recording(case, pieces=times, processors=2), made)
    assert (draft.basis == "timed") is is_used
    crowded = "its pieces were timed beside other programs, which kept 1.4 processors busy"
    assert draft.by_formula == (None if is_used else crowded)
    if not is_used:
        assert draft.gain_us == made.gain_us
