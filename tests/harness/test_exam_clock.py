"""Row 47 of the reliability exam: a clock that jumps by an hour changes no interval and no mark."""

from pathlib import Path

import pytest

from .driver import record
from .test_run_forms import ops_by_step
from .test_run_scripts import TRAINING, WARM

pytestmark = pytest.mark.process

pytest.importorskip("torch")

# What a tool does that freezes or moves time in a program's tests: it replaces functions of the module, everywhere.
_JUMPS = """
    import time
    real = {name: getattr(time, name) for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic")}
    jump_s = 0

    def moved(name):
        unit = 10**9 if name.endswith("_ns") else 1
        return lambda: real[name]() + jump_s * unit

    for name, original in real.items():
        for module in list(sys.modules.values()):
            for attribute, value in list(vars(module).items()):
                if value is original and module is not sys.modules["__main__"]:
                    setattr(module, attribute, moved(name))
    for steps in range(40):
        jump_s = (0, 3600, -3600)[steps % 3]
        train(1)
    print(time.time() > 0)
"""


def test_a_program_that_moves_its_clock_is_measured_all_the_same(tmp_path: Path) -> None:
    run = record(tmp_path, TRAINING + _JUMPS, *WARM)
    assert (run.status, run.stdout, run.stderr) == (0, "True\n", "")
    assert run.recording.unprofiled is not None and run.recording.profiled is not None
    assert 0 < run.recording.unprofiled.low <= run.recording.unprofiled.high < 60e6
    assert 0 < run.recording.profiled.low <= run.recording.profiled.high < 60e6
    steps = ops_by_step(run)
    assert len(steps) >= 5
    assert {sum(op["name"] == "aten::linear" for op in ops) for ops in steps} == {1}
