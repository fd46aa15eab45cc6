"""Names of trace events that several stages recognise: step marks, modules, Python frames, in-place ops."""

import re

# Annotations that PyTorch itself adds: the profiler's steps, optimizers and data loaders; frames of nn.Modules.
PROFILER_STEP = re.compile(r"^ProfilerStep#")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
LOADER_FETCH = re.compile(r"^enumerate\(DataLoader\)#")
MARK_PREFIXES = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
MODULE_PREFIX = "nn.Module: "

# Work of the autograd engine, whose threads run the backward pass.
AUTOGRAD_PREFIX = "autograd::engine::"
BACKWARD_NODE = "autograd::engine::evaluate_function"
# Ops that only a training step has: nodes of the backward pass, and the optimizer.
TRAINING = re.compile(r"^autograd::engine::evaluate_function|^Optimizer\.step#")

# 'path/file.py(57): function', as Kineto writes a Python frame. The longest real one is far below the limit.
PYTHON_FRAME = re.compile(r"^(?P<path>[^\n]{1,1000}?)\((?P<line>\d{1,9})\): ")
BUILT_IN_CALL = re.compile(r"^<built-in (?:function|method) (?P<name>[^\s>]{1,200})")

# 'aten::add_', and 'aten::add_.Tensor' with an overload: the op writes to its operand.
IN_PLACE = re.compile(r"[a-z0-9]_(?:\.|$)")

COMPILED_REGION = "Torch-Compiled Region"
