"""Asks the server's tools as a client does, in this process or in one of its own."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

from bottleneck.agent.programs import AllowedFolders
from bottleneck.agent.reading import TraceReader
from bottleneck.agent.server import AgentTools, make_server

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_traces"
READER = TraceReader()


def tools(*allowed: Path, reader: TraceReader = READER) -> AgentTools:
    """Tools that share the traces that other tests have read."""
    return AgentTools(reader, AllowedFolders(allowed))


def ask(tool: str, arguments: Mapping[str, Any], shared: AgentTools | None = None) -> Any:
    """The result of one call within this process."""

    async def call() -> Any:
        async with Client(make_server(shared or tools())) as client:
            return await client.call_tool(tool, dict(arguments))

    return anyio.run(call)


def answer(tool: str, shared: AgentTools | None = None, /, **arguments: Any) -> dict[str, Any]:
    """The structured content of a call that succeeds."""
    result = ask(tool, arguments, shared)
    assert not result.is_error, result.content[0].text
    content: dict[str, Any] = result.structured_content
    return content


def over_stdio(
    talk: Callable[[Client], Awaitable[Any]], *arguments: str, folder: Path = ROOT, setup: Sequence[str] = ()
) -> Any:
    """What a conversation with ``bottleneck mcp`` gives, in a process that speaks by its standard streams."""
    paths = os.pathsep.join([str(ROOT), *setup])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "bottleneck", "mcp", *arguments], env=environment, cwd=folder
    )

    async def converse() -> Any:
        async with Client(command) as client:
            return await talk(client)

    return anyio.run(converse)
