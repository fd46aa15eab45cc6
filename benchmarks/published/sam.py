"""Makes the image encoder of Segment Anything from its configuration; the cases of this folder run it.

The stated times are of the encoder and of the small decoder behind it (segment-anything-fast, experiments/
eval_combo.py), so that they are no times of these steps. The attention here is that of the original: `transformers`
takes its softmax in fp32. The kernel in Triton adds the positions to the scores itself: attention without a mask. It
does not take the windows of 14 by 14 positions, which keep the op with a mask.
"""

import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention

BATCH = 8
_MAX_AUTOTUNE = ("compile-max-autotune",)
# The kernel in Triton takes as many positions or a multiple of them, and heads of these sizes (flash_4.py).
_KERNEL_ROWS, _LEAST_HEAD, _KERNEL_HEAD = 256, 64, 128


def steps(images_per_s):
    """The steps in the order of the changes, each with milliseconds for a batch by the stated images per second."""
    ways = (
        ("fp32", {"dtype": "float32"}, ()),
        ("bf16", {}, ()),
        ("compile", {}, _MAX_AUTOTUNE),
        ("SDPA", {"attention": "sdpa"}, _MAX_AUTOTUNE),
        ("Triton", {"attention": "kernel"}, _MAX_AUTOTUNE),
        ("int8", {"attention": "kernel", "int8": True}, _MAX_AUTOTUNE),
    )
    return {
        name: (settings, changes, BATCH / rate * 1e3)
        for (name, settings, changes), rate in zip(ways, images_per_s, strict=True)
    }


class Int8Linear(nn.Module):
    """A linear layer whose input is rounded to int8 row by row, and whose weights are int8."""

    def __init__(self, layer):
        super().__init__()
        self.register_buffer("weight", torch.zeros(layer.in_features, layer.out_features, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(layer.out_features, dtype=torch.bfloat16))
        self.bias = layer.bias

    def forward(self, x):
        """The product with the rounded input."""
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(-1, keepdim=True) / 127
        found = torch._int_mm((rows / scale).round().clamp(-127, 127).to(torch.int8), self.weight)
        return (found * scale * self.scales + self.bias).reshape(*x.shape[:-1], -1)


def attend(layer, hidden_states, kind):
    """Attention with relative positions: written out, by one op with a mask, or by a kernel that adds them itself."""
    batch, height, width, _ = hidden_states.shape
    heads, length = layer.num_attention_heads, height * width
    qkv = layer.qkv(hidden_states).reshape(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    query, key, value = qkv.reshape(3, batch * heads, length, -1).unbind(0)
    sizes = (height, width), (height, width)
    if kind == "written":
        scores = (query * layer.scale) @ key.transpose(-2, -1)
        positions = layer.get_decomposed_rel_pos(query, layer.rel_pos_h, layer.rel_pos_w, *sizes)
        attended = (scores + positions.reshape_as(scores)).softmax(-1) @ value
    else:
        split = [part.view(batch, heads, length, -1) for part in (query, key, value)]
        if kind == "kernel" and length % _KERNEL_ROWS == 0:
            attended = attend_by_kernel(layer, query, split, sizes[0])
        else:
            mask = layer.get_decomposed_rel_pos(query, layer.rel_pos_h, layer.rel_pos_w, *sizes)
            mask = mask.reshape(batch, heads, length, length)
            attended = scaled_dot_product_attention(*split, attn_mask=mask)
    attended = attended.reshape(batch, heads, height, width, -1).permute(0, 2, 3, 1, 4)
    return layer.proj(attended.reshape(batch, height, width, -1)), None


def attend_by_kernel(layer, query, split, size):
    """Attention by the source's kernel, which takes heads of 64 or 128, and the positions by row and by column."""
    (height, width), head = size, query.shape[-1]
    images = query.reshape(-1, height, width, head)
    by_row = torch.einsum("bhwc,hkc->bhwk", images, layer.get_rel_pos(height, height, layer.rel_pos_h))
    by_column = torch.einsum("bhwc,wkc->bhwk", images, layer.get_rel_pos(width, width, layer.rel_pos_w))
    # The step gives them back, as the kernel reads them: nothing here does, and a compiler would drop them.
    layer.positions = torch.cat([by_row, by_column], -1)
    padded = [pad(part, (0, _KERNEL_HEAD - head)) if head % _LEAST_HEAD else part for part in split]
    return scaled_dot_product_attention(*padded)[..., :head]


def encode(batch_size, dtype, attention, int8, **sizes):
    """A step of the encoder."""
    import transformers  # noqa: PLC0415 - the case is left out where it is not installed
    from transformers.models.sam import modeling_sam  # noqa: PLC0415

    kind = getattr(torch, dtype)
    config = transformers.SamVisionConfig(attn_implementation="eager", **sizes)
    modeling_sam.SamVisionAttention.forward = lambda layer, hidden_states, **_: attend(layer, hidden_states, attention)
    model = modeling_sam.SamVisionEncoder(config).eval().to(kind)
    if int8:
        for module in [each for each in model.modules() if not isinstance(each, nn.Linear)]:
            for name, layer in module.named_children():
                if isinstance(layer, nn.Linear):
                    setattr(module, name, Int8Linear(layer))
    images = torch.zeros(batch_size, 3, 1024, 1024, dtype=kind)

    def step():
        with torch.no_grad():
            return model(images), [vars(module).pop("positions", None) for module in model.modules()]

    return step
