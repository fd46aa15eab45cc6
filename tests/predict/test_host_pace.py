"""The host's part of a step."""

import numpy as np

from bottleneck.predict.host_pace import host_counts, replays_graph, sensitivities, step_us
from bottleneck.predict.inductor_fusion import copied_bytes
from bottleneck.predict.rates import read_rates
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import Storage
from tests.predict.steps import call, step, use


def test_the_backend_of_cuda_graphs_runs_a_step_that_writes_to_a_buffer_op_by_op() -> None:
    plain = step(call("relu", [use(0, 64)], use(1, 64)))
    counting = step(call("add_", [use(0, 1)], use(0, 1)), *plain.calls, given=(0,))
    kept = replace(counting, storages=(replace(counting.storages[0], created=-1), *counting.storages[1:]))
    assert replays_graph(plain, "cudagraphs")
    assert not replays_graph(kept, "cudagraphs")
    assert replays_graph(kept, "reduce-overhead")
    assert host_counts(kept, "cudagraphs", [])["op"] == 2.0


def test_only_the_backend_of_cuda_graphs_copies_parameters() -> None:
    plain = step(call("mm", [use(0, 8, 8), use(1, 8, 8)], use(2, 8, 8)))
    storages = (plain.storages[0], Storage(256, "parameter", -1, None), plain.storages[2])
    held = replace(plain, storages=storages)
    assert copied_bytes(held, "cudagraphs") == 512
    assert copied_bytes(held, "reduce-overhead") == 256


def test_a_step_waits_for_the_host_before_its_first_kernel_however_long_it_is() -> None:
    rates = read_rates()
    long, short = (float(step_us(np.array(us), np.array(50.0), np.array(1.0), rates)) for us in (1e5, 1e5 - 50.0))
    assert long - short == 50.0 or abs(long - short - 50.0) < 1e-3
    assert short > 1e5


def test_batch_norm_in_training_is_no_graph_in_a_trace_which_tells_no_storages() -> None:
    x, channels = use(0, 8, 64, 14, 14), use(1, 64)
    for training in ("True", "False"):
        norm = call("cudnn_batch_norm", [x, *[channels] * 4], use(2, 8, 64, 14, 14), (training, "0.1", "1e-05"))
        assert replays_graph(replace(step(norm), storages=()), "cudagraphs") is (training == "False")


def test_shares_of_device_and_host_are_the_growth_of_the_step_with_each() -> None:
    rates = read_rates()
    device, lead, issue = 200.0, 30.0, 220.0

    def whole(factor: float) -> float:
        return float(step_us(np.array(device), np.array(lead * factor), np.array(issue * factor), rates))

    host_growth = np.log(whole(1.001) / whole(0.999)) / np.log(1.001 / 0.999)
    of_device, of_start, of_issuing = sensitivities(np.array(device), np.array(lead), np.array(issue), rates)
    assert abs(float(of_start + of_issuing) - host_growth) < 1e-3
    assert abs(float(of_device + of_start + of_issuing) - 1.0) < 1e-9


def test_captured_modules_are_two_graphs_in_training_and_the_rest_is_issued_op_by_op() -> None:
    inside = replace(call("mm", [use(0, 8, 8), use(1, 8, 8)], use(2, 8, 8)), module="net")
    loss = call("sum", [use(2, 8, 8)], use(3, 1))
    update = replace(call("add_", [use(1, 8, 8)], use(1, 8, 8)), phase="optimizer", module="net")
    calls = step(inside, loss, update)
    counts = host_counts(replace(calls, settings=replace(calls.settings, training=True)), "captured", [])
    assert (counts["graph step"], counts["product"], counts["op"]) == (2.0, 0.0, 2.0)
    assert host_counts(step(inside), "captured", [])["graph step"] == 1.0


def test_a_step_without_modules_that_does_not_train_is_captured_as_one_graph() -> None:
    calls = step(call("add_", [use(0, 8, 8)], use(0, 8, 8)), call("mm", [use(0, 8, 8), use(1, 8, 8)], use(2, 8, 8)))
    counts = host_counts(calls, "captured", [])
    assert counts["graph step"] == 1.0 and not counts["op"] and not counts["product"]
    assert replays_graph(calls, "captured")
