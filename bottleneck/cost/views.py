"""Cost of ops that do no work of their own: views, allocations, waits, and the nodes of the autograd graph."""

import re

from bottleneck.cost.call import Cost, Formula, Formulas
from bottleneck.cost.traffic import named

# Ops that touch metadata only, and wrappers that hand their tensors to another op or return them as they are. A `to`,
# `contiguous` or `reshape` that has to move data does so in a child `copy_`; without that child nothing moved.
_VIEWS = """
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
    """The zero cost of a node that only calls other ops, recognised by its name; null for every other name."""
    return Cost("dispatch") if _DISPATCH.fullmatch(name) else None


def _free(family: str) -> Formula:
    return lambda _: Cost(family)


COMPOSITES = frozenset(f"aten::{name}" for name in _CALLERS.split())

FORMULAS: Formulas = {
    **named({_VIEWS: _free("view"), _ALLOCATIONS: _free("allocation"), _WAITS: _free("sync")}),
    **named({"detach detach_": _free("view")}, prefix=""),  # as Python calls of aten::detach are recorded
    "inductor::_reinterpret_tensor": _free("view"),
}
