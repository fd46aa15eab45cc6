"""Causes for which torch.compile splits, recompiles or does not capture code.

Each has its code, the pattern of torch's text for it, plain words, and the change that takes it away.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class CompileCause(NamedTuple):
    """A cause with its words.

    ``pattern`` finds it in torch's text. ``change`` says what to do about it, ``code`` shows how.
    """

    key: str
    pattern: "re.Pattern[str]"
    words: str
    change: str
    code: str


def _cause(key: str, pattern: str, words: str, change: str, code: str) -> CompileCause:
    return CompileCause(key, re.compile(pattern, re.IGNORECASE), words, change, code)


# torch writes each of these in its own words since 2.7, in others before (`torch/_dynamo/graph_break_registry.json`).
BREAK_CAUSES: Sequence[CompileCause] = (
    _cause(
        "limit",
        r"recompile limit exceeded|cache_size_limit|recompile_limit",
        "the function was compiled too often, and runs uncompiled from now on",
        "Keep what its guards name from changing, or raise the limit.",
        "torch._dynamo.config.recompile_limit = 64  # cache_size_limit before torch 2.7",
    ),
    _cause(
        "inserted",
        r"torch\._dynamo\.graph_break\(\)|function graph_break in",
        "the program asks for it",
        "Take the call of torch._dynamo.graph_break() out.",
        "# delete: torch._dynamo.graph_break()",
    ),
    _cause(
        "print",
        r"builtin operator `?print|call_function BuiltinVariable\(print\)|builtin: print\b",
        "it prints",
        "Move the print out of the compiled function, or print rarely.",
        "torch._dynamo.config.reorderable_logging_functions.add(print)  # prints after the graph; or print outside",
    ),
    _cause(
        "value",
        r"Tensor\.(?:item|tolist|numpy)\b|_local_scalar_dense|data.dependent operator"
        r"|\bitem\b.{0,40}(?:scalar|TensorVariable)|aten\.item",
        "it reads a tensor's value on the host",
        "Move .item() out of the compiled function, or keep the value as a tensor.",
        "total += loss.detach()  # a tensor; .item() once, after the loop",
    ),
    _cause(
        "branch",
        r"data-dependent (?:branching|control flow|jump|assert)|generic_jump|data.dependent.{0,30}expression",
        "Python branches by a tensor's value",
        "Write the branch as torch.where or torch.cond.",
        "y = torch.where(x > 0, x, scale * x)  # for `if x.sum() > 0:`",
    ),
    _cause(
        "shape",
        r"dynamic (?:shape|output shape) operator|capture_dynamic_output_shape|nonzero|masked_select",
        "the size of a result depends on values",
        "Use an op whose result has a fixed size, or let such sizes into the graph.",
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True  # or torch.where in place of x[mask]",
    ),
    _cause(
        "disabled",
        r"torch\.compiler\.disable|torch\._dynamo\.disable|skip function .{0,80}disable|marked as (?:skipped|disabled)"
        r".{0,40}disable",
        "the program keeps this function from being compiled",
        "Take torch.compiler.disable away, or call the function outside of the compiled part.",
        "# delete: @torch.compiler.disable",
    ),
    _cause(
        "backward",
        r"Tensor\.backward|requires_grad_\(|torch\.autograd\.grad|\bbackward\(\)",
        "it calls autograd",
        "Call backward() outside of the compiled function.",
        "loss = compiled(x)\nloss.backward()  # outside",
    ),
    _cause(
        "library",
        r"marked as skipped|skip function|skipfiles|C/C\+\+ extension|builtin/C|call_function in skip|pybind"
        r"|Unsupported function call|missing fake|fake.{0,20}(?:kernel|impl)|third.party",
        "it calls code that the compiler cannot look into",
        "Register that call as an op of torch, so that it becomes part of the graph.",
        '@torch.library.custom_op("mylib::f", mutates_args=())\n'
        "def f(x: torch.Tensor) -> torch.Tensor: ...\n"
        "@f.register_fake\n"
        "def _(x): return torch.empty_like(x)",
    ),
    _cause(
        "builtin",
        r"builtin operator|BuiltinVariable",
        "it calls a function of Python that the compiler does not know",
        "Move that call out of the compiled function.",
        "# call it before or after the compiled function, on its results",
    ),
    _cause(
        "context",
        r"context manager|setup_with|SETUP_WITH|BEFORE_WITH|\bwith\b.{0,40}block",
        "it breaks inside of a `with` block",
        "Put the `with` around the compiled function.",
        "with context:\n    y = compiled(x)",
    ),
)
OTHER_BREAK = _cause(
    "other",
    "",
    "the compiler does not support what stands there",
    "Move that call out of the compiled function, or write it with ops of torch.",
    "# diagnosis: torch.compile(model, fullgraph=True) names the first break, TORCH_LOGS=graph_breaks all",
)

RECOMPILE_CAUSES: Sequence[CompileCause] = (
    _cause(
        "size",
        r"size mismatch at index|\.size\(\)|\.shape\b|size\(\d+\)",
        "a tensor came with another size",
        "Mark the size that changes, so that one graph serves all of them, or pad to a few sizes.",
        "torch._dynamo.mark_dynamic({name}, {index})",
    ),
    _cause(
        "stride",
        r"stride mismatch|rank mismatch",
        "a tensor came with another layout or number of dimensions",
        "Pass tensors of one layout.",
        "y = compiled(x.contiguous())",
    ),
    _cause(
        "type",
        r"dtype mismatch|dispatch key|device mismatch|requires_grad mismatch|tensor type",
        "a tensor came with another type, device or requires_grad",
        "Pass tensors of one kind: the same type, device and requires_grad in every call.",
        "y = compiled(x.to(dtype))  # outside",
    ),
    _cause(
        "mode",
        r"GLOBAL_STATE|grad_mode|is_grad_enabled|is_inference_mode|autocast|deterministic|torch_function"
        r"|default_device|num_threads",
        "a setting of torch changed (grad mode, autocast, threads)",
        "Call it under one setting, or keep one compiled function for each, as for training and evaluation.",
        "trained, evaluated = torch.compile(model), torch.compile(model)  # with its own cache each",
    ),
    _cause(
        "length",
        r"\blen\(|list length|dict length",
        "a list or dict came with another length",
        "Pass lists of one length, or one tensor in place of the list.",
        "y = compiled(torch.stack(xs))",
    ),
    _cause(
        "identity",
        r"check_obj_id|check_type_id|is not None|\bis None\b|\bid\(|type\(|___check_",
        "another object or type was passed",
        "Pass the same object in every call; compile what is made anew once.",
        "layer = make_layer()  # once, outside; not in each call",
    ),
    _cause(
        "number",
        r"==|!=|<=|>=|<|>| in ",
        "a Python number or text changed",
        "Pass the number as a tensor, or let it be unknown to the graph.",
        "y = compiled(x, torch.tensor(value))  # in place of the number itself",
    ),
)
OTHER_RECOMPILE = _cause(
    "other",
    "",
    "a guard failed",
    "Keep what the guard names from changing.",
    "# diagnosis: TORCH_LOGS=recompiles names the guard",
)

SKIP_CAUSES: Sequence[CompileCause] = (
    _cause(
        "mutation",
        r"mutat",
        "it changes an input in place",
        "Return the new value in place of changing the input.",
        "y = x + 1  # in place of x.add_(1) on an input",
    ),
    _cause(
        "cpu",
        r"cpu device|cpu tensor|multiple devices|non.?cuda",
        "part of it runs on the CPU",
        "Keep every tensor of the compiled function on the GPU.",
        "scale = torch.tensor(2.0, device=x.device)  # once, outside",
    ),
    _cause(
        "dynamic",
        r"symbolic shape|dynamic shape|cudagraph_skip_dynamic|varying|distinct sizes",
        "its sizes are not fixed",
        "Pad to a few sizes, so that each has its own graph.",
        "model = torch.compile(model, mode='reduce-overhead', dynamic=False)  # with a few sizes",
    ),
    _cause(
        "op",
        r"incompatible op|unsafe op|unsupported op|not supported|deterministic|index_put",
        "an op in it cannot be captured",
        "Take that op out of the compiled function.",
        "# call that op before or after the compiled function",
    ),
)
OTHER_SKIP = _cause(
    "other",
    "",
    "torch did not capture it",
    "See what torch says of it.",
    "# diagnosis: TORCH_LOGS=cudagraphs,perf_hints",
)


def cause_of(text: str, causes: Sequence[CompileCause], other: CompileCause) -> str:
    """Returns the key of the first cause whose pattern finds something in the text."""
    return next((cause.key for cause in causes if cause.pattern.search(text)), other.key)


def _by_key(causes: Sequence[CompileCause], other: CompileCause) -> Mapping[str, CompileCause]:
    return {cause.key: cause for cause in (*causes, other)}


BREAKS = _by_key(BREAK_CAUSES, OTHER_BREAK)
RECOMPILES = _by_key(RECOMPILE_CAUSES, OTHER_RECOMPILE)
SKIPS = _by_key(SKIP_CAUSES, OTHER_SKIP)
