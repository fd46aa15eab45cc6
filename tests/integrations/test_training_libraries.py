"""Loops of training libraries with our callbacks in them: each program runs on its own, as a user would run it."""

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bottleneck.schema.recording import read_recording
from tests.harness.driver import record as run_supervised
from tests.harness.test_record import Ran, run

from .page import needs, programs

pytestmark = [pytest.mark.process, needs("torch")]

TRAINER = """
import sys, torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from bottleneck.integrations.transformers import Callback

class Model(PreTrainedModel):
    config_class = PretrainedConfig
    calls = 0

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, inputs, labels):
        self.calls += 1
        if self.training and self.calls == FAILS_AT:
            raise ValueError("theirs")
        logits = self.layer(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

def train(callback, steps, **arguments):
    data = [{"inputs": torch.ones(8), "labels": torch.tensor(0)} for _ in range(200)]
    arguments = TrainingArguments(
        "trained", max_steps=steps, per_device_train_batch_size=2, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, **arguments
    )
    Trainer(Model(), arguments, train_dataset=data, eval_dataset=data[:20], callbacks=[callback]).train()

FAILS_AT = 0
"""
LIGHTNING = """
import sys, torch, pytorch_lightning as lightning
from bottleneck.integrations.lightning import Callback

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, index):
        if index == FAILS_AT:
            raise ValueError("theirs")
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def train(callback, steps, **arguments):
    data = torch.utils.data.TensorDataset(torch.randn(2000, 8), torch.randint(2, (2000,)))
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=callback, **arguments
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))

FAILS_AT = -1
"""
LOOPS = [
    pytest.param(TRAINER, "gradient_accumulation_steps=2", "AdamW", marks=needs("transformers"), id="transformers"),
    pytest.param(LIGHTNING, "accumulate_grad_batches=2", "SGD", marks=needs("pytorch_lightning"), id="lightning"),
]
PLAIN = [pytest.param(*row.values[:1], marks=row.marks, id=row.id) for row in LOOPS]


def steps_of(ran: Ran, name: str = "out") -> int:
    return len(ran.recording(name).traces[0].step_marks_ns) - 1


@pytest.mark.parametrize(
    ("heading", "folder"),
    [
        pytest.param("`transformers.Trainer`", "trainer", marks=needs("transformers"), id="transformers"),
        pytest.param("Lightning", "lightning", marks=needs("pytorch_lightning"), id="lightning"),
        pytest.param("accelerate", "accelerate", marks=needs("accelerate"), id="accelerate"),
    ],
)
def test_the_program_of_the_page_prints_its_report(heading: str, folder: str, tmp_path: Path) -> None:
    ran = run(tmp_path, programs(heading)[0])
    assert ran.status == 0, ran.stderr
    # Fewer steps are profiled where a step is long.
    assert re.search(rf"recorded [3-5] steps in bottleneck-runs/{folder};", ran.stderr)
    # Which bound it is depends on what else the machine does.
    bound = r"(MIXED|INCONCLUSIVE|(PROBABLY )?[A-Z]+-BOUND(, [A-Z ]+)?)"
    assert re.search(rf"^{bound} · {folder} · ", ran.stdout, re.MULTILINE)
    assert (tmp_path / "bottleneck-runs" / ".gitignore").exists()


@pytest.mark.parametrize(("library", "accumulating", "optimizer"), LOOPS)
def test_a_step_is_one_of_the_optimizer(library: str, accumulating: str, optimizer: str, tmp_path: Path) -> None:
    ran = run(tmp_path, f"{library}\ntrain(Callback('out', warmup=3), 60, {accumulating})")
    assert ran.status == 0, ran.stderr
    recording = ran.recording()
    assert (recording.step_source, steps_of(ran)) == ("mark", 5)
    first_us, last_us = (recording.traces[0].step_marks_ns[at] / 1e3 for at in (0, -1))
    trace = json.loads(gzip.decompress((tmp_path / "out" / "trace.rank0.json.gz").read_bytes()))
    origin_us = trace["baseTimeNanoseconds"] / 1e3
    names = Counter(
        event["name"]
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and first_us <= origin_us + event["ts"] < last_us
    )
    assert names[f"Optimizer.step#{optimizer}.step"] == 5
    assert names["aten::cross_entropy_loss"] == 10


@pytest.mark.parametrize("library", PLAIN)
def test_the_recording_is_there_long_before_the_training_ends(library: str, tmp_path: Path) -> None:
    body = """
    class Watching(Callback):
        steps = 0
        def on_STEP(self, *arguments, **more):
            super().on_STEP(*arguments, **more)
            self.steps += Path('out/recording.json').exists()
    callback = Watching('out', warmup=3)
    train(callback, 200)
    print(callback.steps > 50, callback.recording.block.is_measured)
"""
    hook = "step_end" if library is TRAINER else "train_batch_end"
    ran = run(tmp_path, f"{library}\nfrom pathlib import Path\nif True:{body.replace('STEP', hook)}")
    assert ran.status == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "True False"


@pytest.mark.parametrize("library", PLAIN)
def test_a_training_that_fails_shows_its_error_and_keeps_what_there_is(library: str, tmp_path: Path) -> None:
    ran = run(tmp_path, f"{library}\nFAILS_AT = 8\ntrain(Callback('out', warmup=3), 200)")
    assert ran.status == 1
    assert ran.stderr.count("ValueError: theirs") == 1
    recording = ran.recording()
    assert recording.traces
    assert "the block was left by an exception: ValueError" in recording.warnings


@pytest.mark.parametrize("library", PLAIN)
def test_trainings_follow_one_another_also_after_one_that_failed(library: str, tmp_path: Path) -> None:
    body = """
    callback = Callback('out', warmup=3)
    for FAILS_AT in (8, -1):
        try:
            train(callback, 60)
        except ValueError:
            pass
"""
    ran = run(tmp_path, f"{library}\nif True:{body}")
    assert ran.status == 0, ran.stderr
    assert steps_of(ran, "out-2") == 5
    assert ran.recording("out").traces


@pytest.mark.parametrize("library", PLAIN)
def test_a_short_training_is_recorded_as_far_as_it_goes(library: str, tmp_path: Path) -> None:
    ran = run(tmp_path, f"{library}\ntrain(Callback('out'), 3)")
    assert ran.status == 0, ran.stderr
    assert "the block ended after 3 steps, of which one was profiled" in ran.stderr


@needs("transformers")
def test_evaluations_between_the_steps_do_not_end_any(tmp_path: Path) -> None:
    ran = run(tmp_path, f"{TRAINER}\ntrain(Callback('out', warmup=3), 100, eval_strategy='steps', eval_steps=10)")
    assert ran.status == 0, ran.stderr
    recording = ran.recording()
    assert (recording.step_source, steps_of(ran)) == ("mark", 5)
    assert recording.unprofiled is not None


@needs("transformers")
def test_under_a_supervisor_a_callback_marks_the_steps_of_the_run(tmp_path: Path) -> None:
    ran = run_supervised(tmp_path, f"{TRAINER}\ntrain(Callback('out'), 60)", "--warmup", "3")
    assert (ran.status, ran.recording.step_source) == (0, "mark")
    assert not (tmp_path / "out").exists()


# The end of a process group now and again aborts a rank (torch 2.13, with a plain callback too).
_TORN = "terminate called without an active exception"
_ATTEMPTS = 4


def launched(folder: Path, program: str) -> Ran:
    """The program, in two processes of torchrun; again where torch aborted one of them at its end."""
    end = "\nfrom torch import distributed\nif distributed.is_initialized(): distributed.destroy_process_group()\n"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    for attempt in range(_ATTEMPTS):
        place = folder / str(attempt)
        place.mkdir()
        (place / "program.py").write_text(program + end)
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if _TORN not in done.stderr:
            break
    return Ran(done.stdout, done.stderr, done.returncode, place)


@needs("transformers")
def test_ranks_of_a_trainer_make_one_recording(tmp_path: Path) -> None:
    ran = launched(tmp_path, f"{TRAINER}\ntrain(Callback('out', warmup=3), 60)")
    assert ran.status == 0, ran.stderr
    assert [trace.rank for trace in ran.recording().traces] == [0, 1]


@needs("pytorch_lightning")
def test_ranks_that_lightning_starts_itself_make_one_recording(tmp_path: Path) -> None:
    ran = run(tmp_path, f"{LIGHTNING}\ntrain(Callback('out', warmup=3), 60, devices=2, strategy='ddp')")
    assert ran.status == 0, ran.stderr
    assert [trace.rank for trace in ran.recording().traces] == [0, 1]


@needs("accelerate")
def test_a_tracker_records_the_main_process(tmp_path: Path) -> None:
    (program,) = programs("accelerate")
    ran = launched(tmp_path, program.replace("print(", "if tracker.recording.block: print("))
    assert ran.status == 0, ran.stderr
    assert [trace.rank for trace in read_recording(ran.folder / "bottleneck-runs" / "accelerate").traces] == [0]


@needs("accelerate")
def test_a_tracker_ends_with_the_training_where_nothing_is_logged(tmp_path: Path) -> None:
    (program,) = programs("accelerate")
    ran = run(tmp_path, program.replace('accelerator.log({"loss": loss.item()})', "pass"))
    assert ran.status == 0, ran.stderr
    assert steps_of(ran, "bottleneck-runs/accelerate") == 5


@needs("pytorch_lightning")
def test_the_lightning_of_the_program_is_the_one_whose_callback_it_is() -> None:
    program = """
import sys, types, pytorch_lightning
other = types.ModuleType("lightning.pytorch")
other.Callback = type("Callback", (), {})
sys.modules["lightning.pytorch"] = other
from bottleneck.integrations.lightning import Callback
print(issubclass(Callback, other.Callback), issubclass(Callback, pytorch_lightning.Callback))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True False\n", done.stderr
