"""Changes to the process that runs the step.

They are of threads, allocator, garbage collection, denormal numbers and autograd.
"""

import ctypes
import gc
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.harness.machine import usable_cores, usable_processors
from bottleneck.harness.stopwatch import Step, within

_MAPS = Path("/proc/self/maps")
_OPENMP = re.compile(r"(/.*/lib(?:gomp|omp|iomp5)[^/\n]*\.so[^/\n]*)$", re.MULTILINE)
_PAUSE_HARD = 2  # omp_pause_hard, OpenMP 5.0, section 3.2.44: what the runtime holds is given up


def run_without_gradients(subject: Subject) -> Step:
    """The step within `torch.inference_mode`, which spares views, versions and autograd's records.

    Modules may then take a path of their own, as `nn.TransformerEncoder` does: the sums are the same, their order not.
    """
    if subject.train:
        raise NotApplicable("needs a step that does not train: no optimizer, no backward pass")
    if not (subject.modules or subject.tensors):
        raise NotApplicable("needs a step that holds modules or tensors")
    return within(subject.step, subject.torch.inference_mode)


def stop_anomaly_detection(subject: Subject) -> Step:
    """Turns off autograd's search for NaN in the step.

    It must have been on before the step began.
    """
    if not subject.torch.is_anomaly_enabled():
        raise NotApplicable("needs anomaly detection to be on when the step begins")
    return within(subject.step, lambda: subject.torch.autograd.set_detect_anomaly(False))


def run_on_threads(subject: Subject, wanted: Callable[[int], int]) -> Step:
    """Runs the step on so many threads of so many usable cores.

    Processes that it starts run on as many.
    """
    torch, cores = subject.torch, usable_cores() or usable_processors()
    threads = wanted(cores)
    if threads == torch.get_num_threads():
        raise NotApplicable(f"needs another number of threads than {threads}, which is what the program has now")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    release_threads()
    return subject.step


def freeze_objects(subject: Subject) -> Step:
    """Hides live objects from the garbage collector after the first call.

    The first call imports and makes much of what lasts.
    """
    inner = subject.step
    if not gc.isenabled():
        raise NotApplicable("needs garbage collection to be on; the program has turned it off")
    is_frozen = False

    def step() -> Any:
        nonlocal is_frozen
        result = inner()
        if not is_frozen:
            gc.collect()
            gc.freeze()
            is_frozen = True
        return result

    return step


def flush_tiny_numbers(subject: Subject) -> Step:
    """Counts numbers below the smallest normal one as zero in the step.

    That holds in all threads of torch's pool.

    torch sets it for the calling thread (torch 2.13: half of a tensor stayed as it was with two threads). A thread
    that starts takes it over, so the pool is made to start anew.
    """
    if subject.device_types() == {"cuda"}:
        raise NotApplicable("needs arithmetic on the CPU; the step holds its tensors on a GPU")
    if not subject.torch.set_flush_denormal(True):
        raise NotApplicable("needs a CPU that can flush such numbers (SSE3), and a torch that asks it to")
    release_threads()
    return subject.step


# No block is mapped by itself and nothing is trimmed from the end of the heap (mallopt(3)): freed memory stays with the
# process. glibc before 2.35 refuses a threshold above 32 MiB, but takes the count of mappings.
_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": str(2**62),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
_JEMALLOC = "libjemalloc.so.2"
_LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", f"{sys.prefix}/lib")


def keep_pages(subject: Subject) -> Step:
    """Runs the step in a process that keeps freed memory's pages.

    Its C library keeps the memory that is freed (``_KEEP``).
    """
    _need_host_tensors(subject)
    if platform.libc_ver()[0] != "glibc":
        raise NotApplicable("needs the GNU C library, whose malloc reads these variables")
    if _is_loaded("jemalloc"):
        raise NotApplicable("needs the allocator of the C library; the program has jemalloc in its place")
    return subject.step


def use_jemalloc(subject: Subject) -> Step:
    """Runs the step in a process with jemalloc loaded.

    It is loaded before the C library and told to keep freed pages.
    """
    _need_host_tensors(subject)
    if not _is_loaded(_JEMALLOC):
        raise Missing("jemalloc: apt install libjemalloc2, or conda install jemalloc")
    return subject.step


def jemalloc_environment(folders: Iterable[str] = _LIBRARIES) -> dict[str, str]:
    """Gives variables that load jemalloc into a process that starts.

    It comes besides what is loaded already. Without jemalloc there are none.
    """
    places = (Path("/").glob(f"{folder}/{_JEMALLOC}".lstrip("/")) for folder in folders)
    library = next((str(path) for matches in places for path in sorted(matches)), None)
    if library is None:
        return {}
    loaded = [entry for entry in os.environ.get("LD_PRELOAD", "").split(":") if entry and entry != library]
    return {"LD_PRELOAD": ":".join((library, *loaded)), "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}


def _is_loaded(library: str) -> bool:
    try:
        return library in _MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a system without such a file
        return False


def _need_host_tensors(subject: Subject) -> None:
    if subject.device_types() == {"cuda"}:
        raise NotApplicable("needs tensors in the memory of the host; the step holds its tensors on a GPU")


def release_threads() -> bool:
    """Ends the idle threads of this process's OpenMP runtimes.

    More start when they are needed. False where that is not possible.
    """
    try:
        libraries = set(_OPENMP.findall(_MAPS.read_text(encoding="utf-8", errors="replace")))
        return all(ctypes.CDLL(library).omp_pause_resource_all(_PAUSE_HARD) == 0 for library in libraries)
    except (OSError, AttributeError):  # no such file, or a runtime of before OpenMP 5.0
        return False


def _half(cores: int) -> int:
    if cores < 4:
        raise NotApplicable(f"needs four cores or more; half of {cores} is one thread, which threads-1 tries")
    return cores // 2


_THREADS: dict[str, tuple[str, Callable[[int], int]]] = {
    "threads-1": ("one thread", lambda _: 1),
    "threads-half": ("half as many threads as there are cores", _half),
    "threads-cores": ("as many threads as there are cores", lambda cores: cores),
}

CHANGES = (
    Change("inference-mode", "run within torch.inference_mode()", "reordered", run_without_gradients),
    Change("no-anomaly", "switch anomaly detection off", "same", stop_anomaly_detection),
    *(
        Change(name, title, "reordered", partial(run_on_threads, wanted=wanted), is_process_wide=True)
        for name, (title, wanted) in _THREADS.items()
    ),
    Change("keep-pages", "let malloc keep freed memory", "same", keep_pages, is_process_wide=True, environment=_KEEP),
    Change(
        "jemalloc",
        "load jemalloc in place of malloc",
        "same",
        use_jemalloc,
        is_process_wide=True,
        environment=jemalloc_environment(),
    ),
    Change("gc-freeze", "spare lasting objects from garbage collection", "same", freeze_objects, is_process_wide=True),
    Change("flush-denormal", "count tiny numbers as zero", "reordered", flush_tiny_numbers, is_process_wide=True),
)
