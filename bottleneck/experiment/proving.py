"""Runs the self-test of the gate on a program: the sources as they are, with and without something put into a step."""

from dataclasses import replace

from bottleneck.counters import Counts
from bottleneck.experiment.counted import count_program
from bottleneck.experiment.duel import duel
from bottleneck.experiment.gate import Job, effort_of
from bottleneck.experiment.selftest import NOTHING, Injection, Means, Part, Proof, self_test
from bottleneck.experiment.stand import Stand
from bottleneck.gate.judging import judge_counts
from bottleneck.gate.settings import workload_name
from bottleneck.gated import TimeResult
from bottleneck.harness.injected import VARIABLE
from bottleneck.harness.trial_program import Program

_NO_STEP = "the self-test needs a workload: a script's step cannot be made longer from outside"
_PARTS: tuple[Part, ...] = ("counters", "time")


def prove(job: Job, program: Program) -> Proof:
    """Whether the gate catches what is put into this program's step; WorkloadError where the program does not run."""
    name = workload_name(program.words)
    if program.form == "script":
        return Proof(name, reason=_NO_STEP)

    def count(injection: Injection) -> Counts:
        job.tell(f"counting {name} with {injection.what}")
        number = len(list(job.scratch.glob(f"proof-{name}-*")))
        return count_program(program, job.scratch / f"proof-{name}-{number}", _stand(job, injection)).counts

    def time(injection: Injection) -> TimeResult:
        job.tell(f"timing {name} with {injection.what}")
        return duel(program, _stand(job, NOTHING), _stand(job, injection), effort_of(job), job.tell)

    parts = (job.only,) if job.only is not None else _PARTS
    return self_test(name, job.settings, Means(count, judge_counts, time), parts)


def _stand(job: Job, injection: Injection) -> Stand:
    """The sources as they are now, whose processes are told what to put into the step."""
    plain = job.candidate
    return replace(plain, label=injection.what, environment={**plain.environment, VARIABLE: injection.told})
