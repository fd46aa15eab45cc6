"""Each row of "Adding a thing" in CONTRIBUTING.md is tried: one is added as the row says, and the program uses it.

Additions are made in copies of files and in patched registries. Where a thing stands in two places, a test holds that
the places agree, so that a row which is incomplete fails.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

import bottleneck
from benchmarks.corpus.cases import CASES, WORKLOADS
from bottleneck import advice, cli, cost
from bottleneck.advice.quantities import claims_of
from bottleneck.advice.ranking import Draft, up_to
from bottleneck.cost.call import Cost, OpCall
from bottleneck.devices import catalogue
from bottleneck.devices.match import choose_device, device_by_name, match_device
from bottleneck.experiment import interventions
from bottleneck.experiment.interventions.subject import Change, Subject
from bottleneck.gate import count, settings
from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.sensors import make_samplers
from bottleneck.pipeline import explain
from bottleneck.predict.host_pace import slower_than_usual
from bottleneck.predict.rates import ceilings_of
from bottleneck.predict.step_kernels import Kernel as PredictedKernel
from bottleneck.report import FORMATS, ReportFormat
from bottleneck.report.ci.outputs import GATE_FORMATS, GateFormat, write_formats
from bottleneck.schema import device_facts
from bottleneck.schema.counters import COUNTERS, Counter
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.linked_trace import DeviceProperties
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings
from bottleneck.schema.tables import EVENTS, Column
from bottleneck.trace import kernels, vendors
from bottleneck.trace.read import read_trace
from scripts import write_counters
from tests.advice.cases import case_of, cpu_events
from tests.analysis.frames import Kernel as OlderKernel
from tests.analysis.frames import Modelled, only
from tests.builders import Event, kernel, launch, memcpy, op, step, write_trace
from tests.harness.replay import ReplaySampler
from tests.report.gates import GATES

PACKAGE = Path(bottleneck.__file__).parent
ROOT = PACKAGE.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def rows_of(text: str) -> dict[str, tuple[str, str]]:
    """Places to touch and tests by thing, from the table "to add a … touch …"."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    named = [(re.match(r"\[?an? ([\w ]+)(?:\]\(#[\w-]+\))?$", row[0]), row) for row in cells if len(row) == 3]
    return {match[1]: (row[1], row[2]) for match, row in named if match}


def missing_paths(text: str) -> list[str]:
    """Paths of this repository that a text names in backquotes and that do not exist."""
    named = re.findall(r"`((?:bottleneck|tests|docs|scripts|benchmarks|examples)/[\w./*-]*)`", text)
    return [name for name in named if not list(ROOT.glob(name.rstrip("/")))]


def test_each_row_of_the_table_is_tried_by_a_test() -> None:
    assert rows_of(TEXT).keys() == TRIED_BY.keys()
    assert all("tests/" in guard for _, guard in rows_of(TEXT).values())
    assert len(set(TRIED_BY.values())) == len(TRIED_BY)
    assert rows_of("| [a thing](#a-thing) | here | tests |\n| an idea | there | none |").keys() == {"thing", "idea"}


def test_each_row_that_links_has_its_section() -> None:
    linked = re.findall(r"^\| \[(an? [\w ]+)\]\(#([\w-]+)\) ", TEXT, re.MULTILINE)
    assert len(linked) > 10
    assert [thing for thing, _ in linked if f"\n### {thing.capitalize()}\n" not in TEXT] == []
    assert all(anchor == thing.replace(" ", "-") for thing, anchor in linked)


def test_every_path_that_the_page_names_exists() -> None:
    assert missing_paths(TEXT) == []
    assert missing_paths("one row in `bottleneck/devices/tables.csv`") == ["bottleneck/devices/tables.csv"]


def test_the_map_has_one_line_for_each_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    mapped = re.findall(r"^  (\w+)/ +\S", TEXT, re.MULTILINE)
    assert sorted(packages) == sorted(mapped)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of copies of the device tables that the package reads instead of its own."""
    for path in device_facts.FOLDER.glob("*.csv"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(device_facts, "FOLDER", tmp_path)
    kept = [each for module in (catalogue, device_facts) for each in vars(module).values()]
    readers = [each for each in kept if hasattr(each, "cache_clear")]
    for reader in readers:
        reader.cache_clear()
    yield tmp_path
    for reader in readers:
        reader.cache_clear()


def add_row(table: Path, like: str, **cells: str) -> None:
    """Adds a copy of the row of which a cell begins like this, with other cells."""
    with table.open(newline="", encoding="utf-8") as lines:
        row = next(each for each in csv.DictReader(lines) if any(cell.startswith(like) for cell in each.values()))
    with table.open("a", newline="", encoding="utf-8") as lines:
        csv.DictWriter(lines, row.keys()).writerow(row | cells)


def test_a_device_is_one_row_of_the_table(tables: Path) -> None:
    add_row(tables / "table.csv", "Tesla T4", names="Example X1", dram_gb_per_s="1000", called="x1 sxm")
    assert device_by_name("Example X1").bandwidth_bytes_per_s == 1e12
    assert device_by_name("X1 SXM").name == "Example X1"


def test_a_generation_is_rows_of_the_tables(tables: Path, tmp_path: Path) -> None:
    add_row(tables / "rates.csv", "9.0", architecture="99.0")
    add_row(tables / "table.csv", "NVIDIA H100", names="Example X1", called="", architecture="99.0")
    add_row(tables / "generations.csv", "9.0", architectures="99.0", instruction="qmma", tensor_share="0.5")
    add_row(tables / "kernel_names.csv", "sm_?89", pattern="sm_?99_", generation="Example", architectures="99.0")
    add_row(tables / "attention.csv", "9.0", architectures="99.0", kernel="^slow_attention$", reached="0.7")
    add_row(tables / "boards.csv", "Tesla T4", name_begins="Example X", year="2030", memory_share="0.5", timed="")
    device = device_by_name("Example X1")
    assert device.architecture == "99.0" and device.peaks_flops_per_s["bf16_tensor"] > 0
    stranger = DeviceProperties(name="Example X9", compute_capability="99.0", sm_count=10)
    assert match_device([stranger], [0], "cuda")[0].architecture == "99.0"
    kernels = [launch(1, 10, 5), kernel(1, 20, 50, "sm_99_gemm_bf16")]
    trace = read_trace(write_trace(tmp_path / "trace.json", kernels, deviceProperties=[]))
    assert "a kernel for Example: pass --device 'Example X1'" in choose_device(trace)[1][0].message
    older = Modelled((OlderKernel(1000, name="ampere_bf16_s16816gemm_256x128", engine="matrix"),), matrix_flops=3e11)
    assert "needs qmma" in str(only(older, device=replace(device, launch_floor_us=1.5)).reason)
    assert [each.reached for each in device_facts.attention_kernels("99.0")] == [0.7]
    ceilings, _ = ceilings_of([PredictedKernel("product", dtype="bf16")], EngineSettings(), device)
    assert (ceilings.tensor_factor[0], ceilings.memory_factor[0]) == (0.5, 0.5)
    assert slower_than_usual("Example X1") < slower_than_usual("NVIDIA H200") < slower_than_usual("Tesla T4")


def test_a_cost_formula_is_one_function_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pd.DataFrame({"name": ["example::double"], "dims": ["[[8, 4]]"], "types": ['["float"]']})
    assert cost.compute_costs(calls)["reason"].notna().all()

    def double(call: OpCall) -> Cost:
        x = call.tensor(0)
        return Cost("pointwise", bytes_low=2 * x.bytes, bytes_high=2 * x.bytes, vector_flops=x.numel)

    monkeypatch.setitem(cost.FORMULAS, "example::double", double)
    (added,) = cost.compute_costs(calls).itertuples()
    assert (added.vector_flops, added.bytes_low, added.reason) == (32, 256, None)


def test_two_formulas_for_one_op_are_refused() -> None:
    with pytest.raises(AssertionError, match="two formulas"):
        cost.merge_formulas([{"example::double": abs}, {"example::double": abs}])  # type: ignore[dict-item]


def test_a_kernel_family_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kernels.describe_kernel("example_fft_kernel").family == "other"
    table = tmp_path / "kernels.tsv"
    table.write_text(kernels.TABLE.read_text() + "fourier\tvector\t\t\texample_fft\texample_fft_kernel\n")
    monkeypatch.setattr(kernels, "TABLE", table)
    for name in ("kernel_rules", "_compiled"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).__wrapped__)  # not the rows that were read before
    assert kernels.describe_kernel("example_fft_kernel").family == "fourier"


def example_rule(case: Evidence) -> Draft | None:
    """The rule of the example in CONTRIBUTING.md."""
    spent_us = case.account_us("overhead.python")
    if case.share_of_step(spent_us) < 0.01:
        return None
    return Draft(
        slug="example",
        title="Python takes time",
        evidence=(f"{spent_us:.0f} us per step",),
        advice="Run less of it.",
        gain_us=up_to(spent_us),
        claims=claims_of(case, "overhead.python"),
    )


def test_an_advice_rule_is_one_function_and_its_name_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(tmp_path, cpu_events(ops=4, op_us=5, every_us=50))
    assert "example" not in {finding.slug for finding in advice.advise(case)}
    monkeypatch.setattr(advice, "RULES", (*advice.RULES, example_rule))
    (finding,) = [each for each in advice.advise(case) if each.slug == "example"]
    assert finding.predicted_speedup is not None and finding.predicted_speedup.high > 1


def test_an_intervention_is_one_function_and_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text("def workload():\n    return lambda: 20\n")

    def double(subject: Subject) -> Callable[[], object]:
        return lambda: [subject.step(), subject.step()]

    monkeypatch.setitem(interventions.CHANGES, "example", Change("example", "does it twice", "other work", double))
    plan = Plan(str(tmp_path), Program(str(program)), RecordOptions(changes=("example",)))
    with interventions.changed_step(plan) as (step, _):
        assert step() == [20, 20]


def test_a_counter_is_one_row_and_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COUNTERS.keys() == count._COUNTERS.keys()
    monkeypatch.setitem(COUNTERS, "examples", Counter("examples", "portable", "example", "examples", "for a test"))
    monkeypatch.setitem(settings._DEFAULT_TEXTS, "examples", "+0")  # which an import of the new row does
    assert COUNTERS.keys() != count._COUNTERS.keys()  # without its count
    assert "| `examples` | portable | for a test |" in write_counters.table()


def test_the_suffixes_that_the_reference_names_are_those_of_formats() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("The suffix of `-o` chooses")]
    named = re.findall(r"`(\.\w+)`", line)
    assert named and set(named) <= {suffix for form in FORMATS.values() for suffix in form.suffixes}


def test_a_report_format_is_one_function_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "trace.json", [op("aten::relu", 10, 20, dims=[[4]])])
    command = ["report", str(trace)]
    assert cli._run([*command, "--format", "made-up"]) == 2
    assert "there is no format made-up: choose from terminal, markdown" in " ".join(capsys.readouterr().err.split())
    # The row of the example in CONTRIBUTING.md.
    row = ReportFormat(lambda analysis, *, all_findings=False: f"= {analysis.verdict.bound} =\n", (".made-up",))
    monkeypatch.setitem(FORMATS, "made-up", row)  # type: ignore[arg-type]
    assert cli._run([*command, "--format", "made-up"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("= ")
    assert cli._run([*command, "-o", str(tmp_path / "report.made-up")]) == 0
    assert (tmp_path / "report.made-up").read_text(encoding="utf-8") == printed


def test_a_gate_format_is_one_function_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GATE_FORMATS, "words", GateFormat("words.txt", lambda gate: f"{gate.sentence}\n"))
    gate = next(iter(GATES.values()))
    (path,) = write_formats(gate, tmp_path, ["words"])
    assert path.read_text(encoding="utf-8") == f"{gate.sentence}\n"


VENDOR = """
qpu	category	runtime	qpu_host	qpu_host
qpu	mark	category	^qpu_	qpu_host
qpu	call	launch	^qpuSubmit$	qpuSubmit
qpu	call	graph_launch	^qpuSubmitPlan$	qpuSubmitPlan
qpu	call	copy	^qpuMove$	qpuMove
qpu	call	synchronise	^qpuFence$	qpuFence
qpu	call	allocate	^qpuReserve$	qpuReserve
qpu	copy	to_host	^pull page	pull pageable
qpu	copy	to_device	^push	push
"""


@pytest.fixture
def made_up_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows of a vendor before all others in the table that the package reads."""
    heading, rest = vendors.TABLE.read_text(encoding="utf-8").split("vendor\tword\tvalue\tpattern\texample\n")
    table = tmp_path / "vendors.tsv"
    table.write_text(f"{heading}vendor\tword\tvalue\tpattern\texample\n{VENDOR.lstrip()}{rest}", encoding="utf-8")
    monkeypatch.setattr(vendors, "TABLE", table)
    vendors.words.cache_clear()
    vendors.category_of_vendor.cache_clear()
    yield
    vendors.words.cache_clear()
    vendors.category_of_vendor.cache_clear()


def call(correlation: int, ts: float, dur: float, name: str) -> Event:
    return {**launch(correlation, ts, dur, name), "cat": "qpu_host"}


@pytest.mark.usefixtures("made_up_vendor")
def test_calls_and_copies_of_a_vendor_are_read_by_its_rows(tmp_path: Path) -> None:
    events = [
        step(0, 0, 200),
        op("aten::mm", 5, 100, dims=[[64, 64], [64, 64]]),
        call(1, 10, 5, "qpuMove"),
        memcpy(1, 16, 4, 4096) | {"name": "push"},
        call(2, 20, 5, "qpuSubmit"),
        kernel(2, 26, 20),
        call(3, 30, 5, "qpuReserve"),
        call(4, 50, 5, "qpuMove"),
        memcpy(4, 56, 4, 4096) | {"name": "pull pageable"},
        call(5, 60, 60, "qpuFence"),
        call(6, 130, 5, "qpuSubmitPlan"),
        kernel(6, 140, 10),
    ]
    evidence = explain([write_trace(tmp_path / "trace.json", events)])
    trace, work, totals = evidence.linked.trace, evidence.linked.kernels, evidence.analysis.totals
    assert trace.flavour == "qpu"
    assert trace.launch_args["call_kind"].tolist() == [
        "copy", "launch", "allocate", "copy", "synchronise", "graph_launch",
    ]  # fmt: skip
    assert work["replayed"].tolist() == [False, False, False, True]
    assert (totals.h2d_bytes, totals.d2h_bytes, totals.sync_count, totals.launch_count) == (4096, 4096, 1, 4)
    assert {"sync"} <= {row.cause for row in evidence.analysis.idle}
    assert {name: count.count(evidence).values[name] for name in ("launches", "syncs", "d2h_copies")} == {
        "launches": 2, "syncs": 1, "d2h_copies": 1,
    }  # fmt: skip


def test_a_vendor_is_one_sampler_among_the_others() -> None:
    wanted = {"notes", "shortest_beat_s", "open", "sample", "close"}
    samplers = (*make_samplers(), ReplaySampler(ROOT / "sample_traces" / "mlp"))
    assert [name for each in samplers for name in wanted if not hasattr(each, name)] == []
    assert len({type(each) for each in samplers}) == len(samplers) > 2


def test_a_command_is_one_file_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hello_command() -> None:
        """Greets."""
        print("hello")

    module = ModuleType("bottleneck.commands.hello")
    module.hello_command = hello_command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings: Mapping[str, bool] = {}
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, ("hello", settings)))
    assert cli._run(["hello"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_a_workload_of_the_corpus_is_one_file_and_its_row() -> None:
    assert {case.file for case in CASES} == {path.stem for path in WORKLOADS.glob("*.py")}


def test_a_trace_column_is_its_declaration_and_the_code_that_fills_it(tmp_path: Path) -> None:
    events = read_trace(write_trace(tmp_path / "trace.json", [op("aten::relu", 10, 20)])).events
    declared = replace(EVENTS, columns={**EVENTS.columns, "example": Column("float64", "for a test")})
    with pytest.raises(AssertionError, match=r"missing columns \['example'\]"):
        declared.check(events)
    assert "example" in declared.check(events.assign(example=0.0))


CAUSE_ROW = """    _idle(
        "example",
        meaning="saving examples",
        phrase="saving examples",
        advice="save fewer of them{at}",
    ),
"""
CAUSE_RULE = r"""        ("example", r"example\.py\(\d+\): save$"),
"""
STEP_WITH_EXAMPLE = """
import json, sys
from pathlib import Path
import bottleneck
from bottleneck.pipeline import analyse
from bottleneck.report import render_report
from tests.builders import frame, op, step, write_trace
assert bottleneck.__file__.startswith(sys.argv[1]), bottleneck.__file__
events = [step(0, 0, 100), frame("example.py(850): save", 40, 50)]
events += [op("aten::relu", 5, 30, dims=[[64, 64]]), op("aten::relu", 92, 6, dims=[[64, 64]])]
analysis = analyse([write_trace(Path(sys.argv[1]) / "trace.json", events, deviceProperties=[])])
(row,) = [entry for entry in analysis.ledger if entry.account == "overhead.example"]
assert 45 <= row.us <= 55 and row.group == "overhead", row
(python,) = [entry for entry in analysis.ledger if entry.account == "overhead.python"]
assert 10 <= python.us <= 18, python
assert "saving examples" in render_report(analysis, "terminal")
"""


def insert_after(path: Path, marker: str, text: str) -> None:
    """Adds text behind the only line of a file that is this marker."""
    before, found, after = path.read_text(encoding="utf-8").partition(marker)
    assert found, f"{path.name} has no {marker!r}"
    path.write_text(f"{before}{found}{text}{after}", encoding="utf-8")


@pytest.mark.process
@pytest.mark.sample
def test_an_idle_cause_is_one_row_and_the_rule_that_finds_it(tmp_path: Path) -> None:
    copy = tmp_path / "bottleneck"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    insert_after(copy / "schema" / "accounts.py", "_ROWS = (\n", CAUSE_ROW)
    insert_after(copy / "analysis" / "host.py", '    "python": (\n', CAUSE_RULE)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-P", "-c", STEP_WITH_EXAMPLE, str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


# The test that adds each thing, or that fails where its row is incomplete.
TRIED_BY: Mapping[str, Callable[..., None]] = {
    "device": test_a_device_is_one_row_of_the_table,
    "generation of devices": test_a_generation_is_rows_of_the_tables,
    "cost formula": test_a_cost_formula_is_one_function_and_one_line,
    "kernel family": test_a_kernel_family_is_one_row,
    "idle cause": test_an_idle_cause_is_one_row_and_the_rule_that_finds_it,
    "advice rule": test_an_advice_rule_is_one_function_and_its_name_in_the_table,
    "intervention": test_an_intervention_is_one_function_and_one_row,
    "counter": test_a_counter_is_one_row_and_one_count,
    "report format": test_a_report_format_is_one_function_and_one_row,
    "gate format": test_a_gate_format_is_one_function_and_one_line,
    "accelerator vendor": test_calls_and_copies_of_a_vendor_are_read_by_its_rows,
    "command": test_a_command_is_one_file_and_one_line,
    "workload of the corpus": test_a_workload_of_the_corpus_is_one_file_and_its_row,
    "trace column": test_a_trace_column_is_its_declaration_and_the_code_that_fills_it,
}
