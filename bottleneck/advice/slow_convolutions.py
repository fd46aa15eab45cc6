"""Rule of convolutions on a CPU that torch runs without oneDNN."""

import math
import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, work_of
from bottleneck.advice.quantities import format_count, format_per_step, model_call
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import main_source, roots_of
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags
from bottleneck.schema.op_names import at_known
from bottleneck.units import counted, format_share

_SLOW = re.compile(r"^aten::_?(?:slow|thnn)_conv2d\w*$")
_LEAST = 0.1  # of the step
# torch asks oneDNN only for several images, more numbers than that or a kernel larger than this on both sides, which
# one of one dimension is not; with one thread it multiplies 1 x 1 kernels of less than 16 images by itself: use_mkldnn
# in aten/src/ATen/native/Convolution.cpp.
_MOST_NUMBERS, _MOST_KERNEL = 20_480, 3
# Of the time of such convolutions, that of an image when two to eight of them come at once: 46 to 67 % less for six
# layers of 16 to 512 channels (torch 2.13, one thread of an EPYC).
_SPARED = (0.45, 0.67)


def slow_convolution(evidence: Evidence) -> Draft | None:
    """Finds convolutions in torch's plain loops, by the names of their ops.

    Gain for one small image per call: what several at once saved of their time in trials, per image. None is predicted
    for a torch without oneDNN, nor where sizes are not recorded.
    """
    work = work_of(evidence)
    rows = work.op_like(_SLOW)
    if evidence.recording is not None and evidence.recording.threads == 1:
        rows &= ~work.calls_that(rows, lambda call: _is_one_by_one(work, call))
    us, share = work.us_of(rows), work.share(rows)
    if not evidence.is_host_only or share < _LEAST:
        return None
    if work.us_of(rows & work.dtype("fp16", "bf16", "fp64")) > us / 2:
        return None  # oneDNN has none for such numbers on this CPU: rules of precision say so
    sized = rows & (work.signature >= 0) & ~np.isnan(work.elements(rows))
    single = sized & _are_of_one_image(work, sized)
    is_single, is_known = work.us_of(single) > us / 2, work.us_of(sized) > us / 2
    line = main_source(evidence, np.unique(roots_of(evidence)[work.op[rows]]).tolist())
    why = (
        "each of them gets one small image, for which torch does not ask oneDNN"
        if is_single
        else "torch runs them so where it was built without oneDNN, or where that is switched off"
        if is_known
        else "torch runs them so for one small image per call, and where it has no oneDNN (sizes were not recorded)"
    )
    several = f"Collect two images and more, and call the model for them at once{at_known(model_call(evidence))}"
    library = "Take a build of torch with oneDNN: python -c 'import torch; print(torch.backends.mkldnn.is_available())'"
    spared = work.gain(np.where(single, _SPARED[0] * work.us, 0.0), np.where(single, _SPARED[1] * work.us, 0.0), single)
    return Draft(
        slug="slow-convolution",
        title="Convolutions run in torch's plain loops, without oneDNN",
        evidence=(
            f"{counted(format_count(np.count_nonzero(rows) / evidence.steps), 'call')} per step: "
            f"{format_per_step(evidence, us)}; {why}",
            *work.describe(rows),
        ),
        advice=f"{several}: two take as long as one here, since torch asks oneDNN for them."
        if is_single
        else f"{library}."
        if is_known
        else f"{several}; where it gets several already: {library[0].lower()}{library[1:]}.",
        brief=several
        if is_single
        else library.partition(":")[0]
        if is_known
        else f"{several}, or take a build of torch with oneDNN",
        places=(line,),
        code="outputs = model(torch.stack(images))  # in place of model(image[None]) for each"
        if is_single or not is_known
        else 'python -c "import torch; print(torch.backends.mkldnn.is_available(), torch.backends.mkldnn.enabled)"',
        gain_us=Interval(spared.low, spared.high) if is_single else None,
        gain_reason=None if is_single else f"{format_share(share)} of the step; only a trial shows what oneDNN gives",
        claims=work.claims(np.where(single, _SPARED[1] * work.us, 0.0)) if is_single else {},
        per="sample" if is_single else "step",
    )


def _is_one_by_one(work: KernelWork, signature: int) -> bool:
    """True for a kernel of 1 x 1, which is a product.

    The kernel is the last tensor of so many dimensions, behind the image and, backwards, the gradient of the result.
    """
    sizes = [size for size in work.sizes_of(signature) if len(size) >= 3]
    return len(sizes) > 1 and math.prod(sizes[-1][2:]) == 1


def _are_of_one_image(work: KernelWork, rows: Flags) -> Flags:
    """Marks calls that get one image of few numbers, and a small kernel."""

    def is_single(signature: int) -> bool:
        sizes = [size for size in work.sizes_of(signature) if len(size) >= 3]
        image, kernel = (*sizes, (), ())[:2]
        is_one = len(image) == 3 or (len(image) == 4 and image[0] == 1)
        return is_one and math.prod(image) <= _MOST_NUMBERS and min(kernel[2:], default=0) <= _MOST_KERNEL

    return work.calls_that(rows, is_single)


RULES = (slow_convolution,)
