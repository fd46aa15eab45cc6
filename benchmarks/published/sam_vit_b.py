"""Encodes 8 images with Segment Anything's vit_b on an A100 of 40 GB, change by change."""

from benchmarks.published.sam import encode, steps

ITEM = 2
DEVICE = "A100-SXM4-40GB"
SOURCE = "github.com/pytorch-labs/segment-anything-fast, p4d_results/results_bs8.csv"
NEEDS = ("transformers",)
IS_STEP = False
TIMES = steps((12.1, 39.8, 54.7, 73.2, 85.5, 90.3))
# Nested tensors, of the decoder, were between the kernel and int8: 92.1 images per second before, 90.3 with int8.
GAINS = [
    ("fp32", "bf16"),
    ("bf16", "compile"),
    ("compile", "SDPA"),
    ("SDPA", "Triton"),
    ("Triton", "int8", 90.3 / 92.1, "nothing"),
]


def workload(batch_size=8, dtype="bfloat16", attention="written", int8=False):
    return encode(batch_size, dtype, attention, int8)
