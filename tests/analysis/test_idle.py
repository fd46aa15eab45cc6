"""Each cause of idle time: a scene in which it is charged, and one much like it in which it is not."""

from pathlib import Path

import pandas as pd
import pytest

from bottleneck.analysis.idle import detail_of, short
from bottleneck.analysis.ledger import build_ledger
from bottleneck.pipeline import Options, analyse
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps
from tests.analysis.scenes import Event, Kernel, Scene
from tests.builders import complete, frame, kernel, launch, memcpy, op, step, write_trace
from tests.trace_cache import analysed

_PROGRAM = Event("annotation", "train", 0, 100)


def _idle(*events: Event, kernels: tuple[Kernel, ...] | None = None, wall: float = 100) -> dict[str, float]:
    """Idle time by cause in a window of 100 us whose device runs from 0 to 10 and from 90 to 100, launched at 85."""
    default = (Kernel(0, 10, launch=(-5, 2)), Kernel(90, 10, launch=(85, 5)))
    scene = Scene(wall, kernels=kernels if kernels is not None else default, events=(_PROGRAM, *events))
    idle = build_ledger(scene.linked(), scene.roofline()).idle
    return {str(cause): float(us) for cause, us in idle.groupby("cause")["us"].sum().items()}


@pytest.mark.parametrize("track", ["-1/0", "Kineto events/Kineto events"])
def test_what_the_profiler_does_for_the_process_stands_before_the_op_that_it_holds(track: str) -> None:
    request = Event("profiler", "Activity Buffer Request", 20, 30, track)
    assert _idle(Event("op", "aten::view", 15, 40), request) == {
        "profiler": 30.0,
        "dispatch": 10.0,
        "python": 35.0,
        "launch": 5.0,
    }


def test_what_the_profiler_does_on_a_thread_with_other_events_is_that_threads() -> None:
    request = Event("profiler", "Activity Buffer Request", 20, 30, "1/7")
    own = Event("op", "aten::add", 5, 1, "1/7")
    assert "profiler" not in _idle(Event("op", "aten::mm", 15, 40), request, own)


@pytest.mark.parametrize(("starts_at", "expected"), [(200, {"unknown": 60.0}), (157, {"kernel_gap": 17.0})])
def test_a_rest_inside_one_graph_replay_is_charged_to_unknown(
    tmp_path: Path, starts_at: float, expected: dict[str, float]
) -> None:
    replay = [launch(1, 100, 10, "cudaGraphLaunch"), kernel(1, 120, 20), kernel(1, starts_at, 100)]
    write_trace(tmp_path / "trace.json", replay)
    analysis = analyse([tmp_path / "trace.json"], Options(stretch_us=(20.0, None)))
    idle = {row.cause: row.us for row in analysis.idle}
    assert idle == pytest.approx(expected)
    slugs = [caveat.slug for caveat in analysis.caveats]
    assert slugs.count("kernels-missing") == ("unknown" in expected)


def test_gap_in_which_the_thread_runs_nothing_recorded_is_python() -> None:
    assert _idle() == {"python": 75.0, "launch": 5.0}


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (Event("op", "aten::view", 20, 30), "dispatch"),
        (Event("runtime", "cudaEventQuery", 20, 30), "dispatch"),
        (Event("runtime", "cudaLaunchKernel", 20, 30), "launch"),
        (Event("runtime", "cudaMemcpyAsync", 20, 30), "launch"),
        (Event("runtime", "cudaStreamSynchronize", 20, 30), "sync"),
        (Event("runtime", "hipDeviceSynchronize", 20, 30), "sync"),
        (Event("runtime", "cudaMemcpy", 20, 30), "sync"),
        (Event("runtime", "cudaMalloc", 20, 30), "allocator"),
        (Event("runtime", "hipFree", 20, 30), "allocator"),
        (Event("runtime", "cudaHostAlloc", 20, 30), "allocator"),
        (Event("runtime", "cuModuleLoadData", 20, 30), "compile"),
        (Event("op", "bytecode_tracing (dynamo_timed)", 20, 30), "compile"),
        (Event("runtime", "cuLibraryLoadData", 20, 30), "compile"),
        (Event("profiler", "Lazy Function Loading", 20, 30), "compile"),
        (Event("python", "torch/_dynamo/convert_frame.py(1000): _compile", 20, 30), "compile"),
        (Event("python", "torch/_inductor/compile_fx.py(700): compile_fx_inner", 20, 30), "compile"),
        (Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 30), "input"),
        (Event("python", "torch/utils/data/dataloader.py(700): __next__", 20, 30), "input"),
        (Event("python", "C:\\venv\\torch\\utils\\data\\dataloader.py(700): __next__", 20, 30), "input"),
        (Event("python", "torch/utils/data/dataloader.py(1572): _shutdown_workers", 20, 30), "input"),
        (Event("python", "<built-in function collect>", 20, 30), "gc"),
        (Event("python", "<built-in function sleep>", 20, 30), "wait"),
        (Event("python", "<built-in method time.sleep>", 20, 30), "wait"),
        (Event("python", "<built-in method poll of select.epoll object at 0x7f75417fadf0>", 20, 30), "wait"),
        (Event("python", "<method 'poll' of 'select.epoll' objects>", 20, 30), "wait"),
        (Event("python", "<built-in method control of select.kqueue object at 0x10>", 20, 30), "wait"),
        (Event("python", "<built-in function select>", 20, 30), "wait"),
        (Event("python", "<built-in method acquire of _thread.lock object at 0x7f95>", 20, 30), "wait"),
        (Event("python", "<method 'recv' of '_socket.socket' objects>", 20, 30), "wait"),
        (Event("python", "<built-in method _accept of socket object at 0x7f95>", 20, 30), "wait"),
        (Event("python", "<built-in method get of _queue.SimpleQueue object at 0x7f95>", 20, 30), "wait"),
        (Event("python", "<built-in function waitpid>", 20, 30), "wait"),
        (Event("python", "threading.py(611): wait", 20, 30), "wait"),
        (Event("python", "/usr/lib/python3.11/queue.py(154): get", 20, 30), "wait"),
        (Event("python", "C:\\Python311\\Lib\\subprocess.py(1259): wait", 20, 30), "wait"),
        (Event("profiler", "Activity Buffer Request", 20, 30), "profiler"),
        (Event("python", "torch/profiler/profiler.py(800): step", 20, 30), "profiler"),
    ],
)
def test_event_that_covers_part_of_a_gap_is_charged_that_part(event: Event, cause: str) -> None:
    idle = _idle(event)
    assert idle.pop("python") == 45.0
    assert idle.pop("launch", 0.0) == (35.0 if cause == "launch" else 5.0)
    assert idle == ({} if cause == "launch" else {cause: 30.0})


@pytest.mark.parametrize(
    "event",
    [
        Event("annotation", "forward", 20, 30),
        Event("annotation", "Torch-Compiled Region: 0/0", 20, 30),
        Event("python", "torch/_dynamo/eval_frame.py(500): _fn", 20, 30),
        Event("python", "model.py(3): collect", 20, 30),
        Event("python", "model.py(3): __next__", 20, 30),
        Event("python", "torch/autograd/profiler.py(700): __exit__", 20, 30),
        Event("python", "<built-in method acquire of _thread.lock object at 0x7f95>", 20, 15),
        Event("python", "<built-in method wait of torch._C._distributed_c10d.Work object at 0x7f95>", 20, 30),
        Event("python", "<built-in method join of str object at 0x7f95>", 20, 30),
        Event("python", "<built-in method select of type object at 0x7f95>", 20, 30),
        Event("python", "app/queue.py(154): get", 20, 30),
        Event("sync", "Stream Wait Event", 20, 30),
        Event("profiler", "PyTorch Profiler (0)", 20, 30),
        Event("op", "Optimizer.step#SGD.step", 20, 30),
        Event("gpu_annotation", "forward", 20, 30),
        Event("runtime", "cudaStreamSynchronize", 92, 8),
        Event("runtime", "cudaMalloc", 20, 30, thread="1/3"),
    ],
)
def test_event_that_holds_nothing_up_changes_no_cause(event: Event) -> None:
    assert _idle(event) == {"python": 75.0, "launch": 5.0}


_LOCK = "<built-in method acquire of _thread.lock object at 0x7f95>"
_EPOLL = "<built-in method poll of select.epoll object at 0x7f75>"


def test_a_wait_inside_a_data_loader_is_input() -> None:
    loader = Event("python", "torch/utils/data/dataloader.py(700): __next__", 20, 30)
    assert _idle(loader, Event("python", _LOCK, 22, 26)) == {"python": 45.0, "input": 30.0, "launch": 5.0}


def _on_worker(*host: dict[str, object], worker: tuple[dict[str, object], ...]) -> list[dict[str, object]]:
    """A step of a CPU whose ops run on a second thread, from 0 to 100 and from 900 to 1000 us."""
    own = {"tid": 2}
    ops = [op("aten::mm", 0, 100, **own), op("aten::mm", 900, 100, **own)]
    return [step(0, 0, 1000), frame("serve.py(40): main", 0, 1000), *host, *ops, *({**each, **own} for each in worker)]


@pytest.mark.parametrize(
    ("host", "worker", "told"),
    [
        # The main thread waits for the worker, which runs the program's code: that is what the time goes into.
        (
            [frame(_LOCK, 100, 800)],
            [frame("serve.py(9): work", 0, 1000)],
            {("python", "work() (serve.py:9)", "work"): 800.0},
        ),
        # Both wait: the worker for the main thread, that one for requests.
        (
            [frame(_EPOLL, 100, 800)],
            [frame("serve.py(9): work", 0, 1000), frame(_LOCK, 100, 800)],
            {("wait", "main() (serve.py:40)", "poll"): 800.0},
        ),
        # A thread for each request is not there between two of them.
        (
            [frame(_EPOLL, 100, 800)],
            [frame("serve.py(9): work", 0, 100), frame("serve.py(9): work", 900, 100)],
            {("wait", "main() (serve.py:40)", "poll"): 800.0},
        ),
        # The thread that runs the ops sleeps: nobody else ends that.
        (
            [frame("serve.py(41): draw", 100, 800)],
            [frame("serve.py(9): work", 0, 1000), frame("<built-in function sleep>", 100, 800)],
            {("wait", "work() (serve.py:9)", "sleep"): 800.0},
        ),
    ],
)
def test_threads_that_wait_for_each_other_are_charged_for_what_holds_them_all(
    tmp_path: Path,
    host: list[dict[str, object]],
    worker: list[dict[str, object]],
    told: dict[tuple[str, str, str], float],
) -> None:
    events = _on_worker(*host, worker=tuple(worker))
    trace = read_trace(write_trace(tmp_path / "trace.json", events, deviceProperties=[]))
    linked = link(trace, find_steps(trace))
    roofline = pd.DataFrame({"bound": pd.Categorical(["compute"] * 2), "family": pd.Categorical(["matmul"] * 2)})
    idle = build_ledger(linked, roofline).idle
    found = {(row.cause, row.source, row.detail): row.us for row in idle.itertuples() if row.us > 1}
    assert found == pytest.approx(told)


def test_synchronisation_is_charged_only_where_the_device_is_idle() -> None:
    kernels = (Kernel(0, 50, launch=(-5, 2)), Kernel(90, 10, launch=(85, 5)))
    assert _idle(Event("runtime", "cudaStreamSynchronize", 5, 55), kernels=kernels)["sync"] == 10.0


def test_item_waits_when_it_calls_a_synchronisation() -> None:
    item, wait = Event("op", "aten::item", 20, 30), Event("runtime", "cudaStreamSynchronize", 25, 5)
    assert _idle(item, wait)["sync"] == 30.0


def test_item_of_a_host_tensor_is_dispatch() -> None:
    idle = _idle(Event("op", "aten::item", 20, 30))
    assert "sync" not in idle
    assert idle["dispatch"] == 30.0


@pytest.mark.parametrize("name", ["aten::uniform_", "aten::randperm", "aten::copy_", "aten::cat", "aten::index_select"])
def test_op_that_computes_without_any_call_computes_on_the_host(name: str) -> None:
    assert _idle(Event("op", name, 20, 30)) == {"host_compute": 30.0, "python": 45.0, "launch": 5.0}


@pytest.mark.parametrize(
    ("name", "us"), [("aten::uniform_", 9), ("aten::as_strided", 30), ("aten::empty", 30), ("aten::expand", 30)]
)
def test_op_that_is_short_or_computes_nothing_is_dispatch(name: str, us: float) -> None:
    assert _idle(Event("op", name, 20, us)) == {"dispatch": us, "python": 75.0 - us, "launch": 5.0}


def test_op_that_makes_a_call_does_not_compute_on_the_host() -> None:
    idle = _idle(Event("op", "aten::uniform_", 20, 30), Event("runtime", "cudaStreamIsCapturing", 25, 5))
    assert idle == {"dispatch": 30.0, "python": 45.0, "launch": 5.0}


def test_computing_inside_a_data_loader_is_input() -> None:
    loader = Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 40)
    assert _idle(loader, Event("op", "aten::stack", 25, 30)) == {"input": 40.0, "python": 35.0, "launch": 5.0}


def test_a_launch_of_milliseconds_that_is_not_paid_once_is_a_launch() -> None:
    idle = _idle(kernels=(Kernel(90e3, 10, launch=(0, 80e3)),), wall=100e3)
    assert idle["launch"] >= 80e3 and "compile" not in idle


def test_graph_launch_of_milliseconds_is_not_loading_code() -> None:
    idle = _idle(Event("runtime", "cudaGraphLaunch", 0, 80e3), kernels=(Kernel(90e3, 10, launch=(85e3, 5)),), wall=1e5)
    assert "compile" not in idle


@pytest.mark.parametrize("us", [3, 17])
def test_short_gap_before_queued_work_is_a_kernel_gap(us: float) -> None:
    kernels = (Kernel(0, 50, launch=(-9, 2)), Kernel(50 + us, 50 - us, launch=(-5, 2)))
    assert _idle(kernels=kernels) == {"kernel_gap": us}


def test_short_gap_in_which_the_work_was_launched_is_launch() -> None:
    kernels = (Kernel(0, 50, launch=(-9, 2)), Kernel(60, 40, launch=(48, 5)))
    assert _idle(kernels=kernels) == {"launch": 10.0}


def test_kernels_of_one_graph_have_kernel_gaps_between_them() -> None:
    kernels = tuple(Kernel(at, 20, launch=(-9, 2)) for at in (0, 23, 46, 69))
    assert _idle(kernels=kernels, wall=89) == {"kernel_gap": 9.0}


def test_gap_after_work_was_queued_is_dependency_when_long() -> None:
    kernels = (Kernel(0, 50, launch=(-9, 2)), Kernel(80, 20, launch=(-5, 2)))
    assert _idle(kernels=kernels) == {"dependency": 30.0}


def test_queued_work_that_waits_for_another_stream_is_dependency_and_names_the_work() -> None:
    kernels = (Kernel(0, 50, launch=(-9, 2), name="ncclAllReduce", stream="0/20"), Kernel(65, 35, launch=(-5, 2)))
    scene = Scene(100, kernels=kernels, events=[_PROGRAM])
    idle = build_ledger(scene.linked(), scene.roofline()).idle
    assert idle[["cause", "us", "detail"]].to_numpy().tolist() == [
        ["dependency", 15.0, "ncclAllReduce of another stream"]
    ]


def test_start_that_lags_far_behind_its_launch_is_dependency() -> None:
    kernels = (Kernel(0, 10, launch=(-9, 2)), Kernel(90, 10, launch=(11, 4)))
    assert _idle(kernels=kernels) == {"launch": 4.0, "python": 1.0, "dependency": 75.0}


def test_kernel_that_starts_before_its_launch_by_a_skewed_clock_leaves_the_host_behind() -> None:
    kernels = (Kernel(0, 10, launch=(-9, 2)), Kernel(40, 60, launch=(45, 5)))
    assert _idle(kernels=kernels) == {"python": 30.0}


def test_backward_thread_that_is_silent_leaves_the_word_to_the_main_thread() -> None:
    kernels = (Kernel(0, 10, launch=(-5, 2)), Kernel(90, 10, launch=(85, 5), thread="1/2"))
    events = Event("op", "aten::view", 20, 30), Event("runtime", "cudaMalloc", 60, 10, thread="1/2")
    assert _idle(*events, kernels=kernels) == {"dispatch": 30.0, "allocator": 10.0, "launch": 5.0, "python": 35.0}


def test_idle_after_the_last_work_is_what_the_main_thread_does() -> None:
    kernels = (Kernel(0, 10, launch=(-5, 2)),)
    assert _idle(Event("op", "aten::view", 20, 30), kernels=kernels) == {"python": 60.0, "dispatch": 30.0}


def test_idle_before_the_first_launch_is_what_the_launching_thread_does() -> None:
    kernels = (Kernel(90, 10, launch=(80, 10)),)
    assert _idle(Event("runtime", "cudaMalloc", 0, 70), kernels=kernels) == {
        "allocator": 70.0,
        "launch": 10.0,
        "python": 10.0,
    }


def test_gap_without_any_host_event_has_an_unknown_cause() -> None:
    scene = Scene(100, kernels=(Kernel(0, 10), Kernel(90, 10)))
    idle = build_ledger(scene.linked(), scene.roofline()).idle
    assert idle[["cause", "us"]].to_numpy().tolist() == [["unknown", 80.0]]


def test_gap_between_work_whose_launches_were_not_recorded_is_a_kernel_gap_when_short() -> None:
    kernels = (Kernel(0, 50), Kernel(52, 48))
    assert _idle(kernels=kernels) == {"kernel_gap": 2.0}


def test_work_that_was_queued_before_the_recording_waits_for_the_device() -> None:
    kernels = (Kernel(0, 10), Kernel(40, 10), Kernel(52, 48, launch=(50, 1)))
    assert _idle(kernels=kernels)["dependency"] == 30.0


def test_other_streams_that_run_leave_no_gap() -> None:
    kernels = (
        Kernel(0, 10, launch=(-5, 2)),
        Kernel(5, 90, stream="0/20", launch=(1, 2)),
        Kernel(90, 10, launch=(85, 5)),
    )
    assert _idle(kernels=kernels) == {}


def _analysed(path: Path, events: list[dict[str, object]]) -> pd.DataFrame:
    trace = read_trace(write_trace(path / "trace.json", events))
    linked = link(trace, find_steps(trace))
    roofline = Scene(1, kernels=[Kernel(0, 1)] * len(linked.kernels)).roofline()
    return build_ledger(linked, roofline).idle


def test_wait_names_the_line_that_waited_and_not_the_line_behind_it(tmp_path: Path) -> None:
    idle = _analysed(
        tmp_path,
        [
            step(0, 0, 200),
            frame("train.py(57): log", 10, 60),
            op("aten::item", 15, 50),
            launch(2, 20, 5, "cudaMemcpyAsync"),
            memcpy(2, 30, 10, 4, "DtoH (Device -> Pageable)"),
            launch(9, 26, 36, "cudaStreamSynchronize"),
            frame("train.py(60): step", 80, 60),
            op("aten::mul", 85, 20),
            launch(3, 90, 5),
            kernel(3, 100, 100),
        ],
    )
    waits = idle[idle["cause"] == "sync"]
    assert set(waits["source"]) == {"log() (train.py:57)"}
    assert idle[idle["cause"] == "dispatch"]["source"].tolist() == ["step() (train.py:60)"]


def test_wait_outside_any_op_names_no_line_where_no_frame_is_open(tmp_path: Path) -> None:
    idle = _analysed(
        tmp_path,
        [
            step(0, 0, 200),
            launch(9, 20, 40, "cudaDeviceSynchronize"),
            frame("train.py(60): step", 80, 60),
            op("aten::mul", 85, 20),
            launch(3, 90, 5),
            kernel(3, 100, 100),
        ],
    )
    assert idle[idle["cause"] == "sync"]["source"].tolist() == [None]


def test_a_long_silence_of_a_host_without_frames_stands_apart_from_short_ones(tmp_path: Path) -> None:
    events = [step(0, 0, 6000)]
    for number, at in enumerate((100, 200, 300, 5300), 1):
        events += [op("aten::mul", at, 20), launch(number, at + 5, 5), kernel(number, at + 15, 10)]
    idle = _analysed(tmp_path, events)
    python = idle[idle["cause"] == "python"]
    silent = python["detail"] == "long stretches without any record"
    assert python["us"][silent].tolist() == [pytest.approx(4980, abs=20)]
    assert python["calls"][silent].tolist() == [1.0]
    assert 200 < python["us"][~silent].sum() < 1000


def _told(idle: pd.DataFrame, cause: str) -> list[tuple[float, str | None, str | None, str | None]]:
    """Time, line, module and detail of a cause."""
    rows = idle[idle["cause"] == cause]
    return list(zip(*(rows[name].tolist() for name in ("us", "source", "module", "detail")), strict=True))


def _scene(*host: dict[str, object]) -> list[dict[str, object]]:
    """A step of 1000 us whose device works at its ends only; the host's events come between."""
    main = frame("train.py(40): main", 0, 1000)
    works = [launch(1, 2, 5), kernel(1, 10, 10), launch(2, 960, 5), kernel(2, 970, 30)]
    return [step(0, 0, 1000), main, *works, *host]


@pytest.mark.parametrize(
    ("host", "cause", "told"),
    [
        (
            [frame("<built-in function compile>", 100, 500)],
            "python",
            (500, "main() (train.py:40)", None, "main > compile"),
        ),
        (
            [frame("<built-in function sleep>", 100, 500)],
            "wait",
            (500, "main() (train.py:40)", None, "sleep"),
        ),
        (
            [frame("model.py(7): log", 100, 500), launch(9, 200, 300, "cudaDeviceSynchronize")],
            "sync",
            (300, "log() (model.py:7)", None, "cudaDeviceSynchronize"),
        ),
        (
            [op("aten::to", 100, 300), launch(9, 200, 100, "cudaStreamSynchronize")],
            "sync",
            (100, "main() (train.py:40)", None, "aten::to > cudaStreamSynchronize"),
        ),
        (
            [frame("nn.Module: Linear_0", 100, 300), op("aten::reshape", 150, 200), op("aten::view", 160, 100)],
            "dispatch",
            (200, "main() (train.py:40)", "Linear_0", "aten::reshape"),
        ),
        (
            [op("aten::empty", 100, 300), launch(9, 120, 250, "cudaMalloc")],
            "allocator",
            (250, "main() (train.py:40)", None, "cudaMalloc"),
        ),
        (
            [launch(9, 120, 250, "cuModuleLoadData")],
            "compile",
            (250, "main() (train.py:40)", None, "cuModuleLoadData"),
        ),
        (
            [complete("Python GC", "user_annotation", 120, 250)],
            "gc",
            (250, "main() (train.py:40)", None, "Python GC"),
        ),
    ],
)
def test_each_cause_tells_its_line_and_what_held_the_host(
    tmp_path: Path, host: list[dict[str, object]], cause: str, told: tuple[object, ...]
) -> None:
    assert told in _told(_analysed(tmp_path, _scene(*host)), cause)


def test_wait_for_data_names_the_loader_and_the_line_that_loads(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    host = [
        frame("torch/utils/data/dataloader.py(720): __next__", 90, 520),
        complete(loader, "user_annotation", 100, 500),
        frame("data.py(6): __getitem__", 150, 400),
    ]
    told = _told(_analysed(tmp_path, _scene(*host)), "input")
    assert told[0] == (400, "__getitem__() (data.py:6)", None, loader)
    assert (100, "main() (train.py:40)", None, loader) in told


def test_one_gap_is_split_over_the_lines_at_which_its_time_passed(tmp_path: Path) -> None:
    host = [frame("model.py(7): encode", 100, 500), frame("data.py(3): crop", 200, 100)]
    told = _told(_analysed(tmp_path, _scene(*host)), "python")
    assert (400, "encode() (model.py:7)", None, "encode") in told
    assert (100, "crop() (data.py:3)", None, "crop") in told


def test_copy_to_pageable_memory_holds_the_host_and_one_to_pinned_memory_does_not(tmp_path: Path) -> None:
    def copied(kind: str) -> pd.DataFrame:
        call = launch(7, 100, 300, "cudaMemcpyAsync")
        return _analysed(tmp_path, _scene(call, memcpy(7, 350, 10, 4096, kind)))

    blocking = copied("DtoH (Device -> Pageable)")
    assert _told(blocking, "sync")[0] == (290, "main() (train.py:40)", None, "cudaMemcpyAsync (pageable, DtoH)")
    free = copied("DtoH (Device -> Pinned)")
    assert _told(free, "sync") == []
    assert ("main() (train.py:40)", None, "cudaMemcpyAsync (pinned, DtoH)") in [
        row[1:] for row in _told(free, "launch")
    ]


def test_silent_backward_thread_waits_at_the_line_of_the_main_thread(tmp_path: Path) -> None:
    host = [
        frame("<built-in method run_backward of object at 0x7f>", 100, 800),
        op("autograd::engine::evaluate_function: MulBackward0", 300, 100, tid=102),
        launch(7, 380, 5, tid=102),
        kernel(7, 400, 10),
    ]
    idle = _analysed(tmp_path, _scene(*host))
    assert ("main() (train.py:40)", None, "main > run_backward") in [row[1:] for row in _told(idle, "python")]
    assert [row[3] for row in _told(idle, "dispatch")] == ["MulBackward0"]


def test_module_of_the_next_kernel_is_not_that_of_a_wait_outside_it(tmp_path: Path) -> None:
    host = [frame("nn.Module: Linear_0", 900, 90), op("aten::linear", 910, 60)]
    idle = _analysed(tmp_path, _scene(*host))
    modules = {module for _, _, module, _ in _told(idle, "python")}
    assert modules == {None, "Linear_0"}
    assert max(us for us, _, module, _ in _told(idle, "python") if module == "Linear_0") < 20


def test_synchronisation_with_which_the_profiler_stops_is_no_wait_of_the_steps(tmp_path: Path) -> None:
    for marked in (True, False):
        events = _scene(op("aten::mul", 950, 20), launch(99, 1001, 5000, "cudaDeviceSynchronize"))
        idle = _analysed(tmp_path, events if marked else events[1:])
        assert _told(idle, "sync") == []


def test_same_cause_at_one_line_is_counted_by_gap() -> None:
    kernels = tuple(Kernel(40.0 * n, 10, launch=(40.0 * n - 5, 2), source="model.py:3") for n in range(1, 4))
    scene = Scene(200, kernels=kernels, events=(Event("annotation", "train", 0, 200),), steps=2)
    idle = build_ledger(scene.linked(), scene.roofline()).idle
    python = idle[(idle["cause"] == "python") & (idle["source"] == "model.py:3")]
    assert python["calls"].tolist() == [1.5]
    assert python["us"].tolist() == [(35 + 25 + 25) / 2]


@pytest.mark.parametrize(
    ("cause", "event", "op", "call", "words"),
    [
        ("sync", "aten::item", "aten::item", ("cudaStreamSynchronize", None), "aten::item > cudaStreamSynchronize"),
        ("sync", "cudaEventSynchronize", "aten::to", ("cudaEventSynchronize", None), "aten::to > cudaEventSynchronize"),
        ("sync", "cudaDeviceSynchronize", None, ("cudaDeviceSynchronize", None), "cudaDeviceSynchronize"),
        ("sync", "cudaMemcpyAsync", None, ("cudaMemcpyAsync", "pageable, DtoH"), "cudaMemcpyAsync (pageable, DtoH)"),
        ("sync", "aten::item", "aten::item", (None, None), "aten::item"),
        ("sync", "aten::nonzero", "aten::index", (None, None), "aten::index > aten::nonzero"),
        ("launch", "cudaLaunchKernel", "aten::mul", ("cudaLaunchKernel", None), "cudaLaunchKernel"),
        ("launch", "cudaMemcpyAsync", None, ("cudaMemcpyAsync", "pageable, HtoD"), "cudaMemcpyAsync (pageable, HtoD)"),
        ("dispatch", "aten::add", "aten::add", ("aten::add", None), "aten::add"),
        ("dispatch", "cudaEventQuery", None, ("cudaEventQuery", None), "cudaEventQuery"),
        ("allocator", "cudaMalloc", "aten::empty", ("cudaMalloc", None), "cudaMalloc"),
        ("python", None, None, (None, None), "main > sleep"),
        ("unknown", None, None, (None, None), None),
        ("dependency", None, None, (None, None), None),
        ("dependency", "ncclAllReduce", None, (None, None), "ncclAllReduce of another stream"),
    ],
)  # fmt: skip
def test_each_cause_says_what_held_the_host(
    cause: str, event: str | None, op: str | None, call: tuple[str | None, str | None], words: str | None
) -> None:
    assert detail_of(cause, event, op, call, "main > sleep" if cause == "python" else None) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch/_dynamo/convert_frame.py(1000): _compile", "torch/_dynamo/convert_frame.py: _compile"),
        ("C:\\torch\\_dynamo\\convert_frame.py(9): _compile", "C:/torch/_dynamo/convert_frame.py: _compile"),
        ("<built-in method item of Tensor object at 0x7f00>", "item"),
        ("<built-in function collect>", "collect"),
        ("autograd::engine::evaluate_function: MulBackward0", "MulBackward0"),
        ("cuModuleLoadData", "cuModuleLoadData"),
        (None, None),
    ],
)
def test_names_lose_lines_addresses_and_prefixes(name: str | None, words: str | None) -> None:
    assert short(name) == words


def test_names_of_any_length_stay_short() -> None:
    assert len(short("x" * 10_000) or "") < 200
    assert len(short("a/" * 5_000 + "b.py(3): f") or "") < 200


@pytest.mark.parametrize(
    ("name", "kind", "detail", "copy"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "copy", "cudaLaunchKernel (pageable, DtoH)", "pageable to_host"),
        ("Memcpy HtoD (Pinned -> Device)", "copy", "cudaLaunchKernel (pinned, HtoD)", "pinned to_device"),
        ("Memcpy DtoD (Device -> Device)", "copy", "cudaLaunchKernel (DtoD)", "within"),
        ("Memset (Device)", "fill", "cudaLaunchKernel", None),
        ("my_DtoH_kernel", "compute", "cudaLaunchKernel", None),
    ],
)
def test_copies_are_told_by_their_memory_and_direction(name: str, kind: str, detail: str, copy: str | None) -> None:
    work = Kernel(60, 10, launch=(20, 30), kind=kind, name=name)
    scene = Scene(100, [Kernel(0, 10, launch=(-10, 5)), work], events=[Event("op", "aten::copy_", 15, 40)])
    idle = build_ledger(scene.linked(), scene.roofline()).idle
    told = zip(idle["detail"], idle["copy"], strict=True)
    assert (detail, copy) in {(str(text).removeprefix("aten::copy_ > "), way) for text, way in told}


@pytest.mark.corpus
def test_gaps_of_a_graph_replay_on_an_a100_are_kernel_gaps(traces: Path) -> None:
    """Four replays of one graph, 152 kernels each: nothing but a microsecond or two between them."""
    analysis = analysed(traces / "pytorch+ao__tutorials__quantize_vit__bfloat16_at_05a20b2.json.gz")
    idle_us = {entry.account: entry.us for entry in analysis.ledger if entry.group == "overhead"}
    assert "overhead.launch" not in idle_us
    assert idle_us["overhead.kernel_gap"] == pytest.approx(109, abs=1)


@pytest.mark.corpus
def test_random_weights_that_are_made_on_the_cpu_are_host_compute(traces: Path) -> None:
    """An AlexNet is built in the window: 16 calls of uniform_ without any runtime call take 487 ms."""
    (trace,) = traces.glob("*critical_path__alexnet__benchmark_result*.json.gz")
    idle = [row for row in analysed(trace).idle if row.cause == "host_compute"]
    assert sum(row.us for row in idle if row.detail == "aten::uniform_") == pytest.approx(487e3, rel=0.01)
