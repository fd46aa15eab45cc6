"""Random small programs with a known ledger, through the whole pipeline: exactly that ledger is found."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from bottleneck.pipeline import Options, analyse
from bottleneck.schema.analysis import Analysis
from tests.builders import Event, write_trace
from tests.laws import host_programs as on_host
from tests.laws import programs as on_gpu
from tests.laws.programs import Told
from tests.laws.strategies import host_programs, programs

pytestmark = pytest.mark.statistics

# The same programs in every run. Without the phase that explains failures, which takes minutes.
law = settings(
    max_examples=settings.default.max_examples * 3 // 10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)


def analysed(events: Sequence[Event], **top: object) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        return analyse([write_trace(Path(folder) / "trace.json", events, **top)])


def analysed_on_host(events: Sequence[Event]) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        trace = write_trace(Path(folder) / "trace.json", events, deviceProperties=[])
        return analyse([trace], Options(device=on_host.CPU))


def counted(told: Sequence[Told], analysis: Analysis) -> list[Told]:
    """The known contents of the steps that count."""
    each = analysis.steps.each
    return [one for one, step in zip(told, each, strict=True) if step.set_aside is None] if each else list(told)


def mean(told: Sequence[Told], name: str) -> float:
    return math.fsum(getattr(one, name) for one in told) / len(told)


def expected_ledger(told: Sequence[Told]) -> dict[str, float]:
    names = sorted({name for one in told for name, us in one.accounts.items() if us})
    return {name: math.fsum(one.accounts[name] for one in told) / len(told) for name in names}


def ledger(analysis: Analysis) -> dict[str, float]:
    return {entry.account: entry.us for entry in analysis.ledger}


@pytest.mark.sample
@law
@given(programs)
def test_a_random_program_on_a_gpu_gives_exactly_the_ledger_that_it_was_made_of(program: on_gpu.Program) -> None:
    analysis = analysed(on_gpu.emit(program))
    told = counted([on_gpu.known(step) for step in program.steps], analysis)
    assert ledger(analysis) == pytest.approx(expected_ledger(told), abs=1e-6)
    assert analysis.steps.count == len(told)
    assert analysis.steps.wall_us == pytest.approx(mean(told, "wall_us"))
    assert analysis.totals.busy_us == pytest.approx(mean(told, "busy_us"))
    assert analysis.totals.kernel_count == pytest.approx(mean(told, "kernels"))
    assert analysis.totals.copy_count == pytest.approx(mean(told, "copies"))


@law
@given(host_programs)
def test_a_random_program_on_a_cpu_gives_exactly_the_ledger_that_it_was_made_of(program: on_host.HostProgram) -> None:
    analysis = analysed_on_host(on_host.emit(program))
    told = counted([on_host.known(step) for step in program.steps], analysis)
    assert ledger(analysis) == pytest.approx(expected_ledger(told), abs=1e-6)
    assert analysis.steps.count == len(told)
    assert analysis.steps.wall_us == pytest.approx(mean(told, "wall_us"))
