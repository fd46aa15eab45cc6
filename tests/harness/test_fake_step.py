from collections import Counter
from pathlib import Path

import pytest
import torch

from bottleneck.cost import FORMULAS
from bottleneck.cost.call import parse_call
from bottleneck.errors import UsageError, WorkloadError
from bottleneck.harness.fake_step import fake_steps
from bottleneck.harness.target import make_program, with_assumptions
from bottleneck.schema.step_calls import BEFORE_THE_STEP, StepCalls

pytestmark = pytest.mark.process

NETWORK = """
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 16 * 16, 10)

    def forward(self, images):
        return self.head(torch.relu(self.norm(self.stem(images))).flatten(1))
"""

TRAINING = (
    NETWORK
    + """
def workload(batch_size=4, device="cpu"):
    torch.manual_seed(0)
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch_size, 3, 16, 16, device=device)
    labels = torch.randint(0, 10, (batch_size,), device=device)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step
"""
)


def calls_of(folder: Path, text: str, *settings: str, train: bool = False) -> StepCalls:
    (folder / "program.py").write_text(text)
    program = make_program(str(folder / "program.py"), settings=settings, train=train)
    return fake_steps(program, other_sizes=False)[0]


def names(calls: StepCalls) -> list[str]:
    return [call.name.removeprefix("aten::") for call in calls.calls]


def matrix_flops(calls: StepCalls) -> float:
    return sum(
        FORMULAS[call.name](
            parse_call(call.name, call.dims, call.types, call.strides, call.concrete, call.result)
        ).matrix_flops
        for call in calls.calls
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> StepCalls:
    return calls_of(tmp_path_factory.mktemp("training"), TRAINING, "batch_size=6")


def _real_step() -> object:
    scope: dict[str, object] = {}
    exec(TRAINING, scope)
    step = scope["workload"](batch_size=6)  # type: ignore[operator]
    step()
    return step


def test_arithmetic_is_what_torch_counts_in_a_real_step(training: StepCalls) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    step = _real_step()
    counter = FlopCounterMode(display=False)
    with counter:
        step()  # type: ignore[operator]
    assert matrix_flops(training) == counter.get_total_flops() > 0


def test_products_and_activations_are_those_of_a_profiled_step(training: StepCalls) -> None:
    step = _real_step()
    with torch.profiler.profile(record_shapes=True) as profiler:
        step()  # type: ignore[operator]
    same = {"aten::addmm", "aten::mm", "aten::relu", "aten::threshold_backward", "aten::_log_softmax"}
    real = Counter(
        (event.name, str([*map(list, event.input_shapes)])) for event in profiler.events() if event.name in same
    )
    assert Counter((call.name, call.dims) for call in training.calls if call.name in same) == real
    assert len(real) == 6


def test_optimizer_takes_all_parameters_in_one_call_as_on_a_gpu(training: StepCalls) -> None:
    done = [call for call in training.calls if call.phase == "optimizer"]
    assert [call.name for call in done] == ["aten::_foreach_mul_", "aten::_foreach_add_", "aten::_foreach_add_"]
    assert done[0].types.startswith('["TensorList[4]"')
    assert len(done[0].outputs) == 6


def test_backward_calls_belong_to_the_module_and_line_of_their_forward_call(training: StepCalls) -> None:
    lines = TRAINING.splitlines()
    backward = next(call for call in training.calls if call.name == "aten::convolution_backward")
    assert (backward.phase, backward.module) == ("backward", "stem")
    assert backward.source is not None
    file, _, line = backward.source.partition(":")
    assert file == "program.py"
    assert "self.stem(images)" in lines[int(line) - 1]


def test_memory_is_sorted_by_what_it_holds(training: StepCalls) -> None:
    parameters = 4 * (3 * 8 * 9 + 8 + 8 + 8 + 8 * 16 * 16 * 10 + 10)
    assert training.bytes_of("parameter") == parameters
    assert training.bytes_of("gradient") == parameters
    assert training.bytes_of("optimizer state") == parameters
    assert training.bytes_of("buffer") == 2 * 8 * 4 + 8
    assert training.bytes_of("input") == 6 * 3 * 16 * 16 * 4 + 6 * 8
    assert training.bytes_of("activation") == 0
    assert any(storage.kind == "activation" and storage.created >= 0 for storage in training.storages)


def test_calls_name_the_memory_that_they_share(training: StepCalls) -> None:
    stem, norm = training.calls[0], next(call for call in training.calls if call.name == "aten::native_batch_norm")
    assert stem.outputs[0].storage == norm.inputs[0].storage
    written = training.storages[norm.outputs[0].storage or 0]
    assert (written.bytes, written.created) == (6 * 8 * 16 * 16 * 4, training.calls.index(norm))
    assert training.storages[stem.inputs[0].storage or 0].created == BEFORE_THE_STEP


def test_batch_size_and_settings_of_the_program_are_told(training: StepCalls) -> None:
    assert training.batch_size == 6
    assert training.settings.training
    assert training.settings.matmul_allow_tf32 is False
    assert training.settings.cudnn_allow_tf32 is True
    assert training.settings.channels_last is False
    assert training.host_ops > len(training.calls)


def test_program_may_ask_for_a_cuda_device(tmp_path: Path, training: StepCalls) -> None:
    text = TRAINING.replace('device="cpu"', 'device="cuda" if torch.cuda.is_available() else "none"')
    assert names(calls_of(tmp_path, text, "batch_size=6")) == names(training)


ATTENTION = """
import torch
from torch.nn import functional as F

def workload():
    half = [torch.randn(2, 4, 16, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    full = [torch.randn(2, 4, 16, 64) for _ in range(3)]
    odd = [torch.randn(2, 4, 16, 63) for _ in range(3)]
    mask = torch.ones(16, 16, dtype=torch.bool)

    def step():
        F.scaled_dot_product_attention(*half, is_causal=True).sum().backward()
        F.scaled_dot_product_attention(*full)
        F.scaled_dot_product_attention(*half, attn_mask=mask)
        F.scaled_dot_product_attention(*odd)
        with torch.inference_mode():
            F.scaled_dot_product_attention(*half)
        F.dropout(full[0])

    return step
"""


def test_attention_and_dropout_are_those_of_a_gpu(tmp_path: Path) -> None:
    found = [
        name
        for name in names(calls_of(tmp_path, ATTENTION))
        if "attention" in name or name in {"bmm", "native_dropout"}
    ]
    assert found == [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention",
        "bmm",
        "bmm",
        "_scaled_dot_product_flash_attention",
        "native_dropout",
    ]


MIXED = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Linear(8, 8))

def workload():
    values = torch.randn(4, 8)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(values).sum()

    return step
"""


def test_autocast_casts_what_it_casts_on_a_gpu(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, MIXED)
    kinds = {call.name.removeprefix("aten::"): call for call in calls.calls}
    assert kinds["addmm"].outputs[0].type == "c10::BFloat16"
    assert kinds["native_layer_norm"].outputs[0].type == "float"
    assert kinds["_softmax"].outputs[0].type == "float"
    assert kinds["sum"].outputs[0].type == "float"
    assert calls.settings.autocast == ("bfloat16",)


RECURRENT = """
import torch
from torch import nn

model = nn.LSTM(8, 16, num_layers=2, batch_first=True)
inputs = (torch.randn(4, 10, 8),)
"""


def test_recurrent_layer_is_one_call_each_way(tmp_path: Path) -> None:
    found = names(calls_of(tmp_path, RECURRENT, train=True))
    assert found.count("_cudnn_rnn") == found.count("_cudnn_rnn_backward") == 1
    assert not {"addmm", "mm", "sigmoid"} & set(found)


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=16, shuffle=True)
total = 0.0
for values, wanted in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(values), wanted)
    loss.backward()
    optimizer.step()
    total += loss.item()
    print(f"{loss.item():.3f}")
raise SystemExit("the script went on to its end")
"""


def test_script_ends_after_its_third_step_whose_read_numbers_wait(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, SCRIPT)
    waits = [call for call in calls.calls if call.waits]
    assert [call.name for call in waits] == ["aten::_local_scalar_dense"] * 2
    assert waits[0].source == "program.py:15"
    assert names(calls).count("addmm") == 1
    assert calls.batch_size == 16


DECIDES = """
import torch

def workload():
    values = torch.randn(4)

    def step():
        {line}

    return step
"""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("return 1 if values.sum() > 0 else 2", "a tensor decides what the program does"),
        ("return 1 if values.sum().item() > 0 else 2", "decides what the program does"),
        ("return 1 if values.tolist()[0] > 0 else 2", "decides what the program does"),
        ("return values.cpu().numpy()", "as an array of NumPy"),
        ("return values.nonzero()", "the size of the result of aten.nonzero.default is known only when it runs"),
    ],
)
def test_step_that_depends_on_its_data_is_refused_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"depends on values of its data at program.py:8") as refusal:
        calls_of(tmp_path, DECIDES.format(line=line))
    assert why in refusal.value.why
    assert "bottleneck predict TRACE" in refusal.value.fix


@pytest.mark.parametrize("value", ["values.sum() > 0", "values.sum().item() > 0", "values.isnan().any()"])
def test_a_branch_goes_the_way_that_is_assumed(tmp_path: Path, value: str) -> None:
    source = DECIDES.format(line=f"return values.exp().log() if {value} else values.sum()")
    (tmp_path / "program.py").write_text(source)
    made = make_program(str(tmp_path / "program.py"))
    names = {}
    for truth in ("true", "false"):
        step = fake_steps(with_assumptions(made, [f"program.py:8={truth}"]), other_sizes=False)[0]
        names[truth] = [call.name for call in step.calls]
        assert f"the condition at program.py:8 was taken to be {truth}" in step.notes
    assert names["true"][-2:] == ["aten::exp", "aten::log"] and names["false"][-1] == "aten::sum"
    with pytest.raises(UsageError, match="depends on values") as refusal:
        fake_steps(with_assumptions(made, ["program.py:99=true"]), other_sizes=False)
    assert "--assume program.py:8=true" in refusal.value.fix


@pytest.mark.parametrize("text", ["program.py=true", "program.py:8", "program.py:8=maybe", "8=true"])
def test_an_assumption_without_line_or_truth_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "program.py").write_text(TRAINING)
    with pytest.raises(UsageError, match="is no line with true or false"):
        with_assumptions(make_program(str(tmp_path / "program.py")), [text])


SCALES = """
import torch

model = torch.nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(4, 16, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_scaler_of_gradients_is_taken_to_find_no_overflow(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, SCALES)
    assert {"_amp_foreach_non_finite_check_and_unscale_", "_foreach_add_"} <= set(names(calls))
    assert [call.source for call in calls.calls if call.waits] == ["program.py:12"]
    assert "no gradient overflows: GradScaler takes every step of its optimizer" in calls.notes


def test_program_that_fails_is_told_by_what_it_raised(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="under fake tensors") as failure:
        calls_of(tmp_path, DECIDES.format(line="raise RuntimeError('no such layer')"))
    assert "no such layer" in failure.value.why


def test_model_needs_no_memory_for_its_weights(tmp_path: Path) -> None:
    text = "import torch\nmodel = torch.nn.Linear(10**6, 10**6)\ninputs = (torch.randn(1, 10**6),)\n"
    calls = calls_of(tmp_path, text)
    assert calls.bytes_of("parameter") == 4 * (10**12 + 10**6)
    assert names(calls) == ["addmm"]


def test_same_network_is_read_as_a_bare_model(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, NETWORK + "\nmodel = Network()\ninputs = (torch.randn(5, 3, 16, 16),)\n")
    assert calls.batch_size == 5
    assert not calls.settings.training
    assert calls.bytes_of("gradient") == 0


LOADING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
model = torch.nn.Linear(256, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in DataLoader(TensorDataset(torch.randn(64, 256), torch.zeros(64, dtype=torch.long)), batch_size=8):
    images, labels = images.to(device, non_blocking=True), labels.cuda()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images.to(device)), labels).backward()
    optimizer.step()
"""


def test_batch_that_a_script_moves_to_the_device_is_counted_once(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, LOADING)
    assert calls.copied_bytes == 8 * 256 * 4 + 8 * 8
    assert calls.left_out == "the work of its data loader"


def test_step_without_loader_and_copies_leaves_nothing_out(training: StepCalls) -> None:
    assert training.copied_bytes is None
    assert training.left_out == ""


def test_data_set_of_a_loader_takes_no_memory_of_the_device(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, LOADING.replace("randn(64, 256)", "randn(4096, 256)").replace("zeros(64", "zeros(4096"))
    assert sum(storage.bytes for storage in calls.storages) < 4096 * 256 * 4


CUSTOM = """
import torch

@torch.library.custom_op("mine::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

class Network(torch.nn.Module):
    def forward(self, values):
        return double(values)

model, inputs = Network(), (torch.randn(4, 4),)
"""


def test_custom_op_without_a_fake_version_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fake tensors do not have at program.py:10") as refusal:
        calls_of(tmp_path, CUSTOM)
    assert "mine::double" in refusal.value.why
    assert "register_fake" in refusal.value.fix


def test_script_without_its_arguments_is_told_where_they_stand(tmp_path: Path) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', required=True)\n"
    with pytest.raises(WorkloadError) as failure:
        calls_of(tmp_path, text + "parser.parse_args()\n")
    assert "its own arguments stand behind --" in failure.value.fix


DRAWS = """
import torch

def workload(device="cuda", makes="host", reads=False):
    model = torch.nn.Linear(512, 512).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=makes == "fused" or None)

    def step():
        x = torch.randn(64, 512, device=None if makes == "host" else device)
        x = (x / 2).to(device)
        mask = torch.ones(512, 512).tril().to(device)
        y = (model(x) @ mask).to(device)
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""


def on_host(calls: StepCalls) -> set[str]:
    return {call.name.removeprefix("aten::") for call in calls.calls if call.on_host}


def test_what_a_step_makes_before_it_moves_to_the_device_is_work_of_the_host(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, DRAWS)
    assert on_host(calls) == {"randn", "div", "ones", "tril", "_foreach_add_"}
    assert {"addmm", "mm"} <= set(names(calls)) - on_host(calls)
    assert calls.copied_bytes == 4 * (64 * 512 + 512 * 512)


def test_what_is_made_on_the_device_or_moved_nowhere_is_no_work_of_the_host(tmp_path: Path) -> None:
    assert on_host(calls_of(tmp_path, DRAWS, "makes=device")) == {"ones", "tril", "_foreach_add_"}
    assert "_foreach_add_" not in on_host(calls_of(tmp_path, DRAWS, "makes=fused"))
    assert on_host(calls_of(tmp_path, DRAWS, "device=cpu")) == {"_foreach_add_"}


RETURNS = """
import torch
from torch import nn

def workload(way="cpu"):
    model = nn.Linear(256, 512)
    batch = torch.zeros(64, 256)

    def step():
        result = model(batch.to("cuda"))
        if way == "cpu":
            return result.cpu()
        batch.cpu(), torch.zeros(8).cpu(), result.to(batch.device)
        return result

    return step
"""


@pytest.mark.parametrize(("way", "size"), [("cpu", 64 * 512 * 4), ("none", 0)])
def test_results_that_come_back_to_the_host_are_counted_and_waited_for(tmp_path: Path, way: str, size: int) -> None:
    calls = calls_of(tmp_path, RETURNS, f"way={way}")
    assert calls.returned_bytes == size
    assert any(call.waits for call in calls.calls) == (size > 0)
