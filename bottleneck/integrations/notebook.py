"""Records a cell of a notebook that begins with ``%%bottleneck``, after ``%load_ext bottleneck``.

That line begins a `bottleneck.record` block, and the end of the cell ends it. So the cell runs as it does without: its
values, errors and other magics are IPython's.
"""

from typing import Any

from bottleneck.errors import BottleneckError
from bottleneck.integrations.training_recording import end_abandoned
from bottleneck.recorder.recorded_block import RecordedBlock, record

_MAGIC = "%%bottleneck"
_OPTIONS: dict[str, dict[str, Any]] = {
    "--steps": {"type": int},
    "--warmup": {"type": int},
    "--step": {},
    "--force": {"action": "store_true"},
    "--quiet": {"action": "store_true"},
}


def load_ipython_extension(shell: Any) -> None:
    """Adds the magic to a shell: `%load_ext bottleneck` calls this."""
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser("bottleneck")
    parser.add_argument("folder", nargs="?", default="bottleneck-runs/cell")
    for name, settings in _OPTIONS.items():
        parser.add_argument(name, **settings)

    def bottleneck(line: str, cell: str | None = None) -> None:
        """Records a cell and shows the first screen of the page below it.

        %%bottleneck [FOLDER] [--steps N] [--warmup N] [--step WHAT] [--force] [--quiet]

        FOLDER is for the recording; without it, that is in bottleneck-runs/. The options are those of
        `bottleneck.record`. `%bottleneck` inside of a cell records the rest of it.
        """
        if cell is not None:  # `get_ipython().run_cell_magic` called it
            shell.run_cell(f"%bottleneck {line}\n{cell}")
            return
        options = vars(parser.parse_argstring(line))
        end_abandoned()
        _CellRecording(shell.events, record(options.pop("folder"), **options))

    shell.register_magic_function(bottleneck, "line_cell")
    shell.input_transformers_cleanup.append(_as_line_magic)


def unload_ipython_extension(shell: Any) -> None:
    """Removes the magic from a shell: `%unload_ext bottleneck` calls this."""
    shell.input_transformers_cleanup.remove(_as_line_magic)
    for kind in ("line", "cell"):
        del shell.magics_manager.magics[kind]["bottleneck"]


def _as_line_magic(lines: list[str]) -> list[str]:
    """Makes the magic one of the first line; IPython runs the rest."""
    is_ours = bool(lines) and lines[0].split()[:1] == [_MAGIC]
    return [lines[0][1:], *lines[1:]] if is_ours else lines


class _CellRecording:
    """Recording from now on to the end of the cell that runs."""

    def __init__(self, events: Any, block: RecordedBlock) -> None:
        self._events, self._block = events, block
        self._cells_inside = 0  # `%run other.ipynb`, for one, runs cells inside of this one
        block.__enter__()
        events.register("pre_run_cell", self._begin_inside)
        events.register("post_run_cell", self._end)

    def _begin_inside(self, _: Any) -> None:
        self._cells_inside += 1

    def _end(self, result: Any) -> None:
        if self._cells_inside:
            self._cells_inside -= 1
            return
        self._events.unregister("pre_run_cell", self._begin_inside)
        self._events.unregister("post_run_cell", self._end)
        error = result.error_before_exec or result.error_in_exec
        self._block.__exit__(None if error is None else type(error), error, None)
        _show(self._block)


def _show(block: RecordedBlock) -> None:
    """Displays the first screen of the page; a terminal shows the report."""
    from IPython.display import display

    from bottleneck.report.page import first_screen
    from bottleneck.report.screen import to_screen

    try:
        analysis = block.analysis()
    except BottleneckError:  # there is nothing to explain, which the block has said
        return
    display({"text/html": first_screen(analysis), "text/plain": to_screen(analysis)}, raw=True)
