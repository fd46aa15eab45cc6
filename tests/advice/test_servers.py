"""Advice for inference servers: their settings in place of lines of a training loop."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.servers import SERVERS, find_server, server_idle, server_settings
from bottleneck.pipeline import examine, finish
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.sources import find_traces
from tests.advice.cases import case_of, cpu_events, gpu_events, idle_row, with_ledger
from tests.builders import Event, complete, frame, kernel, launch, op, step

FRAMES = {
    "vLLM": "vllm/v1/worker/gpu_model_runner.py(2019): execute_model",
    "SGLang": "/workspace/sglang/python/sglang/srt/managers/tp_worker.py(400): model_runner",
    "TensorRT-LLM": "tensorrt_llm/_torch/pyexecutor/py_executor.py(900): _executor_loop",
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_server_that_launches_late_gets_its_own_settings(tmp_path: Path, name: str) -> None:
    events = [*gpu_events(20, 10.0, 40.0), frame(FRAMES[name], 1, 5), frame("vllm/envs.py(1641): __getattr__", 6, 1)]
    findings = advise(case_of(tmp_path, events))
    late = [each for each in findings if each.slug in ("late-launches", "eager-overhead")]
    assert len(late) == 1
    assert name in late[0].advice and late[0].verify is None and not late[0].tries
    assert not any("torch.compile" in (each.code or "") or "DataLoader" in (each.code or "") for each in findings)


def test_the_batch_of_a_server_is_left_to_its_scheduler(tmp_path: Path) -> None:
    events = gpu_events(20, 10.0, 40.0)
    assert "larger-batch" in {each.slug for each in advise(case_of(tmp_path / "loop", events))}
    served = advise(case_of(tmp_path / "server", [*events, frame(FRAMES["vLLM"], 1, 5)]))
    assert "larger-batch" not in {each.slug for each in served}


def test_an_annotation_of_a_step_tells_vllm_too(tmp_path: Path) -> None:
    mark = complete("execute_context_1(32)_generation_4(4)", "user_annotation", 1, 5)
    server = find_server(case_of(tmp_path, [*gpu_events(4, 10.0, 40.0), mark]))
    assert server is not None and server.name == "vLLM"
    assert "max-num-batched-tokens" in server.remedies["batch"][1]


def test_a_training_loop_keeps_its_advice(tmp_path: Path) -> None:
    case = case_of(tmp_path, [*gpu_events(20, 10.0, 40.0), frame("my_vllm.py(3): vllm", 1, 5)])
    assert find_server(case) is None
    slugs = {each.slug: each for each in advise(case)}
    assert {"late-launches", "eager-overhead"} <= set(slugs)
    assert "torch.compile" in (slugs["eager-overhead"].code or "")


def test_every_server_has_a_setting_for_every_kind_of_remedy() -> None:
    assert {frozenset(server.remedies) for server in SERVERS} == {frozenset({"graphs", "batch", "host"})}


def replays(kernel_us: float, call: str = "cudaGraphLaunch") -> list[Event]:
    """Two steps of vLLM, each 100 kernels: under one replay of a graph, or each under a launch of its own."""
    events = [frame(FRAMES["vLLM"], 0, 2600)]
    for number in range(2):
        at = 1300 * number
        events.append(step(number, at, 1299))
        for index in range(100):
            one = 1 + number * 100 + (0 if call == "cudaGraphLaunch" else index)
            if call != "cudaGraphLaunch" or not index:
                events.append(launch(one, at + 1 + index * 0.1, 0.05, call))
            events.append(kernel(one, at + 40 + 12 * index, kernel_us, f"kernel_{index}"))
    return events


def test_a_busy_server_that_replays_graphs_may_put_more_requests_into_a_step(tmp_path: Path) -> None:
    draft = server_settings(case_of(tmp_path, replays(12.0)))
    assert draft is not None and draft.gain_us is None
    assert "max-num-seqs" in (draft.code or "") and "100.0 % of that in replayed graphs" in draft.evidence[0]


@pytest.mark.parametrize(
    "events",
    [
        replays(6.0),
        replays(12.0, "cudaLaunchKernel"),
        [each for each in replays(12.0) if each["cat"] != "python_function"],
    ],
    ids=["idle device", "no graph", "no server"],
)
def test_other_steps_get_no_setting_of_a_server(tmp_path: Path, events: list[Event]) -> None:
    assert server_settings(case_of(tmp_path, events)) is None


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "server"), [("sglang_Qwen3-8B_decode", "SGLang"), ("vllm_decode_full__graph_execution", "vLLM")]
)
def test_servers_of_public_traces_are_known_by_their_frames(traces: Path, name: str, server: str) -> None:
    (path,) = traces.glob(f"*{name}*")
    found = find_server(examine(find_traces(path)[0]))
    assert found is not None and found.name == server


POLL = "<built-in method poll of select.epoll object at 0x7f75>"


def serving(folder: Path, *, idle_us: float, trains: bool = False) -> Evidence:
    """Two calls of a model of 100 us, before each of which an event loop waits for a request."""
    length = idle_us + 100
    events: list[Event] = [frame("serve.py(35): <module>", 0, 2 * length)]
    for number in range(2):
        at = number * length
        events += [step(number, at, length), frame(POLL, at, idle_us), op("aten::add", at + idle_us, 100)]
        if trains:
            node = "autograd::engine::evaluate_function: AddBackward0"
            events.append(op(node, at + idle_us + 10, 50))
    return case_of(folder, events, unprofiled_us=length)


def test_a_server_is_told_its_pace_and_not_to_take_its_loop_out_of_the_step(tmp_path: Path) -> None:
    case = serving(tmp_path, idle_us=900)
    findings = advise(case)
    assert {each.slug for each in findings}.isdisjoint({"step-waits", "python-call"})
    (idle,) = [each for each in findings if each.slug == "server-idle"]
    assert idle.predicted_gain_us is None and "pace of those who send them" in (idle.gain_reason or "")
    pace = "1,000 calls of the model per second take 100 us each; about 10,000 would fit"
    assert idle.evidence[0] == f"idle for 90.0 % of the time: {pace}"
    verdict = finish(case, findings).analysis.verdict
    start = f"The program waits for requests 90.0 % of the time, which is no fault of the model: {pace}."
    assert verdict.sentence.startswith(start)
    # What is judged is the call: it has no overhead.
    assert verdict.bound != "overhead"


def test_a_busy_server_and_a_training_step_that_polls_have_no_pace(tmp_path: Path) -> None:
    assert server_idle(serving(tmp_path / "busy", idle_us=4)) is None
    training = serving(tmp_path / "training", idle_us=900, trains=True)
    assert server_idle(training) is None
    verdict = finish(training, advise(training)).analysis.verdict
    assert verdict.bound == "overhead" and "waits for requests" not in verdict.sentence


def test_a_wait_for_another_thread_is_no_wait_for_requests(tmp_path: Path) -> None:
    row = idle_row("wait", 4000, "serve.py:9", detail="queue.py: get")
    case = case_of(tmp_path, cpu_events(10, 3, 8), unprofiled_us=90.0)
    assert server_idle(with_ledger(case, {"memory": 1000.0, "overhead.wait": 4000.0}, [row])) is None
