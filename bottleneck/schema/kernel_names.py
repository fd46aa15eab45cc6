"""Shortens kernel names to what distinguishes them: functions, functors, types and tiles."""

import re

_ANONYMOUS = re.compile(r"\(anonymous(?: namespace)?\)::")
_RETURN_TYPE = re.compile(r"^(?:void|int|float|bool|auto|std::enable_if<[^<>]*>::type)\s+(?=[\w:(])")
_LAMBDA = re.compile(
    r"(?:\([^(){}]*\))?"  # the arguments of the function that holds the lambda
    r"(?:::(?:\{lambda\((?P<types>[^(){}]*)\)#\d+\}|operator\(\)(?:\s*\([^()]*\))?(?:\s*const)?))+"
)
_TENSILE = re.compile(r"^(Cijk_[^_]+_[^_]+_[^_]+)_.*?(MT\d+x\d+x\d+)")
_MANGLED_PART = re.compile(r"(\d+)([A-Za-z_]\w*)")
_UNWRAPPED = re.compile(r"^Kernel2?<(\w+)>$")
_PLAIN = re.compile(r"^(?:\([^()]*\)\s*)?-?\d+\w*$|^(?:true|false|void|bool|char|(?:unsigned )?(?:int|long|short))$")
_POINTER = re.compile(r"\s*(?:\bconst\b|[*&])")

# Template arguments that every kernel of their library has, and that distinguish none of them.
_NOISE = re.compile(
    r"^(?:[Aa]rray|(?:Trivial)?OffsetCalculator|(?:Load|Store)With(?:out)?Cast|DepthMetadata|\w*TensorList\w*Metadata)$"
)
# Templates that only carry others: said by what they carry.
_WRAPPERS = re.compile(
    r"^(?:[AB]?UnaryFunctor|BinaryFunctor|ReduceOp|func_wrapper_t|gpu_kernel_impl(?:_nocast)?|Flash_\w*kernel_traits)$"
)
_DTYPE = re.compile(r"^(?:float|double|c?__half\w*|Half|\w*[Bb][Ff]?[Ff]loat16\w*|half_t|complex|Float8\w*)$")
_CODE_WORDS = re.compile(
    r"^vectorized_(?=elem)|^unrolled_(?=elem)|_kernel_impl|_kernel(?=_|\b)|KernelImpl|Kernel\b|CUDAFunctor(?:OnSelf|OnOther)?_|CUDA|_cuda|Functor\b|Ops\b|_t\b"
    r"|_(?:ldg\d+|f2f|execute|segment_k_off|_?5x|cublas|cudnn|warpgroupsize\w+?|warpsize\w+?|stages?_?\d*(?!x)|g1"
    r"|tensor\d+x\d+x\d+|alignc?\d+)(?=_|\b)"
)
_DEEPEST = 12
_LONGEST_IN_SENTENCE = 60


def plain_name(name: str) -> str:
    """The name without return type, argument list, namespaces and the inner names of lambdas."""
    text = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name))
    text = _LAMBDA.sub(lambda match: f"({match['types']})" if match["types"] else "", _without_arguments(text))
    text = _without_namespaces(text)
    return re.sub(r"\s+>", ">", text).strip() or name


def essential_name(name: str) -> str:
    """Reduces a name to the template arguments that name functors or types.

    Tuned GEMMs are named by layout and tile.
    """
    tensile = _TENSILE.match(name)
    if tensile:
        return f"{tensile[1]}_{tensile[2]}"
    if name.startswith("_Z"):
        return _demangled(name) or name
    text = plain_name(name)
    unwrapped = _UNWRAPPED.match(text)
    if unwrapped:
        return unwrapped[1]
    head, arguments = _parse(text)
    return _joined(head, arguments, 0)


def terse_name(name: str) -> str:
    """Strips the essential name of words that distinguish no kernels.

    They are words such as '_kernel', 'Functor' and '_execute'.
    """
    return _CODE_WORDS.sub("", essential_name(name)).replace("tilesize", "") or name


def name_in_sentence(name: str) -> str:
    """Shortens a name for a sentence.

    A long name is reduced to what distinguishes it, and then to its beginning.
    """
    short = name if len(name) <= _LONGEST_IN_SENTENCE else essential_name(name)
    return short if len(short) <= _LONGEST_IN_SENTENCE else f"{short[: _LONGEST_IN_SENTENCE - 1]}…"


def between(before: str | None, after: str | None, *, is_waited_for: bool) -> str:
    """Words the work around idle time.

    For example ', for gemm to end, before aten::add'.

    The work before is named only where it is waited for.
    """
    waited = f", for {name_in_sentence(before)} to end" if before is not None and is_waited_for else ""
    return f"{waited}, before {name_in_sentence(after)}" if after is not None else waited


def _without_namespaces(text: str) -> str:
    """Strips 'a::b::' before names.

    The last namespace of a name that is just 'kernel' stays.
    """
    return re.sub(
        r"\b((?:[A-Za-z_]\w*::)+)(?=([A-Za-z_]\w*))",
        lambda match: match[1].split("::")[-2] + "::" if match[2] == "kernel" else "",
        text,
    )


def _without_arguments(text: str) -> str:
    """Strips a final '(...)' that directly follows a name or template list."""
    if not text.endswith(")"):
        return text
    depth = 0
    for position in range(len(text) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth == 0:
            before = text[position - 1]
            return text[:position] if before in "_>" or before.isalnum() else text
    return text


def _parse(text: str) -> tuple[str, list[str]]:
    """Splits a template such as 'f<a, g<b>>' into head and arguments.

    A text that is no template is all head.
    """
    head, opening, rest = re.sub(r">\([^()<>]*\)$", ">", text).partition("<")
    if not opening or not head or not rest.endswith(">"):
        return text, []
    parts, depth = [""], 0
    for character in rest[:-1]:
        depth += {"<": 1, "(": 1, "{": 1, ">": -1, ")": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return head, [_POINTER.sub("", part).strip() for part in parts]


def _words(argument: str, depth: int) -> list[str]:
    """Returns the words of a template argument.

    They are none, its own name with its arguments, or those of its arguments.
    """
    head, inner = _parse(argument)
    if depth > _DEEPEST or _NOISE.match(head) or not head or _PLAIN.match(head):
        return []
    if _WRAPPERS.match(head):
        return [word for part in inner for word in _words(part, depth + 1)]
    return [_joined(head, inner, depth + 1)]


def _joined(head: str, arguments: list[str], depth: int) -> str:
    """Joins a head and the words of its arguments, each once.

    Element types are used only where there are no other words.
    """
    words = list(dict.fromkeys(word for argument in arguments for word in _words(argument, depth)))
    named = [word for word in words if not _DTYPE.match(word)]
    chosen = named or words
    return f"{head}<{', '.join(chosen)}>" if chosen else head


def _demangled(name: str) -> str:
    """Returns the function of a mangled name, and its first type."""
    parts: list[str] = []
    position = 2 + (name[2:3] == "N")
    while part := _MANGLED_PART.match(name, position):
        parts.append(part[2][: int(part[1])])
        position = part.start(2) + len(parts[-1])
    if not parts:
        return ""
    types = re.search(r"\d([A-Z][a-z]+[A-Z][a-z]+(?:[A-Z][a-z]+)*)", name[position:])
    return f"{parts[-1]}<{types[1]}>" if types and parts[-1].lower().endswith("kernel") else parts[-1]
