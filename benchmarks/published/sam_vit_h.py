"""Encodes 8 images with Segment Anything's vit_h on an A100 of 40 GB, change by change."""

from benchmarks.published.sam import encode, steps

ITEM = 3
DEVICE = "A100-SXM4-40GB"
SOURCE = "github.com/pytorch-labs/segment-anything-fast, p4d_results/results_bs8.csv"
NEEDS = ("transformers",)
IS_STEP = False
TIMES = steps((2.78, 14.9, 19.2, 21.7, 23.2, 25.0))
# Nested tensors, of the decoder, were between the kernel and int8: 23.6 images per second before, 25.0 with int8.
GAINS = [
    ("fp32", "bf16"),
    ("bf16", "compile"),
    ("compile", "SDPA"),
    ("SDPA", "Triton"),
    ("Triton", "int8", 25.0 / 23.6),
]
_SIZES = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "global_attn_indexes": (7, 15, 23, 31),
}


def workload(batch_size=8, dtype="bfloat16", attention="written", int8=False):
    return encode(batch_size, dtype, attention, int8, **_SIZES)
