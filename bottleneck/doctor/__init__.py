"""Check-up of a machine or a trace, beside the data path: facts are gathered, then judged check by check."""

from bottleneck.doctor.facts import Facts
from bottleneck.doctor.machine_checks import device_rows, machine_rows, sensor_rows
from bottleneck.doctor.program_checks import program_rows
from bottleneck.schema.checks import Check, Checkup, at_fault


def examine_environment() -> Checkup:
    """The check-up of this machine: everything that a measurement needs, and what is missing."""
    from bottleneck.doctor.gather import gather

    return judge(gather())


def judge(facts: Facts) -> Checkup:
    """The facts as rows. `bottleneck run` can work unless something that it cannot do without is missing."""
    checks = (*program_rows(facts), *device_rows(facts), *sensor_rows(facts), *machine_rows(facts))
    lacking = [check for check in at_fault(checks) if check.status == "missing"]
    return Checkup(
        kind="environment",
        subject="this machine",
        verdict="not ready" if lacking else "ready",
        sentence=_cannot(lacking) if lacking else _can(checks),
        checks=checks,
    )


def _cannot(lacking: list[Check]) -> str:
    return f"bottleneck run cannot work here: {'; '.join(f'{check.title}: {check.fact}' for check in lacking)}."


def _can(checks: tuple[Check, ...]) -> str:
    worse = [check.title for check in checks if check.status in {"limited", "missing"}]
    return "bottleneck run can work here." + (f" Worth a look: {', '.join(dict.fromkeys(worse))}." if worse else "")
