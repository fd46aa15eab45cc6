"""``bottleneck report``: from traces, recordings or a saved analysis to text, JSON and a picture."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.analysis_options import (
    JobsOption,
    StepsOption,
    WholeOption,
    WindowOption,
    chosen_device,
    usual_jobs,
    window_options,
    with_kept_ceilings,
    with_trials,
)
from bottleneck.commands.reading_progress import reading_progress
from bottleneck.commands.report_options import (
    AllFindings,
    Full,
    ReportFormat,
    check_picture,
    draw_picture,
    extent_of,
    form_of,
    format_option,
    is_printed,
    output_option,
    picture_option,
    present,
    send_blocks,
)
from bottleneck.errors import UsageError
from bottleneck.report.output import compressed, write_blocks, write_note
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.mapping.rank_reading import RankReading
    from bottleneck.pipeline import OnTrace, Options
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.step_tracks import StepTracks


def report_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="A trace (.json, .json.gz, .pftrace), a recording folder, a folder or list of rank traces, or "
            "analysis.json; here or in a store (s3://BUCKET/JOB); the latest recording of this folder unless given.",
        ),
    ] = None,
    form: Annotated[ReportFormat | None, format_option("the report", ReportFormat)] = None,
    output: Annotated[Path | None, output_option("the report")] = None,
    roofline: Annotated[Path | None, picture_option("Also draw the roofline to this .png, .svg or .pdf file.")] = None,
    queue: Annotated[Path | None, picture_option("Also draw the queue depth to this .png, .svg or .pdf file.")] = None,
    ledger: Annotated[Path | None, picture_option("Also draw the ledger, of each rank, to such a file.")] = None,
    timeline: Annotated[Path | None, picture_option("Also draw one step over time to such a file.")] = None,
    savings: Annotated[Path | None, picture_option("Also draw what each finding would save to such a file.")] = None,
    ranks: Annotated[
        Path | None, picture_option("Also draw the ranks by account, the slow first, to such a file.")
    ] = None,
    whole: WholeOption = False,
    steps: StepsOption = None,
    window: WindowOption = None,
    capture: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Model replayed CUDA or HIP graphs by this trace of their capture; may be repeated."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Judge against this device ('NVIDIA H100 80GB HBM3'; 'cpu' for this machine)."
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
    cache: Annotated[
        bool,
        typer.Option(
            "--cache", help="Keep the report in the user's cache, and take it from there while no input changes."
        ),
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
    bottleneck report rank0.json rank1.json --roofline roofline.png
    bottleneck report trace.json.gz --steps 2:5
    bottleneck report trace.json.gz --window 0.2s:0.9s
    bottleneck report job/ --resume       a folder of ranks, after an interrupt
    bottleneck report s3://bucket/job
    bottleneck report trace.json --cache  a large trace, for a second look
    bottleneck report recording/ --repair

    Nothing is measured, and nothing in a recording is changed, without --repair.
    """  # noqa: D301 - backspace is how click is told to keep the lines of an example
    _import_pipeline()
    from bottleneck.system.files import located

    if open_page:
        form, output = "html", _page(form, output)
    pictures = {"roofline": roofline, "queue": queue, "ledger": ledger, "savings": savings, "ranks": ranks}
    for path in (*pictures.values(), timeline):
        check_picture(path)
    chosen = window_options(steps, window, chosen_device(device, peaks), whole=whole)
    options = replace(chosen, captures=tuple(capture or ()), jobs=jobs or usual_jobs())
    paths = [located(path) for path in paths or [_latest()]]
    if repair:
        for recording in paths:
            _repair(recording)
    options = with_trials(with_kept_ceilings(paths, options))
    rendered_as = form_of(form, output, ReportFormat)
    if rendered_as == "perfetto":
        if cache:
            print("warning: --cache is ignored: an export copies the trace itself, not a report", file=sys.stderr)
        _export(paths, options, output)
        return
    is_screen = rendered_as == "terminal" and is_printed(output) and not (full or all_findings)
    options = replace(options, critical_path=cache or not is_screen)
    reading = _rank_reading(jobs, cluster, resume=resume)
    needs_tracks = rendered_as == "html" or timeline is not None
    with reading_progress() as on_trace:
        read = partial(_read, paths, options, on_trace, reading, needs_tracks=needs_tracks)
        analysis, tracks = _kept_or_read(paths, options, read, needs_tracks=needs_tracks) if cache else read()
    if reading.workers.repeated:
        again = counted(reading.workers.repeated, "trace")
        write_note(f"{again} read twice, as a worker was lost meanwhile")
    for name, path in pictures.items():
        draw_picture(name, path, analysis)
    draw_picture("timeline", timeline, analysis, tracks)
    present(analysis, rendered_as, output, extent_of(full=full, all_findings=all_findings), tracks)
    if open_page and output is not None:
        _open_in_browser(output)


_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def _import_pipeline() -> None:
    """Imports what every report needs without the cyclic collector, which would find nothing in a tenth of the time.

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
    """The processes that read the ranks of a job, and the folder that keeps their digests."""
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
    paths: Sequence[Path], options: "Options", on_trace: "OnTrace", reading: "RankReading", *, needs_tracks: bool
) -> "tuple[Analysis, StepTracks | None]":
    """The analysis of the traces, and the tracks of one step where they are needed; a finished one holds sums only."""
    from bottleneck.pipeline import explain, saved_analysis

    saved = saved_analysis(paths, options)
    if saved is not None:
        return saved, None
    from bottleneck.analysis.step_tracks import lay_out

    explained = explain(paths, options, on_trace, reading)
    return explained.analysis, lay_out(explained) if needs_tracks else None


def _kept_or_read(
    paths: Sequence[Path],
    options: "Options",
    read: "Callable[[], tuple[Analysis, StepTracks | None]]",
    *,
    needs_tracks: bool,
) -> "tuple[Analysis, StepTracks | None]":
    """The kept report of these inputs; else one that is made now, and kept if no input changed meanwhile."""
    from bottleneck.commands.kept_reports import ReportFolder, ReportParts, key_of
    from bottleneck.harness.machine import cache_folder
    from bottleneck.pipeline import saved_analysis

    if saved_analysis(paths, options) is not None:
        return read()
    folder, key = ReportFolder(cache_folder() / "reports"), key_of(paths, options)
    if key is None:
        return read()
    try:
        kept = folder.read(key)
    except ValueError as exc:
        kept = None
        told = f"the kept report of {paths[0]} is not used, and its traces are read again: {exc}"
        print(f"warning: {told}", file=sys.stderr, flush=True)
    if kept is not None and (kept.has_tracks or not needs_tracks):
        return kept.analysis, kept.tracks
    analysis, tracks = read()
    if key != key_of(paths, options):
        told = f"{paths[0]} changed while it was read; its report is not kept: run the command again once it is whole"
        print(f"warning: {told}", file=sys.stderr, flush=True)
        return analysis, tracks
    try:
        folder.write(key, ReportParts(analysis, tracks, needs_tracks))
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or exc
        print(f"warning: the report of {paths[0]} is not kept: {why}", file=sys.stderr, flush=True)
    return analysis, tracks


def _page(form: ReportFormat | None, output: Path | None) -> Path:
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
    """Writes the trace with our tracks added, compressed where the name of the file ends in .gz."""
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
    from bottleneck.commands.finish_run import shown
    from bottleneck.commands.runs import latest_recording

    folder = latest_recording()
    write_note(f"report of {shown(folder)}, the latest recording here")
    return folder


def _repair(path: Path) -> None:
    from bottleneck.calibrate.cache import add_ceilings
    from bottleneck.commands.finish_run import repair

    repair(path)
    add_ceilings(path, write_note)
