"""Programs counted in processes of their own: what changes a counter, what does not, and how it fails."""

from pathlib import Path

import pytest

from bottleneck.errors import UndecidedError, WorkloadError
from bottleneck.experiment.side import Side
from bottleneck.gate.count_program import Counted, count_program
from bottleneck.gate.judge import judge_outputs
from bottleneck.harness.messages import Program
from bottleneck.schema.counters import COUNTERS, Counts, Lock, Site
from bottleneck.schema.recording import Form

pytestmark = pytest.mark.process

# Changes stand in the place of the word. Without an optimizer, which brings in the compiler and takes seconds.
WORKLOAD = """
import gc

import torch
from torch import nn

gc.disable() if __import__("os").environ.get("WITHOUT_GC") else None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.drop = nn.Dropout(0.1)
        self.two = nn.Linear(32, 4)

    def forward(self, x):
        x = self.drop(self.norm(torch.relu(self.one(x))))
        pass  # MODEL
        return self.two(x)


def workload(batch=8):
    model = Net()
    pass  # COMPILE
    data, labels = torch.randn(batch, 32), torch.randint(0, 4, (batch,))

    def step():
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(data), labels)
        loss.backward()
        pass  # STEP

    return step
"""
COMPILE = "model = torch.compile(model, backend='eager')"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
# What a person adds without a thought: where, the line, and a counter that must tell.
CHANGES = {
    "an item": ("STEP", "loss.item()", "syncs"),
    "an op of an operator": ("MODEL", "x = x + 1", "ops"),
    "a float64 upcast": ("MODEL", "x = x.double().square().float()", "float64_ops"),
    "a copy": ("MODEL", "x = x.clone()", "copies"),
}


class Bench:
    """A folder in which programs are written and counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0

    def count(
        self, text: str, form: Form = "workload", runs: int = 1, environment: dict[str, str] | None = None
    ) -> Counted:
        """The counts of a program of this text."""
        self._number += 1
        (self.folder / "program.py").write_text(text)
        out = self.folder / f"out{self._number}"
        side = Side("here", self.folder, {**ENVIRONMENT, **(environment or {})})
        return count_program(Program("program.py", form=form), out, side, runs)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def base(bench: Bench) -> Counted:
    return bench.count(WORKLOAD)


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> Counts:
    return bench.count(with_line(WORKLOAD, "COMPILE", COMPILE)).counts


def with_line(text: str, place: str, line: str) -> str:
    return text.replace(f"pass  # {place}", line)


def portable(counts: Counts) -> dict[str, int]:
    return {name: value for name, value in counts.values.items() if COUNTERS[name].tier == "portable"}


def site_of(counts: Counts, line: str) -> Site:
    return next(site for site in counts.sites if site.text == line)


def test_a_workload_counts_what_three_steps_agree_on(base: Counted) -> None:
    counts = base.counts
    assert counts.unstable == {} and counts.steps == 3
    assert set(counts.unknown) == {"launches", "kernel_names"}
    assert counts.values["module_calls"] == 5 and counts.values["autograd_nodes"] > 8
    assert (counts.values["graphs"], counts.values["graph_breaks"], counts.values["recompiles"]) == (0, 0, 0)
    site = site_of(counts, "loss.backward()")
    assert site.file == "program.py" and WORKLOAD.splitlines()[site.line - 1].strip() == site.text


def test_nothing_is_timed_or_calibrated_and_the_recording_stays(base: Counted) -> None:
    recording = base.case.recording
    assert recording is not None
    assert recording.unprofiled is recording.device is recording.batch_test is recording.option_costs is None
    assert recording.search_path == (".",)
    (folder,) = base.recordings
    assert (folder / "recording.json").is_file() and (folder / "trace.rank0.json.gz").is_file()


@pytest.mark.parametrize(("place", "line", "counter"), CHANGES.values(), ids=CHANGES)
def test_each_of_these_changes_a_portable_counter_and_names_its_line(
    bench: Bench, base: Counted, place: str, line: str, counter: str
) -> None:
    changed = bench.count(with_line(WORKLOAD, place, line)).counts
    assert changed.fingerprint == base.counts.fingerprint and changed.input_sha == base.counts.input_sha
    assert portable(changed)[counter] > portable(base.counts)[counter]
    site = site_of(changed, line)
    assert site.counts[counter] > 0
    assert site.line == next(at for at, text in enumerate(WORKLOAD.splitlines(), 1) if text.endswith(f"# {place}"))


def test_a_graph_break_changes_counters_and_names_its_line(bench: Bench, compiled: Counts) -> None:
    assert (compiled.values["graphs"], compiled.values["graph_breaks"]) == (1, 0)
    text = with_line(with_line(WORKLOAD, "COMPILE", COMPILE), "MODEL", "torch._dynamo.graph_break()")
    broken = bench.count(text).counts
    assert broken.fingerprint == compiled.fingerprint and broken.fingerprint.portable["compiled"] is True
    assert (broken.values["graphs"], broken.values["graph_breaks"]) == (2, 1)
    assert site_of(broken, "torch._dynamo.graph_break()").counts["graph_breaks"] == 1


def test_hash_seed_threads_and_garbage_collection_change_nothing_portable(bench: Bench, base: Counted) -> None:
    environment = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2", "WITHOUT_GC": "1"}
    other = bench.count(WORKLOAD, environment=environment).counts
    assert portable(other) == portable(base.counts) and other.unstable == {}
    assert (other.ops, other.modules, other.sites) == (base.counts.ops, base.counts.modules, base.counts.sites)
    assert other.fingerprint.portable == base.counts.fingerprint.portable
    assert other.fingerprint.backend["threads"] == 2


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(400, 8), torch.randint(0, 2, (400,)))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    for inputs, labels in DataLoader(data, batch_size=4, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""


def test_a_script_with_workers_counts_the_same_twice_and_is_ended_when_it_is_counted(bench: Bench) -> None:
    counted = bench.count(SCRIPT, "script", runs=2)
    assert counted.counts.unstable == {} and counted.counts.runs == 2 and counted.counts.steps == 3
    assert len(counted.recordings) == 2
    recording = counted.case.recording
    assert recording is not None and recording.step_source == "optimizer" and (recording.steps_seen or 0) < 40


@pytest.mark.sample
def test_a_bare_model_counts_its_forward_pass(bench: Bench) -> None:
    text = "import torch\nmodel = torch.nn.Linear(8, 2)\ninputs = (torch.randn(4, 8),)\n"
    counts = bench.count(text, "model").counts
    assert counts.values["flops"] >= 2 * 4 * 8 * 2
    assert counts.values["autograd_nodes"] == 0 and counts.ops["aten::addmm"] == 1


@pytest.mark.sample
def test_a_program_that_fails_says_what_it_said_last(bench: Bench) -> None:
    with pytest.raises(WorkloadError) as caught:
        bench.count("def workload():\n    raise ValueError('no such file: data.bin')\n")
    assert caught.value.exit_code == 4
    assert "program.py failed in here" in caught.value.what
    assert caught.value.why == "ValueError: no such file: data.bin"


@pytest.mark.sample
def test_a_program_without_steps_is_undecided(bench: Bench) -> None:
    with pytest.raises(UndecidedError) as caught:
        bench.count("print('hello')\n", "script")
    assert caught.value.exit_code == 5 and "never imported torch" in caught.value.why


def test_outputs_are_the_same_in_every_run_and_others_for_another_seed(bench: Bench) -> None:
    text = with_line(WORKLOAD, "STEP", "return loss")
    side = Side("here", bench.folder, ENVIRONMENT)
    found = []
    for number, seed in enumerate((0, 0, 1)):
        (bench.folder / "program.py").write_text(text)
        program = Program("program.py", seed=seed)
        found.append(count_program(program, bench.folder / f"outputs{number}", side, numerics=True).counts)
    one, same = found[0].numerics, found[1].numerics
    assert one is not None and one == same and one.precision == "fp32" and one.reductions > 3
    assert list(one.tensors)[:3] == ["returned of step 1", "returned of step 3", "Net.one.weight"]
    lock = Lock("program", ("program.py",), found[0])
    assert judge_outputs(lock, found[1]).verdict == "same"
    assert judge_outputs(lock, found[2]).verdict == "differs"
