"""Denoises one image of SDXL on an A100 of 80 GB: one of 30 steps, with and without guidance in one batch.

The stated times are of 30 steps and of the decoder behind them, so that they are no times of this step. Compiled were
the network and the decoder. torch's FlopCounterMode counts 13.5 TFLOP in one fp32 step of `workload`, run on the meta
device. In 245 ms these are 55 TFLOP/s, 2.8 times the peak of fp32: products were allowed TF32.
"""

import torch

ITEM = 5
DEVICE = "A100-SXM4-80GB"
SOURCE = "github.com/huggingface/diffusion-fast, its times at huggingface.co/datasets/sayakpaul/sample-datasets"
NEEDS = ("diffusers",)
IS_STEP = False
_COMPILED = ("compile-max-autotune",)
TIMES = {
    "fp32": ({"dtype": "float32", "attention": "written"}, (), 7362 / 30),
    "fp32, SDPA": ({"dtype": "float32"}, (), None),
    "fp32, compile": ({"dtype": "float32", "attention": "written"}, _COMPILED, None),
    "bf16": ({"attention": "written"}, (), 4626 / 30),
    "SDPA": ({}, (), 3315 / 30),
    "compile": ({}, _COMPILED, 2538 / 30),
    "fused QKV": ({"fused": True}, _COMPILED, 2523 / 30),
}
GAINS = [
    ("fp32", "bf16"),
    ("bf16", "SDPA"),
    ("SDPA", "compile"),
    ("compile", "fused QKV", 2538 / 2523, "nothing"),
    ("fp32", "fp32, SDPA", 7352 / 7571, "nothing"),
    ("fp32", "fp32, compile", 7362 / 7046),
]


def workload(batch_size=2, dtype="bfloat16", attention="sdpa", fused=False):
    from diffusers import UNet2DConditionModel  # noqa: PLC0415 - the case is left out where it is not installed
    from diffusers.models.attention_processor import AttnProcessor  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_tf32 = True
    kind = getattr(torch, dtype)
    model = UNet2DConditionModel(
        sample_size=128,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        transformer_layers_per_block=[1, 2, 10],
        attention_head_dim=[5, 10, 20],
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    ).to(kind)
    model.eval()
    if fused:
        model.fuse_qkv_projections()
    if attention == "written":
        model.set_attn_processor(AttnProcessor())
    latents = torch.randn(batch_size, 4, 128, 128, dtype=kind)
    text = torch.randn(batch_size, 77, 2048, dtype=kind)
    added = {"text_embeds": torch.randn(batch_size, 1280, dtype=kind), "time_ids": torch.randn(batch_size, 6)}
    time = torch.tensor(500.0)

    def step():
        with torch.no_grad():
            return model(latents, time, encoder_hidden_states=text, added_cond_kwargs=added).sample

    return step
