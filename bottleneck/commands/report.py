"""``bottleneck report``: makes text, JSON and a picture of a recording.

It reads traces, recordings or a saved analysis.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.analysis_options import (
    JobsOption,
    StepsOption,
    WholeOption,
    WindowOption,
    chosen_device,
    refuse_unfinished,
    usual_jobs,
    window_options,
)
from bottleneck.commands.other_inputs import report_other_input
from bottleneck.commands.reading_progress import reading_progress
from bottleneck.commands.report_options import (
    AllFindings,
    Full,
    completion_of,
    extent_of,
    form_of,
    format_option,
    is_printed,
    output_option,
    plot_option,
    plots_of,
    present,
    send_blocks,
    typed_devices,
)
from bottleneck.errors import UsageError
from bottleneck.report import FORMATS
from bottleneck.report.output import compressed, draw_picture, write_blocks, write_note
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.mapping.rank_reading import RankReading
    from bottleneck.pipeline import OnTrace, Options
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.inference import ServerMetrics
    from bottleneck.schema.step_tracks import StepTimeline


def report_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="A trace (.json, .json.gz, .pftrace), a recording folder, a folder or list of rank traces, or "
            "analysis.json; here or in a store (s3://BUCKET/JOB); a folder that TORCH_TRACE filled; a snapshot of the "
            "CUDA allocator; the latest recording of this folder unless given.",
        ),
    ] = None,
    form: Annotated[str | None, format_option("the report", FORMATS)] = None,
    output: Annotated[Path | None, output_option("the report", FORMATS)] = None,
    plot: Annotated[list[str] | None, plot_option()] = None,
    whole: WholeOption = False,
    steps: StepsOption = None,
    window: WindowOption = None,
    capture: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Model replayed CUDA or HIP graphs by this trace of their capture; may be repeated."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Judge an inference server by this page of its metrics too (http://HOST:PORT/metrics).",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Judge against this device ('NVIDIA H100 80GB HBM3'; 'cpu' for this machine).",
            autocompletion=completion_of(lambda: ("cpu", *typed_devices())),
        ),
    ] = None,
    peaks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge against the ceilings in this JSON or TOML file.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="First finish a recording whose run was killed, and measure the ceilings that it lacks."
        ),
    ] = False,
    jobs: JobsOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Read ranks on a Dask cluster: tcp://HOST:PORT, or local:N workers."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Read only the ranks that an earlier report of these traces did not.")
    ] = False,
    full: Full = False,
    all_findings: AllFindings = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Write the page for a browser (to --output, else a new file) and open it.")
    ] = False,
) -> None:
    """Explains where the time of a recorded program went.

    \b
    bottleneck report                     the latest recording of this folder
    bottleneck report trace.json.gz --full
    bottleneck report recording/ -o report.md
    bottleneck report recording/ --open
    bottleneck report trace.json.gz -o annotated.json.gz    for ui.perfetto.dev
    bottleneck report rank0.json rank1.json --plot roofline=roofline.png
    bottleneck report trace.json.gz --steps 2:5
    bottleneck report trace.json.gz --window 0.2s:0.9s
    bottleneck report job/ --resume       a folder of ranks, after an interrupt
    bottleneck report s3://bucket/job
    bottleneck report trace.json.gz --metrics http://localhost:8000/metrics
    bottleneck report trace.json -o a.json    a large trace, whose second look is:
    bottleneck report a.json
    bottleneck report recording/ --repair

    Nothing is measured, and nothing in a recording is changed, without --repair.
    """  # noqa: D301 - backspace is how click is told to keep the lines of an example
    _import_pipeline()
    from bottleneck.system.files import located

    if open_page:
        form, output = "html", _page(form, output)
    plots = plots_of(plot or ())
    chosen = window_options(steps, window, chosen_device(device, peaks), whole=whole)
    options = replace(chosen, captures=tuple(capture or ()), jobs=jobs or usual_jobs(), metrics=_metrics(metrics))
    paths = [located(path) for path in paths or [_latest()]]
    if repair:
        for recording in paths:
            _repair(recording)
    refuse_unfinished(paths)
    rendered_as = form_of(form, output, FORMATS)
    if options.metrics is None and report_other_input(paths, rendered_as, output):
        if open_page and output is not None:
            _open_in_browser(output)
        return
    if rendered_as == "perfetto":
        _export(paths, options, output)
        return
    is_screen = rendered_as == "terminal" and is_printed(output) and not (full or all_findings)
    options = replace(options, critical_path=not is_screen)
    reading = _rank_reading(jobs, cluster, resume=resume)
    needs_timeline = rendered_as == "html" or "timeline" in plots
    with reading_progress() as on_trace:
        analysis, timeline = _read(paths, options, on_trace, reading, needs_timeline=needs_timeline)
    if reading.workers.repeated:
        again = counted(reading.workers.repeated, "trace")
        write_note(f"{again} read twice, as a worker was lost meanwhile")
    for kind, path in plots.items():
        draw_picture(kind, path, analysis, *((timeline,) if kind == "timeline" else ()))
    present(analysis, rendered_as, output, extent_of(full=full, all_findings=all_findings), timeline)
    if open_page and output is not None:
        _open_in_browser(output)


_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def _import_pipeline() -> None:
    """Imports what every report needs, without the cyclic collector.

    The collector would take a tenth of the time and find nothing.

    NumPy's library of linear algebra starts a thread per processor when it is loaded, each of which spins for some
    30 ms. A report multiplies no matrices.
    """
    enabled = gc.isenabled()
    gc.disable()
    is_free = _BLAS_THREADS not in os.environ
    if is_free:
        os.environ[_BLAS_THREADS] = "1"
    try:
        import bottleneck.pipeline  # noqa: F401
    finally:
        if is_free:
            del os.environ[_BLAS_THREADS]
        if enabled:
            gc.enable()


def _rank_reading(jobs: int | None, cluster: str | None, *, resume: bool) -> "RankReading":
    """Gives the settings for reading the ranks of a job.

    They are the processes that read, and the folder that keeps their digests.
    """
    from bottleneck.harness.machine import cache_folder
    from bottleneck.mapping.rank_reading import DigestFolder, RankReading
    from bottleneck.mapping.workers import LocalWorkers

    if jobs is not None and cluster is not None:
        raise UsageError("--jobs and --cluster exclude each other", fix="pass one of them")
    digests = DigestFolder(cache_folder() / "ranks")
    if cluster is None:
        return RankReading(LocalWorkers(jobs or usual_jobs()), digests, resume)

    from bottleneck.mapping.cluster import ClusterWorkers

    return RankReading(ClusterWorkers(cluster), digests, resume)


def _read(
    paths: Sequence[Path], options: "Options", on_trace: "OnTrace", reading: "RankReading", *, needs_timeline: bool
) -> "tuple[Analysis, StepTimeline | None]":
    """Gives the analysis of the traces, and its steps over time if needed.

    A finished analysis holds sums only.
    """
    from bottleneck.pipeline import explain, saved_analysis, timeline_of

    saved = saved_analysis(paths, options)
    if saved is not None:
        return saved, None
    explained = explain(paths, options, on_trace, reading)
    return explained.analysis, timeline_of(explained, paths, options) if needs_timeline else None


def _metrics(source: str | None) -> "ServerMetrics | None":
    """Reads the page of metrics at an address or in a file; null where none is named."""
    if source is None:
        return None
    from bottleneck.system.files import cannot_read, read_file
    from bottleneck.system.plain_http import fetch_page, is_address
    from bottleneck.trace.server_metrics import MOST_BYTES, read_metrics

    if is_address(source):
        return read_metrics(fetch_page(source, MOST_BYTES), source)
    try:
        return read_metrics(read_file(Path(source), MOST_BYTES), source)
    except OSError as exc:
        raise cannot_read(Path(source), exc) from exc


def _page(form: str | None, output: Path | None) -> Path:
    """The file of a page that is to be opened."""
    import tempfile

    if form not in {None, "html"} or str(output) == "-":
        raise UsageError(
            "--open shows a page for a browser",
            why="the report is to be written in another format, or to standard output",
            fix="leave out --format and -o -, or --open",
        )
    return output or Path(tempfile.mkdtemp(prefix="bottleneck-")) / "report.html"


def _open_in_browser(page: Path) -> None:
    import webbrowser

    address = page.resolve().as_uri()
    opened = webbrowser.open(address)
    write_note(f"{'opened' if opened else 'found no browser; open this yourself:'} {address}")


def _export(paths: Sequence[Path], options: "Options", output: Path | None) -> None:
    """Writes the trace with our tracks added.

    It is compressed where the name of the file ends in .gz.
    """
    from bottleneck.pipeline import annotate
    from bottleneck.report.perfetto import track_events
    from bottleneck.trace.extend import extend_trace

    annotations = annotate(paths, options)
    blocks = extend_trace(annotations.trace, track_events(annotations))
    if output is None or is_printed(output):
        send_blocks(blocks)
    else:
        write_blocks(compressed(blocks) if output.suffix == ".gz" else blocks, output)


def _latest() -> Path:
    from bottleneck.commands.runs import latest_recording
    from bottleneck.recorder.finish_run import shown

    folder = latest_recording()
    write_note(f"report of {shown(folder)}, the latest recording here")
    return folder


def _repair(path: Path) -> None:
    from bottleneck.calibrate.cache import add_ceilings
    from bottleneck.recorder.finish_run import repair

    repair(path)
    add_ceilings(path, write_note)
