"""Names without what changes from run to run: addresses, running numbers of modules, kernels and nodes."""

import re

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_LAST_NUMBER = re.compile(r"_\d+$")
_NODE_NUMBER = re.compile(r"(?<=Backward)\d+$")
# What Inductor generates: 'triton_poi_fused_add_relu_3', 'cpp_fused_add_0'. Another Triton kernel: 'kernel_0d1d2de'.
_GENERATED = re.compile(r"^(triton|cpp)_(\w+?)_\d+$")
_SPECIALISED = re.compile(r"_(?:\d+[dc]e?)+$")

_OTHER_NAMES = ("autograd::engine::", "torch::autograd::")


def is_op(name: str) -> bool:
    """Whether a row of OPS is a call of the dispatcher: 'aten::add', but no node of autograd and no annotation."""
    return "::" in name and not name.startswith(_OTHER_NAMES)


def plain_op(name: str) -> str:
    """An op's name without addresses and numbers of nodes."""
    return _NODE_NUMBER.sub("", _ADDRESS.sub("0x…", name))


def plain_kernel(name: str) -> str:
    """A kernel's name without the number that its generator gave it."""
    name = _ADDRESS.sub("0x…", name)
    match = _GENERATED.match(name)
    return f"{match[1]}_{match[2]}" if match else _SPECIALISED.sub("", name)


def plain_module(path: str) -> str:
    """'Net.Linear' of 'Net_0.Linear_3': the profiler numbers the modules of a class as it meets them."""
    return ".".join(_LAST_NUMBER.sub("", part) for part in _ADDRESS.sub("0x…", path).split("."))
