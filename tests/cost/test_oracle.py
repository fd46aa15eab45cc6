"""Costs against torch itself: bytes of the tensors of real calls, and the schemas of all ops."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bottleneck.cost import creation as fills
from bottleneck.cost import indexing, linalg, losses, movement, normalization, pointwise, pooling, reduction
from bottleneck.cost import multipass as passes
from bottleneck.cost.call import Cost, Formulas
from tests.cost.calls import parse, record

torch = pytest.importorskip("torch")

MODULES = (fills, indexing, linalg, losses, movement, normalization, passes, pointwise, pooling, reduction)
FORMULAS: Formulas = {name: formula for module in MODULES for name, formula in module.FORMULAS.items()}

# Ops of older versions, whose traces are still read.
LEGACY = {"aten::_cat", "detach", "detach_", "inductor::_reinterpret_tensor"}


X, Y = torch.linspace(0.1, 1, 600).view(12, 50), torch.linspace(1, 0.1, 600).view(12, 50)
ROW, COLUMN, WIDE = torch.rand(50), torch.rand(12, 1), torch.rand(50).expand(12, 50)
HALF, LONGS, FLAGS = X.to(torch.bfloat16), torch.arange(1, 601).view(12, 50), X > 0.5
INDEX, COLUMNS, TABLE = torch.arange(30) % 12, torch.arange(84).view(12, 7) % 50, torch.rand(100, 16)
IMAGES, SQUARE = torch.rand(2, 3, 9, 9), torch.rand(12, 12)
TRIANGLES = ("tril_indices", "triu_indices")
functional = torch.nn.functional


@dataclass(frozen=True)
class Case:
    """A call to record: the tensors that it has to read are its arguments unless ``reads`` is given."""

    op: str
    function: Callable[..., object]
    arguments: tuple[object, ...]
    reads: tuple[torch.Tensor, ...] | None = None
    hidden_bytes: int = 0  # results that the op gives and the function does not

    def call(self) -> object:
        return self.function(*self.arguments)

    def nbytes(self) -> int:
        reads = _tensors(self.arguments) if self.reads is None else self.reads
        return self.hidden_bytes + sum(_distinct_bytes(tensor) for tensor in (*reads, *_tensors(self.call())))


def case(name: str, function: Callable[..., object], *arguments: object, **more: Any) -> Case:
    return Case(f"aten::{name}", function, arguments, **more)


def _tensors(value: object) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(tensor for item in value for tensor in _tensors(item)) if isinstance(value, tuple | list) else ()


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements in memory: dimensions of stride 0 count once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
    return math.prod(sizes) * tensor.element_size()


def _recorded_cost(made: Case, path: Path) -> Cost:
    events = [event for event in record(made.call, path) if event["name"] == made.op]
    return FORMULAS[made.op](parse(events[0]))


EXACT = [
    case("add", torch.add, X, ROW),
    case("add", torch.add, WIDE, X),
    case("sub", torch.sub, HALF, Y),
    case("div", torch.div, LONGS, LONGS),
    case("pow", torch.pow, X, Y),
    case("atan2", torch.atan2, X, COLUMN),
    case("lt", torch.lt, X, Y),
    case("fmod", torch.fmod, LONGS, X),
    case("maximum", torch.maximum, X, Y),
    case("bitwise_and", torch.bitwise_and, LONGS, FLAGS),
    case("mul", torch.mul, HALF, ROW),
    *(case(name, getattr(torch, name), HALF) for name in ("abs", "exp", "sigmoid", "tanh", "isnan", "neg", "clone")),
    *(case(name, getattr(torch, name), LONGS) for name in ("rsqrt", "erf", "sin", "abs")),
    *(case(name, getattr(functional, name), HALF) for name in ("silu", "mish", "hardswish", "softplus", "gelu", "glu")),
    case("add_", torch.Tensor.add_, torch.zeros(12, 50), ROW),
    case("sub", lambda *given: torch.sub(*given, out=torch.empty(12, 50)), X, ROW),
    case("clamp", torch.clamp, X, 0.2, 0.4),
    case("clamp", torch.clamp, X, ROW, COLUMN),
    case("addcdiv", torch.addcdiv, X, Y, ROW),
    case("lerp", torch.lerp, X, Y, 0.5),
    case("_to_copy", torch.Tensor.to, X, torch.float16),
    case("copy_", torch.Tensor.copy_, torch.zeros(12, 50), ROW, reads=(ROW,)),
    case("repeat", torch.Tensor.repeat, X, 3, 2),
    case("constant_pad_nd", functional.pad, X, (1, 2, 3, 4)),
    case("roll", torch.roll, X, 3, 1),
    case("fill_", torch.Tensor.fill_, torch.empty(12, 50), 1.5, reads=()),
    case("arange", torch.arange, 3, 40, 2),
    case("linspace", torch.linspace, 0, 1, 77),
    case("zeros", lambda: torch.zeros(3, 4, dtype=torch.float16)),
    case("full_like", lambda x: torch.full_like(x, 2, dtype=torch.float64), X, reads=()),
    case("randn", torch.randn, 3, 40),
    *(
        case(name, getattr(torch, name), X, 1)
        for name in ("sum", "mean", "amax", "argmax", "var", "prod", "max", "std")
    ),
    *(case(name, getattr(torch, name), X) for name in ("sum", "max", "argmax", "all", "any")),
    case("sum", lambda x: torch.sum(x, (0, 1), dtype=torch.int32), LONGS),
    case("linalg_vector_norm", torch.linalg.vector_norm, X, 2, 0),
    case("linalg_vector_norm", torch.norm, X),
    case("cumsum", torch.cumsum, FLAGS, 1),
    case("_softmax", torch.softmax, HALF, 1),
    case("_log_softmax", torch.log_softmax, X, 1),
    case("native_layer_norm", functional.layer_norm, X, (50,), ROW, ROW, hidden_bytes=2 * 12 * 4),
    case("_fft_r2c", torch.fft.rfft, X),
    case("max_pool2d_with_indices", lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True), IMAGES),
    case("avg_pool2d", lambda x: functional.avg_pool2d(x, 2, 2, ceil_mode=True), IMAGES),
    case("_adaptive_avg_pool2d", functional.adaptive_avg_pool2d, IMAGES, 3),
    case("mse_loss", lambda *given: functional.mse_loss(*given, reduction="none"), X, Y),
    case("ldexp", torch.ldexp, X, LONGS.int()),
    case("eye", torch.eye, 7),
    case("eye", torch.eye, 7, 9),
    *(case(name, getattr(torch, name), 9, 12, shift) for name in TRIANGLES for shift in (-20, -3, 0, 4, 20)),
    *(case(name, getattr(torch, name), 12, 9, shift) for name in TRIANGLES for shift in (-2, 0, 3)),
    case("logspace", torch.logspace, 0, 1, 77),
    case("im2col", lambda x: functional.unfold(x, 3, 1, 1, 2), IMAGES),
    case("col2im", lambda x: functional.fold(x, (9, 9), 3), torch.rand(2, 27, 49)),
    case("_cdist_forward", torch.cdist, X, Y),
    case(
        "_upsample_bilinear2d_aa", lambda x: functional.interpolate(x, (4, 4), mode="bilinear", antialias=True), IMAGES
    ),
    case("linalg_lu_solve", torch.linalg.lu_solve, *torch.linalg.lu_factor(SQUARE), COLUMN, reads=(SQUARE, COLUMN)),
    case("linalg_solve_triangular", lambda *given: torch.linalg.solve_triangular(*given, upper=True), SQUARE, COLUMN),
]

# What is read depends on the values of an index, or on whether two operands are one.
DATA = [
    case("mul", torch.mul, X, X, reads=(X,)),
    case("where", torch.where, FLAGS, X, Y, reads=(FLAGS, X)),
    case("masked_fill_", lambda *given: X.clone().masked_fill_(*given), FLAGS, 0.0),
    case("nonzero", torch.nonzero, FLAGS),
    case("masked_select", torch.masked_select, X, FLAGS),
    case("index_select", torch.index_select, X, 0, INDEX),
    case("gather", torch.gather, X, 1, COLUMNS, reads=(COLUMNS,)),
    case("embedding", functional.embedding, INDEX, TABLE, reads=(INDEX, TABLE[:12])),
    case(
        "_embedding_bag_forward_only",
        functional.embedding_bag,
        INDEX.view(3, 10),
        TABLE,
        reads=(INDEX, INDEX[:3], TABLE[:12]),
    ),
    case("index_add_", lambda *given: torch.zeros(12, 50).index_add_(*given), 0, INDEX, torch.rand(30, 50)),
    case("sort", torch.sort, X),
    case("topk", torch.topk, X, 3),
    case("_unique2", torch.unique, INDEX),
    case("cat", torch.cat, [X, Y]),
    case("put_", lambda *given: torch.zeros(12, 50).put_(*given)[:0], INDEX, torch.rand(30)),
    case("isin", torch.isin, LONGS, INDEX),
    case("multinomial", torch.multinomial, X, 5, True),
    case("trace", torch.trace, X, reads=(ROW[:12],)),
    case("_linalg_svd", lambda x: torch.linalg.svd(x, full_matrices=False)[1], X),
    case("linalg_cholesky_ex", torch.linalg.cholesky, SQUARE @ SQUARE.T + torch.eye(12), hidden_bytes=0),
    case("stack", torch.stack, [X.half(), Y.half()]),
    case("tril", torch.tril, X),
    case("native_batch_norm", torch.native_batch_norm, X, None, None, None, None, True, 0.1, 1e-5),
    case("nll_loss_forward", functional.nll_loss, X[:, :12], INDEX[:12], reads=(INDEX[:12], X[:, 0])),
]


@pytest.mark.parametrize("made", EXACT, ids=lambda made: made.op)
def test_bytes_are_those_of_the_tensors_that_torch_took_and_gave(made, tmp_path):
    cost = _recorded_cost(made, tmp_path / "trace.json")
    assert cost.bytes_low == made.nbytes() == cost.bytes_high


@pytest.mark.parametrize("made", DATA, ids=lambda made: made.op)
def test_what_depends_on_data_lies_within_the_interval(made, tmp_path):
    cost = _recorded_cost(made, tmp_path / "trace.json")
    assert cost.bytes_low <= made.nbytes() <= cost.bytes_high


def _schemas() -> dict[str, list["torch._C.FunctionSchema"]]:
    found: dict[str, list[torch._C.FunctionSchema]] = {}
    for schema in torch._C._jit_get_all_schemas():
        found.setdefault(schema.name, []).append(schema)
    return found


def test_every_name_with_a_formula_is_an_op_of_torch():
    missing = FORMULAS.keys() - _schemas().keys() - LEGACY
    assert not missing


def test_no_tensor_argument_of_a_pointwise_op_lies_behind_its_operands():
    """A tensor behind the operands is taken for the result, so only ``out=`` tensors may stand there."""
    schemas = _schemas()
    rules = {
        f"aten::{name}": rule
        for table in (pointwise.WITH_IN_PLACE, pointwise.FUNCTIONAL)
        for names, rule in table.items()
        for name in names.split()
    }
    for name, rule in rules.items():
        for schema in schemas[name]:
            behind = [a for a in schema.arguments[rule.operands :] if str(a.type) == "Tensor" and not a.is_out]
            assert not behind, f"{schema}"


def test_composites_are_composed_of_other_ops():
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    schemas = _schemas()
    for name in {name for module in MODULES for name in getattr(module, "COMPOSITES", ())}:
        overloads = [re.match(r"[\w:.]+", str(schema)).group() for schema in schemas[name]]
        keys = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
        assert any(has_kernel(overload, key) for overload in overloads for key in keys), name
