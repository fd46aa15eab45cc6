"""Public traces and samples, read and analysed once per test process, for every test module that looks at them.

The results are shared between tests: frozen records and tables that no test may change. Traces that a test writes
itself do not belong here, because their path would keep the first content.
"""

from functools import cache
from pathlib import Path

from bottleneck.pipeline import analyse, examine, explain
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.evidence import Evidence, Explanation
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.sources import find_traces
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps


@cache
def read(path: Path) -> Trace:
    """The events of a trace; raises TraceError as ``read_trace`` does."""
    return read_trace(path)


@cache
def linked(path: Path) -> Linked:
    """The linked steps of a trace."""
    trace = read(path)
    return link(trace, find_steps(trace))


@cache
def evidence(path: Path) -> Evidence:
    """The evidence of a trace, or of the first rank of a recording."""
    return examine(find_traces(path)[0])


@cache
def explained(*paths: Path) -> Explanation:
    """The analysis of one or several ranks with its evidence."""
    return explain(paths)


@cache
def analysed(*paths: Path) -> Analysis:
    """The analysis of one or several ranks."""
    return analyse(paths)
