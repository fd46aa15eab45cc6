"""Kernel names short enough for a table that still tell the kernels of that table apart."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(anonymous\)::")
_RETURN_TYPE = re.compile(r"^(?:void|int|float|bool|auto)\s+(?=[\w:(])")
_NAMESPACES = re.compile(r"\b(?:[A-Za-z_]\w*::)+(?=[A-Za-z_])")
_LAMBDA = re.compile(r"(?:\([^(){}]*\))?(?:::(?:\{lambda[^{}]*\}|operator\(\)(?:\s*\([^()]*\))?|\s*const))+")
_POINTER_NOISE = re.compile(r"\s*(?:\bconst\b|[*&])")
_PLAIN = re.compile(r"^(?:\(.*\)\s*)?-?(?:\d+\w*|true|false)$|^(?:array|TrivialOffsetCalculator|OffsetCalculator)\b")
_CODE_WORDS = re.compile(
    r"_kernel_impl|_kernel(?=_|\b)|KernelImpl|Kernel(?=\b)|CUDAFunctorOnSelf_|CUDAFunctor_|CUDA|_cuda"
)

Shortener = Callable[[str], str]


def short_names(names: Sequence[str], width: int, ellipsis: str = "…") -> list[str]:
    """The names, each in at most ``width`` cells; different names stay different as far as the width allows.

    The mildest shortening that fits is taken: without namespaces and arguments, without plain template arguments,
    without words such as 'kernel', and at last cut in the middle. What is then still alike gets a number.
    """
    distinct = list(dict.fromkeys(names))
    chosen: dict[str, str] = {}
    for shortener in (str, signature_free, without_plain_arguments, without_code_words):
        shorter = {name: shortener(name) for name in distinct if name not in chosen}
        taken = Counter([*shorter.values(), *chosen.values()])
        chosen |= {name: text for name, text in shorter.items() if cell_len(text) <= width and taken[text] == 1}
    for name in distinct:
        if name not in chosen:
            chosen[name] = _numbered(without_code_words(name), width, ellipsis, set(chosen.values()))
    return [chosen[name] for name in names]


def signature_free(name: str) -> str:
    """The name without return type, argument list, namespaces and the inner names of lambdas."""
    text = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name))
    text = _NAMESPACES.sub("", _LAMBDA.sub("", _without_arguments(text)))
    return re.sub(r"\s+>", ">", text).strip() or name


def without_plain_arguments(name: str) -> str:
    """The name keeping only those template arguments that are names of functors or types."""
    text = signature_free(name)
    head, opening, rest = text.partition("<")
    if not opening or not rest.endswith(">"):
        return text
    arguments = [_POINTER_NOISE.sub("", argument).strip() for argument in _split(rest[:-1])]
    kept = [argument for argument in arguments if argument and not _PLAIN.match(argument)]
    return f"{head}<{', '.join(kept)}>" if kept else head


def without_code_words(name: str) -> str:
    """The name without words that every kernel has, such as '_kernel' and 'KernelImpl'."""
    return _CODE_WORDS.sub("", without_plain_arguments(name)) or name


def cut_middle(text: str, width: int, ellipsis: str = "…") -> str:
    """The text in at most ``width`` cells: its beginning and its end, where names of tuned kernels differ."""
    if cell_len(text) <= width:
        return text
    room = width - len(ellipsis)
    if room < 2:
        return _head(text, width)
    return _head(text, room - room // 2) + ellipsis + _tail(text, room // 2)


def cut_end(text: str, width: int, ellipsis: str = "…") -> str:
    """The text in at most ``width`` cells: its beginning."""
    if cell_len(text) <= width:
        return text
    return _head(text, width - len(ellipsis)) + ellipsis if width > len(ellipsis) else _head(text, width)


def cut_start(text: str, width: int, ellipsis: str = "…") -> str:
    """The text in at most ``width`` cells: its end, where a path names the file and the line."""
    if cell_len(text) <= width:
        return text
    return ellipsis + _tail(text, width - len(ellipsis)) if width > len(ellipsis) else _tail(text, width)


def _numbered(text: str, width: int, ellipsis: str, taken: set[str]) -> str:
    short, number = cut_middle(text, width, ellipsis), 2
    while short in taken and width > 8:
        mark = f" #{number}"
        short, number = cut_middle(text, width - len(mark), ellipsis) + mark, number + 1
    return short


def _head(text: str, width: int) -> str:
    return set_cell_size(text, width).rstrip() if width > 0 else ""


def _tail(text: str, width: int) -> str:
    return _head(text[::-1], width)[::-1] if width > 0 else ""


def _without_arguments(text: str) -> str:
    """The text up to a final '(...)' that follows a name or a template list directly."""
    if not text.endswith(")"):
        return text
    depth = 0
    for position in range(len(text) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth == 0:
            before = text[position - 1]
            return text[:position] if before in "_>" or before.isalnum() else text
    return text


def _split(arguments: str) -> list[str]:
    """The template arguments, split at commas outside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += {"<": 1, "(": 1, "{": 1, ">": -1, ")": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
