"""A budget of seconds over pieces: what is measured, left out, skipped for an error, and kept after an interruption."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from bottleneck.experiment.pieces.measure import PieceBudget, measure_pieces
from bottleneck.experiment.pieces.specs import PieceSpec
from bottleneck.experiment.pieces.timing import PieceTimes
from bottleneck.experiment.worker import NO_TIME, Refused
from bottleneck.pipeline import explain
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.measurements import MeasuredPieces, Ratio, Timing
from bottleneck.schema.recording import read_recording
from tests.advice.programs import Call, on_cpu

MS = 1000.0
# As long as the chain that was recorded: a finding gains no more than its timed piece saves.
TIMES = PieceTimes(
    Timing(160_000.0, 158_400.0, 161_600.0, 9), Timing(80_000.0, 78_400.0, 81_600.0, 9), Ratio(0.5, 0.49, 0.51, 9), None
)


@dataclass
class Machine:
    """Processes of the test's own: each piece takes so many seconds of their clock, or raises."""

    seconds: dict[str, float | Exception | type[BaseException]] = field(default_factory=dict)
    now_s: float = 0.0
    until: float = 0.0
    load_s: float = 1.0
    started: int = 0
    asked: list[str] = field(default_factory=list)

    def open(self, until: float, _log: Path) -> Self:
        self.until = until
        self.started += 1
        return self

    def clock(self) -> float:
        return self.now_s

    def load(self, _threads: int | None) -> str:
        self._pass(self.load_s)
        return "2.13.0"

    def measure(self, spec: PieceSpec, _device: str) -> PieceTimes:
        self.asked.append(spec.what)
        taken = self.seconds.get(spec.what, 1.0)
        if not isinstance(taken, float):
            raise taken
        self._pass(taken)
        return TIMES

    def _pass(self, seconds: float) -> None:
        self.now_s = min(self.now_s + seconds, self.until)
        if self.now_s >= self.until:
            raise Refused("skipped", NO_TIME)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def spec(what: str, kind: str = "layout", recorded_us: float = 100.0) -> PieceSpec:
    return PieceSpec(kind, "unfused-chain", "compile", what, 1.0, recorded_us, 0.5, promise_us=10.0)


@pytest.fixture
def explained(tmp_path: Path) -> Explanation:
    on_cpu(tmp_path, [Call("aten::mul_", 20 * MS, [[25_000_000], []])] * 8)
    return explain([tmp_path])


def run(machine: Machine, explained: Explanation, *names: str, budget_s: float = 10.0) -> MeasuredPieces:
    budget = PieceBudget(budget_s, machine.open, machine.clock)
    return budget.measure([spec(name) for name in names], explained)


def test_pieces_are_measured_in_their_order(explained: Explanation) -> None:
    machine = Machine()
    found = run(machine, explained, "a", "b")
    assert [piece.what for piece in found.pieces] == ["a", "b"]
    assert all(piece.ratio == TIMES.ratio for piece in found.pieces)
    assert found.spent_s == pytest.approx(3.0)
    assert found.torch == "2.13.0"
    assert not found.left_out


def test_the_load_of_other_programs_is_kept_beside_the_times(explained: Explanation) -> None:
    for readings, expected in (((40.0, 44.5), 1.5), ((None, None), None)):
        machine, seconds = Machine(), iter(readings)
        budget = PieceBudget(10.0, machine.open, machine.clock, seconds_of_others=lambda taken=seconds: next(taken))
        found = budget.measure([spec("a"), spec("b")], explained)
        assert found.spent_s == pytest.approx(3.0)
        assert found.other_processors == expected


def test_a_piece_that_takes_too_long_ends_the_process_and_is_named(explained: Explanation) -> None:
    machine = Machine({"b": 60.0})
    found = run(machine, explained, "a", "b", "c")
    assert [piece.what for piece in found.pieces] == ["a"]
    assert found.left_out == ("b (compile, about 1 s)", "c (compile, about 1 s)")
    assert machine.asked == ["a", "b"]


@pytest.mark.parametrize("machine", [Machine({"a": 60.0}), Machine({"a": 4.0, "b": 60.0}), Machine(load_s=60.0)])
def test_no_piece_and_no_start_goes_beyond_the_budget(explained: Explanation, machine: Machine) -> None:
    found = run(machine, explained, "a", "b", "c")
    assert found.spent_s < 10.0
    assert machine.until < 10.0


def test_the_time_before_the_first_piece_belongs_to_the_budget(explained: Explanation) -> None:
    machine = Machine(now_s=8.0)
    budget = PieceBudget(10.0, machine.open, machine.clock)
    found = budget.measure([spec("a"), spec("b")], explained, began=0.0)
    assert [piece.what for piece in found.pieces] == []
    assert found.left_out
    assert found.spent_s < 10.0


def test_a_piece_that_does_not_fit_leaves_its_time_to_those_that_do(explained: Explanation) -> None:
    machine = Machine()
    budget = PieceBudget(5.0, machine.open, machine.clock)
    long = spec("a long op", recorded_us=1e6)
    found = budget.measure([spec("a chain", "chain"), long, spec("a product")], explained)
    assert [piece.what for piece in found.pieces] == ["a product"]
    assert machine.asked == ["a product"]
    assert found.left_out == ("a chain (compile, about 8 s)", "a long op (compile, about 19 s)")


def test_a_chain_that_may_be_in_the_cache_is_tried_last_in_the_time_that_is_left(explained: Explanation) -> None:
    machine = Machine({"a chain": 60.0})
    budget = PieceBudget(8.0, machine.open, machine.clock)
    found = budget.measure([spec("a chain", "chain"), spec("a product")], explained)
    assert machine.asked == ["a product", "a chain"]
    assert [piece.what for piece in found.pieces] == ["a product"]
    assert found.spent_s < 8.0
    quick = Machine({"a chain": 3.5})
    budget = PieceBudget(8.0, quick.open, quick.clock)
    assert not budget.measure([spec("a chain", "chain"), spec("a product")], explained).left_out


def test_a_busy_machine_begins_no_chain_that_would_not_fit_at_its_pace(explained: Explanation) -> None:
    machine = Machine({"a product": 3.5})
    budget = PieceBudget(10.0, machine.open, machine.clock)
    found = budget.measure([spec("a product"), spec("a chain", "chain")], explained)
    assert machine.asked == ["a product"]
    assert found.left_out == ("a chain (compile, about 8 s)",)


def test_a_slow_start_leaves_the_rest_to_a_piece_that_may_fit(explained: Explanation) -> None:
    machine = Machine({"a": 0.9}, load_s=8.0)
    found = run(machine, explained, "a", "b")
    assert [piece.what for piece in found.pieces] == ["a"]
    assert found.spent_s < 10.0


def test_an_error_of_one_piece_skips_that_piece_alone(explained: Explanation) -> None:
    machine = Machine({"a": Refused("failed", "InductorError: no C++ compiler"), "b": 1.0})
    found = run(machine, explained, "a", "b")
    assert found.pieces[0].reason == "InductorError: no C++ compiler"
    assert found.pieces[0].ratio is None
    assert found.pieces[1].reason is None
    assert machine.started == 1


def test_a_process_that_a_piece_ends_is_started_anew_for_the_others(explained: Explanation) -> None:
    machine = Machine({"a": Refused("failed", "its process was killed by SIGKILL", has_died=True)})
    found = run(machine, explained, "a", "b")
    assert found.pieces[0].reason == "its process was killed by SIGKILL"
    assert found.pieces[1].ratio is not None
    assert machine.started == 2


def test_an_interruption_keeps_what_was_measured(explained: Explanation) -> None:
    found = run(Machine({"b": KeyboardInterrupt}), explained, "a", "b")
    assert [piece.what for piece in found.pieces] == ["a"]
    assert found.left_out == ("b (compile, about 1 s)",)


def test_an_interruption_says_what_is_kept(explained: Explanation, tmp_path: Path) -> None:
    what, lines = "mul_, mul_, mul_ and 5 ops more on 25000000", list[str]()
    told(explained, tmp_path, Machine({what: KeyboardInterrupt}), lines.append)
    assert lines[1:] == ["interrupted; 0 pieces of 1 timed, which the findings use"]
    recorded = read_recording(tmp_path).pieces
    assert recorded is not None
    assert len(recorded.left_out) == 1


def test_no_budget_starts_no_process(explained: Explanation, tmp_path: Path) -> None:
    machine = Machine()
    budget = PieceBudget(0.0, machine.open, machine.clock)
    assert measure_pieces(explained, tmp_path, budget) is explained
    assert machine.started == 0


def told(explained: Explanation, folder: Path, machine: Machine, say: Callable[[str], None]) -> Explanation:
    return measure_pieces(
        explained, folder, PieceBudget(10.0, machine.open, machine.clock, seconds_of_others=float), say
    )


def test_pieces_come_into_the_recording_and_into_the_findings(explained: Explanation, tmp_path: Path) -> None:
    lines: list[str] = []
    found = told(explained, tmp_path, Machine(), lines.append)
    assert lines[0] == ("timing 1 part of the step, as it is and changed, for at most 10 s (--probe-budget)")
    recorded = read_recording(tmp_path).pieces
    assert recorded is not None
    assert recorded.pieces[0].what == "mul_, mul_, mul_ and 5 ops more on 25000000"
    [chain] = [each for each in found.analysis.findings if each.slug == "unfused-chain"]
    assert chain.measured
    assert any("measured here" in line for line in chain.evidence)
    assert explain([tmp_path]).analysis == found.analysis


def test_what_was_left_out_and_what_failed_is_told(explained: Explanation, tmp_path: Path) -> None:
    lines: list[str] = []
    what = "mul_, mul_, mul_ and 5 ops more on 25000000"
    told(explained, tmp_path, Machine({what: 60.0}), lines.append)
    assert lines[1] == (
        f"1 piece left out for lack of time: {what} (compile, about 11 s); to measure more: "
        "bottleneck run --probe-budget 60"
    )
    told(explained, tmp_path, Machine({what: Refused("failed", "MemoryError")}), lines.append)
    assert lines[3] == f"not measured: {what}: MemoryError"


def test_a_recording_that_cannot_be_written_is_explained_all_the_same(
    explained: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("bottleneck.experiment.pieces.measure.write_recording", refuse)
    found = told(explained, tmp_path, Machine(), lambda _: None)
    assert found.analysis.pieces is not None
    assert read_recording(tmp_path).pieces is None
