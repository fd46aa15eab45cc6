"""Decodes tokens with Llama-2-7B on an A100 of 80 GB as gpt-fast does: compiled, with weights in bf16, int8 and int4.

gpt-fast compiles with 'reduce-overhead' and `coordinate_descent_tuning`, which is set here by 'max-autotune': products
with a single row are loops of the compiler's own, which read int8 weights as they are.
"""

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

ITEM = 8
DEVICE = "A100 80GB"
SOURCE = "github.com/pytorch-labs/gpt-fast, README"
_MS = 1e3
_RUN = ("compile-max-autotune",)
TIMES = {
    "bf16": ({}, _RUN, _MS / 104.9),
    "int8 weights": ({"weights": "int8"}, _RUN, _MS / 155.6),
    "int4 weights": ({"weights": "int4"}, _RUN, _MS / 196.8),
    "Llama-3.1-8B bf16": ({"model": "llama3"}, _RUN, _MS / 93.9),
    "Llama-3.1-8B int8 weights": ({"model": "llama3", "weights": "int8"}, _RUN, _MS / 137.6),
}
GAINS = [
    ("bf16", "int8 weights"),
    ("int8 weights", "int4 weights"),
    ("Llama-3.1-8B bf16", "Llama-3.1-8B int8 weights"),
]
# Width, layers, heads, heads of keys, inner width, vocabulary. The models of 70 billion weights are no cases: rates are
# learned from them (benchmarks/vector_products.py). A half is what each of two devices has of the layers.
_MODELS = {
    "llama2": (4096, 32, 32, 32, 11008, 32000),
    "llama3": (4096, 32, 32, 8, 14336, 128256),
    "llama2-70b": (8192, 80, 64, 8, 28672, 32000),
    "llama2-70b-half": (8192, 80, 32, 4, 14336, 32000),
    "llama3-70b": (8192, 80, 64, 8, 28672, 128256),
}
_LENGTH, _GROUP, _HEAD = 208, 32, 128


class Product(nn.Module):
    """A layer without a bias whose weights are bf16, int8 with a scale per row, or int4 in groups."""

    def __init__(self, inner, outer, weights):
        super().__init__()
        self.weights, self.outer = weights, outer
        if weights == "int4":
            packed = torch.zeros(outer // 8, inner // 128, 32, 4, dtype=torch.int32)
            self.register_buffer("weight", packed)
            self.register_buffer("scales", torch.ones(inner // _GROUP, outer, 2, dtype=torch.bfloat16))
        else:
            kind = torch.int8 if weights == "int8" else torch.bfloat16
            self.register_buffer("weight", torch.zeros(outer, inner, dtype=kind))
            self.register_buffer("scales", torch.ones(outer, dtype=torch.bfloat16))

    def forward(self, x):
        """The product with the weights."""
        if self.weights == "int4":
            rows = x.reshape(-1, x.shape[-1])
            found = torch.ops.aten._weight_int4pack_mm(rows, self.weight, _GROUP, self.scales)
            return found.reshape(*x.shape[:-1], self.outer)
        if self.weights == "int8":
            return linear(x, self.weight.to(x.dtype)) * self.scales
        return linear(x, self.weight)


class Norm(nn.Module):
    """Root mean square over a row, in fp32."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, x):
        """The rows with a mean square of one."""
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotate(x, turns):
    """Rotary embedding of pairs of neighbours."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    real, imaginary = pairs[..., 0] * turns[..., 0], pairs[..., 1] * turns[..., 1]
    other = pairs[..., 1] * turns[..., 0] + pairs[..., 0] * turns[..., 1]
    return torch.stack([real - imaginary, other], -1).flatten(3).type_as(x)


class Block(nn.Module):
    """Attention over a cache of fixed length, and the gated layers behind it."""

    def __init__(self, width, heads, keys, inner, weights):
        super().__init__()
        self.heads, self.keys, self.head = heads, keys, _HEAD
        self.qkv = Product(width, (heads + 2 * keys) * self.head, weights)
        self.out, self.down = Product(heads * _HEAD, width, weights), Product(inner, width, weights)
        self.gate, self.up = Product(width, inner, weights), Product(width, inner, weights)
        self.before, self.between = Norm(width), Norm(width)
        for name in ("past_keys", "past_values"):
            self.register_buffer(name, torch.zeros(1, keys, _LENGTH, self.head, dtype=torch.bfloat16))

    def forward(self, x, turns, mask, position):
        """The state after this block."""
        sizes = [self.heads * self.head, self.keys * self.head, self.keys * self.head]
        q, k, v = (each.view(1, 1, -1, self.head) for each in self.qkv(self.before(x)).split(sizes, -1))
        q, k, v = (each.transpose(1, 2) for each in (rotate(q, turns), rotate(k, turns), v))
        self.past_keys[:, :, position], self.past_values[:, :, position] = k, v
        k, v = (each.repeat_interleave(self.heads // self.keys, 1) for each in (self.past_keys, self.past_values))
        x = x + self.out(scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(1, 1, -1))
        y = self.between(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Embedding, blocks and head."""

    def __init__(self, model, weights):
        super().__init__()
        width, layers, heads, keys, inner, vocabulary = _MODELS[model]
        self.embedding = nn.Embedding(vocabulary, width, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Block(width, heads, keys, inner, weights) for _ in range(layers))
        self.norm, self.head = Norm(width), Product(width, vocabulary, weights)
        self.register_buffer("turns", torch.zeros(_LENGTH, _HEAD // 2, 2, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.ones(_LENGTH, _LENGTH, dtype=torch.bool))

    def forward(self, token, position):
        """Scores of the next token."""
        x, turns = self.embedding(token), self.turns[position].view(1, 1, 1, -1, 2)
        for block in self.blocks:
            x = block(x, turns, self.mask[None, None, position], position)
        return self.head(self.norm(x))


def workload(model="llama2", weights="bf16"):
    decoder = Decoder(model, weights)
    token, position = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)

    def step():
        with torch.no_grad():
            scores = decoder(token, position)[:, -1] / 0.8
            lowest = torch.topk(scores, 200).values[..., -1:]
            likely = torch.softmax(torch.where(scores < lowest, -float("inf"), scores), -1)
            return (likely / torch.empty_like(likely).exponential_(1)).argmax(-1, keepdim=True)

    return step
