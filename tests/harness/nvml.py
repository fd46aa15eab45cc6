"""The real pynvml on a stub of NVIDIA's library, which answers as a script tells it (see ``nvml_stub.c``)."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
CARD, OTHER_CARD = "GPU-00000000-0000-0000-0000-000000000000", "GPU-00000001-0000-0000-0000-000000000001"

# Samples as often as there are ticks, on a clock that each look at moves by the cost of a call.
_DRIVER = """
import json, sys
from bottleneck.harness.nvml import NvmlSampler
ticks, period_s, cost_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
now_s = 0.0
def clock():
    global now_s
    now_s += cost_s
    return now_s
sampler = NvmlSampler(clock)
is_open, rows = sampler.open(1), []
if is_open:
    for tick in range(ticks):
        now_s = max(now_s, 1.0 + tick * period_s)
        rows.append([[sensor, values] for sensor, values in sampler.sample(tick * period_s)])
    sampler.close()
print(json.dumps({"is_open": is_open, "notes": sampler.notes, "rows": rows}))
"""


@dataclass(frozen=True)
class FinishResult:
    """The output of a sampler: whether it had anything to sample, its notes, and for each tick its rows."""

    is_open: bool
    notes: list[str]
    rows: list[list[tuple[str, dict[str, float]]]]

    def of(self, sensor: str, column: str) -> list[float]:
        """The values of one column of a sensor, where there were any."""
        return [values[column] for tick in self.rows for name, values in tick if name == sensor and column in values]

    def columns(self, sensor: str) -> set[str]:
        """The columns that the sensor ever had a value for."""
        return {column for tick in self.rows for name, values in tick if name == sensor for column in values}


def build(folder: Path, *flags: str) -> Path:
    """The folder with the library in it; the test is skipped where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to make the stub of libnvidia-ml.so.1 with")
    target = folder / "libnvidia-ml.so.1"
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run([compiler, *flags, "-shared", "-fPIC", soname, "-o", str(target), str(SOURCE)], check=True)
    return folder


def environment(library: Path, script: Path) -> dict[str, str]:
    """The environment in which pynvml finds the stub, and the stub its script."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB": str(script)}


def tell(library: Path, folder: Path, script: Sequence[str], ticks: int = 12, cost_s: float = 1e-6) -> FinishResult:
    """The output of a sampler for a stub with this script, asked every 20 ms by a clock of its own."""
    path = folder / "script"
    path.write_text("\n".join(script) + "\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _DRIVER, str(ticks), "0.02", str(cost_s)],
        env=environment(library, path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return FinishResult(**json.loads(done.stdout))
