"""The start of a program: its parts do not overlap, add up, and name what was planted in them."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.harness.start_up import ImportClock, PartKey, StartSampler, StartUpWatch, Stretch, divide, find_steady
from bottleneck.schema.start_up import StartLedger

from .driver import record
from .exam_runs import run_plainly, run_quietly

SECOND = 10**9


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> int:
        return round(self.s * SECOND)


stretches = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 30)).map(lambda ends: Stretch(ends[0], ends[0] + ends[1])), max_size=8
)


@given(st.lists(stretches, max_size=4), st.integers(0, 40), st.integers(0, 100))
def test_each_instant_belongs_to_the_first_layer_that_has_it(
    layers: list[list[Stretch]], begin_ns: int, length_ns: int
) -> None:
    whole = Stretch(begin_ns, begin_ns + length_ns)
    taken, free = divide(whole, layers)
    owner = {at: number for number, got in enumerate([*taken, free]) for one in got for at in range(*one[:2])}
    assert sum(one.end_ns - one.begin_ns for got in (*taken, free) for one in got) == length_ns == len(owner)
    for at, number in owner.items():
        having = [n for n, layer in enumerate(layers) if any(one.begin_ns <= at < one.end_ns for one in layer)]
        assert number == (having[0] if having else len(layers))


@pytest.fixture
def imports() -> Iterator[tuple[ImportClock, Clock]]:
    clock = Clock()
    made = ImportClock(clock)
    made.start()
    yield made, clock
    made.stop()


def spec_of(name: str, folder: str = "/x/site-packages") -> SimpleNamespace:
    return SimpleNamespace(name=name, origin=f"{folder}/{name.replace('.', '/')}.py", cached=None)


def test_an_import_inside_of_another_counts_for_itself_alone(imports: tuple[ImportClock, Clock]) -> None:
    made, clock = imports
    assert made.enter(spec_of("torch"))
    clock.s = 1
    assert not made.enter(spec_of("torch.nn"))  # the same package
    assert not made.enter(spec_of("json", "/x/lib/python3.11"))  # the standard library
    assert made.enter(spec_of("numpy"))
    clock.s = 3
    made.leave()
    clock.s = 6
    made.leave()
    lengths = [(one.key and one.key.name, (one.end_ns - one.begin_ns) // SECOND) for one in made.stretches]
    assert lengths == [("torch", 1), ("numpy", 2), ("torch", 3)]


def test_a_module_of_the_program_is_its_own_python(imports: tuple[ImportClock, Clock]) -> None:
    made, _ = imports
    assert not made.enter(spec_of("model", "/home/me/project"))
    assert made.enter(spec_of("model_of_a_library"))
    made.leave()


def test_the_import_system_has_its_own_function_again_afterwards() -> None:
    system = sys.modules["_frozen_importlib"]
    plain = system._load_unlocked  # type: ignore[attr-defined]
    made = ImportClock(Clock())
    made.start()
    assert system._load_unlocked is not plain  # type: ignore[attr-defined]
    made.stop()
    assert system._load_unlocked is plain  # type: ignore[attr-defined]


def test_a_step_that_takes_half_again_as_long_is_not_steady() -> None:
    steps = [Stretch(0, 9 * SECOND), Stretch(9 * SECOND, 11 * SECOND), Stretch(11 * SECOND, 12 * SECOND)]
    assert find_steady(steps, 1.0) == 2
    assert find_steady(steps, 1.4) == 1
    assert find_steady(steps, 0.5) is None


def started(clock: Clock) -> StartUpWatch:
    """A watch of a process that is 2 s old, of which the last one was ours."""
    clock.s = 2
    watch = StartUpWatch(began_ns=SECOND, clock_ns=clock, since_s=lambda: 2.0)
    watch.start()
    return watch


def seconds_by_kind(start: StartLedger) -> dict[str, float]:
    return {part.kind: start.seconds(part.kind) for part in start.parts}


def test_the_first_step_beyond_a_usual_one_is_warm_up() -> None:
    clock = Clock()
    watch = started(clock)
    clock.s = 5
    watch.begin_steps()
    clock.s = 10
    start = watch.finish([Stretch(0, 9 * SECOND), Stretch(9 * SECOND, 10 * SECOND)], (), 1.0)
    assert seconds_by_kind(start) == {"interpreter": 1, "program": 3, "steps": 1, "warm-up": 3}
    assert (start.total_s, start.own_s, start.steps) == (8, 1, 1)


def test_what_we_took_between_steps_is_set_aside() -> None:
    clock = Clock()
    watch = started(clock)
    watch.begin_steps()
    with watch.setting_aside():
        clock.s = 3
    clock.s = 9
    start = watch.finish(
        [Stretch(0, 6 * SECOND), Stretch(8 * SECOND, 9 * SECOND)], [Stretch(6 * SECOND, 8 * SECOND)], 1
    )
    assert seconds_by_kind(start) == {"interpreter": 1, "steps": 1, "warm-up": 2}
    assert start.own_s == 4


def test_without_a_steady_step_nothing_is_called_warm_up() -> None:
    clock = Clock()
    watch = started(clock)
    watch.begin_steps()
    clock.s = 9
    start = watch.finish([], (), None)
    assert seconds_by_kind(start) == {"interpreter": 1, "steps": 7}
    assert start.steps is None


def test_samples_tell_lines_before_the_first_step_only() -> None:
    clock = Clock()
    watch = started(clock)
    sampler = StartSampler(0, clock)
    sampler.stretches.append(Stretch(2 * SECOND, 9 * SECOND, PartKey("program", "build()", "train.py:3")))
    watch._sampler = sampler
    clock.s = 4
    watch.begin_steps()
    clock.s = 9
    start = watch.finish([], (), None)
    assert [(part.kind, part.source, part.seconds) for part in start.parts if part.source] == [
        ("program", "train.py:3", 2.0)
    ]
    assert math.fsum(part.seconds for part in start.parts) == start.total_s == 8


def test_a_sample_names_the_file_that_weights_come_from(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "serialization.py"
    file.parent.mkdir()
    (tmp_path / "w.pt").write_bytes(b"x" * 123)
    space = {"frame": sys._getframe}
    exec(compile("def load(f):\n    return frame(0)\n", str(file), "exec"), space)
    sampler = StartSampler(0, Clock())
    frame = space["load"](str(tmp_path / "w.pt"))  # type: ignore[operator]
    sampler.note(frame, 0, 5)
    sampler.note(frame, 5, 9)
    (stretch,) = sampler.stretches  # equal neighbours are one
    assert stretch.key is not None and stretch.key[:2] == ("weights", "torch.load")
    assert (stretch.end_ns, sampler.read_bytes[stretch.key]) == (9, 123)


BUSY = """
import time
def work_for(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
"""
# Each tells the age of its process once its long first step is over.
TRAINING = """
import os, time, torch
from busy import work_for
def age_s():
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
{setup}
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(60):
    loss = net(torch.ones(4, 8)).sum()
    loss.backward()
    work_for(0.005 if step else 0.5)
    optimizer.step()
    if step == 0:
        print(age_s())
"""
SETUPS = {
    "import": "import heavy_library",
    "weights": "torch.save(torch.zeros(20_000_000), 'w.pt'); state = torch.load('w.pt')",
    "compile": "f = torch.compile(lambda x: x.sin() + 1, backend='aot_eager'); f(torch.ones(4))",
}


@pytest.mark.skipif(sys.platform != "linux", reason="the age of a process is told by Linux")
@pytest.mark.parametrize("name", SETUPS)
def test_the_start_of_a_program_adds_up(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (tmp_path / "busy.py").write_text(BUSY)
    (packages / "heavy_library.py").write_text(BUSY + "work_for(0.6)\n")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    run = record(tmp_path, TRAINING.format(setup=SETUPS[name]), "--startup")
    start = run.recording.start_up
    assert start is not None and start.is_sampled and start.steps is not None
    assert math.isclose(math.fsum(part.seconds for part in start.parts), start.total_s, rel_tol=1e-9)
    # The program reads the clock right after its first step; steps after it may be unsteady on a busy machine.
    age_s = float(run.stdout)
    assert start.steps >= 1
    assert start.total_s + start.own_s >= age_s - 0.05
    # The long first step. Where the module's calls are not watched nothing tells when it began.
    assert start.seconds("program" if name == "compile" else "warm-up") >= 0.4
    assert start.seconds("import") > start.seconds("interpreter") > 0
    if start.steps == 1:
        assert start.total_s + start.own_s <= age_s + 0.1
    if name == "import":
        (heavy,) = [part for part in start.of_kind("import") if part.name == "heavy_library"]
        assert heavy.seconds >= 0.6 and heavy.source == "program.py:7"
    elif name == "weights":
        (loaded,) = start.of_kind("weights")
        assert (loaded.name, loaded.bytes) == ("torch.load", (tmp_path / "w.pt").stat().st_size)
    else:
        graph = next(part for part in start.of_kind("compile") if part.stages)
        assert graph.name == "<lambda>()" and graph.stages["dynamo"] > 0


def test_a_plain_run_tells_its_start_in_a_line_without_samples(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    run = record(tmp_path, TRAINING.format(setup=""))
    start = run.recording.start_up
    assert start is not None and not start.is_sampled
    assert "bottleneck: start-up: " in run.said and "until the first steady step: imports " in run.said


def test_a_second_recording_has_the_start_of_the_first_beside_its_own(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    first = record(tmp_path, TRAINING.format(setup=""), "--startup")
    first.folder.rename(tmp_path / "first")
    before, after = (
        first.recording.start_up,
        record(tmp_path, TRAINING.format(setup=""), "--startup").recording.start_up,
    )
    assert before is not None and before.earlier_s is None
    assert after is not None and (after.earlier_s, after.earlier) == (before.total_s, before.parts)


FAILING_IMPORTS = """
import traceback
try:
    import broken_library
except Exception:
    traceback.print_exc()
try:
    import no_such_library
except ImportError:
    traceback.print_exc()
import importlib, json, random
print(importlib.reload(json).__name__, importlib.import_module("xml.dom").__name__)
import broken_library
"""


def test_the_program_sees_no_trace_of_the_clock_in_its_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "broken_library.py").write_text("def fail():\n    return 1 / 0\nfail()\n")
    (tmp_path / "program.py").write_text(FAILING_IMPORTS)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    assert run_quietly(tmp_path, "--startup", "program.py") == run_plainly(tmp_path, "program.py")
