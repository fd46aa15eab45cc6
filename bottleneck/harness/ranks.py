"""Programs of many ranks: how they are started, and which ranks of one job record into one folder.

Under `--nproc-per-node` one supervisor has all ranks as children of torchrun. Under a launcher of the user's each rank
has a supervisor of its own.
"""

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.errors import UsageError
from bottleneck.harness.notes import Plan, rank_of
from bottleneck.harness.supervisor import CHILD, child_command
from bottleneck.recording import Form

_LAUNCHER = Path(__file__).with_name("launcher.py")
# A number, or a word for which torchrun counts devices: gpu, cpu, auto, xpu or that of another backend.
_RANKS = re.compile(r"[1-9][0-9]{0,5}|[a-z]\w*")


def program_command(plan: Plan, arguments: Sequence[str]) -> list[str]:
    """The command line of the process that is the user's program, or of torchrun with it as each rank."""
    if plan.nproc_per_node is None:
        return child_command(plan, arguments)
    kind = "module" if plan.module else "script"
    return [
        sys.executable,
        str(_LAUNCHER),
        plan.nproc_per_node,
        kind,
        plan.to_json(),
        str(CHILD),
        plan.target,
        *arguments,
    ]


def check_ranks(wanted: str | None, form: Form, target: str, environment: Mapping[str, str]) -> None:
    """UsageError where the ranks that are asked for cannot be started, or the program cannot be run by several."""
    if wanted is not None and not _RANKS.fullmatch(wanted):
        raise UsageError(
            f"--nproc-per-node {wanted} is no number of ranks", fix="write --nproc-per-node 2, or auto, gpu or cpu"
        )
    if wanted is not None and importlib.util.find_spec("torch") is None:
        raise UsageError(
            "--nproc-per-node needs torch, which is not installed here",
            why="torchrun, which is part of it, starts the ranks",
            fix="pip install torch, or leave --nproc-per-node out",
        )
    if form != "script" and (wanted is not None or job_of(environment) is not None):
        raise UsageError(
            f"{target} is a {form}, which runs in one process",
            why="each rank would repeat its step as often as it sees fit, and the collectives would wait for ever",
            fix="run a script that makes its own process group and steps through its loop",
        )


@dataclass(frozen=True)
class Job:
    """One rank among those that a launcher of the user's started: its number, how many there are, and what names them.

    ``name`` is the same for all ranks of the job and, as far as the launcher tells, for no other.
    """

    rank: int
    ranks: int
    name: str


# Variables that together name the job, of torchrun and of Slurm.
_NAMES = (("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID"))


def job_of(environment: Mapping[str, str]) -> Job | None:
    """The job that this process is a rank of; null where it is on its own."""
    rank, ranks = rank_of(environment)
    if not rank < ranks or ranks < 2:
        return None
    names = _NAMES[0 if environment.get("RANK", "").isdecimal() else 1]
    told = [environment[name] for name in names if environment.get(name)]
    return Job(rank, ranks, "-".join(re.sub(r"\W+", "-", each) for each in told))
