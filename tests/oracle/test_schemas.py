"""Argument positions against the schemas of the installed torch: what we read at a position is what stands there."""

from collections.abc import Iterator

import msgspec
import pytest

from bottleneck.cost import attention, matmul, quantized
from bottleneck.cost import attention as attention_layouts
from bottleneck.cost import convolution as conv
from bottleneck.cost import convolution as conv_layouts

torch = pytest.importorskip("torch", reason="torch is not installed")

NAMES = {
    "stride": {"stride"},
    "padding": {"padding"},
    "dilation": {"dilation"},
    "groups": {"groups"},
    "bias": {"bias", "B", "attn_bias", "attn_mask"},
    "weight": {"weight", "W"},
    "inputs": {"input", "self", "X"},
    "addend": {"z", "other"},
    "transposed_at": {"transposed"},
    "output_padding": {"output_padding"},
    "grad": {"grad_output"},
    "query": {"query"},
    "causal": {"is_causal"},
    "dropout": {"dropout_p"},
    "window": {"window_size_left"},
}


def schemas() -> dict[str, list[list[str]]]:
    """Names of the arguments of every overload of every op."""
    found: dict[str, list[list[str]]] = {}
    for schema in torch._C._jit_get_all_schemas():
        found.setdefault(schema.name, []).append([argument.name for argument in schema.arguments])
    return found


SCHEMAS = schemas()
LAYOUTS = {
    **conv_layouts.FORWARD,
    **conv_layouts.UNFOLDED,
    **conv_layouts.BACKWARD,
    **attention_layouts.FORWARD,
    **attention_layouts.BACKWARD,
}


def misread(name: str, overload: list[str]) -> Iterator[tuple[str, str]]:
    """Fields of an op's layout that point at an argument of another meaning in one overload."""
    for field, position in msgspec.structs.asdict(LAYOUTS[name]).items():
        if field in NAMES and position is not None:
            there = overload[position] if position < len(overload) else "nothing"
            if there not in NAMES[field]:
                yield field, there
        if field == "lengths" and position is not None:
            there = [overload[each][:3] for each in position]
            if not set(there[:2]) <= {"cum", "cu_"} or set(there[2:]) != {"max"}:
                yield field, str(there)


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() & SCHEMAS.keys()))
def test_every_position_holds_the_argument_that_we_take_it_for(name):
    overloads = [list(misread(name, overload)) for overload in SCHEMAS[name]]
    assert min(overloads, key=len) == []


def test_most_layouts_are_those_of_the_installed_torch():
    aten = {name for name in LAYOUTS if name.startswith("aten::")}
    gone = {name for name in aten - SCHEMAS.keys() if "backward" not in name}
    assert not gone - {"aten::miopen_depthwise_convolution"}


def test_no_formula_of_a_matrix_engine_misspells_its_op():
    tables = [module.FORMULAS for module in (matmul, quantized, conv, attention)]
    tables += [module.COMPOSITES for module in (matmul, conv, attention)]
    unknown = {name for table in tables for name in table if name.startswith("aten::")} - SCHEMAS.keys()
    # Backends had backward ops of their own until torch 1.11; old traces still do.
    assert not {name for name in unknown if "backward" not in name}


def test_the_order_of_another_op_would_be_found():
    assert list(misread("aten::cudnn_convolution", SCHEMAS["aten::convolution"][0]))
