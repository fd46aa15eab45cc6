"""Looks at other Python threads of the program while its steps are timed.

It tells who computes, and whether the steps wait. Two looks, outside of any step, read the processor time of each
thread from Linux; a thread that computed is then sampled for its line.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from bottleneck.harness.lines import OURS, is_program
from bottleneck.schema.measurements import BusyThread, OtherThreads

# Of the time between the looks: a thread that computes less holds nobody up.
_LEAST_SHARE = 0.05
_SAMPLES, _PAUSE_S = 10, 0.0005
_DEEPEST = 200
_TASKS = Path("/proc/self/task")
_NS = 1e9


def read_task_ns(task: int) -> tuple[int, int] | None:
    """Reads how long a thread ran, and waited for a processor, in ns.

    Null where the system does not tell.
    """
    try:
        ran, waited = (_TASKS / str(task) / "schedstat").read_text(encoding="ascii").split()[:2]
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None


class ThreadLook:
    """Python threads of this process at one instant.

    And what each has run and waited so far.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[int, int] | None] = read_task_ns,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.stepping = threading.get_ident()
        self.at_ns = clock_ns()
        tasks = {thread.ident: thread.native_id for thread in threading.enumerate()}
        tasks[self.stepping] = threading.get_native_id()
        self.ran = {
            ident: times
            for ident, task in tasks.items()
            if ident is not None and task is not None and (times := read(task)) is not None
        }

    def __len__(self) -> int:
        return len(self.ran)


def threads_between(
    before: ThreadLook, after: ThreadLook, sleep: Callable[[float], None] = time.sleep
) -> OtherThreads | None:
    """Returns the threads that computed between the looks.

    Null where the system does not tell, or there is no other thread.
    """
    wall_ns, own = after.at_ns - before.at_ns, after.stepping
    if wall_ns <= 0 or own != before.stepping or own not in before.ran or own not in after.ran or len(after) < 2:
        return None
    # The clocks are read one after the other, and processor time is added up in ticks: a little above 1 is 1.
    ran, waited = (
        min(max(late - early, 0) / wall_ns, 1.0) for late, early in zip(after.ran[own], before.ran[own], strict=True)
    )
    shares = {
        ident: min((now[0] - before.ran[ident][0]) / wall_ns, 1.0)
        for ident, now in after.ran.items()
        if ident != own and ident in before.ran
    }
    busy = {ident: share for ident, share in shares.items() if share >= _LEAST_SHARE}
    places = _sample(tuple(busy), sleep) if busy else {}
    threads = [BusyThread(*places[ident], cpu_share=share) for ident, share in busy.items() if ident in places]
    return OtherThreads(
        wall_s=wall_ns / _NS,
        cpu_share=ran,
        queued_share=waited,
        threads=tuple(sorted(threads, key=lambda thread: -thread.cpu_share)),
    )


def _sample(idents: tuple[int, ...], sleep: Callable[[float], None]) -> Mapping[int, tuple[str, str]]:
    """Returns function and line of each thread by most of its samples.

    Without threads that run no own code.
    """
    by_thread: dict[int, Counter[tuple[str, str]]] = {ident: Counter() for ident in idents}
    for _ in range(_SAMPLES):
        sleep(_PAUSE_S)
        frames = sys._current_frames()
        for ident in idents:
            place = place_of_frame(frames.get(ident))
            if place is not None:
                by_thread[ident][place] += 1
        del frames
    return {ident: counts.most_common(1)[0][0] for ident, counts in by_thread.items() if counts}


def place_of_frame(frame: FrameType | None) -> tuple[str, str] | None:
    """Returns the innermost function of the program in a stack.

    And its line; null for a thread of a library, or of ours.
    """
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        code = frame.f_code
        if is_program(code.co_filename) and not code.co_filename.startswith(OURS):
            return code.co_name, f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 - as plain text
        frame = frame.f_back
    return None
