"""Changes to matrix products: bf16 autocast, TF32, products by oneDNN, and padded sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step, within
from bottleneck.harness.torch_private import dispatch_mode_class

# What torch runs in TF32 needs compute capability 8.0 (NVIDIA's CUDA C++ guide, arithmetic instructions).
_TF32_CAPABILITY = (8, 0)


def autocast_to_bf16(subject: Subject) -> Step:
    """Runs the step within `torch.autocast`.

    Its products take bf16, and sums such as softmax and losses stay in fp32.

    The cast copies of parameters are dropped after each update, which the user's own loop would do by leaving autocast.
    """
    torch, step, kinds = subject.torch, subject.step, sorted(subject.device_types())
    _need_float32(subject)
    kinds = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
    if not kinds or ("cuda" in kinds and not torch.cuda.is_bf16_supported(including_emulation=False)):
        raise NotApplicable(f"needs a device that computes in bf16; the step runs on {', '.join(kinds) or 'none'}")
    for optimizer in subject.optimizers:
        optimizer.register_step_post_hook(lambda *_: torch.clear_autocast_cache())
    for kind in kinds:
        step = within(step, partial(torch.autocast, kind, dtype=torch.bfloat16))
    return step


def _need_float32(subject: Subject) -> None:
    if not any(tensor.dtype is subject.torch.float32 for tensor in subject.floating()):
        raise NotApplicable("needs float32 parameters or inputs; the step holds none")


def use_tf32(subject: Subject) -> Step:
    """Allows TF32 in the step's products of float32 matrices.

    Between steps the setting is back to what it was.
    """
    torch, inner = subject.torch, subject.step
    if "cuda" not in subject.device_types():
        raise NotApplicable("needs a step that runs on an NVIDIA GPU")
    if torch.cuda.get_device_capability() < _TF32_CAPABILITY:
        raise NotApplicable("needs a GPU with TF32: compute capability 8.0 or later")
    _need_float32(subject)
    if torch.get_float32_matmul_precision() != "highest":
        raise NotApplicable("needs products in full float32; the program allows TF32 already")
    return within(inner, partial(_at_precision, torch, "high"))


def multiply_by_onednn(subject: Subject) -> Step:
    """Lets oneDNN multiply the step's float32 matrices, as it may at the precision ``medium``.

    Between steps the setting is back to what it was.
    """
    torch = subject.torch
    if subject.device_types() - {"cpu"}:
        raise NotApplicable("needs a step on the CPU: oneDNN multiplies there")
    if not torch.backends.mkldnn.is_available():
        raise NotApplicable("needs a torch that was built with oneDNN")
    _need_float32(subject)
    if torch.get_float32_matmul_precision() == "medium":
        raise NotApplicable("needs a program that keeps oneDNN from its products; this one allows it already")
    return within(subject.step, partial(_at_precision, torch, "medium"))


@contextmanager
def _at_precision(torch: Any, precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


CHANGES = (
    Change("bf16-autocast", "run products in bf16 by torch.autocast", "bf16", autocast_to_bf16),
    Change("tf32", "allow TF32 in float32 products: torch.set_float32_matmul_precision('high')", "tf32", use_tf32),
    Change(
        "onednn-products",
        "let oneDNN multiply float32 matrices: torch.set_float32_matmul_precision('medium')",
        "reordered",
        multiply_by_onednn,
    ),
)


# Rows that begin at multiples of 16 bytes in 16-bit types can be read by the widest loads, which tensor cores want
# (NVIDIA, Matrix Multiplication Background, section 3); those of wider types then lie on whole vectors as well.
UNIT = 8
# The largest ones suffice, and each holds memory of its own.
PRODUCTS_AT_MOST = 16


@dataclass(frozen=True)
class MatrixProduct:
    """Matrix product: [batch x] (m x k) by (k x n).

    The matrices lie by rows, or by columns where they are transposed views.
    """

    batch: int | None
    m: int
    k: int
    n: int
    dtype: Any
    device: Any
    left_by_columns: bool
    right_by_columns: bool

    @property
    def work(self) -> int:
        """Multiplications."""
        return (self.batch or 1) * self.m * self.k * self.n

    def padded(self) -> "MatrixProduct":
        """Returns the product with padded sizes.

        Those that make the pitch of a matrix are rounded up to multiples of the unit.
        """
        return replace(self, **{name: -(-getattr(self, name) // UNIT) * UNIT for name in self._pitches()})

    def is_misaligned(self) -> bool:
        """Returns whether padding changes it.

        Products of vectors do not count, since padding would multiply their work.
        """
        return min(self.m, self.k, self.n) > 1 and self.padded() != self

    def _pitches(self) -> set[str]:
        return {"m" if self.left_by_columns else "k", "k" if self.right_by_columns else "n", "n"}


def misaligned_products(subject: Subject) -> Mapping[MatrixProduct, int]:
    """Finds the largest misaligned products of one step.

    Those of its backward pass count too. Each comes with how often it is made.

    The step runs for that.
    """
    met = Counter[MatrixProduct]()
    with _watch(subject.torch, met):
        subject.step()
    misaligned = sorted(
        (candidate for candidate in met if candidate.is_misaligned()),
        key=lambda candidate: -candidate.work * met[candidate],
    )
    if not misaligned:
        raise NotApplicable(f"needs matrix products with sizes that are no multiples of {UNIT}")
    return {product: met[product] for product in misaligned[:PRODUCTS_AT_MOST]}


def _watch(torch: Any, met: Counter[MatrixProduct]) -> Any:
    """A context in which every product of matrices is counted."""
    aten = torch.ops.aten
    # The operands among the arguments: the other products add to what comes first.
    places = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}

    class ProductRecorder(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            if function in places:
                met[_product_of(*arguments[places[function] : places[function] + 2])] += 1
            return function(*arguments, **(named or {}))

    return ProductRecorder()


def _product_of(left: Any, right: Any) -> MatrixProduct:
    batch = left.shape[0] if left.dim() == 3 else None
    (m, k), n = left.shape[-2:], right.shape[-1]
    return MatrixProduct(batch, m, k, n, left.dtype, left.device, _lies_by_columns(left), _lies_by_columns(right))


def _lies_by_columns(matrix: Any) -> bool:
    return bool(matrix.stride(-1) != 1 and matrix.stride(-2) == 1)


def _step_of(torch: Any, products: Mapping[MatrixProduct, int]) -> Step:
    """Makes a step of these products, each as often as stated.

    The numbers are made here.
    """
    calls = list(_calls(torch, products))

    def step() -> None:
        with torch.no_grad():
            for left, right, times in calls:
                for _ in range(times):
                    torch.matmul(left, right)

    return step


def _calls(torch: Any, products: Mapping[MatrixProduct, int]) -> Iterator[tuple[Any, Any, int]]:
    for product, times in products.items():
        batch = () if product.batch is None else (product.batch,)
        kind = {"dtype": product.dtype, "device": product.device}
        yield (
            _matrix(torch, (*batch, product.m, product.k), product.left_by_columns, kind),
            _matrix(torch, (*batch, product.k, product.n), product.right_by_columns, kind),
            times,
        )


def _matrix(torch: Any, shape: tuple[int, ...], by_columns: bool, kind: Mapping[str, Any]) -> Any:
    if by_columns:
        return torch.ones((*shape[:-2], shape[-1], shape[-2]), **kind).mT
    return torch.ones(shape, **kind)


def _pad(subject: Subject) -> Step:
    """The misaligned products of the step with padded sizes, and nothing else of it."""
    products = misaligned_products(subject)
    padded = Counter[MatrixProduct]()
    for product, times in products.items():
        padded[product.padded()] += times
    return _step_of(subject.torch, padded)


def _as_they_are(subject: Subject) -> Step:
    """Makes a step of the same products with their own sizes.

    The padded ones are to be compared with it.
    """
    return _step_of(subject.torch, misaligned_products(subject))


PADDING_CHANGES = (
    Change(
        "pad",
        f"pad the sizes of misaligned matrix products to multiples of {UNIT} (these products alone are timed)",
        "other work",
        _pad,
        against=_as_they_are,
    ),
)
