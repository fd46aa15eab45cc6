"""Takes the gain of a finding from timed pieces or a replay.

Both are better known than the formula of its rule. Pieces are timed on the recorded shapes. The replay is of the change
that the rule's advice makes.
"""

import math
import re
from collections.abc import Sequence

from bottleneck.advice.quantities import claims_of
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import MeasuredPiece
from bottleneck.schema.records import replace
from bottleneck.units import counted, format_share, format_us

# A gain whose middle is below this share of the step counts as none.
_LEAST_GAIN = 0.001
# Without a replay the lower end is this part of what the rule's formula gives.
_DOUBT = 0.5
# The change of pieces that the library does by one op in place of several; `bottleneck verify` cannot make it.
LIBRARY_OP = "library-op"
_CALL_LIBRARY = "Call the library's op where the program writes it out, such as torch.nn.functional.layer_norm."
_LAYOUT = "layout"
# A piece of one op is called by the op's name.
_CONVOLVES = re.compile(r"\w*conv(?:olution|\d)")
# Slugs of findings whose pieces `bottleneck run` can time.
MEASURABLE = frozenset(
    {
        "channels-first",
        "half-precision",
        "misaligned-products",
        "too-many-threads",
        "threads-for-small-work",
        "unfused-attention",
        "unfused-chain",
        "unfused-norm",
        "unfused-optimizer",
    }
)


def with_measured_gain(evidence: Evidence, draft: Draft) -> Draft:
    """Gives the finding with the gain of its measured pieces.

    That is calls x (time as it is - time changed), in the step. The ratio of the two times holds for the recorded time
    of the calls where that is the shorter one. Where it is the longer one, something else than the shapes was at work
    in the step (its load, its caches, the program between the ops), of which the change takes nothing away: the gain is
    no more than what the pieces saved while they were timed. The formula's gain stays for the share of the work that
    was not measured. Where the middle of what the pieces show is a loss, the finding says so and promises nothing.
    Where only its lower end is, the gain reaches below nothing.
    """
    if draft.slug not in MEASURABLE:
        return draft
    pieces = _pieces_of(evidence, draft)
    if pieces and (others := _crowd(evidence)) is not None:
        words = f"its pieces were timed beside other programs, which kept {others:.1f} processors busy"
        return draft if draft.gain_us is None else replace(draft, by_formula=words)
    library = [piece for piece in pieces if piece.change == LIBRARY_OP]
    own = [piece for piece in pieces if piece.change != LIBRARY_OP]
    draft = replace(draft, evidence=(*draft.evidence, *_library_words(library)))
    if not own:
        return draft if draft.gain_us is None else replace(draft, by_formula=_why_not_measured(evidence, draft))
    with_own = _with_gain_of(evidence, draft, own, draft.gain_us or Interval(0.0, 0.0))
    if with_own.gain_us is not None or not library:
        return with_own
    other = _with_gain_of(evidence, draft, library, Interval(0.0, 0.0))
    return with_own if other.gain_us is None else _by_library(other, own)


def _with_gain_of(evidence: Evidence, draft: Draft, pieces: Sequence[MeasuredPiece], formula: Interval) -> Draft:
    """Gives the finding with the gain of these pieces, or the reason.

    The reason says why there is no gain. ``formula`` is the gain of all of its work.
    """
    change = max(pieces, key=_weight).change
    pieces = [piece for piece in pieces if piece.change == change]
    part = min(math.fsum(piece.share for piece in pieces), 1.0)
    on_path = _part_on_path(evidence, draft)
    gain = _gain_of_all(evidence, pieces)
    low = on_path * gain.low + (1.0 - part) * formula.low
    high = on_path * (gain.high - _entered_us(evidence, pieces))
    high += (1.0 - part) * formula.high
    words = () if change == LIBRARY_OP else (_words(pieces, part),)
    if low + high < 2 * _LEAST_GAIN * evidence.step_us:
        return replace(
            draft,
            evidence=(*draft.evidence, *words),
            gain_us=None,
            gain_reason=f"no gain is expected: {_loss_words(pieces)}",
            claims={},
            transformation=None,
            basis="timed",
        )
    return replace(
        draft,
        evidence=(*draft.evidence, *words),
        gain_us=Interval(min(low, high), high),
        gain_reason=None,
        claims=_claims(draft, high),
        transformation=None,
        basis="timed",
        most_us=high,
    )


def _by_library(draft: Draft, compiled: Sequence[MeasuredPiece]) -> Draft:
    """Gives the finding whose gain only the library's ops bring.

    `verify` cannot write these into the program.
    """
    words = f"torch.compile gains nothing here: {_loss_words(compiled)}"
    return replace(draft, evidence=(*draft.evidence, words), advice=_CALL_LIBRARY, tries=())


def _library_words(pieces: Sequence[MeasuredPiece]) -> tuple[str, ...]:
    """Gives the measurement of the library's ops in one line.

    None without any.
    """
    if not pieces:
        return ()
    before_us, after_us = _per_step_us(pieces)
    names = "; ".join(dict.fromkeys(piece.what for piece in pieces))
    return (
        f"the library has one op for it: {names}: {format_us(before_us)} to {format_us(after_us)} per step, forward, "
        "measured here (bottleneck run --probe)",
    )


def _why_not_measured(evidence: Evidence, draft: Draft) -> str:
    """Gives the reason for a formula's gain in place of measured pieces."""
    recorded = None if evidence.recording is None else evidence.recording.pieces
    if recorded is None:
        return "pieces of this step were not timed (bottleneck run --probe does)"
    tried = [piece for piece in recorded.pieces if piece.finding == draft.slug and piece.change != LIBRARY_OP]
    if tried:
        return f"{tried[0].what} could not be timed: {tried[0].reason}"
    return "its pieces found no time (bottleneck run --probe-budget 60 has more)"


# Other programs may take so much of a processor beside those that the program has no threads for.
_ROOM = 0.3


def _crowd(evidence: Evidence) -> float | None:
    """Counts processors that other programs took during the timing.

    They left too few for the program's threads while pieces were timed. Null where they left enough, and where a device
    does the work or the load is not known.
    """
    recording = evidence.recording
    if recording is None or recording.pieces is None or not evidence.is_host_only:
        return None
    others, threads = recording.pieces.other_processors, recording.pieces.threads
    if others is None or not threads or not recording.processors:
        return None
    return others if others > max(recording.processors - threads, 0) + _ROOM else None


def _pieces_of(evidence: Evidence, draft: Draft) -> list[MeasuredPiece]:
    recorded = None if evidence.recording is None else evidence.recording.pieces
    all_pieces = () if recorded is None else recorded.pieces
    return [piece for piece in all_pieces if piece.finding == draft.slug and piece.ratio is not None]


def measured_layout_us(evidence: Evidence) -> Interval | None:
    """Gives the saving per step of convolutions by pixels.

    It is less than nothing where they cost, and null where none was timed. Pooling and normalization are left out: a
    compiler that lays images by pixels makes these loops itself.
    """
    recorded = None if evidence.recording is None else evidence.recording.pieces
    pieces = () if recorded is None or _crowd(evidence) is not None else recorded.pieces
    timed = [
        piece for piece in pieces if piece.kind == _LAYOUT and piece.ratio is not None and _CONVOLVES.match(piece.what)
    ]
    return _gain_of_all(evidence, timed) if timed else None


def _gain_of_all(evidence: Evidence, pieces: Sequence[MeasuredPiece]) -> Interval:
    """Saving per step of the change in all calls of these pieces.

    Images that are turned at each op are not left so: a layout that gains without that gains nothing at worst.
    """
    gains = [_gain(evidence, piece) for piece in pieces]
    low, high = math.fsum(gain.low for gain in gains), math.fsum(gain.high for gain in gains)
    if pieces and pieces[0].kind == _LAYOUT:
        unturned_us = math.fsum(_gain(evidence, replace(piece, at_worst=None)).low for piece in pieces)
        low = max(low, min(unturned_us, 0.0))
    return Interval(low, high)


def _weight(piece: MeasuredPiece) -> float:
    """Gives the saving of a piece by its change.

    Where several changes were timed, the best of them is advised.
    """
    assert piece.ratio is not None
    assert piece.as_is_us is not None
    return piece.calls * piece.as_is_us.median * (1.0 - piece.ratio.median)


def _gain(evidence: Evidence, piece: MeasuredPiece) -> Interval:
    """Gives the saving per step of the piece's change in all calls.

    It is negative where the change costs.
    """
    assert piece.ratio is not None
    assert piece.as_is_us is not None
    alone_us, most_us = (piece.calls * us for us in (piece.as_is_us.median, piece.as_is_us.high))
    amounts = [alone_us if piece.recorded_us is None else min(piece.recorded_us, most_us)]
    if piece.recorded_us is not None and most_us < piece.recorded_us:
        amounts.append(alone_us)
    most = max(piece.ratio.high, piece.at_worst.high if piece.at_worst is not None else 0.0)
    # Entering compiled code takes a part of each call, which a model that is compiled as a whole does once.
    entry_us = evidence.analysis.device.compiled_call_us if piece.kind == "chain" else None
    least = piece.ratio.low - (entry_us / piece.as_is_us.median if entry_us else 0.0)
    lows, highs = [us * (1.0 - most) for us in amounts], [us * (1.0 - max(least, 0.0)) for us in amounts]
    return Interval(min(lows), max(highs))


def _entered_us(evidence: Evidence, pieces: Sequence[MeasuredPiece]) -> float:
    """Gives the time to enter compiled code once per step.

    A model that is compiled as a whole enters it once.
    """
    return (evidence.analysis.device.compiled_call_us or 0.0) if any(piece.kind == "chain" for piece in pieces) else 0.0


def _part_on_path(evidence: Evidence, draft: Draft) -> float:
    """Gives the part of the device's time that the step gains.

    It is by the formula, which knows the critical path.
    """
    claimed_us = math.fsum(us for name, us in draft.claims.items() if name.startswith("kernel:"))
    if evidence.is_host_only or draft.gain_us is None or claimed_us <= 0:
        return 1.0
    return min(draft.gain_us.high / claimed_us, 1.0)


def _claims(draft: Draft, high_us: float) -> dict[str, float]:
    """The claims of the formula, raised to the gain that was measured."""
    claimed_us = math.fsum(draft.claims.values())
    factor = max(high_us / claimed_us, 1.0) if claimed_us > 0 else 1.0
    return {name: us * factor for name, us in draft.claims.items()}


def _words(pieces: Sequence[MeasuredPiece], part: float) -> str:
    """The measurement in one line."""
    before_us, after_us = _per_step_us(pieces)
    what = f"{counted(len(pieces), 'piece')}, {format_share(part)} of this work" if part < 1 else "these shapes"
    return f"measured here on {what}: {format_us(before_us)} to {format_us(after_us)} per step (bottleneck run --probe)"


def _per_step_us(pieces: Sequence[MeasuredPiece]) -> tuple[float, float]:
    timings = [(piece.calls, piece.as_is_us, piece.changed_us) for piece in pieces]
    before = math.fsum(calls * before.median for calls, before, _ in timings if before is not None)
    after = math.fsum(calls * after.median for calls, _, after in timings if after is not None)
    return before, after


def _loss_words(pieces: Sequence[MeasuredPiece]) -> str:
    worst = max(pieces, key=lambda piece: -_weight(piece))
    assert worst.as_is_us is not None
    assert worst.changed_us is not None
    return (
        f"{worst.what} takes {format_us(worst.changed_us.median)} with the change and "
        f"{format_us(worst.as_is_us.median)} without, measured here"
    )


def with_replayed_gain(evidence: Evidence, draft: Draft) -> Draft | None:
    """Gives the finding with the gain of a replay of its change.

    Null where the change saves nothing. On a CPU ops follow one another, so that the formulas of the rules add up what
    a replay would. Where a trace cannot be replayed the formula stays, with a wider interval. A replayed gain is no
    larger than the formula's bound, unless the rule names the accounts that it comes from.
    """
    made = draft.transformation
    if made is None or draft.gain_us is None or evidence.is_host_only or evidence.predict is None:
        return draft
    saved_us = evidence.predict(evidence, made.changes)
    if saved_us is None:
        return replace(draft, gain_us=Interval(_DOUBT * draft.gain_us.low, draft.gain_us.high))
    high_us = made.most * saved_us
    high_us = min(high_us, evidence.account_us(*made.accounts) if made.accounts else draft.gain_us.high)
    if high_us < _LEAST_GAIN * evidence.step_us:
        return None
    claims = claims_of(evidence, *made.accounts, most_us=high_us) if made.accounts else draft.claims
    return replace(draft, gain_us=Interval(high_us * made.least / made.most, high_us), claims=claims, basis="replayed")
