"""Cost of ops that move data without computing, or do nothing.

The former are copies, casts and concatenation. The latter are views, allocations, waits, and the nodes of the autograd
graph.
"""

import math
import re

from bottleneck.cost.call import Cost, Formula, Formulas, OpCall, Tensor, Unmodelled, recorded
from bottleneck.cost.traffic import dtype_argument, list_elements, listed, named, op_names, out_argument, stream
from bottleneck.schema.records import replace

FAMILY = "copy"


def _copy(call: OpCall) -> Cost:
    """copy_(destination, source): every distinct element of the source read, the destination written."""
    return _copied(call.tensor(1), call.tensor(0))


def _copied(source: Tensor, result: Tensor) -> Cost:
    """Prices a copy.

    Copies often spell out an expanded tensor, so a source without strides may be one element.

    Seen in a trace of Segment Anything from 2023: copies half as long as reading and writing all would take.
    """
    cost = stream(FAMILY, source, result)
    is_known = source.strides is not None or source.numel < result.numel
    return cost if is_known else replace(cost, bytes_low=result.bytes + min(source.bytes, source.item_bytes))


def _clone(call: OpCall) -> Cost:
    """clone(x), flip(x), roll(x) …: a dense result of the same shape and dtype."""
    x = call.tensor(0)
    return _copied(x, out_argument(call, 1, Tensor(x.shape, x.dtype)))


def _cast(call: OpCall) -> Cost:
    """_to_copy(x, dtype): like clone, with another dtype."""
    x = call.tensor(0)
    return _copied(x, out_argument(call, 1, Tensor(x.shape, dtype_argument(call, 1, x.dtype))))


def _cat(call: OpCall) -> Cost:
    """cat(tensors, dim): everything read once and written once.

    The trace has no dtype for a list of tensors: bytes are an interval without ``out=`` and a dtype from kernels.
    """
    out = [argument for argument in call.arguments[1:] if isinstance(argument, Tensor) and argument.numel]
    if out:
        return stream(FAMILY, out[-1], out[-1])
    return listed(call, FAMILY, 2.0 * list_elements(call, 0))


def _repeat(call: OpCall) -> Cost:
    """repeat(x, repeats): one read, as many writes as there are repeats."""
    x, repeats = call.tensor(0), recorded(call.integers(1), "no_repeats")
    return stream(FAMILY, x, Tensor((x.numel * math.prod(repeats),), x.dtype))


def _repeat_interleave(call: OpCall) -> Cost:
    """repeat_interleave(x, repeats, dim): modelled where the number of repeats is a constant."""
    x, repeats = call.tensor(0), recorded(call.integer(1), "repeats_are_data")
    return stream(FAMILY, x, Tensor((x.numel * repeats,), x.dtype))


def _pad(call: OpCall) -> Cost:
    """constant_pad_nd(x, pad), reflection_pad2d(x, pad) …: pairs of widths, last dimension first."""
    x, widths = call.tensor(0), call.integers(1)
    if widths is None or len(widths) > 2 * len(x.shape):
        raise Unmodelled("no_padding")
    shape = list(x.shape)
    for index, width in enumerate(widths):
        shape[-1 - index // 2] += width
    return stream(FAMILY, x, Tensor(tuple(shape), x.dtype))


def _pad_backward(call: OpCall) -> Cost:
    """reflection_pad2d_backward(dy, x, pad): the gradient is cleared, then added to."""
    dy, x = call.tensor(0), call.tensor(1)
    cost = stream(FAMILY, dy, Tensor(x.shape, dy.dtype), vector_flops=dy.numel)
    return replace(cost, bytes_high=cost.bytes_high + 2 * dy.bytes)


def _scatter_into_zeros(call: OpCall) -> Cost:
    """slice_backward(dy, sizes, …), select_backward, unfold_backward: a gradient of zeros with dy written into it."""
    dy = call.tensor(0)
    cost = stream(FAMILY, dy, Tensor(call.result_size(1), dy.dtype))
    return replace(cost, bytes_high=cost.bytes_high + dy.bytes)


def _diagonal(call: OpCall) -> Cost:
    """Prices diag_embed(x, …).

    It makes a matrix per row of x, cleared by a child op, with the row on its diagonal.
    """
    x = call.tensor(0)
    return _copied(x, Tensor(x.shape, x.dtype))


def _windows(call: OpCall) -> Cost:
    """im2col(x, kernel, dilation, padding, stride): each window of x as a column."""
    x, kernel, dilation, padding, stride = call.tensor(0), *(call.integers(position) for position in range(1, 5))
    if not (kernel and dilation and padding and stride) or len(x.shape) < 3:
        raise Unmodelled("no_windows")
    sides = zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True)
    places = math.prod((size + 2 * pad - gap * (width - 1) - 1) // step + 1 for size, width, gap, pad, step in sides)
    columns = Tensor((*x.shape[:-2], math.prod(kernel), max(places, 0)), x.dtype)
    return stream(FAMILY, x, columns)


def _folded(call: OpCall) -> Cost:
    """col2im(columns, size, kernel, …): the columns added to where they came from."""
    columns, size, kernel = call.tensor(0), call.integers(1), call.integers(2)
    if not size or not kernel or len(columns.shape) < 2:
        raise Unmodelled("no_result_size")
    channels = columns.shape[-2] // max(math.prod(kernel), 1)
    result = Tensor((*columns.shape[:-2], channels, *size), columns.dtype)
    return stream(FAMILY, columns, result, vector_flops=float(columns.numel))


def _triangle(call: OpCall) -> Cost:
    """Prices tril(x) and triu(x).

    Half of x need not be read. In place, only the cleared half moves.
    """
    x = call.tensor(0)
    if call.name.endswith("_"):
        return replace(stream(FAMILY, x, x), bytes_low=0.0)
    result = out_argument(call, 1, Tensor(x.shape, x.dtype))
    return replace(stream(FAMILY, x, result), bytes_low=result.bytes)


_PADS = " ".join(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3))

FORMULAS: Formulas = {
    **named({_PADS: _pad_backward}, ("_backward",)),
    **named(
        {
            "copy_ copy _copy_from _copy_from_and_resize": _copy,
            "clone alias_copy detach_copy lift_fresh_copy _lazy_clone _pin_memory split_with_sizes_copy": _clone,
            "to_mkldnn _to_dense _mkldnn_reshape mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight": _clone,
            "flip roll pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle": _clone,
            "_to_copy": _cast,
            "cat _cat concat concatenate stack _stack hstack vstack dstack": _cat,
            "repeat tile": _repeat,
            "repeat_interleave": _repeat_interleave,
            f"constant_pad_nd {_PADS}": _pad,
            "slice_backward select_backward unfold_backward diagonal_backward": _scatter_into_zeros,
            "diag_embed": _diagonal,
            "im2col": _windows,
            "col2im": _folded,
            "tril triu tril_ triu_": _triangle,
        }
    ),
}


# Ops that touch metadata only, and wrappers that hand their tensors to another op or return them as they are. A `to`,
# `contiguous` or `reshape` that has to move data does so in a child `copy_`; without that child nothing moved.
_VIEW_OPS = """
    view view_as expand expand_as t transpose permute select slice squeeze unsqueeze as_strided detach alias narrow
    unbind split split_with_sizes chunk tensor_split hsplit vsplit dsplit swapaxes swapdims movedim moveaxis diagonal
    _unsafe_view _reshape_alias reshape reshape_as flatten unflatten ravel view_as_real view_as_complex real imag
    unfold numpy_T mT mH adjoint matrix_H resolve_conj resolve_neg _conj conj _neg_view lift lift_fresh
    broadcast_to broadcast_tensors unsafe_chunk unsafe_split unsafe_split_with_sizes
    t_ transpose_ squeeze_ unsqueeze_ detach_ as_strided_ swapaxes_ swapdims_ requires_grad_ retain_grad
    to contiguous type_as cpu cuda pin_memory is_pinned result_type size stride numel dim is_same_size is_nonzero
    pad dropout dropout_ feature_dropout feature_dropout_ alpha_dropout alpha_dropout_
    cudnn_is_acceptable meshgrid atleast_1d atleast_2d atleast_3d record_stream _has_compatible_shallow_copy_type
"""
_ALLOCATIONS = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_ set_ set_data
    scalar_tensor _resize_output_ _efficientzerotensor _empty_affine_quantized
"""
_WAITS = "item _local_scalar_dense _assert_async _is_all_true _is_any_true"

# Ops made of other ops, which have the cost: aliases, and compositions of smaller ops. Without a child they do nothing.
_CALLERS = """
    absolute negative subtract multiply divide true_divide less less_equal greater greater_equal not_equal clip square
    absolute_ negative_ subtract_ multiply_ divide_ true_divide_ less_ less_equal_ greater_ greater_equal_ not_equal_
    clip_ square_ fix positive arccos arcsin arctan arctan2 selu selu_ celu celu_ relu6 relu6_ rrelu log_sigmoid
    float_power isclose isreal allclose __and__ __or__ __xor__ __iand__ __ior__ __ixor__ deg2rad rad2deg
    sum_to_size nanmean logsumexp quantile nanquantile cov corrcoef trapezoid diff argsort msort argwhere
    cosine_similarity pairwise_distance cdist _euclidean_dist dist take_along_dim diag diagflat
    column_stack row_stack fliplr flipud rot90 randint randint_like
    gather_backward index_select_backward masked_select_backward value_selecting_reduction_backward
    cummaxmin_backward cumprod_backward embedding_backward embedding_bag
    fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn
    fft_irfftn fft_fftshift fft_ifftshift stft istft lstm gru rnn_tanh rnn_relu lstm_cell gru_cell
    _thnn_differentiable_lstm_cell_backward _thnn_differentiable_gru_cell_backward
"""

# Ops that pass a collective to the thread or the device that executes it, or wait for it.
_DISPATCH_COLLECTIVE = r"(c10d|_?c10d_functional)::\w+|record_param_comms"

# Nodes of the autograd graph and their bookkeeping: 'AddmmBackward0', 'torch::autograd::AccumulateGrad' and so on only
# call ops (Visual C++ writes "struct" before their types). Nodes of user code (CppNode, PythonSubclass,
# CompiledFunctionBackward) may launch kernels themselves.
_DISPATCH = re.compile(
    r"autograd::engine::evaluate_function: .*"
    r"|[A-Z]\w*Backward\d+"
    r"|(struct )?torch::autograd::(AccumulateGrad|GraphRoot|CopyBackwards|CopySlices)"
    r"|TorchDynamo Cache Lookup|AOTDispatcher .*Prologue|Pregraph bytecode"
    r"|(Optimizer\.|DistributedDataParallel\.|enumerate\(DataLoader\)|ProfilerStep).*"
    rf"|{_DISPATCH_COLLECTIVE}"
)


def dispatch(name: str) -> Cost | None:
    """Gives the zero cost of a node that only calls other ops.

    The node is recognised by its name. Null for every other name.
    """
    return _DISPATCHED if _DISPATCH.fullmatch(name) else None


_DISPATCHED = Cost("dispatch")


def _free(family: str) -> Formula:
    cost = Cost(family)
    return lambda _: cost


COMPOSITES = op_names(_CALLERS)

VIEWS: Formulas = {
    **named({_VIEW_OPS: _free("view"), _ALLOCATIONS: _free("allocation"), _WAITS: _free("sync")}),
    **named({"detach detach_": _free("view")}, prefix=""),  # as Python calls of aten::detach are recorded
    "inductor::_reinterpret_tensor": _free("view"),
}
