"""The calls that ``compare_tools`` holds tools against: how to make each, what is right by hand, and who is.

Arithmetic by hand is text, shown as it stands and evaluated: FLOPs with a multiply-add as two, bytes that must cross
DRAM if nothing is in a cache. Where FLOPs are a convention (what is an exponential worth?) there is none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

GOLDEN = "tests/traces/h100/{}_perf_report_csvs/unified_perf_summary.csv"
TRACELENS_FILES = {
    "timesformer": (GOLDEN.format("facebook_timesformer-base-finetuned-k400__1016002"), "13d13a5c"),
    "bert-small": (GOLDEN.format("gaunernst_bert-small-uncased__1016001"), "07a2e27f"),
    "nsfw": (GOLDEN.format("Falconsai_nsfw_image_detection__1016002"), "7182e545"),
}
TRACES = {
    "timesformer": "AMD-AGI+TraceLens__tests__traces__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "bert-small": "AMD-AGI+TraceLens__tests__traces__h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "nsfw": "AMD-AGI+TraceLens__tests__traces__h100__Falconsai_nsfw_image_detection__1016002.json.gz",
}

# What TraceLens prints for a call: GFLOP and MiB; empty cells are null.
Published = tuple[float | None, float | None]


@dataclass(frozen=True)
class Case:
    """One call. ``source`` is a key of TRACES, 'CPU' or 'meta' (tensors without data, for ops that need a GPU).

    ``work`` makes the call with tensors from its argument, a function of a shape. ``dims`` picks it in a trace.
    ``published`` is TraceLens' row for it, null where it never printed one.
    """

    title: str
    source: str
    op: str
    work: Callable[[Any], object]
    flops: str | None
    bytes: str
    verdict: str
    dims: str | None = None
    published: Published | None = None


def _aten(name: str, *arguments: object) -> object:
    return getattr(torch.ops.aten, name)(*arguments)


def _adam(t: Any) -> object:
    lists = [[t(1000, 1000), t(1000)] for _ in range(4)]
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False}
    return torch._fused_adam_(*lists, [], [torch.tensor(1.0)] * 2, **rates, **flags)


def _flash_backward(t: Any) -> object:
    q, seed = t(4, 16, 1024, 64), t(dtype="int64")
    arguments = (q, q, q, q, q, t(4, 16, 1024, dtype="float32"), None, None, 1024, 1024, 0.0, False, seed, seed)
    return _aten("_scaled_dot_product_flash_attention_backward", *arguments)


_CONVOLVED = ([1, 1], [1, 1], [1, 1], False, [0, 0])

ON_TRACES = (
    Case(
        "addmm, bias + [25089, 768] x [768, 3072], bf16",
        "timesformer",
        "aten::addmm",
        lambda t: _aten("addmm", t(3072), t(25089, 768), t(768, 3072)),
        "2*25089*768*3072 + 25089*3072",
        "2*(25089*768 + 768*3072 + 25089*3072 + 3072)",
        "All agree; the counter and profile_analysis leave out the bias (0.07 %). profile_analysis' bytes are "
        "right by two errors: it counts the product twice and bf16 as one byte.",
        "[[3072], [25089, 768], [768, 3072], [], []]",
        (118.461828096, 188.26318359375),
    ),
    Case(
        "bmm, [96, 3137, 64] x [96, 64, 3137], bf16",
        "timesformer",
        "aten::bmm",
        lambda t: _aten("bmm", t(96, 3137, 64), t(96, 64, 3137)),
        "2*96*3137*64*3137",
        "2*96*(3137*64 + 64*3137 + 3137*3137)",
        "All agree on FLOPs. profile_analysis counts the first operand once more, at one byte.",
        "[[96, 3137, 64], [96, 64, 3137]]",
        (120.923369472, 1875.4220581054688),
    ),
    Case(
        "bmm, [96, 3137, 3137] x [96, 3137, 64], bf16",
        "timesformer",
        "aten::bmm",
        lambda t: _aten("bmm", t(96, 3137, 3137), t(96, 3137, 64)),
        "2*96*3137*3137*64",
        "2*96*(3137*3137 + 3137*64 + 3137*64)",
        "The same product the other way round: the operand counted once more is now the large one, 48 % too much "
        "in profile_analysis.",
        "[[96, 3137, 3137], [96, 3137, 64]]",
        (120.923369472, 1875.4220581054688),
    ),
    Case(
        "_softmax of [8, 12, 3137, 3137], bf16",
        "timesformer",
        "aten::_softmax",
        lambda t: _aten("_softmax", t(8, 12, 3137, 3137), -1, False),
        None,
        "2*2*8*12*3137*3137",
        "43 % of this trace's GPU time. TraceLens has no model for it; profile_analysis counts the input at one "
        "byte per number and no output: a quarter.",
        "[[8, 12, 3137, 3137], [], []]",
        (None, None),
    ),
    Case(
        "mul of [8, 12, 3137, 3137] by a number, bf16",
        "timesformer",
        "aten::mul",
        lambda t: _aten("mul", t(8, 12, 3137, 3137), 0.125),
        "8*12*3137*3137",
        "2*2*8*12*3137*3137",
        "TraceLens and we agree; profile_analysis as above. (The counter counts matrix products only, by design.)",
        "[[8, 12, 3137, 3137], []]",
        (0.944713824, 3603.797248840332),
    ),
    Case(
        "add of [1, 25089, 768] and its like, bf16",
        "timesformer",
        "aten::add",
        lambda t: _aten("add", t(1, 25089, 768), t(1, 25089, 768)),
        "25089*768",
        "3*2*25089*768",
        "TraceLens and we agree. profile_analysis is at a third.",
        "[[1, 25089, 768], [1, 25089, 768], []]",
        (0.019268352, 110.25439453125),
    ),
    Case(
        "add of [4, 197, 768] and [1, 197, 768], bf16",
        "nsfw",
        "aten::add",
        lambda t: _aten("add", t(4, 197, 768), t(1, 197, 768)),
        "4*197*768",
        "2*(2*4*197*768 + 197*768)",
        "TraceLens and we agree: a broadcast operand is read once. profile_analysis is at 28 %.",
        "[[4, 197, 768], [1, 197, 768], []]",
        (0.000605184, 2.59716796875),
    ),
    Case(
        "gelu of [1, 25089, 3072], bf16",
        "timesformer",
        "aten::gelu",
        lambda t: _aten("gelu", t(1, 25089, 3072)),
        None,
        "2*2*25089*3072",
        "TraceLens has no model for it; profile_analysis is at a quarter.",
        "[[1, 25089, 3072], []]",
        (None, None),
    ),
    Case(
        "layer_norm of [1, 25089, 768], bf16",
        "timesformer",
        "aten::native_layer_norm",
        lambda t: _aten("native_layer_norm", t(1, 25089, 768), [768], t(768), t(768), 1e-6),
        None,
        "2*2*25089*768 + 2*2*768 + 2*4*25089",
        "TraceLens leaves out the mean and deviation of each row that the kernel writes (0.3 %). FLOPs are a "
        "convention: 5 per number there, 8 here.",
        "[[1, 25089, 768], [], [768], [768], []]",
        (0.096346368, 73.51171875),
    ),
    Case(
        "convolution of [128, 3, 224, 224] by [768, 3, 16, 16], stride 16, bf16",
        "timesformer",
        "aten::cudnn_convolution",
        lambda t: _aten(
            "convolution", t(128, 3, 224, 224), t(768, 3, 16, 16), None, [16, 16], [0, 0], [1, 1], False, [0, 0], 1
        ),
        "2*128*14*14*768*3*16*16",
        "2*(128*3*224*224 + 768*3*16*16 + 128*768*14*14)",
        "TraceLens and we agree. profile_analysis lets every output read its whole window from memory and forgets"
        " the item size: 189 times too much.",
        "[[128, 3, 224, 224], [768, 3, 16, 16], [], [], [], [], [], [], []]",
        (29.595009024, 74.625),
    ),
    Case(
        "cat of [8, 1, 768] and [8, 3136, 768], bf16",
        "timesformer",
        "aten::cat",
        lambda t: _aten("cat", [t(8, 1, 768), t(8, 3136, 768)], 1),
        "0",
        "2*2*(8*768 + 8*3136*768)",
        "TraceLens has no model for it. The trace gives a list of tensors no dtype: we read it off the kernel's "
        "name. profile_analysis multiplies the sizes of the two tensors: 118 GB, more than the GPU holds.",
        "[[[8, 1, 768], [8, 3136, 768]], []]",
        (None, None),
    ),
    Case(
        "flash attention, [1, 8, 141, 64], bf16",
        "bert-small",
        "aten::_flash_attention_forward",
        lambda t: _aten("_scaled_dot_product_flash_attention", *[t(1, 8, 141, 64)] * 3, 0.0, False, False),
        "2*8*141*141*(64 + 64) + 4*8*141*141",
        "4*2*8*141*64 + 4*8*141",
        "All count the products alike; ours adds 4 FLOPs per pair for the softmax on the vector units. TraceLens "
        "leaves out the statistics that the kernel writes (0.8 %). profile_analysis ends with an AttributeError "
        "at this op.",
        "[[1, 141, 8, 64], [1, 141, 8, 64], [1, 141, 8, 64], [], [], [], [], [], [], [], [], [], [], [], []]",
        (0.040716288, 0.55078125),
    ),
    Case(
        "index_select of 141 rows from [512, 512], bf16",
        "bert-small",
        "aten::index_select",
        lambda t: _aten("index_select", t(512, 512), 0, t(141, dtype="int64")),
        "0",
        "2*2*141*512 + 8*141",
        "TraceLens has no model for it. Ours is an interval from one row read 141 times to 141 rows, because no "
        "trace holds the indices; here they differ: the upper end. profile_analysis counts the whole table.",
        "[[512, 512], [], [141]]",
        (None, None),
    ),
    Case(
        "copy_ of [1, 128, 3, 224, 224] from pageable host memory, bf16",
        "timesformer",
        "aten::copy_",
        lambda t: _aten("copy_", t(1, 128, 3, 224, 224), t(1, 128, 3, 224, 224)),
        "0",
        "2*128*3*224*224",
        "A copy over PCIe: its bytes cross the link once and take 3.46 ms. TraceLens takes it for a kernel with "
        "reads and writes of HBM, which it would use to 0.7 %, and for one FLOP per number. profile_analysis is "
        "right by two errors: two operands, at one byte.",
        "[[1, 128, 3, 224, 224], [1, 128, 3, 224, 224], []]",
        (0.019267584, 73.5),
    ),
)

LIVE = (
    Case(
        "mm, [1024, 768] x [768, 512], fp32",
        "CPU",
        "aten::mm",
        lambda t: _aten("mm", t(1024, 768), t(768, 512)),
        "2*1024*768*512",
        "4*(1024*768 + 768*512 + 1024*512)",
        "FLOPs agree. profile_analysis doubles the bytes; in fp32 nothing cancels that.",
    ),
    Case(
        "baddbmm, [1, 1, 512] + [16, 128, 64] x [16, 64, 512], fp32",
        "CPU",
        "aten::baddbmm",
        lambda t: _aten("baddbmm", t(1, 1, 512), t(16, 128, 64), t(16, 64, 512)),
        "2*16*128*64*512 + 16*128*512",
        "4*(512 + 16*128*64 + 16*64*512 + 16*128*512)",
        "profile_analysis takes the batch from the bias, which is broadcast: an eighth of the bytes.",
    ),
    Case(
        "bmm, [16, 128, 64] expanded from one matrix x [16, 64, 512], fp32",
        "CPU",
        "aten::bmm",
        lambda t: _aten("bmm", t(1, 128, 64).expand(16, 128, 64), t(16, 64, 512)),
        "2*16*128*64*512",
        "4*(128*64 + 16*64*512 + 16*128*512)",
        "A stride of 0 means that 16 matrices are one: only we look at strides.",
    ),
    Case(
        "mv, [4096, 4096] x [4096], fp32",
        "CPU",
        "aten::mv",
        lambda t: _aten("mv", t(4096, 4096), t(4096)),
        "2*4096*4096",
        "4*(4096*4096 + 4096 + 4096)",
        "The counter and profile_analysis know no matrix-vector product: 0 FLOPs. (Nobody needs the FLOPs; it is "
        "all bytes, where profile_analysis lacks only the result.)",
    ),
    Case(
        "convolution 7x7, stride 2, padding 3, of [8, 3, 224, 224] to 64 channels, fp32",
        "CPU",
        "aten::convolution",
        lambda t: _aten(
            "convolution", t(8, 3, 224, 224), t(64, 3, 7, 7), None, [2, 2], [3, 3], [1, 1], False, [0, 0], 1
        ),
        "2*8*64*112*112*3*7*7",
        "4*(8*3*224*224 + 64*3*7*7 + 8*64*112*112)",
        "profile_analysis forgets the padding (5 % of the FLOPs) and reads 49 pixels per output from memory.",
    ),
    Case(
        "transposed convolution 2x2, stride 2, of [8, 64, 28, 28] to 32 channels, fp32",
        "CPU",
        "aten::convolution",
        lambda t: _aten(
            "convolution", t(8, 64, 28, 28), t(64, 32, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1
        ),
        "2*8*28*28*64*32*2*2",
        "4*(8*64*28*28 + 64*32*2*2 + 8*32*56*56)",
        "The counter is right. profile_analysis reads the shape of the flag 'transposed' for its value, always "
        "false: a quarter of the FLOPs.",
    ),
    Case(
        "backward of a convolution 3x3 in 4 groups, [8, 64, 56, 56], fp32",
        "CPU",
        "aten::convolution_backward",
        lambda t: _aten(
            "convolution_backward",
            *(t(8, 64, 56, 56), t(8, 64, 56, 56), t(64, 16, 3, 3), [0], *_CONVOLVED, 4, [True, True, False]),
        ),
        "2 * 2*8*64*56*56*16*3*3",
        "4*(3*8*64*56*56 + 2*64*16*3*3)",
        "Two passes, each of the forward's FLOPs. The counter forgets the groups in one of them: 2.5 times too "
        "much. profile_analysis ends with an IndexError.",
    ),
    Case(
        "backward of a depthwise convolution 3x3, [8, 64, 56, 56], fp32",
        "CPU",
        "aten::convolution_backward",
        lambda t: _aten(
            "convolution_backward",
            *(t(8, 64, 56, 56), t(8, 64, 56, 56), t(64, 1, 3, 3), [0], *_CONVOLVED, 64, [True, True, False]),
        ),
        "2 * 2*8*64*56*56*3*3",
        "4*(3*8*64*56*56 + 2*64*3*3)",
        "As before, with 64 groups: the counter is 32.5 times too high.",
    ),
    Case(
        "causal flash attention, [4, 16, 1024, 64], bf16",
        "meta",
        "aten::_scaled_dot_product_flash_attention",
        lambda t: _aten("_scaled_dot_product_flash_attention", *[t(4, 16, 1024, 64)] * 3, 0.0, True, False),
        "2*4*16*(1024*1025/2)*(64 + 64) + 4*4*16*(1024*1025/2)",
        "2*4*4*16*1024*64 + 4*4*16*1024",
        "The kernel skips what the mask hides: n(n+1)/2 pairs. The counter, and profile_analysis through it, "
        "count all n² (by design: they do not look at the mask), twice the work.",
    ),
    Case(
        "backward of flash attention, [4, 16, 1024, 64], bf16",
        "meta",
        "aten::_scaled_dot_product_flash_attention_backward",
        _flash_backward,
        "5 * 2*4*16*1024*1024*64 + 4*4*16*1024*1024",
        "2*8*4*16*1024*64 + 4*4*16*1024",
        "Five products, the first recomputed: all agree; ours adds the softmax. profile_analysis counts inputs at"
        " one byte and none of the three gradients.",
    ),
    Case(
        "causal attention on a CPU, [4, 16, 512, 64], fp32",
        "CPU",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        lambda t: _aten("_scaled_dot_product_flash_attention_for_cpu", *[t(4, 16, 512, 64)] * 3, 0.0, True),
        "2*4*16*(512*513/2)*(64 + 64) + 4*4*16*(512*513/2)",
        "4*4*4*16*512*64 + 4*4*16*512",
        "The counter has no formula for the CPU's op and says 0, without a warning; so does profile_analysis.",
    ),
    Case(
        "embedding of 4096 tokens, table [30522, 768], fp32",
        "CPU",
        "aten::embedding",
        lambda t: _aten("embedding", t(30522, 768), t(4096, dtype="int64")),
        "0",
        "2*4*4096*768 + 8*4096",
        "Ours is an interval, from one row to 4096 (by hand: all differ). profile_analysis counts the whole table"
        " and no result.",
    ),
    Case(
        "mul_ of [1024, 1024] by its like, bf16",
        "CPU",
        "aten::mul_",
        lambda t: _aten("mul_", t(1024, 1024), t(1024, 1024)),
        "1024*1024",
        "3*2*1024*1024",
        "Read both, write one. A trace cannot tell x.mul_(x), which reads one: the lower end of ours. "
        "profile_analysis is at a third.",
    ),
    Case(
        "_fused_adam_ of 1,001,000 parameters, fp32",
        "CPU",
        "aten::_fused_adam_",
        _adam,
        None,
        "28 * 1001000",
        "28 bytes per parameter: four read, three written. A CPU's trace gives lists no dtype, so ours starts at "
        "half precision; on a GPU the kernel's name tells. profile_analysis multiplies the sizes: 4 GB.",
    ),
)

CASES = (*ON_TRACES, *LIVE)
