"""Counts the code of this repository: size by package, functions, small files, repeated names.

Lines of code are lines without blanks, comments and docstrings.

    python -m scripts.count_code               # the package in bottleneck/
    python -m scripts.count_code --names       # the modules, files, classes and docstrings behind the counts too
    python -m scripts.count_code tests         # another folder
"""

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = 60
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_OBLIQUE = re.compile(r"\s*(What|Whether|Where|Which|Who|How)\b")


@dataclass(frozen=True)
class SourceFile:
    """The counts of one file, and the names that it defines and imports."""

    path: Path
    code_lines: int
    function_lines: tuple[int, ...]
    classes: tuple[str, ...]
    oblique: tuple[str, ...]
    imports: frozenset[str]

    @property
    def is_small(self) -> bool:
        """True for a module of few lines that is no __init__.py."""
        return self.code_lines < SMALL and not self.path.name.startswith("__")


def count_file(path: Path, known: frozenset[str]) -> SourceFile:
    """The counts of the file; `known` are the names of the modules whose imports count."""
    text = path.read_text(encoding="utf-8")
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    functions: list[int] = []
    classes: list[str] = []
    oblique: list[str] = []
    imports: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                code.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
                if _OBLIQUE.match(docstring):
                    oblique.append(docstring.strip().splitlines()[0])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        imports.update(_imported(node, known))
    return SourceFile(path, len(code), tuple(functions), tuple(classes), tuple(oblique), frozenset(imports))


def _imported(node: ast.AST, known: frozenset[str]) -> Iterator[str]:
    """The modules that the statement imports, as far as they are known ones."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        submodules = [name for alias in node.names if (name := f"{node.module}.{alias.name}") in known]
        yield from submodules
        if len(submodules) < len(node.names) and node.module in known:
            yield node.module


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _repeated(names: Counter[str]) -> list[str]:
    return sorted(f"{name} ({count})" for name, count in names.items() if count > 1)


def main() -> None:
    """Prints the counts of the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="bottleneck", help="folder below the repository [bottleneck]")
    parser.add_argument("--names", action="store_true", help="list what stands behind the counts")
    arguments = parser.parse_args()
    paths = sorted((ROOT / arguments.folder).rglob("*.py"))
    modules = {_module_name(path): path for path in paths}
    files = [count_file(path, frozenset(modules)) for path in paths]

    importers: defaultdict[str, set[Path]] = defaultdict(set)
    for file in files:
        for module in file.imports:
            importers[module].add(file.path)
    single = sorted(module for module, places in importers.items() if len(places) == 1)
    lengths = [length for file in files for length in file.function_lines]
    file_names = _repeated(Counter(path.name for path in paths if not path.name.startswith("__")))
    classes = _repeated(Counter(name.lstrip("_") for file in files for name in file.classes))
    oblique = [f"{file.path.relative_to(ROOT)}: {line}" for file in files for line in file.oblique]
    small = [str(file.path.relative_to(ROOT)) for file in files if file.is_small]

    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for file in files:
        below = file.path.relative_to(ROOT).parts
        sizes["/".join(below[:2]) if len(below) > 2 else "."].append(file.code_lines)
    print(f"{'package':28}{'files':>7}{'lines of code':>15}")
    for package, counts in sorted(sizes.items(), key=lambda item: -sum(item[1])):
        print(f"{package:28}{len(counts):7}{sum(counts):15,}")
    print(f"{'all':28}{len(files):7}{sum(file.code_lines for file in files):15,}\n")
    print(f"functions: {len(lengths):,}; lines with docstring: median {statistics.median(lengths):.0f}, ", end="")
    print(f"95th percentile {statistics.quantiles(lengths, n=20)[-1]:.0f}, longest {max(lengths)}")
    for label, names in (
        (f"files under {SMALL} lines of code", small),
        ("modules with exactly one importer", single),
        ("file names that repeat", file_names),
        ("class names that repeat", classes),
        ("docstrings that open with a question word", oblique),
    ):
        print(f"{label}: {len(names)}")
        if arguments.names:
            print("".join(f"    {name}\n" for name in names), end="")


if __name__ == "__main__":
    main()
