"""The time of a step by Python frame: kernels where they were launched, waiting where the host was."""

import math

import pytest

from bottleneck.analysis.frame_tree import frame_tree
from bottleneck.pipeline import finish
from bottleneck.schema.time_tree import TimeTree
from tests.analysis.scenes import Event, Kernel, Scene, evidence

TORCH = "torch/nn/modules/module.py(1553): _call_impl"
FRAMES = [
    Event("python", "train.py(3): main", 0, 100),
    Event("python", "/home/me/model.py(7): load", 0, 40),
    Event("python", TORCH, 40, 60),
    Event("python", "nn.Module: Linear_0", 41, 58),
    Event("python", "<built-in method linear of type object at 0x7f>", 42, 10),
]
KERNELS = [Kernel(60, 40, launch=(45, 2), name="gemm")]


def _tree(scene: Scene) -> TimeTree | None:
    return frame_tree(finish(evidence(scene)))


def _paths(tree: TimeTree) -> dict[str, float]:
    """The whole time of each node by its path."""
    paths: list[str] = []
    for node in tree.nodes:
        paths.append(node.name if node.parent < 0 else f"{paths[node.parent]} > {node.name}")
    return {
        path: math.fsum(
            math.fsum(node.us.values())
            for other, node in zip(paths, tree.nodes, strict=True)
            if f"{other} > ".startswith(f"{path} > ")
        )
        for path in paths
    }


def test_work_stands_where_it_was_launched_and_waiting_where_the_host_was() -> None:
    tree = _tree(Scene(100, KERNELS, events=FRAMES))
    assert tree is not None and tree.by == "frames"
    paths = _paths(tree)
    main = "main (train.py:3)"
    assert paths[main] == pytest.approx(100)
    assert paths[f"{main} > load (model.py:7)"] == pytest.approx(40)
    queued = 60 - 45  # until its kernel began, from the launch on: that is where the launch was
    assert paths[f"{main} > Linear_0 > linear (built in)"] == pytest.approx(40 + queued + (45 - 42))
    (idle,) = [node for node in tree.nodes if node.name.startswith("load")]
    assert set(idle.us) == {"overhead.python"} and not idle.kernels
    (work,) = [node for node in tree.nodes if node.kernels]
    assert work.us["memory"] == pytest.approx(40)


def test_frames_of_torch_show_only_where_nothing_is_inside_them() -> None:
    tree = _tree(Scene(100, KERNELS, events=FRAMES))
    assert tree is not None
    assert [path for path in _paths(tree) if path.endswith("_call_impl (module.py:1553)")] == [
        "main (train.py:3) > _call_impl (module.py:1553)"  # its own microsecond
    ]


def test_line_that_a_recording_marks_is_a_node_and_names_the_row_of_its_waiting() -> None:
    lines = [Event("line", "/home/me/model.py(9): load", 5, 30)]
    finished = finish(evidence(Scene(100, KERNELS, events=[*FRAMES, *lines])))
    tree = frame_tree(finished)
    assert tree is not None
    (line,) = [node for node in tree.nodes if node.kind == "line"]
    assert (line.name, tree.nodes[line.parent].name) == ("model.py:9", "load (model.py:7)")
    assert line.us == {"overhead.python": pytest.approx(30)}


def test_trace_without_frames_has_no_tree() -> None:
    assert _tree(Scene(100, KERNELS)) is None
