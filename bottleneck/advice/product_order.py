"""Rules of matrix products that take far more arithmetic than they need.

By their order, or by a diagonal matrix.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, size_words, work_of
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import LEAST_SHARE, backward_of, issued_by, main_source, removal_of, roots_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_known, at_source
from bottleneck.schema.source_text import parse_line
from bottleneck.schema.tables import as_integers, nearest_ancestor, text_matches
from bottleneck.units import counted

_MULTIPLIES = re.compile(r"^aten::(?:mm|bmm|mv)$")
# Ops that may stand between two products of a chain: copies, and factors of one number.
_COPIES = re.compile(r"^aten::(?:copy_|clone|contiguous|_to_copy)$")
_SCALES = re.compile(r"^aten::(?:mul|div)_?$")
# Calls of layers: what they multiply with is meant to be separate.
_LAYER = re.compile(r"^aten::(?:linear|addmm|_?scaled_dot_product\w*|_?native_multi_head\w*)$")
_PRODUCT_CALL = re.compile(r"(?:^|\.)(?:matmul|mm|bmm|mv|einsum|dot)$")
# The best order takes this part of the arithmetic at most; products of fewer numbers run at this part of the pace.
_MOST_LEFT, _SLOWER = 0.5, 3.0
# A product of two factors is thin where it sums up so many times fewer numbers than it has rows or columns.
_THIN = 4
_VIEW = re.compile(r"^aten::(?:t|transpose|permute|view|reshape|detach|numpy_T)$")
_SUMS = re.compile(r"^aten::(?:add|sub|mul|div)_?$")
# Ops that make a diagonal matrix, and products, so many ops later at most.
_DIAGONAL, _WHOLE_PRODUCT = re.compile(r"^aten::diag(?:_embed|flat)?$"), re.compile(r"^aten::(?:matmul|mm|bmm)$")
_MULTIPLIED_WITHIN, _SCALING_LEAVES = 8, 0.6


class _Matrices(Struct, frozen=True):
    """Product of two matrices, or of a batch of each.

    Its rows in OPS, its source, and the sizes.
    """

    row: int
    root: int
    source: str
    batch: int
    left: Size
    right: Size


class ProductChain(Struct, frozen=True):
    """Products of which each takes the result of the one before.

    Rows, sizes as (d0, d1, …), and the multiplications. ``best`` is how many multiplications the best order needs,
    ``order`` says which.
    """

    rows: tuple[int, ...]
    source: str
    sizes: Size
    done: float
    best: float
    order: str


def _product_at(work: KernelWork, row: int, root: int, source: object, signature: int) -> _Matrices | None:
    sizes = work.tensors_of(signature)[:2]
    if len(sizes) < 2 or not 2 <= len(sizes[0]) <= 3:
        return None
    batch = sizes[0][0] if len(sizes[0]) == 3 else 1
    right = (*sizes[1], 1) if len(sizes[1]) == 1 else sizes[1][-2:]
    left = sizes[0][-2:]
    name = source if isinstance(source, str) else ""
    return _Matrices(row, root, name, batch, left, right) if left[1] == right[0] else None


@remembered
def product_chains(evidence: Evidence) -> tuple[ProductChain, ...]:
    """Finds the chains of products of the forward pass.

    Nothing is between them but views, copies and single factors.
    """
    ops, work, roots = evidence.linked.ops, work_of(evidence), roots_of(evidence)
    names = ops["name"].astype(object).to_numpy()
    is_product = text_matches(ops["name"], _MULTIPLIES.search)
    does_work = np.zeros(len(ops), dtype=bool)
    does_work[work.op[work.op >= 0]] = True
    apart = ops["is_autograd"].to_numpy() | text_matches(ops["name"], _LAYER.search)
    rows = np.flatnonzero((is_product | does_work) & ops_in_window(evidence))
    sources, signatures = ops["source"].astype(object).to_numpy(), as_integers(ops["signature"])
    threads = ops["thread"].cat.codes.to_numpy()
    chains: list[ProductChain] = []
    run: list[_Matrices] = []
    products = set(np.flatnonzero(is_product).tolist())
    parent = as_integers(ops["parent"])
    is_inside = np.append(nearest_ancestor(parent, is_product) >= 0, False)[parent]
    texts = evidence.source_texts
    for row in rows.tolist():
        if is_inside[row]:  # what a product does itself
            continue
        root = int(roots[row])
        one = None
        if row in products and not apart[root]:
            one = _product_at(work, row, root, sources[row], int(signatures[row]))
        if one is not None:
            if run and threads[run[-1].row] == threads[row] and _follows(run, one, texts):
                run.append(one)
                continue
        elif run and _keeps(str(names[row]), work.tensors_of(int(signatures[row]))):
            continue
        chains += _chain_of(run)
        run = [] if one is None else [one]
    return (*chains, *_chain_of(run))


def _keeps(name: str, sizes: Sequence[Size]) -> bool:
    """True for a copy, and for a factor that is one number."""
    is_scalar = len(sizes) < 2 or all(size in ((), (1,)) for size in sizes[1:2])
    return bool(_COPIES.search(name)) or (bool(_SCALES.search(name)) and is_scalar)


def _follows(run: Sequence[_Matrices], one: _Matrices, texts: Mapping[str, str]) -> bool:
    """True if a product takes the result of the run before.

    By its sizes, and by the text of the lines.
    """
    last = run[-1]
    made = (last.left[0], last.right[1])
    if one.batch != last.batch or not any(made in (sizes, sizes[::-1]) for sizes in (one.left, one.right)):
        return False
    if bool(one.source) != bool(last.source):
        return False
    is_same = one.source == last.source  # in a trace without lines too
    before, after = (parse_line(texts.get(sizes.source, "")) for sizes in (last, one))
    if is_same and after is not None:
        return _nests(after)
    if is_same:  # a part of a statement, or a trace without texts: no other tensor may have these sizes
        return made not in (last.left, last.right, last.left[::-1], last.right[::-1])
    return before is not None and after is not None and _assigns_product(before) and _uses(after, before)


def _products_in(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    """The products in a statement, with their operands."""
    for one in ast.walk(node):
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult):
            yield one, [one.left, one.right]
        elif isinstance(one, ast.Call) and _PRODUCT_CALL.search(ast.unparse(one.func)):
            of = [one.func.value] if isinstance(one.func, ast.Attribute) else []
            yield one, [*of, *one.args]


def _nests(statement: ast.AST) -> bool:
    """True if an operand of a product is a product itself.

    An einsum of three operands is one of such.
    """
    for one, operands in _products_in(statement):
        if isinstance(one, ast.Call) and ast.unparse(one.func).endswith("einsum") and len(one.args) > 3:
            return True
        if any(True for operand in operands for _ in _products_in(operand)):
            return True
    return False


def _assigns_product(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and next(_products_in(statement.value), None) is not None


def _uses(after: ast.AST, before: ast.stmt) -> bool:
    """True if a product of one statement has a name that the other assigns."""
    if not isinstance(before, ast.Assign):
        return False
    names = {node.id for target in before.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Name) and node.id in names
        for _, operands in _products_in(after)
        for operand in operands
        for node in ast.walk(operand)
    )


def _chain_of(run: Sequence[_Matrices]) -> list[ProductChain]:
    """Returns the chain of a run of two and more products.

    None where the sizes do not tell how they hang together.
    """
    if len(run) < 2:
        return []
    sizes = [*run[0].left, run[0].right[1]]
    done = float(np.prod(sizes))
    for one in run[1:]:
        if (sizes[0], sizes[-1]) not in (one.left, one.right):
            sizes.reverse()
        made = (sizes[0], sizes[-1])
        if made == one.left:
            sizes.append(one.right[1])
        elif made == one.right:
            sizes.insert(0, one.left[0])
        else:
            return []
        done += float(one.left[0]) * one.left[1] * one.right[1]
    best, order = _best_order(sizes)
    rows = tuple(dict.fromkeys(one.root for one in run))
    batch = run[0].batch
    return [ProductChain(rows, run[-1].source, tuple(sizes), batch * done, batch * best, order)]


def _best_order(sizes: Sequence[int]) -> tuple[float, str]:
    """Returns the least multiplications for a chain of matrices.

    And the order, with one letter for each: 'A(BC)'.
    """
    count = len(sizes) - 1
    best: dict[tuple[int, int], tuple[float, str]] = {(at, at): (0.0, chr(ord("A") + at)) for at in range(count)}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            best[first, last] = min(
                (
                    best[first, cut][0]
                    + best[cut + 1, last][0]
                    + float(sizes[first]) * sizes[cut + 1] * sizes[last + 1],
                    f"({best[first, cut][1]} {best[cut + 1, last][1]})",
                )
                for cut in range(first, last)
            )
    least, order = best[0, count - 1]
    return least, order[1:-1]


def product_order(evidence: Evidence) -> Draft | None:
    """Finds matrices multiplied in an order that takes twice the arithmetic."""
    return _chain_draft(evidence) or _factored_draft(evidence)


def _chain_draft(evidence: Evidence) -> Draft | None:
    """Finds products in a row of which another order is cheaper.

    Gain: the time of these products and of their backward nodes, less the part
    of the arithmetic that the best order takes; at worst that runs at a third of the pace.
    """
    chains = [one for one in product_chains(evidence) if one.best <= _MOST_LEFT * one.done]
    if not chains:
        return None
    by_source: dict[str, list[ProductChain]] = {}
    for one in chains:
        by_source.setdefault(one.source, []).append(one)
    mine = max(by_source.values(), key=lambda some: sum(one.done - one.best for one in some))
    forward = [row for one in mine for row in one.rows]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows, certain=1.0), work_of(evidence)
    left = sum(one.best for one in mine) / sum(one.done for one in mine)
    gain = Interval(max(0.0, 1 - _SLOWER * left) * removal.gain.low, (1 - left) * removal.gain.high)
    if evidence.share_of_step(gain.high) < 2 * LEAST_SHARE:
        return None
    longest = max(mine, key=lambda one: one.done)
    line = main_source(evidence, forward) or longest.source or None
    letters = [chr(ord("A") + at) for at in range(len(longest.sizes) - 1)]
    shown = ", ".join(f"{letter} {longest.sizes[at]}x{longest.sizes[at + 1]}" for at, letter in enumerate(letters))
    times = f"{longest.done / max(longest.best, 1):.3g}"
    return Draft(
        slug="product-order",
        title="Matrices are multiplied in an order that costs more",
        evidence=(
            f"{counted(format_count(len(mine) / evidence.steps), 'chain')} of products per step{at_known(line)}, "
            f"with nothing between but views: {shown}; {longest.order} takes {times} times fewer multiplications",
            f"that takes {format_per_step(evidence, removal.us)}"
            + (", with the backward pass" if len(rows) > len(forward) else ""),
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Multiply{at_known(line)} in the order in which the small product comes first: with {shown} multiply "
        f"{longest.order}. The result is the same, {times} times fewer multiplications make it, and the large "
        "matrix in between is never written.",
        brief=f"Multiply{at_known(line)} in the order in which the small product comes first",
        places=(line,),
        code="out = q @ (k.transpose(-2, -1) @ v)  # in place of q @ k.transpose(-2, -1) @ v; A @ (B @ x)",
        gain_us=gain,
        claims={name: us * (1 - left) for name, us in removal.claims.items()},
        removes=True,
    )


class _FactoredWeight(Struct, frozen=True):
    """Weight made of two thin factors, for a layer with few rows.

    ``rows`` are the outermost ops that make it, ``layer`` the one that takes it; sizes are those of the weight.
    """

    rows: tuple[int, ...]
    layer: int
    size: Size
    rank: int
    taken: int

    @property
    def left(self) -> float:
        """The part of its multiplications that the factors in turn take."""
        return self.taken * sum(self.size) / float(np.prod(self.size))


def _factored_weights(evidence: Evidence) -> list[_FactoredWeight]:
    """Finds products of thin factors that become the weight of the next layer.

    Nothing is between them but views, factors, and sums with matrices of the same size.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    signatures = as_integers(ops["signature"])[top].tolist()
    weights: list[_FactoredWeight] = []
    rows: list[int] = []
    made, rank = (0, 0), 0
    for row, name, signature in zip(top.tolist(), names, signatures, strict=True):
        if rows and _VIEW.search(name):
            continue
        sizes = work.tensors_of(signature)
        if _WHOLE_PRODUCT.search(name) and [len(size) for size in sizes[:2]] == [2, 2]:
            made, rank = (sizes[0][0], sizes[1][1]), sizes[0][1]
            rows = [row] if _THIN * rank <= min(made) else []
        elif rows and _SUMS.search(name) and made in sizes and all(size in (made, (), (1,)) for size in sizes):
            rows.append(row)
        else:
            if rows and name == "aten::linear" and len(sizes) > 1 and sizes[1] in (made, made[::-1]):
                weights.append(_FactoredWeight(tuple(rows), row, made, rank, int(np.prod(sizes[0][:-1]))))
            rows = []
    return [weight for weight in weights if weight.left <= _MOST_LEFT]


def _factored_draft(evidence: Evidence) -> Draft | None:
    """Finds layers whose weight each call makes of two thin factors.

    Gain: the ops that make the weights, with their backward nodes, less what the factors take in turn; at worst that
    runs at a third of the pace. At best the gradient of the weight goes too, half of the layer's backward node: it
    stays where another part of the weight is trained.
    """
    weights = _factored_weights(evidence)
    if not weights:
        return None
    making = [row for weight in weights for row in weight.rows]
    rows = [*making, *backward_of(evidence, making)]
    layers = backward_of(evidence, [weight.layer for weight in weights])
    removal, gradients = removal_of(evidence, rows, certain=1.0), removal_of(evidence, layers, certain=1.0)
    left = max(weight.left for weight in weights)
    low_us = max(0.0, 1 - _SLOWER * left) * removal.gain.low
    gain = Interval(low_us, (1 - left) * removal.gain.high + gradients.gain.high / 2)
    if evidence.share_of_step(gain.high) < 2 * LEAST_SHARE:
        return None
    line, work = main_source(evidence, making), work_of(evidence)
    largest = max(weights, key=lambda weight: float(np.prod(weight.size)))
    size = size_words(largest.size)
    claims = {name: us * (1 - left) for name, us in removal.claims.items()}
    for name, us in gradients.claims.items():
        claims[name] = claims.get(name, 0.0) + us / 2
    return Draft(
        slug="product-order",
        title="Matrices are multiplied in an order that costs more",
        evidence=(
            f"{counted(format_count(len(weights) / evidence.steps), 'weight')} per step {at_source(line)} made of two "
            f"factors: {size} of {counted(largest.rank, 'column')}, for {counted(largest.taken, 'row')} of input",
            f"that takes {format_per_step(evidence, removal.us)}"
            + (", with the backward pass" if len(rows) > len(making) else ""),
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Multiply the input by the two factors in turn {at_source(line)}, and add the result to the layer's: "
        f"no matrix of {size} is made in each call then, nor its gradient if the rest of the weight is frozen.",
        brief=f"Multiply the input by the two factors in turn {at_source(line)}, in place of making the whole weight",
        places=(line,),
        code="y = F.linear(x, weight, bias) + (x @ A.T) @ B.T  # in place of F.linear(x, weight + B @ A, bias)",
        gain_us=gain,
        claims=claims,
        removes=True,
    )


def _diagonal_products(evidence: Evidence) -> dict[int, int]:
    """Returns the row of each product with a diagonal matrix.

    And the row that made the matrix just before.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    sources = ops["source"].astype(object).to_numpy()[top].tolist()
    signatures = as_integers(ops["signature"])[top].tolist()
    texts = evidence.source_texts
    maker: dict[int, int] = {}
    for at, name in enumerate(names):
        sizes = work.tensors_of(signatures[at])[:1] if _DIAGONAL.search(str(name)) else []
        if not sizes or not sizes[0] or (len(sizes[0]) > 1 and name != "aten::diag_embed"):
            continue
        made = (*sizes[0], sizes[0][-1])
        for later in range(at + 1, min(at + 1 + _MULTIPLIED_WITHIN, len(names))):
            is_product = _WHOLE_PRODUCT.search(str(names[later])) is not None
            if is_product and made in work.tensors_of(signatures[later])[:2]:
                lines = (texts.get(str(sources[row]), "") for row in (at, later))
                if _multiplies_diagonal(*lines, is_same=sources[at] == sources[later]):
                    maker[int(top[later])] = int(top[at])
    return maker


def _multiplies_diagonal(before: str, after: str, *, is_same: bool) -> bool:
    """True if a product has a call of diag among its operands.

    Or the name to which one was assigned.
    """
    maker, product = parse_line(before), parse_line(after)
    if product is None or maker is None:
        return False
    if not is_same:
        return _uses(product, maker) and _calls_diagonal(maker)
    return any(_calls_diagonal(operand) for _, operands in _products_in(product) for operand in operands)


def _calls_diagonal(node: ast.AST) -> bool:
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(re.search(r"(?:^|\.)diag(?:_embed|flat)?$", ast.unparse(call.func)) is not None for call in calls)


def diagonal_product(evidence: Evidence) -> Draft | None:
    """Finds a diagonal matrix that is made and multiplied.

    Each row or column has only to be scaled. Gain: the time of the products, of the ops that make the matrices, and of
    their backward nodes; from 60 % of it, since a pass over the other matrix stays.
    """
    pairs = _diagonal_products(evidence)
    if not pairs:
        return None
    forward = [*pairs, *dict.fromkeys(pairs.values())]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    line = main_source(evidence, list(pairs))
    return Draft(
        slug="diagonal-product",
        title="A diagonal matrix is multiplied as a full one",
        evidence=(
            f"{counted(format_count(len(pairs) / evidence.steps), 'product')} per step with a matrix of torch.diag or "
            f"diag_embed, most time {at_source(line)}",
            f"that takes {format_per_step(evidence, removal.us)}"
            + (", with the backward pass" if len(rows) > len(forward) else ""),
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Scale the rows or columns by the vector {at_source(line)}, in place of a product with its diagonal "
        "matrix, nearly all of whose numbers are zeros: d[:, None] * a for diag(d) @ a, a * d for a @ diag(d).",
        brief=f"Scale rows or columns by the vector {at_source(line)}, without a diagonal matrix",
        places=(line,),
        code="y = d[:, None] * a  # in place of torch.diag(d) @ a; batches: d[..., None] * a",
        gain_us=Interval(_SCALING_LEAVES * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


RULES = (product_order, diagonal_product)
