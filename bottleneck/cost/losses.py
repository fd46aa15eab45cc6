"""Cost of loss functions.

Predictions and targets are read, one number is written (or one per element).
"""

from functools import partial

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor
from bottleneck.cost.traffic import SECTOR_BYTES, broadcast, math_dtype, named, op_names, promote, stream
from bottleneck.schema.records import replace

FAMILY = "loss"

_NO_REDUCTION = 0


def _elementwise(reduction_position: int, flops: float, special_ops: float, call: OpCall) -> Cost:
    """The cost of mse_loss(x, target, reduction) and similar ops.

    Eager kernels write one loss per element first; a child op reduces them.
    """
    operands = [t for t in call.arguments[:reduction_position] if isinstance(t, Tensor)]
    elements = Tensor(broadcast([operand.shape for operand in operands]), promote(operands))
    work = {"vector_flops": flops * elements.numel, "special_ops": special_ops * elements.numel}
    cost = stream(FAMILY, *operands, elements, **work)
    is_reduced = call.integer(reduction_position) != _NO_REDUCTION
    return replace(cost, bytes_low=cost.bytes_low - elements.bytes) if is_reduced else cost


def _elementwise_backward(operand_count: int, flops: float, call: OpCall) -> Cost:
    """Prices mse_loss_backward(dy, x, target, reduction) and similar ops.

    A gradient like x is written.
    """
    operands = [t for t in call.arguments[:operand_count] if isinstance(t, Tensor)]
    dx = Tensor(broadcast([operand.shape for operand in operands]), call.tensor(1).dtype)
    return stream(FAMILY, *operands, dx, vector_flops=flops * dx.numel)


def _nll(first: int, call: OpCall) -> Cost:
    """The cost of nll_loss_forward(x, target, weight, …) and nll_loss_backward(dy, x, target, weight, …).

    One element of x per target, from a sector of its own at most; the backward pass writes it, and a child op clears
    the others. ``first`` is the position of x.
    """
    x, target = call.tensor(first), call.tensor(first + 1)
    moved = target.bytes + target.numel * x.item_bytes
    return Cost(
        FAMILY,
        vector_flops=float(target.numel),
        bytes_low=moved,
        bytes_high=moved + target.numel * SECTOR_BYTES + (call.tensor(0).bytes if first else 0.0),
        math_dtype=math_dtype(x),
    )


# Ops that only call others.
COMPOSITES = op_names("""
    cross_entropy_loss nll_loss nll_loss2d nll_loss_nd l1_loss kl_div binary_cross_entropy_with_logits
    cosine_embedding_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss poisson_nll_loss
""")

FORMULAS: Formulas = named(
    {
        "mse_loss": partial(_elementwise, 2, 2.0, 0.0),
        "smooth_l1_loss huber_loss": partial(_elementwise, 2, 5.0, 0.0),
        "soft_margin_loss": partial(_elementwise, 2, 3.0, 2.0),
        "binary_cross_entropy": partial(_elementwise, 3, 6.0, 2.0),
        "mse_loss_backward smooth_l1_loss_backward huber_loss_backward": partial(_elementwise_backward, 3, 3.0),
        "soft_margin_loss_backward": partial(_elementwise_backward, 3, 5.0),
        "binary_cross_entropy_backward": partial(_elementwise_backward, 4, 5.0),
        "nll_loss_forward nll_loss2d_forward": partial(_nll, 0),
        "nll_loss_backward nll_loss2d_backward": partial(_nll, 1),
    }
)
