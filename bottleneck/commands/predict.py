"""``bottleneck predict``: predicts what a step would take on devices that are not here."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import (
    RESULT_FORMATS,
    Assumptions,
    HostPaces,
    Settings,
    Train,
    check_picture,
    completion_of,
    form_of,
    format_option,
    output_option,
    output_style,
    picture_option,
    typed_devices,
    write_report,
)
from bottleneck.errors import UsageError
from bottleneck.report.output import draw_picture
from bottleneck.schema.records import replace

if TYPE_CHECKING:
    from bottleneck.schema.device import Device
    from bottleneck.schema.predicted_step import Backend
    from bottleneck.schema.step_calls import StepCalls

# Times of a host for an op that are no slips of units: the quickest processors take a microsecond.
_LEAST_OP_US, _MOST_OP_US = 0.3, 300.0
_BACKENDS = (
    "eager",
    "compile",
    "captured",
    "cudagraphs",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)


def predict_command(
    target: Annotated[
        str, typer.Argument(metavar="PROGRAM|TRACE", help="A program of Python, or a trace or recording of one.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments, untouched.")
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="A,B",
            help="Devices by name: 'H100 SXM',A100,T4; repeatable.",
            autocompletion=completion_of(typed_devices),
        ),
    ] = None,
    settings: Settings = None,
    assumed: Assumptions = None,
    train: Train = False,
    backends: Annotated[
        str | None,
        typer.Option("--backend", metavar="A,B", help=f"Ways to run it, the usual one first: {', '.join(_BACKENDS)}."),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="NAME=N/h", help="Price of an hour of a device: H100=2.5/h; repeatable."),
    ] = None,
    paces: HostPaces = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Choose what makes the step fit into the memory, at the least time.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Memory of each device, instead of its own: 20GiB, 16e9."),
    ] = None,
    form: Annotated[str | None, format_option("the prediction", RESULT_FORMATS)] = None,
    output: Annotated[Path | None, output_option("the prediction")] = None,
    roofline: Annotated[Path | None, picture_option("Also draw the rooflines to this .png, .svg or .pdf file.")] = None,
) -> None:
    """Predicts what a step would take on GPUs that are not here: time, bound, memory, and what compiling would gain.

    \b
    bottleneck predict model.py --device 'H100 SXM',A100,T4
    bottleneck predict model.py --device H100 --price H100=2.5/h
    bottleneck predict model.py --device H100 --host-pace 4.1
    bottleneck predict model.py --device L4 --fit
    bottleneck predict trace.json.gz --device A100

    A program runs for one step under fake tensors: without a GPU, without its weights, without arithmetic. A trace
    tells the same about the step that it recorded.
    """  # noqa: D301 - backspace is how click is told to keep the lines of an example
    from bottleneck.predict.answer import answer, usual_backends, with_fits
    from bottleneck.report.predict import render

    rendered_as = form_of(form, output, RESULT_FORMATS)
    check_picture(roofline)
    chosen = _with_memory(devices_of(devices or []), memory)
    if fit and Path(target).suffix != ".py":
        raise UsageError(
            "--fit goes with a program",
            why="a trace does not tell how long each tensor is held",
            fix="name the program's file: bottleneck predict model.py --device L4 --fit",
        )
    ways = None if backends is None else _ways(backends)
    rates, known_paces = _prices(prices or [], chosen), host_paces(paces or [], chosen)
    steps = _steps(target, arguments or [], settings or [], assumed or [], train=train)
    answered = answer(steps, chosen, ways or usual_backends(steps[0]), rates, known_paces)
    if fit:
        from bottleneck.commands.elsewhere import fits_elsewhere
        from bottleneck.harness.target import make_program, with_assumptions

        program = with_assumptions(make_program(target, arguments or [], settings or [], train=train), assumed or [])
        way = (ways or usual_backends(steps[0]))[0]
        answered = with_fits(answered, fits_elsewhere(program, chosen, known_paces, way))
    write_report(render(answered, rendered_as, output_style(output)), output)
    draw_picture("predicted roofline", roofline, answered)


def devices_of(texts: Sequence[str]) -> "list[Device]":
    """Finds the devices that options name, each once.

    UsageError for a name that is none, and without any.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(
            "no device is named",
            why="a prediction is for devices that are not here",
            fix="name some: --device 'H100 SXM',A100,T4",
        )
    devices = [_device(name) for name in names]
    return [device for number, device in enumerate(devices) if device not in devices[:number]]


_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
# Less holds not even what CUDA takes itself, more has no device.
_LEAST_MEMORY, _MOST_MEMORY = 2**30, 2**44


def _with_memory(devices: "list[Device]", text: str | None) -> "list[Device]":
    """The devices with this memory; as they are without one."""
    if text is None:
        return devices
    matched = _SIZE.fullmatch(text.strip())
    size = 0.0
    if matched:
        prefix = (matched[2] or "").upper()
        size = float(matched[1]) * (1024 if prefix.endswith("I") else 1000) ** _POWERS[prefix.rstrip("I")]
    if not _LEAST_MEMORY < size < _MOST_MEMORY:
        raise UsageError(
            f"--memory {text} is no size of a device's memory",
            why="it lies between 1 GiB, which CUDA takes itself, and 16 TiB",
            fix="write for example --memory 20GiB",
        )
    return [replace(device, memory_bytes=int(size)) for device in devices]


def _device(name: str) -> "Device":
    from bottleneck.devices.catalogue import usual_names
    from bottleneck.devices.match import device_by_name

    try:
        return device_by_name(name)
    except UsageError as error:
        from difflib import get_close_matches

        near = get_close_matches(name.lower(), usual_names(), n=1, cutoff=0.7)
        meant = f"did you mean {near[0].upper()!r}? Else " if near else ""
        raise UsageError(
            error.what,
            why=error.why,
            fix=f"{meant}name one of the device table: 'H100 SXM', A100, T4, …; docs/reference/devices.md lists all",
        ) from error


def _ways(text: str) -> "list[Backend]":
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in _BACKENDS]
    if unknown or not names:
        raise UsageError(f"--backend {text} names none", fix=f"choose from {', '.join(_BACKENDS)}")
    return list(dict.fromkeys(names))  # type: ignore[arg-type]  # they were just looked up


def _prices(texts: Sequence[str], devices: "Sequence[Device]") -> dict[str, float]:
    """Prices per hour by the name of the device in the table."""
    prices = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        number = amount.strip().removesuffix("/h").lstrip("$€")
        try:
            price = float(number) if equals else -1.0
        except ValueError:
            price = -1.0
        if not 0 < price < 1e9:
            raise UsageError(f"--price {text} is no price of an hour", fix="write for example --price H100=2.5/h")
        device = _device(name).name
        if device not in {asked.name for asked in devices}:
            raise UsageError(f"--price {text} is for no device of --device", fix=f"add it there: --device {name}")
        prices[device] = price
    return prices


def host_paces(texts: Sequence[str], devices: "Sequence[Device]") -> dict[str, float]:
    """Reads the paces of hosts by the name of the device in the table.

    A text without a name is for all devices.
    """
    from bottleneck.predict.host_pace import pace_of_op
    from bottleneck.predict.rates import read_rates

    paces = {}
    for text in texts:
        name, _, amount = text.rpartition("=")
        try:
            op_us = float(amount.strip().removesuffix("us"))
        except ValueError:
            op_us = -1.0
        if not _LEAST_OP_US <= op_us <= _MOST_OP_US:
            raise UsageError(
                f"--host-pace {text} is no time of a host for an op",
                why=f"it is in microseconds, from {_LEAST_OP_US:g} to {_MOST_OP_US:g}",
                fix="write for example --host-pace 4.1 or --host-pace H100=4.1",
            )
        named = [_device(name.strip())] if name else devices
        if named[0].name not in {device.name for device in devices}:
            raise UsageError(f"--host-pace {text} is for no device of --device", fix=f"add it there: --device {name}")
        paces.update({device.name: pace_of_op(op_us, read_rates()) for device in named})
    return paces


def _steps(
    target: str, arguments: Sequence[str], settings: Sequence[str], assumed: Sequence[str], *, train: bool
) -> "tuple[StepCalls, ...]":
    """Gives the op calls of a step.

    They are of a program's step at several batch sizes, or of the step of a trace.
    """
    if Path(target).suffix == ".py":
        from bottleneck.harness.fake_step import fake_steps
        from bottleneck.harness.target import check_source, make_program, with_assumptions

        check_source(Path(target))
        return fake_steps(with_assumptions(make_program(target, arguments, settings, train=train), assumed))
    options: Mapping[str, object] = {
        "--train": train,
        "--set": settings,
        "--assume": assumed,
        " ".join(arguments): arguments,
    }
    given = next((name for name, value in options.items() if value), None)
    if given:
        raise UsageError(f"{given} does not go with a trace", fix="leave it out: a trace holds its step as it was")
    from bottleneck.commands.reading_progress import reading_progress
    from bottleneck.pipeline import Options, explain, saved_analysis
    from bottleneck.predict.trace_calls import calls_of_trace
    from bottleneck.system.files import located

    path = located(Path(target))
    if saved_analysis([path], Options()) is not None:
        raise UsageError(f"{target} is a finished analysis, without the ops of its trace", fix="pass the trace")
    with reading_progress() as on_trace:
        evidence = explain([path], Options(), on_trace)
    return (calls_of_trace(evidence),)
