"""The change that fuses attention written out in single ops.

It replaces product, softmax and product by one fused call.
"""

import operator
from dataclasses import dataclass, field
from typing import Any

from bottleneck.experiment.interventions.compilers import compile_parts
from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step

_PRODUCTS = ("matmul", "bmm")
_CASTS = ("to", "type", "type_as", "float", "half", "bfloat16")
_FACTORS = {"mul": operator.mul, "imul": operator.mul, "truediv": operator.truediv, "itruediv": operator.truediv} | {
    "mul_": operator.mul,
    "div": operator.truediv,
    "div_": operator.truediv,
}
_SUMS = ("add", "iadd", "add_")
_FILLS = ("masked_fill", "masked_fill_", "where")
# A score as low as this has no weight left in any softmax of half precision or more.
_LOW = -1e4
_TYPES = {"torch.float32", "torch.float16", "torch.bfloat16"}


def _fuse(subject: Subject) -> Step:
    """Makes the step run with its written-out attention fused.

    torch.compile captures the outermost modules, which then run op by op with fused attention.

    Only the attention changes: the other ops of the captured graph stay what they are. Each call of a captured graph
    costs its guards, some tens of microseconds, which a program that calls the fused op itself does not pay.
    """
    torch, fused = subject.torch, 0

    def backend(captured: Any, inputs: Any) -> Any:  # noqa: ARG001 - torch gives them
        nonlocal fused
        fused += _fuse_graph(torch, captured)
        return captured.forward

    run, is_first = compile_parts(subject, backend=backend, dynamic=False), True

    def step() -> Any:
        nonlocal is_first
        result = run()
        if is_first and not fused:
            raise NotApplicable("needs attention that is written out: a softmax between two batched products")
        is_first = False
        return result

    return step


def _fuse_graph(torch: Any, captured: Any) -> int:
    """The number of attentions that were replaced in a captured graph."""
    matches = [match for node in list(captured.graph.nodes) if (match := _match(node)) is not None]
    for match in matches:
        _replace(torch, captured.graph, match)
    captured.recompile()
    return len(matches)


@dataclass
class _AttentionMatch:
    """Match of written-out attention in a graph.

    ``nodes`` go from the second product back to the first, and all go away but the fused call's operands.

    ``mask`` is added to the scores, or true where a score counts (``is_kept``) or does not count.
    """

    nodes: list[Any]
    dropout_p: float = 0.0
    scale: float = 1.0
    mask: Any = None
    is_kept: bool | None = None
    operands: tuple[Any, Any, Any] = field(default=(None, None, None))


def _match(last: Any) -> _AttentionMatch | None:
    """The attention whose second product this node is; null for any other node."""
    if _name(last) not in _PRODUCTS or len(last.args) < 2:
        return None
    match, node = _AttentionMatch([last]), last.args[0]
    while (name := _name(node)) in ("dropout", *_CASTS) and _passes_on(node):
        if name == "dropout":
            match.dropout_p = _rate(node)
        match.nodes.append(node)
        node = node.args[0]
    if _name(node) != "softmax" or not _passes_on(node) or _argument(node, 1, "dim") not in (-1, _dims(node) - 1):
        return None
    match.nodes.append(node)
    node = _match_scores(match, node.args[0])
    if node is None or len(node.args) < 2:
        return None
    match.nodes.append(node)
    match.operands = (node.args[0], node.args[1], last.args[1])
    return match if _fits(match) else None


def _match_scores(found: _AttentionMatch, node: Any) -> Any:
    """Returns the first product, and notes what lies before the softmax.

    The mask and then the factors between the two are noted. Null for others.
    """
    while _passes_on(node) and (name := _name(node)) not in _PRODUCTS:
        if name in _CASTS:
            before = node.args[0]
        elif name in _FACTORS:
            before = _note_factor(found, node, name)
        else:
            before = _note_mask(found, node, name)
        if before is None:
            return None
        found.nodes.append(node)
        node = before
    return node if _name(node) in _PRODUCTS and _passes_on(node) else None


def _note_factor(found: _AttentionMatch, node: Any, name: str) -> Any:
    """Returns the scores that this node scales by a number.

    The number is noted. Null for another node.
    """
    numbers = [argument for argument in node.args if isinstance(argument, int | float)]
    scores = [argument for argument in node.args if hasattr(argument, "users")]
    if len(numbers) != 1 or len(scores) != 1 or (_FACTORS[name] is operator.truediv and scores[0] is not node.args[0]):
        return None
    found.scale = _FACTORS[name](found.scale, float(numbers[0]))
    return scores[0]


def _note_mask(found: _AttentionMatch, node: Any, name: str) -> Any:
    """Returns the scores that this node masks, and notes the mask.

    Null for another node, or one that is scaled later.
    """
    if found.mask is not None or found.scale != 1.0:
        return None
    if name in _SUMS and len(node.args) == 2:
        scores = [argument for argument in node.args if _shape(argument) == _shape(node) and _is_computed(argument)]
        masks = [argument for argument in node.args if not scores or argument is not scores[0]]
        found.mask, found.is_kept = masks[0], None
        return scores[0] if scores and hasattr(masks[0], "meta") else None
    if name in _FILLS and len(node.args) == 3:
        scores, mask = node.args[:2] if name != "where" else node.args[1::-1]
        found.mask, found.is_kept = mask, name == "where"
        low = node.args[2]
        return scores if isinstance(low, int | float) and low <= _LOW and _dtype(mask) == "torch.bool" else None
    return None


def _is_computed(node: Any) -> bool:
    """Returns whether a product or an op on its result makes this.

    That holds for the scores, while a mask comes from elsewhere.
    """
    return _name(node) in (*_PRODUCTS, *_FACTORS, *_CASTS)


def _fits(found: _AttentionMatch) -> bool:
    """Returns whether the fused op takes these operands.

    They need one dtype, the same batch, and three dimensions or more.
    """
    shapes, dtypes = [_shape(node) or () for node in found.operands], {_dtype(node) for node in found.operands}
    one_type = len(dtypes) == 1 and dtypes == {_dtype(found.nodes[0])} and dtypes <= _TYPES
    return one_type and min(map(len, shapes)) >= 3 and len({shape[:-2] for shape in shapes}) == 1


def _replace(torch: Any, graph: Any, found: _AttentionMatch) -> None:
    """Puts the fused call in the place of the nodes of a match."""
    query, key, value = found.operands
    last, has_heads = found.nodes[0], _dims(found.nodes[0]) > 3
    with graph.inserting_before(last):
        operands = [query, graph.call_method("transpose", (key, -2, -1)), value]
        if not has_heads:  # the fused kernels take four dimensions
            operands = [graph.call_method("unsqueeze", (operand, 0)) for operand in operands]
        mask = found.mask
        if found.is_kept is False:
            mask = graph.call_function(torch.logical_not, (mask,))
        elif mask is not None and found.is_kept is None:
            mask = graph.call_method("to", (mask, _value(query).dtype))
        named = {"attn_mask": mask, "dropout_p": found.dropout_p, "scale": found.scale}
        result = graph.call_function(torch.nn.functional.scaled_dot_product_attention, tuple(operands), named)
        if not has_heads:
            result = graph.call_method("squeeze", (result, 0))
    last.replace_all_uses_with(result)
    for node in found.nodes:
        graph.erase_node(node)


def _name(node: Any) -> str:
    """Returns the name of the op that a captured graph's node calls.

    Empty for an input or no node.
    """
    if getattr(node, "op", "") == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if getattr(node, "op", "") == "call_function" else ""


def _passes_on(node: Any) -> bool:
    """Returns whether one node alone takes the result of this one.

    If so, it may disappear.
    """
    return hasattr(node, "users") and len(node.users) == 1 and bool(node.args)


def _argument(node: Any, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _rate(node: Any) -> float:
    """The rate of a dropout: none where it does not train."""
    rate, trains = _argument(node, 1, "p"), _argument(node, 2, "training")
    return 0.0 if trains is False else 0.5 if rate is None else float(rate)


def _value(node: Any) -> Any:
    return getattr(node, "meta", {}).get("example_value")


def _shape(node: Any) -> tuple[int, ...] | None:
    shape = getattr(_value(node), "shape", None)
    return None if shape is None else tuple(shape)


def _dims(node: Any) -> int:
    return len(_shape(node) or ())


def _dtype(node: Any) -> str:
    return str(getattr(_value(node), "dtype", ""))


CHANGES = (
    Change("fused-attention", "call scaled_dot_product_attention for written-out attention", "reordered", _fuse),
)
