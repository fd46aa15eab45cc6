"""Rules for what stops the host: what each is worth, and where it is silent."""

from pathlib import Path

import pytest

from bottleneck.advice import host
from bottleneck.advice.ranking import Draft
from bottleneck.advice.small_steps import larger_batch
from bottleneck.schema.analysis import IdleCause, Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BusyThread, OtherThreads
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, gpu_events, idle_row, with_ledger, with_recording
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step

WORK = {"memory": 1000.0}


def gpu(folder: Path, accounts: dict[str, float], *idle: IdleCause) -> Evidence:
    return with_ledger(case_of(folder, gpu_events(12, 100, 10)), accounts, idle or None)


def cpu(folder: Path, accounts: dict[str, float], *idle: IdleCause) -> Evidence:
    return with_ledger(case_of(folder, cpu_events(10, 3, 8), unprofiled_us=90.0), accounts, idle or None)


def waiting(kernel_us: float, call: str = "cudaStreamSynchronize") -> list[dict[str, object]]:
    """Two kernels of which the second is launched once the host has waited for the first."""
    end = 20 + kernel_us
    return [
        step(0, 0, 2 * kernel_us + 200),
        frame("train.py(12): train", 0, 2 * kernel_us + 200),
        op("aten::mul", 2, 8, external_id=1),
        launch(1, 4, 4),
        kernel(1, 20, kernel_us),
        op("aten::item", 12, end + 8 - 12, external_id=2),
        launch(7, 14, end + 6 - 14, call),
        op("aten::mul", end + 20, 12, external_id=3),
        launch(3, end + 25, 5),
        kernel(3, end + 40, kernel_us),
        op("aten::mul", end + 45, 12, external_id=4),
        launch(4, end + 47, 5),
        kernel(4, end + 40 + kernel_us, 60),
    ]


def test_a_wait_is_worth_the_idle_time_of_the_device_not_its_own_length(tmp_path: Path) -> None:
    case = case_of(tmp_path, waiting(2000))
    draft = host.host_sync(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(case.step_us - 2 * 2000 - 60, abs=1)
    assert sum(draft.claims.values()) <= draft.gain_us.high + 1e-6
    assert any("train.py:12" in words for words in draft.evidence)


def test_a_wait_behind_a_busy_device_counts_where_the_host_is_late_afterwards(tmp_path: Path) -> None:
    """One long kernel, a wait for it, and 40 small ones that the host could have launched meanwhile."""
    events = [
        step(0, 0, 1900),
        op("aten::mm", 2, 8, external_id=1),
        launch(1, 4, 4),
        kernel(1, 20, 1000),
        op("aten::item", 12, 1016, external_id=2),
        launch(7, 14, 1012, "cudaStreamSynchronize"),
    ]
    for number in range(40):
        at = 1030 + 20 * number
        events += [op("aten::mul", at, 15, external_id=10 + number), launch(10 + number, at + 5, 5)]
        events += [kernel(10 + number, at + 14, 3)]
    case = case_of(tmp_path, events)
    draft = host.host_sync(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.title == "The host waits for the device, and launches late for it"
    assert 500 < draft.gain_us.high <= 820
    assert case.predict is not None
    replayed_us = case.predict(case, ("remove sync",))
    assert replayed_us is not None and 0.2 * case.step_us < replayed_us <= draft.gain_us.high * 1.2


def test_a_wait_for_the_whole_device_is_a_call_of_synchronize_and_no_value(tmp_path: Path) -> None:
    """A loop that timed its steps was told to keep a value on the device; it read none."""
    read = host.host_sync(case_of(tmp_path / "read", waiting(2000)))
    timed = host.host_sync(case_of(tmp_path / "timed", waiting(2000, "cudaDeviceSynchronize")))
    assert read is not None and read.advice.startswith("Keep on the device what .item()")
    assert timed is not None and "torch.cuda.synchronize()" in timed.advice and "Event" in (timed.code or "")
    assert timed.gain_us == read.gain_us


def request(number: int) -> list[dict[str, object]]:
    """A step of 3 ms: 1 ms of Python, 2 ms of a kernel, and the wait for its result."""
    at = 3000 * number
    return [
        step(number, at, 3000),
        op("aten::mm", at + 1000, 8, external_id=number),
        launch(100 + number, at + 1002, 4),
        kernel(100 + number, at + 1012, 1900),
        op("aten::item", at + 1020, 1900, external_id=number),
        launch(200 + number, at + 1022, 1895, "cudaStreamSynchronize"),
    ]


def test_a_wait_for_the_result_of_a_single_step_can_not_be_spared(tmp_path: Path) -> None:
    assert host.host_sync(case_of(tmp_path / "one", request(0))) is None
    several = host.host_sync(case_of(tmp_path / "several", [each for number in range(4) for each in request(number)]))
    assert several is not None and several.gain_us is not None and several.gain_us.high > 500


def test_most_of_the_waiting_for_the_result_is_no_late_launch(tmp_path: Path) -> None:
    """A pipeline was told to spare the .cpu() that gave its picture, because it had also copied a few tokens before."""

    def pipeline(read_us: float) -> list[dict[str, object]]:
        """Forty small kernels that are launched late behind a read, a long one, and the wait for its result."""
        events = [step(0, 0, 6000), launch(1, 4, 4), kernel(1, 20, read_us), op("aten::item", 12, read_us + 16)]
        events.append(launch(7, 14, read_us + 12, "cudaStreamSynchronize"))
        for number in range(40):
            at = read_us + 30 + 20 * number
            events += [op("aten::mul", at, 15, external_id=10 + number), launch(10 + number, at + 5, 5)]
            events += [kernel(10 + number, at + 14, 3)]
        end = read_us + 900
        events += [launch(2, end, 4), kernel(2, end + 10, 2000), op("aten::to", end + 10, 2010)]
        return [*events, launch(8, end + 12, 2006, "cudaStreamSynchronize"), op("aten::mul", end + 2100, 700)]

    assert host.host_sync(case_of(tmp_path / "result", pipeline(100))) is None
    between = host.host_sync(case_of(tmp_path / "between", pipeline(2500)))
    assert between is not None and between.gain_us is not None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "copy it back without waiting"),
        ([op("autograd::engine::evaluate_function: MulBackward0", 2040, 2)], "every so many steps"),
        ([complete("Optimizer.step#SGD.step", "user_annotation", 2040, 2)], "every so many steps"),
        ([op("aten::nonzero", 11, 2019, external_id=9)], "Boolean masks"),
        ([op("aten::index", 11, 2019, external_id=9)], "copy it back without waiting"),
    ],
    ids=["inference", "a backward pass", "an optimizer", "a choice", "no choice"],
)
def test_advice_on_a_wait_fits_what_is_read(tmp_path: Path, more: list[Event], words: str) -> None:
    """An image pipeline was told to keep its losses."""
    draft = host.host_sync(case_of(tmp_path, [*waiting(2000), *more]))
    assert draft is not None and words in draft.advice
    assert ("losses" in (draft.code or "")) == (words == "every so many steps")


CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"


def scaled(folder: Path, *more: Event) -> Evidence:
    """A wait behind a kernel that checks gradients for overflow, and what else there is."""
    events = [event | ({"name": CHECK} if event["ts"] == 2 else {}) for event in waiting(2000)]
    return case_of(folder, [*events, *more])


def test_a_wait_of_the_gradient_scaler_is_told_of_optimizers_that_look_themselves(tmp_path: Path) -> None:
    draft = host.host_sync(scaled(tmp_path / "next"))
    assert draft is not None and "scaler" in draft.advice and "fused=True" in (draft.code or "")
    clipped = op("aten::_foreach_mul_", 10.5, 1)
    plain = host.host_sync(scaled(tmp_path / "between", clipped))
    assert plain is not None and "scaler" not in plain.advice
    called = frame("torch/amp/grad_scaler.py(370): _maybe_opt_step", 11, 2100)
    by_frame = host.host_sync(scaled(tmp_path / "frame", clipped, called))
    assert by_frame is not None and "scaler" in by_frame.advice


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        (complete("## all2all_data:lengths ##", "user_annotation", 11, 2100), True),
        (op("c10d::alltoall_base_", 2032, 4), True),
        (complete("## forward ##", "user_annotation", 11, 2100), False),
        (op("c10d::allreduce_", 2032, 4), False),
    ],
    ids=["in a mark", "before the op", "in another mark", "before another op"],
)
def test_a_read_of_the_sizes_of_an_exchange_is_to_come_earlier(tmp_path: Path, more: Event, is_told: bool) -> None:
    draft = host.host_sync(case_of(tmp_path, [*waiting(2000), more]))
    assert draft is not None and ("sizes (splits) of an all-to-all" in draft.advice) == is_told


def test_only_sizes_that_come_from_the_data_can_be_read_earlier(tmp_path: Path) -> None:
    mark, exchange = complete("## all2all_data:lengths ##", "user_annotation", 11, 2100), op("c10d::alltoall_", 2032, 4)
    of_data, of_router = (
        host.host_sync(case_of(tmp_path / name, [*waiting(2000), more]))
        for name, more in (("data", mark), ("router", exchange))
    )
    assert of_data is not None and "next batch's all-to-all during this batch" in (of_data.brief or "")
    assert of_router is not None and (of_router.brief or "").startswith("Fix the sizes")


@pytest.mark.parametrize(
    ("nbytes", "collective", "is_told"),
    [(16, "all_to_allv", True), (4, "all_to_allv", False), (16, "allreduce", False)],
)
def test_sizes_of_an_exchange_are_known_without_ops(
    tmp_path: Path, nbytes: int, collective: str, is_told: bool
) -> None:
    events = [event for event in waiting(2000) if event["cat"] != "cpu_op"]
    events += [launch(8, 12, 1, "cudaMemcpyAsync"), memcpy(8, 2020, 3, nbytes, "DtoH (Device -> Pinned)")]
    exchange = kernel(3, 2060, 2000, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    exchange["args"]["Collective name"] = collective  # type: ignore[index]
    events = [exchange if event["cat"] == "kernel" and event["ts"] == 2060 else event for event in events]
    draft = host.host_sync(case_of(tmp_path, events))
    assert draft is not None and ("sizes (splits) of an all-to-all" in draft.advice) == is_told


def test_a_read_beside_no_scaler_is_a_value_that_is_kept(tmp_path: Path) -> None:
    called = frame("torch/amp/grad_scaler.py(370): _maybe_opt_step", 11, 2100)
    draft = host.host_sync(case_of(tmp_path, [*waiting(2000), called]))
    assert draft is not None and "scaler" not in draft.advice


def test_a_wait_behind_a_busy_device_is_worth_nothing(tmp_path: Path) -> None:
    events = gpu_events(12, 100, 10, steps=1)
    assert host.host_sync(case_of(tmp_path, [*events, launch(900, 60, 30, "cudaStreamSynchronize")])) is None


def test_where_the_host_is_slow_anyway_only_the_waiting_itself_counts(tmp_path: Path) -> None:
    events = gpu_events(40, 3, 20, steps=1)
    case = case_of(tmp_path, [*events, launch(900, 410, 7, "cudaStreamSynchronize")])
    draft = host.host_sync(case)
    assert draft is None or (draft.gain_us is not None and draft.gain_us.high < 20)


def test_reading_numbers_on_a_cpu_is_worth_the_time_in_it(tmp_path: Path) -> None:
    events = [*cpu_events(10, 3, 8, steps=1), *(op("aten::item", 5 + 8 * at, 2) for at in range(10))]
    draft = host.item_calls(case_of(tmp_path / "cpu", events))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(20) and draft.gain_us.low == pytest.approx(10)
    assert "train.py:12" in draft.evidence[0]
    assert host.item_calls(case_of(tmp_path / "none", cpu_events(10, 3, 8))) is None


def test_pauses_of_the_garbage_collector_are_worth_up_to_their_length(tmp_path: Path) -> None:
    draft = host.gc_pauses(gpu(tmp_path, WORK | {"overhead.gc": 100.0}))
    assert draft is not None and draft.gain_us is not None and draft.tries == ("gc-freeze",)
    assert (draft.gain_us.low, draft.gain_us.high) == (50.0, 100.0)
    assert draft.claims == {"overhead.gc": 100.0}


def test_collections_that_the_program_calls_are_worth_what_they_take(tmp_path: Path) -> None:
    calls = idle_row("gc", 900.0, "train.py:16", detail="main > collect")
    draft = host.gc_pauses(gpu(tmp_path, {"memory": 100.0, "overhead.gc": 940.0}, calls))
    assert draft is not None and draft.removes
    assert draft.gain_us == Interval(pytest.approx(855.0), 940.0)
    assert draft.advice == "Take gc.collect() at train.py:16 out of the step."
    mostly_its_own = gpu(tmp_path / "b", {"memory": 100.0, "overhead.gc": 940.0}, idle_row("gc", 940.0))
    other = host.gc_pauses(mostly_its_own)
    assert other is not None and not other.removes and other.gain_us == Interval(470.0, 940.0)


def test_a_rare_but_long_pause_is_reported_and_a_short_one_is_not(tmp_path: Path) -> None:
    rare = gpu(tmp_path, {"memory": 1e6, "overhead.gc": 5e3}, idle_row("gc", 5e3, calls=0.1))
    assert host.gc_pauses(rare) is not None
    assert host.gc_pauses(gpu(tmp_path / "b", {"memory": 1e6, "overhead.gc": 5.0})) is None


def test_allocations_by_the_driver_are_worth_the_idle_time_in_them(tmp_path: Path) -> None:
    events = [*gpu_events(12, 100, 10, steps=2), launch(900, 1, 8, "cudaMalloc")]
    later = host.device_allocations(with_ledger(case_of(tmp_path / "two", events), WORK | {"overhead.allocator": 80.0}))
    assert later is not None and later.gain_us == Interval(40.0, 80.0) and later.advice.startswith("Let the caching")
    events = [*gpu_events(12, 100, 10, steps=1), launch(900, 1, 8, "cudaMalloc")]
    case = with_ledger(case_of(tmp_path, events), WORK | {"overhead.allocator": 80.0})
    draft = host.device_allocations(case)
    assert draft is not None and draft.gain_us == Interval(0.0, 80.0)
    assert draft.advice.startswith("Record later steps to see whether they allocate too")
    assert draft.evidence[0].startswith("1 call of the driver's allocator per step")
    assert host.device_allocations(gpu(tmp_path / "b", WORK | {"overhead.allocator": 80.0})) is None


def test_a_cache_that_the_program_empties_is_told_with_its_line(tmp_path: Path) -> None:
    called = frame("torch/cuda/memory.py(162): empty_cache", 1, 12)
    events = [*gpu_events(12, 100, 10, steps=1), called, launch(900, 2, 8, "cudaFree")]
    draft = host.device_allocations(with_ledger(case_of(tmp_path, events), WORK | {"overhead.allocator": 80.0}))
    assert draft is not None
    assert draft.advice.startswith("Take torch.cuda.empty_cache() in train() (train.py:12) out of the step")
    assert "1 call of empty_cache() per step" in draft.evidence


def test_frees_inside_of_an_allocation_are_full_memory(tmp_path: Path) -> None:
    """A step of 370 ms beside others of 140 ms freed 17 segments in one aten::empty, and heard of empty_cache()."""
    frees = [launch(900 + index, 125 + 3 * index, 2, "cudaFree") for index in range(3)]
    events = [*gpu_events(12, 100, 10, steps=1), *frees]

    def draft_of(name: str, *more: Event) -> Draft | None:
        case = case_of(tmp_path / name, [*events, *more])
        return host.device_allocations(with_ledger(case, WORK | {"overhead.allocator": 80.0}))

    outside = draft_of("outside")
    full, library, made = (draft_of(name, op(f"aten::{name}", 124, 15)) for name in ("empty", "mm", "cat"))
    assert outside is not None and "segments that can grow" in outside.advice
    assert library is not None and "segments that can grow" in library.advice
    nested = draft_of("nested", op("c10d::alltoall_base_", 123, 18), op("aten::empty", 124, 15))
    for draft in (full, made, nested):
        assert draft is not None and draft.advice.startswith("Need less memory") and "3 frees" in draft.evidence[1]


def by_the_driver(folder: Path, taken: int, freed: int) -> Evidence:
    """Steps of 40 kernels in which the driver allocates and frees so often."""
    calls = [launch(900 + index, 0.5 + 20 * index, 4, "cudaMalloc") for index in range(taken)]
    calls += [launch(990 + index, 6.5 + 20 * index, 4, "cudaFree") for index in range(freed)]
    case = case_of(folder, [*gpu_events(40, 10, 30, steps=1), *calls])
    return with_ledger(case, WORK | {"overhead.allocator": 300.0})


def test_as_many_allocations_as_frees_as_tensors_are_a_missing_cache(tmp_path: Path) -> None:
    draft = host.caching_allocator_off(case := by_the_driver(tmp_path, 36, 34))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == 300
    assert draft.evidence[0].startswith("36 allocations and 34 frees by the driver per step, for 40 kernels")
    assert host.device_allocations(case) is None


@pytest.mark.parametrize(("taken", "freed"), [(36, 2), (6, 6)])
def test_a_cache_that_grows_or_is_emptied_once_is_not_off(tmp_path: Path, taken: int, freed: int) -> None:
    case = by_the_driver(tmp_path, taken, freed)
    assert host.caching_allocator_off(case) is None
    assert host.device_allocations(case) is not None


def test_saving_inside_the_step_is_no_work_of_it(tmp_path: Path) -> None:
    row = idle_row("python", 200.0, detail="main > save_checkpoint")
    case = cpu(tmp_path, WORK | {"overhead.python": 300.0}, row, idle_row("python", 100.0, detail="main"))
    draft = host.side_work(case)
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == 200
    assert host.python_call(case) is None
    assert host.side_work(cpu(tmp_path / "b", WORK | {"overhead.python": 100.0})) is None


def test_calls_of_an_experiment_tracker_are_no_work_of_the_step(tmp_path: Path) -> None:
    events = cpu_events(10, 3, 8, steps=2)
    log = "wandb/sdk/wandb_run.py(1779): log"
    calls = [frame(log, at + 40, 20) for at in (0, 90)]
    case = case_of(tmp_path / "log", [*events, *calls])
    draft = host.side_work(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(20 * case.host_scale)
    assert draft.evidence[1].startswith("wandb/sdk/wandb_run.py:1779: ")
    assert draft.most_us == draft.gain_us.high
    others = [frame("wandb/sdk/wandb_run.py(249): _loop_check_status", 1, 150)]
    assert host.side_work(case_of(tmp_path / "others", [*events, *others])) is None


def test_a_long_stretch_of_python_is_named_with_its_line(tmp_path: Path) -> None:
    row = idle_row("python", 5000.0, detail="main", calls=2.0)
    draft = host.python_call(cpu(tmp_path, {"memory": 1000.0, "overhead.python": 5000.0}, row))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == 5000
    assert "train.py:12" in draft.advice and draft.waits == (row,)
    assert draft.evidence[1] == "train.py:12: 5.00 ms in main, in 2 idle gaps"


SILENT = idle_row("python", 5000.0, None, detail="long stretches without any record")


@pytest.mark.parametrize(("steps", "silent_us"), [(1, 5000.0), (2, 5000.0), (1, 2000.0)])
def test_a_step_that_is_silent_promises_nothing(tmp_path: Path, steps: int, silent_us: float) -> None:
    row = replace(SILENT, us=silent_us)
    case = case_of(tmp_path, cpu_events(10, 3, 8, steps=steps), unprofiled_us=90.0)
    draft = host.python_call(with_ledger(case, {"memory": 4000.0, "overhead.python": silent_us}, [row]))
    assert draft is not None and draft.gain_us is None and draft.gain_reason is not None
    assert draft.comes_first == (silent_us > 4000.0)


def test_a_known_line_counts_before_less_at_no_known_line(tmp_path: Path) -> None:
    rows = [replace(SILENT, us=us, source=source) for us, source in ((2000.0, None), (1000.0, "f() (train.py:5)"))]
    draft = host.python_call(cpu(tmp_path, {"memory": 4000.0, "overhead.python": 3000.0}, *rows))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == 1000.0
    assert draft.waits == (rows[1],) and draft.title.startswith("Python in f() takes")


def test_python_at_several_places_is_not_given_to_the_first(tmp_path: Path) -> None:
    """Of 209 ms in eight functions 106 ms were normalize()'s, and the title gave it all of them."""
    rows = [idle_row("python", us, f"{name}() (train.py:{at})") for name, us, at in (("f", 2e3, 5), ("g", 1e3, 9))]
    draft = host.python_call(cpu(tmp_path, {"memory": 1000.0, "overhead.python": 3000.0}, *rows))
    assert draft is not None and draft.title.startswith("Python in f() and in 1 other place takes")
    assert draft.brief is not None and "and 1 other (below)" in draft.brief and draft.cannot_lose
    assert "what runs in f() (train.py:5) and in 1 other place out of the step" in draft.advice
    draft = host.python_call(cpu(tmp_path, {"memory": 1000.0, "overhead.python": 2000.0}, rows[0]))
    assert draft is not None and "other place" not in draft.title


def test_a_sleep_in_the_step_is_to_be_removed_and_worth_three_quarters_of_itself_at_least(tmp_path: Path) -> None:
    case = cpu(
        tmp_path, {"memory": 1000.0, "overhead.wait": 4000.0}, idle_row("wait", 4000, "train.py:9", detail="sleep")
    )
    draft = host.sleeping(case)
    assert draft is not None and host.waiting(case) is None
    assert draft.advice.startswith("Remove the sleep at train.py:9,")
    assert draft.gain_us is not None and (draft.gain_us.low, draft.gain_us.high) == (3000.0, 4000.0)
    assert draft.claims == {"overhead.wait": 4000.0}


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("queue.py: get", "Begin the work that the step waits for at train.py:9 earlier"),
        ("subprocess.py: communicate", "Start the process that the step waits for at train.py:9 earlier"),
    ],
)
def test_a_wait_for_others_is_worth_at_most_its_time(tmp_path: Path, call: str, advice: str) -> None:
    case = cpu(tmp_path, {"memory": 1000.0, "overhead.wait": 4000.0}, idle_row("wait", 4000, "train.py:9", detail=call))
    draft = host.waiting(case)
    assert draft is not None and host.sleeping(case) is None
    assert draft.advice.startswith(advice)
    assert draft.gain_us is not None and (draft.gain_us.low, draft.gain_us.high) == (2000.0, 4000.0)


def test_a_wait_for_threads_that_compute_in_python_names_what_lets_only_one_of_them_run(tmp_path: Path) -> None:
    row = idle_row("wait", 4000, "train.py:9", detail="threading.py: wait")
    case = cpu(tmp_path, {"memory": 1000.0, "overhead.wait": 4000.0}, row)
    draft = host.waiting(with_recording(case, source_texts={"train.py:9": "rows = [f.result() for f in futures]"}))
    assert (
        draft is not None
        and "at train.py:9, and make the pool once" in draft.advice
        and "one computes at a time" in draft.advice
    )


def test_a_step_that_hardly_waits_or_serves_requests_has_nothing_to_remove(tmp_path: Path) -> None:
    short, poll = (idle_row("wait", us, "train.py:9", detail=call) for us, call in ((15.0, "sleep"), (4000.0, "poll")))
    assert host.sleeping(cpu(tmp_path / "short", {"memory": 1000.0, "overhead.wait": 15.0}, short)) is None
    assert host.waiting(cpu(tmp_path / "poll", {"memory": 1000.0, "overhead.wait": 4000.0}, poll)) is None


@pytest.mark.parametrize(
    ("steps", "has_frames", "recorded", "words"),
    [
        (2, False, None, "Record with Python calls (profile(with_stack=True))"),
        (1, False, None, "Record several steps after warm-up, with Python calls"),
        (2, True, None, "while nothing else runs"),
        (2, True, "optimizer", "while nothing else runs"),
        (1, False, "optimizer", "bottleneck run --stacks train.py"),
        (1, False, "whole program", "mark where each ends with bottleneck.step()"),
    ],
)
def test_a_stretch_of_python_at_no_known_line_has_to_be_named_first(
    tmp_path: Path, steps: int, has_frames: bool, recorded: str | None, words: str
) -> None:
    """A start that `bottleneck run` had recorded was to be recorded with torch's profiler."""
    events = cpu_events(10, 3, 8, steps=steps)
    kept = [event for event in events if has_frames or event["cat"] != "python_function"]
    case = case_of(tmp_path, kept, step_source=recorded or "none")
    case = case if recorded else replace(case, recording=None)
    draft = host.python_call(with_ledger(case, {"memory": 1000.0, "overhead.python": 5000.0}, [SILENT]))
    assert draft is not None and draft.brief is not None and words in draft.advice and "None" not in draft.advice
    assert ("profile(with_stack=True)" in draft.brief) == (recorded is None and not has_frames)


@pytest.mark.parametrize(
    ("loop", "source", "is_framework"),
    [
        ("lightning/pytorch/trainer/trainer.py(560): fit", "train.py:12", True),
        ("/env/site-packages/transformers/trainer.py(2200): _inner_training_loop", "trainer.py:2200", True),
        ("lightning/pytorch/trainer/trainer.py(560): fit", "model.py:7", False),
        ("mine/trainer.py(560): fit", "train.py:12", False),
    ],
)
def test_a_frameworks_own_loop_is_not_to_be_taken_out(
    tmp_path: Path, loop: str, source: str, is_framework: bool
) -> None:
    events = cpu_events(10, 3, 8, steps=2)
    events += [frame(loop, 1, 150), frame("model.py(7): training_step", 20, 30)]
    accounts = {"memory": 1000.0, "overhead.python": 5000.0}
    case = with_ledger(case_of(tmp_path, events), accounts, [idle_row("python", 5000.0, source, detail="x", calls=2.0)])
    draft = host.python_call(case)
    assert draft is not None and ("framework" in draft.title) == is_framework
    assert ("out of the step" in draft.advice) != is_framework


@pytest.mark.parametrize(("us", "is_told"), [(6000.0, True), (4000.0, False)])
def test_python_that_holds_a_twentieth_of_the_step_is_told(tmp_path: Path, us: float, is_told: bool) -> None:
    """An image pipeline walked over its hooks for 24 of 250 ms, and its report said nothing of it."""
    row = idle_row("python", us, "walk() (hooks.py:248)", detail="walk")
    accounts = {"memory": 100_000.0 - us, "overhead.python": us}
    assert (host.python_call(cpu(tmp_path, accounts, row)) is not None) == is_told


@pytest.mark.parametrize(("text", "is_told"), [("optimizer.zero_grad()", False), ("table = rank(rows)", True)])
def test_giving_gradients_back_is_no_python_to_take_out(tmp_path: Path, text: str, is_told: bool) -> None:
    """A training was to compute `optimizer.zero_grad()` once and keep it."""
    row = idle_row("python", 5000.0, detail="main", calls=2.0)
    case = cpu(tmp_path, {"memory": 1000.0, "overhead.python": 5000.0}, row)
    assert (host.python_call(with_recording(case, source_texts={"train.py:12": text})) is not None) == is_told


def test_many_short_stretches_of_python_are_the_ops_they_call(tmp_path: Path) -> None:
    short = idle_row("python", 5000.0, detail="main", calls=500.0)
    torch = idle_row("python", 900.0, detail="main > run_backward")
    accounts = {"memory": 1000.0, "overhead.python": 5900.0}
    assert host.python_call(cpu(tmp_path, accounts, short, torch)) is None


def test_a_frame_of_the_garbage_collector_in_a_trace_is_a_pause(tmp_path: Path) -> None:
    events = [*cpu_events(10, 3, 8, steps=1), complete("Python GC", "user_annotation", 84, 4)]
    case = case_of(tmp_path, events)
    draft = host.gc_pauses(case)
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == pytest.approx(4, abs=0.1)


SPINS = OtherThreads(1.0, 0.3, 0.1, (BusyThread("write", "train.py:15", 0.65), BusyThread("rest", "train.py:40", 0.05)))


def with_threads(folder: Path, found: OtherThreads | None) -> Evidence:
    return case_of(folder, cpu_events(40, 2, 20), unprofiled_us=810.0, other_threads=found)


def test_a_thread_that_computes_while_the_step_waits_for_the_interpreter_comes_first(tmp_path: Path) -> None:
    case = with_threads(tmp_path, SPINS)
    draft = host.other_threads(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert draft.gain_us.high == pytest.approx(0.65 * case.step_us)  # no more than that thread ran
    assert draft.gain_us.low == pytest.approx(0.3 * case.step_us)
    assert draft.advice.startswith("Let write() (at train.py:15) wait for an Event or a Queue")
    assert len(draft.evidence) == 2 and "65.0 % of a processor" in draft.evidence[1]
    assert larger_batch(case) is None and larger_batch(with_threads(tmp_path / "alone", None)) is not None


@pytest.mark.parametrize(
    "found",
    [replace(SPINS, threads=SPINS.threads[1:]), replace(SPINS, cpu_share=0.95, queued_share=0.0)],
    ids=["a thread that hardly computes", "steps that do not wait"],
)
def test_a_thread_that_holds_nobody_up_is_not_named(tmp_path: Path, found: OtherThreads) -> None:
    assert host.other_threads(with_threads(tmp_path, found)) is None


def test_waits_that_the_trace_explains_are_not_those_for_the_interpreter(tmp_path: Path) -> None:
    case = with_threads(tmp_path, SPINS)
    loads = with_ledger(case, {"overhead.input": 600.0, "overhead.python": 200.0, "compute": 10.0})
    assert host.other_threads(loads) is None


@pytest.mark.parametrize(
    ("name", "operand", "least"),
    [
        ("aten::argmax", [1, 19, 256, 256], 1 - 12 / 4 / 19),
        ("aten::argmax", [1, 2, 256, 256], 0.0),
        ("aten::exp", [1, 19, 256, 256], None),
        ("aten::argmax", [1, 19, 256, 255], None),
    ],
    ids=["of many classes", "of two classes", "no reduction", "of other data"],
)
def test_a_reduction_on_the_cpu_is_charged_with_the_copies_of_its_operand(
    tmp_path: Path, name: str, operand: list[int], least: float | None
) -> None:
    copied = 4 * operand[1] * 256 * 256
    events = [frame("train.py(12): train", 0, 9000), step(1, 0, 8900)]
    events += [op("aten::relu", 5, 20, external_id=1), launch(1, 10, 5), kernel(1, 20, 100)]
    events += [op("aten::copy_", 30, 1000, external_id=2), launch(2, 35, 990, "cudaMemcpyAsync")]
    events += [memcpy(2, 121, 900, copied, "DtoH (Device -> Pageable)"), op(name, 1100, 7000, dims=[operand, [], []])]
    draft = host.computed_on_host(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None
    idle_us = draft.gain_us.high - (0 if least is None else 900)
    assert idle_us == pytest.approx(7000, rel=0.02)
    assert draft.gain_us.low == pytest.approx(0.8 * idle_us + 900 * (least or 0), rel=0.01)


def test_an_op_that_computes_on_the_cpu_while_the_device_waits_is_named(tmp_path: Path) -> None:
    row = idle_row("host_compute", 600.0, detail="aten::argmax")
    case = gpu(tmp_path, {"compute": 300.0, "overhead.host_compute": 600.0}, row)
    draft = host.computed_on_host(case)
    assert draft is not None and draft.gain_us is not None
    assert draft.title.startswith("aten::argmax computes on the CPU") and draft.gain_us.high == 600
    assert draft.gain_us.low == pytest.approx(480)
    copied = idle_row("host_compute", 600.0, detail="aten::copy_")
    assert host.computed_on_host(gpu(tmp_path / "copies", {"overhead.host_compute": 600.0}, copied)) is None
    assert host.computed_on_host(cpu(tmp_path / "cpu", {"overhead.host_compute": 600.0}, row)) is None
