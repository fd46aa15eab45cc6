"""``bottleneck mcp``: answers coding agents by the Model Context Protocol."""

from pathlib import Path
from typing import Annotated

import typer

from bottleneck.errors import UsageError


def mcp_command(
    allowed: Annotated[
        list[Path] | None,
        typer.Option(
            "--allow-run", metavar="DIR", help="Let the agent run Python programs of this folder; may be repeated."
        ),
    ] = None,
) -> None:
    """Serves coding agents over standard input and output, by the Model Context Protocol.

    \b
    bottleneck mcp
    bottleneck mcp --allow-run .

    A client starts it; the tools are diagnose, evidence, whatif, predict and judge. They read traces of
    this machine. None runs a program unless --allow-run names its folder.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.analysis_options import refuse_unfinished, usual_jobs
    from bottleneck.report.output import discard_output
    from bottleneck.system.interrupts import answered

    try:
        from bottleneck.agent.programs import AllowedFolders
        from bottleneck.agent.reading import TraceReader
        from bottleneck.agent.server import AgentTools, make_server
    except ImportError as exc:
        raise UsageError(
            "the server needs the package mcp, which is not installed here",
            why=str(exc),
            fix='install it: pip install "mcp>=2.3"',
        ) from exc
    tools = AgentTools(TraceReader(refuse_unfinished, usual_jobs()), AllowedFolders(allowed or ()))
    try:
        with answered():
            make_server(tools).run()
    except* BrokenPipeError:  # the client went away while it was answered, as one may that has ended
        discard_output()
