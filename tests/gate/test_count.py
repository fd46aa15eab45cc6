from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.gate.count import count, is_op, plain_kernel, plain_module, plain_op
from bottleneck.schema.measurements import Compilation, GraphBreak
from bottleneck.schema.recording import RankTrace
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step
from tests.gate.cases import RECORDING, case_of, memory

ENGINE = "autograd::engine::evaluate_function: "
CPU: dict[str, object] = {"deviceProperties": []}
LOADER = "enumerate(DataLoader)#_{}ProcessingDataLoaderIter.__next__"
OTHER = {"tid": 101}


def steps_of(*contents: list[Event]) -> list[Event]:
    """Steps of 1000 us, each holding these events, whose times count from its beginning."""
    moved = [{**event, "ts": event["ts"] + 1000 * number} for number, events in enumerate(contents) for event in events]
    return [*(step(number, 1000 * number, 1000) for number in range(len(contents))), *moved]


def product(ts: float, rows: int = 2, **more: object) -> Event:
    """A product of 2·rows·3·4 FLOPs."""
    return op("aten::mm", ts, 40, dims=[[rows, 3], [3, 4]], **more)


def counted(folder: Path, *contents: list[Event], **top: object) -> dict[str, int]:
    return dict(count(case_of(folder, steps_of(*contents), **{**CPU, **top})).values)


def test_a_counter_is_the_number_that_every_step_has(tmp_path: Path) -> None:
    nested = [product(10), op("aten::add", 100, 50), op("aten::copy_", 110, 10)]
    counts = count(case_of(tmp_path, steps_of(nested, nested, nested), **CPU))
    assert counts.steps == 3 and counts.unstable == {}
    assert {name: counts.values[name] for name in ("ops", "copies", "flops", "syncs")} == {
        "ops": 3,
        "copies": 1,
        "flops": 48,
        "syncs": 0,
    }
    assert counts.ops == {"aten::add": 1, "aten::copy_": 1, "aten::mm": 1}


def test_steps_that_disagree_make_the_counter_unstable_and_say_their_range(tmp_path: Path) -> None:
    one, two = [product(10)], [product(10), op("aten::relu", 100, 10)]
    counts = count(case_of(tmp_path, steps_of(one, two, one), **CPU))
    assert counts.unstable["ops"] == "1..2: steps differ (data-dependent)" and counts.lowest == {"ops": 1}
    assert counts.unstable["ops:aten::relu"] == "0..1: steps differ (data-dependent)"
    assert "ops" not in counts.values and counts.ops == {"aten::mm": 1}
    assert counts.values["flops"] == 48 and "flops" not in counts.unstable


def test_what_starts_between_the_steps_counts_for_none(tmp_path: Path) -> None:
    events = [step(0, 0, 1000), step(1, 2000, 1000), product(10), product(2010)]
    between = [op("aten::empty", 1500, 10), op("aten::empty", 5000, 10)]
    counts = count(case_of(tmp_path, [*events, *between], **CPU))
    assert counts.values["ops"] == 1 and counts.ops == {"aten::mm": 1}


def test_nodes_of_autograd_and_annotations_are_no_ops(tmp_path: Path) -> None:
    backward = [
        op(f"{ENGINE}MmBackward0", 100, 90),
        op("MmBackward0", 105, 80),
        product(110),
        op(f"{ENGINE}torch::autograd::AccumulateGrad", 200, 50),
        op("torch::autograd::AccumulateGrad", 205, 40),
        complete("Optimizer.step#SGD.step", "user_annotation", 300, 50),
    ]
    values = counted(tmp_path, backward, backward)
    assert (values["ops"], values["autograd_nodes"]) == (1, 2)


def test_the_backward_pass_counts_where_the_engine_left_no_marks(tmp_path: Path) -> None:
    """Before torch 1.10 the outermost ops of its thread are the nodes themselves."""
    node = op("MmBackward", 100, 90, **OTHER)
    with_nodes = counted(tmp_path, [product(10), op("aten::relu", 60, 5), node, product(110, **OTHER)])
    assert with_nodes["flops"] == 96 and with_nodes["autograd_nodes"] == 1
    helper = op("aten::mm_helper", 100, 90, **OTHER)
    without = counted(tmp_path, [product(10), op("aten::relu", 60, 5), helper, product(110, **OTHER)])
    assert without["flops"] == 48 and without["autograd_nodes"] == 0


def test_ops_of_a_thread_that_reads_ahead_are_left_out_and_those_of_autograds_are_not(tmp_path: Path) -> None:
    mine = [product(10), op("aten::add", 60, 10)]
    ahead = [op("aten::empty", 20, 5, **OTHER)]
    values = counted(tmp_path, [*mine, *ahead, *ahead], mine)
    assert values["ops"] == 2
    backward = [op(f"{ENGINE}MmBackward0", 100, 90, **OTHER), product(110, **OTHER)]
    assert counted(tmp_path, [*mine, *backward], [*mine, *backward])["ops"] == 3


def test_taking_over_batches_from_workers_is_luck_and_loading_them_oneself_is_not(tmp_path: Path) -> None:
    def steps(name: str) -> list[list[Event]]:
        mark = complete(LOADER.format(name), "user_annotation", 500, 100)
        take = [mark, product(10), op("aten::set_", 510, 10), memory(515, 64)]
        return [[*take, op("aten::set_", 530, 10)], take]

    assert counted(tmp_path, *steps("Multi"))["ops"] == 1
    alone = count(case_of(tmp_path, steps_of(*steps("Single")), **CPU))
    assert alone.unstable["ops:aten::set_"].startswith("1..2: ")


def test_the_beginning_of_an_epoch_belongs_to_no_step(tmp_path: Path) -> None:
    draw = [frame("torch/utils/data/sampler.py(12): __iter__", 500, 50), op("aten::randperm", 510, 10)]
    usual = [product(10), frame("dataset.py(3): __iter__", 600, 50), op("aten::add", 610, 10)]
    assert counted(tmp_path, [*usual, *draw], usual)["ops"] == 2


def test_item_is_a_sync_on_a_cpu_too(tmp_path: Path) -> None:
    item = [product(10), op("aten::item", 100, 50), op("aten::_local_scalar_dense", 110, 20)]
    assert counted(tmp_path, item, item)["syncs"] == 1


def gpu_step(number: int) -> list[Event]:
    first = 10 * number + 1
    return [
        product(10),
        launch(first, 20, 5),
        kernel(first, 30, 20, "gemm_0x7f00aa"),
        op("aten::item", 100, 100),
        op("aten::_local_scalar_dense", 105, 90),
        launch(first + 1, 110, 5, "cudaMemcpyAsync"),
        memcpy(first + 1, 120, 5, 4, "DtoH (Device -> Pageable)"),
        launch(first + 2, 130, 10, "cudaStreamSynchronize"),
        launch(first + 3, 300, 10, "cudaDeviceSynchronize"),
        launch(first + 4, 400, 5, "cudaMemcpyAsync"),
        memcpy(first + 4, 420, 5, 4096),
    ]


def test_a_gpu_is_launched_on_waited_for_and_copied_to(tmp_path: Path) -> None:
    counts = count(case_of(tmp_path, steps_of(gpu_step(0), gpu_step(1))))
    # The wait inside .item() is the same sync.
    wanted = {"launches": 1, "syncs": 2, "h2d_copies": 1, "h2d_bytes": 4096, "d2h_copies": 1, "d2h_bytes": 4}
    assert {name: counts.values[name] for name in wanted} == wanted
    assert counts.kernels == {"gemm_0x…": 1} and counts.values["kernel_names"] == 1
    assert counts.fingerprint.portable["backend"] == "cuda"
    assert counts.fingerprint.backend["sm_count"] == 132


def test_a_cpu_launches_nothing_and_says_so(tmp_path: Path) -> None:
    counts = count(case_of(tmp_path, steps_of([product(10)]), **CPU))
    assert counts.unknown["launches"] == "a CPU runs no kernels that are launched"
    assert counts.kernels == {} and "launches" not in counts.values


def test_copies_to_a_device_are_none_only_where_a_recording_saw_no_device(tmp_path: Path) -> None:
    events = steps_of([product(10)])
    assert "may have been there" in count(case_of(tmp_path, events, **CPU)).unknown["h2d_copies"]
    assert count(case_of(tmp_path, events, RECORDING, **CPU)).values["h2d_bytes"] == 0
    on_gpu = replace(RECORDING, device_facts=({"name": "a GPU"},))
    assert "h2d_copies" in count(case_of(tmp_path, events, on_gpu, **CPU)).unknown


@pytest.mark.parametrize(
    ("dims", "types", "expected"),
    [
        ([[2, 3], [2, 3]], ["double", "double"], 1),
        ([[2, 3], []], ["float", "double"], 0),
        ([[2, 3], [2, 3]], ["float", "float"], 0),
    ],
    ids=["tensor", "wrapped number", "float"],
)
def test_a_float64_op_takes_a_tensor_of_doubles_not_a_number(
    tmp_path: Path, dims: list[object], types: list[str], expected: int
) -> None:
    events = [op("aten::mul", 10, 20, dims=dims, types=types)]
    assert counted(tmp_path, events, events)["float64_ops"] == expected


def test_without_shapes_flops_are_unknown_and_no_zero(tmp_path: Path) -> None:
    counts = count(case_of(tmp_path, steps_of([op("aten::mm", 10, 20)]), **CPU))
    assert counts.unknown["flops"] == counts.unknown["float64_ops"] == "recorded without shapes"
    assert counts.unknown["allocations"] == "recorded without memory events"
    assert counts.unknown["module_calls"] == "recorded without Python calls"


def test_what_is_unmodelled_is_left_out_of_the_flops(tmp_path: Path) -> None:
    modelled, absurd = product(10), op("aten::mm", 100, 40, dims=[[10**300, 10**300], [10**300, 10**300]])
    assert counted(tmp_path, [modelled, absurd, op("mylib::magic", 200, 40, dims=[[8, 8]])])["flops"] == 48


def test_copies_that_do_not_say_their_size_have_none(tmp_path: Path) -> None:
    silent = [{**event, "args": {"correlation": 5, "device": 0, "stream": 7}} for event in [memcpy(5, 20, 5, 0)]]
    counts = count(case_of(tmp_path, steps_of([product(5), launch(5, 10, 5, "cudaMemcpyAsync"), *silent])))
    assert counts.values["h2d_copies"] == 1
    assert counts.unknown["h2d_bytes"] == "sizes in the trace make no number"


def test_memory_is_counted_from_the_beginning_of_each_step(tmp_path: Path) -> None:
    holds = [product(10), memory(20, 100), memory(30, 50), memory(40, -100), memory(50, 20)]
    first = [*holds, memory(60, -50)]
    values = counted(tmp_path, first, first)
    assert (values["allocations"], values["allocated_bytes"], values["peak_bytes"]) == (3, 170, 150)


def test_modules_count_what_is_innermost_in_them_without_running_numbers(tmp_path: Path) -> None:
    forward = [
        frame("nn.Module: Net_0", 5, 300),
        frame("nn.Module: Linear_7", 10, 100),
        product(20),
        op("aten::relu", 200, 20),
    ]
    counts = count(case_of(tmp_path, steps_of(forward, forward), **CPU))
    assert counts.modules == {"Net": {"ops": 1}, "Net.Linear": {"ops": 1}}
    assert counts.values["module_calls"] == 2


def test_lines_hold_what_was_called_from_them_and_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n\n    loss = model(x)  # here\n")
    body = [
        frame("train.py(3): main", 5, 400),
        product(10),
        op("aten::item", 100, 50),
        op("aten::_local_scalar_dense", 110, 20),
    ]
    (site,) = count(case_of(tmp_path, steps_of(body, body), **CPU), tmp_path).sites
    assert (site.place, site.text) == ("train.py:3", "loss = model(x)  # here")
    assert site.counts == {"ops": 3, "syncs": 1}
    assert site.ops == {"aten::_local_scalar_dense": 1, "aten::item": 1, "aten::mm": 1}


def test_a_wait_outside_any_op_belongs_to_the_line_that_asked_for_it(tmp_path: Path) -> None:
    body = [frame("train.py(9): main", 250, 100), *gpu_step(0)]
    sites = count(case_of(tmp_path, steps_of(body, [frame("train.py(9): main", 250, 100), *gpu_step(1)]))).sites
    assert [(site.place, dict(site.counts)) for site in sites] == [("train.py:9", {"syncs": 1})]


def test_backward_ops_belong_to_the_line_of_their_forward_op(tmp_path: Path) -> None:
    def body() -> list[Event]:
        forward, node, inner = product(20), op(f"{ENGINE}MmBackward0", 300, 100), product(310)
        forward["args"] |= {"Sequence number": 7, "Fwd thread id": 0}
        node["args"] |= {"Sequence number": 7, "Fwd thread id": 1}
        return [frame("train.py(3): main", 10, 100), frame("train.py(4): main", 250, 200), forward, node, inner]

    sites = count(case_of(tmp_path, steps_of(body()), **CPU)).sites
    assert {site.place: dict(site.ops) for site in sites} == {"train.py:3": {"aten::mm": 2}}


def test_what_torch_compile_did_comes_from_the_recording_with_the_line_of_each_break(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("print(x)\n")
    report = Compilation(3, 2, 1, (GraphBreak("net.py", 1, "print", 2),))
    recording = replace(RECORDING, compilation=report)
    counts = count(case_of(tmp_path, steps_of([product(10)]), recording, **CPU), tmp_path)
    assert [counts.values[name] for name in ("graphs", "graph_breaks", "recompiles")] == [3, 2, 1]
    assert [(site.place, site.text, dict(site.counts)) for site in counts.sites] == [
        ("net.py:1", "print(x)", {"graph_breaks": 2})
    ]
    assert counts.fingerprint.portable["compiled"] is True


def test_a_bare_trace_tells_nothing_of_torch_compile(tmp_path: Path) -> None:
    counts = count(case_of(tmp_path, steps_of([product(10)]), **CPU))
    assert "only a recording" in counts.unknown["graph_breaks"]
    older = count(case_of(tmp_path, steps_of([product(10)]), replace(RECORDING, compilation=None), **CPU))
    assert "did not count this yet" in older.unknown["graph_breaks"]
    assert counts.fingerprint.portable == {"backend": "cpu"} and counts.input_sha == ""


def test_the_fingerprint_holds_what_the_recording_knows_in_its_tiers(tmp_path: Path) -> None:
    recording = replace(RECORDING, traces=(RankTrace(0, "trace.json"),), compilation=Compilation(0, 0, 0))
    mark = count(case_of(tmp_path, steps_of([product(10)]), recording, **CPU)).fingerprint
    assert mark.portable == {
        "torch": "2.13",
        "python": "3.11",
        "backend": "cpu",
        "compiled": False,
        "world_size": 1,
        "onednn": True,
    }
    # What belongs to a GPU is no fact of a CPU's counts.
    assert mark.backend == {"threads": 2, "isa": "AVX2"}
    assert mark.host == {"cpu": "a CPU", "system": "Linux"}


def test_the_digest_knows_settings_and_arguments_and_not_the_ops(tmp_path: Path) -> None:
    def digest(events: list[Event], **changes: object) -> str:
        return count(case_of(tmp_path, steps_of(events), replace(RECORDING, **changes), **CPU)).input_sha  # type: ignore[arg-type]

    usual = digest([product(10)])
    assert digest([product(10), op("aten::relu", 100, 10)]) == usual
    assert digest([product(10)], command=("elsewhere/train.py", "--epochs", "1")) == usual
    assert digest([product(10)], command=("train.py", "--epochs", "2")) != usual
    assert digest([product(10)], options=("--set", "batch_size=2")) != usual


def test_without_steps_the_window_counts_as_one(tmp_path: Path) -> None:
    counts = count(case_of(tmp_path, [product(10), product(100)], **CPU))
    assert counts.steps == 1 and counts.values["ops"] == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::add", True),
        ("c10d::allreduce_", True),
        ("autograd::engine::evaluate_function: AddBackward0", False),
        ("torch::autograd::AccumulateGrad", False),
        ("AddmmBackward0", False),
        ("detach", False),
    ],
)
def test_calls_of_the_dispatcher_are_told_by_name(name: str, expected: bool) -> None:
    assert is_op(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused_add_relu_3", "triton_poi_fused_add_relu"),
        ("cpp_fused_add_mul_0", "cpp_fused_add_mul"),
        ("_attn_fwd_0d1d2de", "_attn_fwd"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("wrapper<0x7f12ab>", "wrapper<0x…>"),
    ],
)
def test_kernels_lose_the_number_that_their_generator_gave_them(name: str, expected: str) -> None:
    assert plain_kernel(name) == expected


def test_modules_and_ops_lose_their_running_numbers() -> None:
    assert plain_module("Net_0.Conv2d_12.Act_3_1") == "Net.Conv2d.Act_3"
    assert plain_op("custom::AddBackward0") == "custom::AddBackward"
    assert plain_op("mylib::call_0xdeadbeef") == "mylib::call_0x…"
