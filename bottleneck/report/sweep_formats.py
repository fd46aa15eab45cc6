"""A sweep in each medium: text of a terminal, markdown, JSON; the picture lies in ``sweep_plot``."""

import io
from collections.abc import Callable, Mapping

from bottleneck.report.look import Look
from bottleneck.report.sweep import build
from bottleneck.trials import Sweep


def render(sweep: Sweep, width: int = 80, *, color: bool = False, encoding: str = "utf-8") -> str:
    """The sweep as text; escape sequences appear in it only with ``color``."""
    from rich.console import Console  # noqa: PLC0415 - rich is loaded only where it is used

    from bottleneck.report.terminal import lines  # noqa: PLC0415 - as above

    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, _environ={}
    )
    for line in lines(build(sweep), Look(width, encoding)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False)
    stream.seek(0)
    return stream.read()


def to_markdown(sweep: Sweep) -> str:
    """The sweep as markdown for a comment on a pull request."""
    from bottleneck.report.markdown import lines  # noqa: PLC0415 - as above

    return "\n".join(lines(build(sweep))) + "\n"


def to_json(sweep: Sweep) -> str:
    """The sweep as indented JSON; what is not finite is null, as what is not known."""
    import msgspec  # noqa: PLC0415 - as above

    plain = msgspec.to_builtins(sweep)
    ordered = {key: plain[key] for key in ("schema", "version", *plain)}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=1).decode() + "\n"


FORMATS: Mapping[str, Callable[[Sweep], str]] = {"terminal": render, "markdown": to_markdown, "json": to_json}
