"""The arithmetic of the benchmarks that say what a measurement costs; running them takes minutes."""

import json
from pathlib import Path

from benchmarks.disturbance import Case, Steps, _steps, rows_of

CASE = Case("mlp", settling=2, held=4, after=3, periods_ms=(20,))


def stamps(folder: Path, held_us: float, after_us: float) -> Path:
    """A run whose steps take 1 ms, but for those that are compared."""
    us = [1000.0] * CASE.steps
    us[8:12] = [held_us] * 4
    us[-3:] = [after_us] * 3
    ends_ns = [int(1000 * sum(us[:count])) for count in range(CASE.steps + 1)]
    path = folder / "stamps.json"
    path.write_text(json.dumps({"wall_ns": ends_ns, "cpu_ns": [end // 2 for end in ends_ns]}))
    return path


def test_the_steps_of_the_held_phase_and_those_after_the_measurement_are_compared(tmp_path: Path) -> None:
    assert _steps(CASE, stamps(tmp_path, 300.0, 200.0)) == Steps(300.0, 150.0, 200.0, 100.0)


def test_a_row_tells_ratios_and_microseconds_over_the_pairs() -> None:
    bare = Steps(300.0, 300.0, 300.0, 300.0)
    pairs = [(bare, Steps(300.0 * times, 303.0, 300.0, 297.0)) for times in (1.0, 1.01, 1.02)]
    held, after = rows_of("mlp", 0, pairs)
    assert held == (
        "| mlp | off | unprofiled phase | 300 us | 1.0100 (1.0000 to 1.0200) | 1.0100 (1.0100 to 1.0100) | "
        "+3.0 (+0.0 to +6.0) | 3 |"
    )
    assert "| after the measurement | 300 us | 1.0000 (1.0000 to 1.0000) | 0.9900" in after
