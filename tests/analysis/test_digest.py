"""Digests of ranks: what ranks are compared by, from hand-made scenes and a public trace, as small as told."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from bottleneck.analysis.ranks import digest_rank
from bottleneck.pipeline import digest
from bottleneck.schema.digest import CollectiveCalls, Message, RankDigest
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.linked_trace import ProcessGroup, Step
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.sources import TraceSource, find_traces
from bottleneck.schema.tables import DEVICE_ARGS
from tests.analysis.scenes import Kernel, Op, Scene, evidence, table


def _collective(ts: float, dur: float, name: str = "ncclDevKernel_AllReduce") -> Kernel:
    return Kernel(ts, dur, "communication", kind="collective", name=name, stream="0/20")


def _scene() -> Scene:
    rows = [_collective(1500, 40), _collective(100, 50), _collective(2100, 10, "ncclDevKernel_SendRecv"), Kernel(0, 50)]
    groups = (ProcessGroup("0", "default_pg", 2, (0, 1)),)
    more = {"rank": 3, "world_size": 8, "start_unix_ns": 7, "process_groups": groups}
    return Scene(2000, rows, steps=2, more=more)


def test_digest_holds_all_collectives_in_order_of_their_start() -> None:
    calls = digest_rank(evidence(_scene())).calls
    assert calls.start_us.tolist() == [100, 1500, 2100]
    assert calls.end_us.tolist() == [150, 1540, 2110]
    assert calls.is_inside.tolist() == [True, True, False]
    assert [calls.messages[code] for code in calls.message] == [
        Message("all_reduce", None, None, None),
        Message("all_reduce", None, None, None),
        Message("send_recv", None, None, None),
    ]
    assert calls.groups == ("",) and calls.group.tolist() == [0, 0, 0]


def test_digest_names_the_group_of_each_collective() -> None:
    made = evidence(_scene())
    rows = [
        {"event": event, "process_group": name}
        for event, name in zip(made.linked.kernels["event"], ["4", "0", ""], strict=False)
    ]
    trace = replace(made.linked.trace, device_args=table(DEVICE_ARGS, [row for row in rows if row["process_group"]]))
    calls = digest_rank(replace(made, linked=replace(made.linked, trace=trace))).calls
    assert [calls.groups[code] for code in calls.group] == ["0", "4", ""]


def test_digest_tells_what_the_file_says_of_the_rank() -> None:
    found = digest_rank(evidence(_scene()), "node-3")
    assert (found.rank, found.world_size, found.start_unix_ns, found.host) == (3, 8, 7, "node-3")
    assert found.process_groups == (ProcessGroup("0", "default_pg", 2, (0, 1)),)


def test_steps_of_a_digest_are_all_that_were_found_in_order() -> None:
    made = evidence(_scene())
    window = replace(made.linked.window, set_aside=((Step("first", -500.0, 0.0, 400.0), Reason("warming_up", (2.0,))),))
    found = digest_rank(replace(made, linked=replace(made.linked, window=window)))
    assert found.step_start_us.tolist() == [-500, 0, 1000]
    assert [reason and reason.code for reason in found.set_aside] == ["warming_up", None, None]
    assert found.step_wall_us.tolist() == [400, 1000, 1000]


def _with_steps(source: str, numbers: list[int | None]) -> Evidence:
    made = evidence(_scene())
    steps = tuple(replace(step, number=number) for step, number in zip(made.linked.window.steps, numbers, strict=True))
    window = replace(made.linked.window, source=source, steps=steps)
    return replace(made, linked=replace(made.linked, window=window))


def test_steps_are_numbered_by_the_profiler_or_from_the_first_step_of_the_recording() -> None:
    assert digest_rank(_with_steps("profiler", [4, 5])).step_numbers == (4, 5)
    assert digest_rank(_with_steps("marks", [0, 1]), first_step=29).step_numbers == (29, 30)
    assert digest_rank(_with_steps("marks", [0, 1])).step_numbers == ()
    assert digest_rank(_with_steps("optimizer", [None, None]), first_step=29).step_numbers == ()


def test_collectives_of_the_host_end_when_they_ended_whatever_is_taken_off_for_the_profiler() -> None:
    host = evidence(Scene(2000, ops=[Op(100, 50, "gloo:all_reduce"), Op(1500, 40, "gloo:all_reduce")], steps=2))
    shorter = replace(host.linked, kernels=host.linked.kernels.assign(kind="collective", dur_us=1.0))
    assert shorter.is_host_only
    assert digest_rank(replace(host, linked=shorter)).calls.end_us.tolist() == [150, 1540]
    device = evidence(_scene())
    cut = replace(device.linked, kernels=device.linked.kernels.assign(dur_us=1.0))
    assert digest_rank(replace(device, linked=cut)).calls.end_us.tolist() == [101, 1501, 2101]


def same(left: RankDigest, right: RankDigest) -> bool:
    """True where two digests are equal, arrays included."""
    return all(
        np.array_equal(one, other)
        if isinstance(one := getattr(left, name), np.ndarray) and isinstance(other := getattr(right, name), np.ndarray)
        else one == getattr(right, name)
        for name in RankDigest.__struct_fields__
        if name != "calls"
    ) and all(
        np.array_equal(getattr(left.calls, name), getattr(right.calls, name))
        for name in CollectiveCalls.__struct_fields__
    )


@pytest.fixture(scope="module")
def public(traces: Path) -> RankDigest:
    [source] = find_traces(next(traces.glob("pytorch+torchrec*sst_sleep*_19490.*")))
    return digest(source)


def test_digest_of_a_public_rank_is_small_and_goes_to_another_process(public: RankDigest) -> None:
    assert (public.rank, public.world_size) == (2, 4)
    assert public.calls.start_us.size > 10 and public.calls.is_inside.any()
    text = pickle.dumps(public)
    assert len(text) < 100_000
    assert same(pickle.loads(text), public)
    assert not same(replace(public, step_wall_us=public.step_wall_us + 1), public)


@pytest.mark.parametrize(
    ("name", "host", "rank"),
    [
        (
            "ip-172-31-16-248.us-east-2.compute.internal_19490.1698954910152757753.pt.trace.json.gz",
            "ip-172-31-16-248.us-east-2.compute.internal",
            None,
        ),
        ("DESKTOP-QEE21EV_9792.1673466239037.pt.trace.json", "DESKTOP-QEE21EV", None),
        ("worker0.pt.trace.json.gz", None, None),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", None, 34),
        ("trace.rank0.json.gz", None, 0),
    ],
)
def test_host_and_rank_come_from_the_name_that_the_profilers_handler_gives(
    name: str, host: str | None, rank: int | None
) -> None:
    assert find_traces(Path(name)) == [TraceSource(Path(name), host=host, rank=rank)]
