"""A change to a step: its name, the precision of its results, and the function that applies it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bottleneck.experiment.interventions.subject import Missing, NotApplicable, Subject

__all__ = ["Change", "Missing", "NotApplicable", "Precision"]

# How close results have to stay: the same bits, the same sums in another order, or the precision that is named.
Precision = Literal["same", "reordered", "tf32", "fp16", "bf16", "int8", "other work"]


@dataclass(frozen=True)
class Change:
    """A change that `verify` can try: one function and one line in the table of changes.

    ``apply`` takes a subject that was made afresh, changes it in place where that helps, and gives back the step to
    call; it raises NotApplicable or Missing. ``environment`` and ``settings`` (parameters of the workload) hold before
    the program is loaded, in a process of its own where ``is_process_wide``. ``samples`` is how many times as many
    samples a changed step works on. ``sources`` is where the idea is explained. ``against`` makes, of
    another fresh subject, what the changed step is compared with where that is a part of the original only.
    """

    name: str
    title: str
    precision: Precision
    apply: Callable[[Subject], Callable[[], object]] = lambda subject: subject.step
    is_process_wide: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
    samples: float = 1.0
    against: Callable[[Subject], Callable[[], object]] | None = None

    @property
    def is_remedy(self) -> bool:
        """True if one could keep it: it does the step's work, or as much for each sample. A bound is none."""
        return self.precision != "other work" or self.samples != 1.0
