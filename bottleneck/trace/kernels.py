"""Maps kernel names to families, engines, math dtypes and libraries.

The table is ``kernels.tsv``; the first match wins. No profiler records which units a kernel ran on, so its name is the
only evidence: on one A100 the same fp32 product may run as TF32 on tensor cores or on the plain units, an eight-fold
difference in the peak that applies. The rows on matrix products, convolutions and attention resolve every such kernel
of the public traces that they were tuned on; rows for names that none of those traces holds follow vendors' documents
and are called "published".
"""

import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

TABLE = Path(__file__).with_name("kernels.tsv")
# A C++ template argument list can be megabytes long; the part that distinguishes kernels is near the front.
NAME_LIMIT = 2000
# Convolutions share the name patterns of the matrix units with products, and mention one of these too.
_OF_CONVOLUTION = "^(?=.*(?:fprop|dgrad|wgrad|cudnn|conv)).*"


class KernelTraits(Struct, frozen=True):
    """Family, engine and math dtype known from a kernel's name.

    The engine is 'matrix', 'vector' or 'none'. Null means unknown. An ``auxiliary`` kernel moves or rearranges data for
    another one and carries no FLOPs of its own.
    """

    family: str
    engine: str | None = None
    math_dtype: str | None = None
    auxiliary: bool = False


class KernelRule(Struct, frozen=True):
    """A regular expression over lower-case names, with traits and an example.

    The traits are those of names that match. The example is one that the expression is the first to match.
    """

    pattern: str
    traits: KernelTraits
    example: str


class LibraryRule(Struct, frozen=True):
    """A regular expression over lower-case names, its library and an example."""

    pattern: str
    library: str
    example: str


@cache
def kernel_rules() -> tuple[KernelRule, ...]:
    """The rows that tell a family, in the order in which they are tried."""
    return tuple(rule for row in _rows() if row["family"] for rule in _rules_of(row))


@cache
def library_rules() -> tuple[LibraryRule, ...]:
    """The rows that tell a library, in the order in which they are tried."""
    return tuple(LibraryRule(row["pattern"], row["library"], row["example"]) for row in _rows() if row["library"])


def _rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as lines:
        table = (line for line in lines if not line.startswith("#"))
        return list(csv.DictReader(table, restval="", delimiter="\t", quoting=csv.QUOTE_NONE))


def _rules_of(row: dict[str, str]) -> Iterator[KernelRule]:
    """Yields the rule of a row, after that of convolutions.

    There is a rule of convolutions where the row has an example of one.
    """
    traits = KernelTraits(row["family"], row["engine"] or None, row["math_dtype"] or None, bool(row["auxiliary"]))
    if row["convolution"]:
        convolution = KernelTraits("convolution", traits.engine, traits.math_dtype)
        yield KernelRule(f"{_OF_CONVOLUTION}(?:{row['pattern']})", convolution, row["convolution"])
    yield KernelRule(row["pattern"], traits, row["example"])


_OTHER = KernelTraits("other")


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], KernelTraits], ...]:
    """Compiles the patterns of the rows, at the first name.

    Most reports of a CPU need none of them.
    """
    return tuple((re.compile(rule.pattern), rule.traits) for rule in kernel_rules())


def describe_kernel(name: str) -> KernelTraits:
    """Gives the traits of the first row that matches a kernel's name.

    Family 'other' and no more when none matches.
    """
    text = name[:NAME_LIMIT].lower()
    return next((traits for pattern, traits in _compiled() if pattern.search(text)), _OTHER)


@cache
def _compiled_libraries() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(rule.pattern), rule.library) for rule in library_rules())


def find_library(name: str) -> str | None:
    """Gives the library that computes kernels or ops of a name.

    Null where the name does not tell. BLAS, LAPACK, FFT and 'ATen or other' stand for what torch was built with.
    """
    text = name[:NAME_LIMIT].lower()
    return next((library for pattern, library in _compiled_libraries() if pattern.search(text)), None)
