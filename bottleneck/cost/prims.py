"""Costs of ops that occur only in the graphs of torch.compile: primitives, and forms that spare a check or a buffer."""

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor
from bottleneck.cost.creation import RANDOM_FLOPS
from bottleneck.cost.pooling import FORMULAS as POOLING
from bottleneck.cost.traffic import broadcast, promote, stream


def _move(_: OpCall) -> Cost:
    """No arithmetic. In a compiled kernel the buffers give the bytes; outside of one these ops do not occur."""
    return Cost("copy")


def _fused_multiply_add(call: OpCall) -> Cost:
    """fma(a, b, c): two FLOPs per element; the result has the shape that the operands broadcast to."""
    operands = call.tensors()
    result = Tensor(broadcast([operand.shape for operand in operands]), promote(operands))
    return stream("pointwise", *operands, result, vector_flops=2.0 * result.numel)


def _random(call: OpCall) -> Cost:
    """inductor_random(size, seed, kind): as many numbers as the size gives."""
    result = Tensor(call.result_size(0), "float")
    return stream("random", result, vector_flops=RANDOM_FLOPS * result.numel)


def _accumulate(call: OpCall) -> Cost:
    """_unsafe_masked_index_put_accumulate(x, mask, indices, values): one addition per value."""
    x, mask, values = call.tensor(0), call.tensor(1), call.tensor(3)
    return stream("indexing", x, mask, values, Tensor(x.shape, x.dtype), vector_flops=float(values.numel))


FORMULAS: Formulas = {
    "prims::fma": _fused_multiply_add,
    "prims::inductor_random": _random,
    "prims::_low_memory_max_pool_with_offsets": POOLING["aten::max_pool2d_with_indices"],
    "aten::_unsafe_masked_index_put_accumulate": _accumulate,
    **dict.fromkeys(
        (
            "prims::convert_element_type",
            "prims::device_put",
            "prims::iota",
            "prims::inductor_lookup_seed",
            "prims::inductor_seeds",
            "prims::_low_memory_max_pool_offsets_to_indices",
            "aten::select_scatter",
            "aten::slice_scatter",
            "aten::as_strided_scatter",
            "aten::diagonal_scatter",
        ),
        _move,
    ),
}
