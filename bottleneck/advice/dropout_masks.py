"""Rule of dropout whose masks are drawn one by one."""

import re

import numpy as np

from bottleneck.advice.kernel_work import has_backward_pass, requires_gain, work_of
from bottleneck.advice.quantities import format_per_step, outermost_ops
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import main_source
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_known

_DRAWS = re.compile(r"^aten::bernoulli_$")
_DROPS = re.compile(r"^aten::(?:dropout_?|native_dropout|_fused_dropout|feature_dropout_?)$")
_LEAST_SHARE = 0.03
# Of the time of bernoulli_ a mask of 16 random bits for each number saves so much, forward and backward, of 0.1 to 2.6
# million numbers: 0.66 to 0.76 by `python -m benchmarks.dropout_masks` (torch 2.13, one thread of an EPYC).
_SAVED = (0.5, 0.85)
# Of a number, where one thread draws it: 4.3 ns. On Intel's processors MKL draws with all threads, and far faster.
_LEAST_NS = 2.0
MODULE = """\
class Dropout(torch.nn.Dropout):
    def forward(self, x):
        if not self.training or not self.p:
            return x
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-2**63, None).view(torch.int16)
        keep = bits[: x.numel()].view(x.shape) >= round(self.p * 65536) - 32768
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))"""


@requires_gain
def dropout_masks(evidence: Evidence) -> Draft | None:
    """Finds dropout on a CPU whose random masks take a part of the step.

    ``bernoulli_`` draws them one by one, in one thread; not where it is as fast as MKL's. Gain: what four masks from
    one random number of 64 bits saved in trials.
    """
    if not evidence.is_host_only or not has_backward_pass(evidence):
        return None
    work = work_of(evidence)
    began_us = np.append(evidence.linked.ops["ts_us"].to_numpy(), np.nan)
    draws = work.op_like(_DRAWS) & outermost_ops(evidence, _DROPS).hold(began_us[work.op])
    us, numbers = work.us_of(draws), work.elements(draws)
    is_sized = bool(np.nansum(numbers) > 0)
    is_fast = is_sized and us * evidence.steps * 1e3 < _LEAST_NS * np.nansum(numbers)
    if evidence.share_of_step(us) < _LEAST_SHARE or is_fast:
        return None
    line = main_source(evidence, np.unique(work.op[draws]).tolist())
    least, most = _SAVED if is_sized else (0.0, _SAVED[1])
    low, high = (np.where(draws, part * work.us, 0.0) for part in (least, most))
    return Draft(
        slug="dropout-masks",
        title="Dropout draws its masks number by number in one thread"
        if is_sized
        else "Dropout draws its masks number by number, in one thread unless the CPU is Intel's",
        evidence=(
            f"bernoulli_ of dropout takes {format_per_step(evidence, us)}",
            *work.describe(draws),
        ),
        advice="Draw the masks of dropout as 16 bits of a random number of 64, by a module in place of nn.Dropout: its "
        "probability is exact to 1 in 65,536. The same seed gives other masks.",
        brief=f"Draw the masks of dropout{at_known(line)} from random bits: a module in place of nn.Dropout",
        places=(line,),
        code=MODULE,
        gain_us=work.gain(low, high),
        claims=work.claims(high),
        tries=("dropout-bits",),
        confidence="medium" if is_sized else "low",
        cannot_lose=is_sized,
    )


RULES = (dropout_masks,)
