import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.experiment.interventions.process_settings import (
    CHANGES,
    freeze_objects,
    jemalloc_environment,
    keep_pages,
    run_without_gradients,
    stop_anomaly_detection,
    use_jemalloc,
)
from bottleneck.experiment.interventions.process_settings import run_on_threads as run_on
from bottleneck.experiment.interventions.subject import Missing, NotApplicable, Subject, subject_of
from bottleneck.harness.machine import usable_cores

torch: Any = pytest.importorskip("torch")
nn = torch.nn


def alone(code: str, **environment: str) -> str:
    """The output of this program in a process of its own, which such a change is for."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={"PATH": "", "OMP_NUM_THREADS": "2", **environment},
    )
    return done.stdout.strip()


def test_what_the_step_makes_knows_no_autograd() -> None:
    model, data = nn.Linear(2, 2), torch.ones(1, 2)
    result = run_without_gradients(subject_of(lambda: model(data)))()
    assert result.is_inference()
    assert not torch.is_inference_mode_enabled()


def test_a_step_that_trains_needs_its_gradients() -> None:
    model, data = nn.Linear(2, 2), torch.ones(1, 2)
    with pytest.raises(NotApplicable, match="needs a step that does not train"):
        run_without_gradients(subject_of(lambda: model(data).sum().backward()))


def test_a_step_without_tensors_has_no_use_for_inference_mode() -> None:
    with pytest.raises(NotApplicable, match="needs a step that holds modules or tensors"):
        run_without_gradients(subject_of(lambda: None))


THREADS = """
import os, torch
from bottleneck.experiment.interventions.process_settings import run_on_threads
from bottleneck.experiment.interventions.subject import subject_of
torch.ones(1 << 20).add_(1)
run_on_threads(subject_of(lambda: None), lambda cores: 3)()
print(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])
"""


def test_the_step_has_the_threads_that_were_wanted_and_so_have_its_processes() -> None:
    assert alone(THREADS) == "3 3"


def test_as_many_threads_as_before_are_no_change() -> None:
    now = torch.get_num_threads()
    with pytest.raises(NotApplicable, match=f"another number of threads than {now}"):
        run_on(subject_of(lambda: None), lambda cores: now)


@pytest.mark.parametrize(("cores", "wanted"), [(4, 2), (9, 4)])
def test_half_of_the_cores_are_rounded_down(cores: int, wanted: int) -> None:
    change = next(change for change in CHANGES if change.name == "threads-half")
    assert change.apply.keywords["wanted"](cores) == wanted  # type: ignore[attr-defined]


def test_half_of_two_cores_is_left_to_another_change() -> None:
    change = next(change for change in CHANGES if change.name == "threads-half")
    with pytest.raises(NotApplicable, match="which threads-1 tries"):
        change.apply.keywords["wanted"](2)  # type: ignore[attr-defined]


def test_processors_that_share_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    for number in range(4):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 2},{number % 2 + 2}\n")
    assert usable_cores(tmp_path) == 2
    assert usable_cores(tmp_path / "nowhere") is None


PAGES = """
import resource
from bottleneck.experiment.interventions.process_settings import keep_pages
from bottleneck.experiment.interventions.subject import subject_of
step = keep_pages(subject_of(lambda: [len(bytearray(64 << 20)) for _ in range(4)]))
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_stays_with_the_process() -> None:
    change = next(change for change in CHANGES if change.name == "keep-pages")
    without, kept = int(alone(PAGES)), int(alone(PAGES, **change.environment))
    assert without > 10 * kept


def test_an_allocator_that_is_not_loaded_is_missing() -> None:
    with pytest.raises(Missing, match="libjemalloc2"):
        use_jemalloc(subject_of(lambda: None))


def test_a_library_is_loaded_besides_what_is_loaded_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    assert jemalloc_environment([str(tmp_path / "nothing")]) == {}
    library = tmp_path / "x-linux-gnu" / "libjemalloc.so.2"
    library.parent.mkdir()
    library.touch()
    assert jemalloc_environment([str(tmp_path / "*-linux-gnu")])["LD_PRELOAD"] == f"{library}:/lib/other.so"


@pytest.mark.parametrize("apply", [keep_pages, use_jemalloc])
def test_memory_of_a_gpu_is_not_the_allocators(apply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subject, "device_types", lambda _: {"cuda"})
    with pytest.raises(NotApplicable, match="memory of the host"):
        apply(subject_of(lambda: None))


FREEZE = """
import gc, torch
from bottleneck.experiment.interventions.process_settings import freeze_objects
from bottleneck.experiment.interventions.subject import subject_of
step = freeze_objects(subject_of(lambda: 5))
before = gc.get_freeze_count()
assert step() == 5
once = gc.get_freeze_count()
step()
print(before, once > 10_000, gc.get_freeze_count() == once)
"""


def test_objects_are_frozen_once_after_the_first_step() -> None:
    assert alone(FREEZE) == "0 True True"


def test_nothing_is_frozen_where_nothing_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.isenabled", lambda: False)
    with pytest.raises(NotApplicable, match="needs garbage collection to be on"):
        freeze_objects(subject_of(lambda: None))


FLUSH = """
import torch
from bottleneck.experiment.interventions.process_settings import flush_tiny_numbers
from bottleneck.experiment.interventions.subject import subject_of
tiny = torch.full((4_000_000,), 1e-39)
step = lambda: ((tiny * 1.0).view(torch.int32) == 0).float().mean().item()
before = step()
try:
    print(before, flush_tiny_numbers(subject_of(step))())
except Exception as error:
    print(type(error).__name__)
"""


def test_tiny_numbers_are_zero_in_every_thread() -> None:
    told = alone(FLUSH)
    if told == "NotApplicable":
        pytest.skip("this CPU or this torch cannot flush tiny numbers")
    assert told == "0.0 1.0"


def test_tiny_numbers_of_a_gpu_are_no_matter_of_the_cpu() -> None:
    from bottleneck.experiment.interventions.process_settings import flush_tiny_numbers

    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    with pytest.raises(NotApplicable, match="needs arithmetic on the CPU"):
        flush_tiny_numbers(Subject(torch=torch, step=lambda: None, tensors=(tensor,)))


def test_a_step_without_anomaly_detection_runs_without_it_and_leaves_it_on() -> None:
    told = []
    torch.autograd.set_detect_anomaly(True)
    try:
        step = stop_anomaly_detection(subject_of(lambda: told.append(torch.is_anomaly_enabled())))
        step()
        assert told == [False] and torch.is_anomaly_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_a_step_that_no_anomaly_detection_watches_has_none_to_lose() -> None:
    with pytest.raises(NotApplicable, match="needs anomaly detection to be on"):
        stop_anomaly_detection(subject_of(lambda: None))
