"""Peak memory from lifetimes that can be added up by hand."""

from hypothesis import given
from hypothesis import strategies as st

from bottleneck.predict.peak_memory import BLOCK_BYTES, RESERVED_BYTES, fits, largest_batch, step_memory
from bottleneck.schema.step_calls import BEFORE_THE_STEP, EngineSettings, StepCall, StepCalls, Storage, StorageKind

KIB = 1024


def _calls(*storages: Storage, phases: tuple[str, ...] = ("forward", "forward", "backward", "optimizer")) -> StepCalls:
    calls = [StepCall(f"aten::op{number}", "[]", "[]", "[]", "[]", phase=phase) for number, phase in enumerate(phases)]  # type: ignore[arg-type]
    return StepCalls("program.py", "fake step", calls, EngineSettings(), storages=storages)


def _made(kib: int, created: int, freed: int | None, kind: StorageKind = "activation") -> Storage:
    return Storage(kib * KIB, kind, created, freed)


def test_the_peak_of_a_step_is_where_most_is_alive_at_once() -> None:
    memory = step_memory(
        _calls(
            Storage(8 * KIB, "parameter", BEFORE_THE_STEP),
            Storage(2 * KIB, "input", BEFORE_THE_STEP),
            _made(4, 0, 3),
            _made(16, 1, 2),
            _made(8, 2, None, "gradient"),
            _made(1, 3, None, "optimizer state"),
        )
    )
    assert memory is not None
    assert memory.peak_bytes == (8 + 2 + 4 + 16) * KIB
    assert memory.phase == "forward"
    assert (memory.parameter_bytes, memory.input_bytes, memory.activation_bytes) == (8 * KIB, 2 * KIB, 20 * KIB)
    assert memory.gradient_bytes == memory.optimizer_bytes == 0


def test_memory_that_is_freed_before_a_call_does_not_meet_what_the_call_makes() -> None:
    apart = step_memory(_calls(_made(4, 0, 2), _made(4, 2, None)))
    together = step_memory(_calls(_made(4, 0, 3), _made(4, 2, None)))
    assert apart is not None
    assert together is not None
    assert (apart.peak_bytes, together.peak_bytes) == (4 * KIB, 8 * KIB)


def test_small_tensors_take_a_whole_block_of_the_allocator() -> None:
    memory = step_memory(_calls(Storage(1, "input", BEFORE_THE_STEP), Storage(513, "input", BEFORE_THE_STEP)))
    assert memory is not None
    assert memory.peak_bytes == 3 * BLOCK_BYTES


def test_without_lifetimes_the_memory_is_not_known() -> None:
    assert step_memory(_calls()) is None


def test_a_step_fits_only_beside_what_cuda_takes_itself() -> None:
    assert fits(8 * KIB, 8 * KIB + RESERVED_BYTES)
    assert not fits(8 * KIB + 1, 8 * KIB + RESERVED_BYTES)


def test_the_largest_batch_lies_on_the_line_through_the_peaks() -> None:
    points = [(2, 1100 + 200), (4, 1100 + 400), (1, 1100 + 350)]
    assert largest_batch(points, RESERVED_BYTES + 1100 + 1000) == 10
    assert largest_batch(points, RESERVED_BYTES + 1000) == 0


def test_one_batch_size_or_memory_that_does_not_grow_tells_no_largest_batch() -> None:
    assert largest_batch([(2, 1300)], 2 * RESERVED_BYTES) is None
    assert largest_batch([(2, 1300), (4, 1300)], 2 * RESERVED_BYTES) is None


_LIVES = st.tuples(st.integers(1, 64), st.integers(-1, 3), st.one_of(st.none(), st.integers(0, 4)))


@given(st.lists(_LIVES, min_size=1, max_size=8), _LIVES)
def test_one_more_tensor_never_lowers_the_peak(
    lives: list[tuple[int, int, int | None]], more: tuple[int, int, int | None]
) -> None:
    few = step_memory(_calls(*(_made(*life) for life in lives)))
    many = step_memory(_calls(*(_made(*life) for life in (*lives, more))))
    assert few is not None
    assert many is not None
    assert few.peak_bytes <= many.peak_bytes <= few.peak_bytes + more[0] * KIB
