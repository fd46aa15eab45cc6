import os
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.harness.target import check_settings, find_form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("def workload(): ...", "workload"),
        ("def workload(): ...\nmodel = inputs = 1", "workload"),
        ("model = 1\ninputs = 2", "model"),
        ("model, inputs = 1, 2", "model"),
        ("model: int = 1\ninputs: int = 2", "model"),
        ("model: int\ninputs = 2", "script"),
        ("model = 1", "script"),
        ("def main():\n    def workload(): ...", "script"),
        ("workload = 3", "script"),
        ("def broken(:", "script"),
        ("", "script"),
    ],
)
def test_form_is_told_from_the_text(text: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(text + "\nraise SystemExit('it was run')\n")
    assert find_form(path) == form


_MODEL = "import torch\nmodel, inputs = make(), data()\n"


@pytest.mark.parametrize(
    "text",
    [
        "for _ in range(9):\n    model(inputs)",
        "with no_grad():\n    print(model(inputs))",
        "loss = f(model(inputs))\nloss.backward()",
        "def train():\n    loss.backward()\nhistory = train()",
        "def main():\n    work(model)\nmain()",
        "def train():\n    loss.backward()\nthread = Thread(target=train)\nthread.start()",
        "def train():\n    loss.backward()\nthread = Thread(target=lambda: train())\nthread.start()",
        "if __name__ == '__main__':\n    trainer.fit(model)",
        "while True:\n    optimizer.step()",
    ],
)
def test_a_script_whose_variables_have_these_names_stays_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_MODEL + text)
    assert find_form(path) == "script"


@pytest.mark.parametrize(
    "text",
    [
        "torch.manual_seed(0)\nmodel.eval()\nprint('made')",
        "for weight in model.parameters():\n    weight.requires_grad_(False)",
        "class Net(Module):\n    def step(self):\n        self.loss.backward()\n        model(inputs)",
        "def train():\n    loss.backward()",
        "if is_available():\n    model = model.cuda()",
    ],
)
def test_a_file_that_only_prepares_a_model_is_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_MODEL + text)
    assert find_form(path) == "model"


def test_a_pipe_is_not_read_away_from_python(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert find_form(path) == "script"


def test_a_missing_file_is_left_to_python(tmp_path: Path) -> None:
    assert find_form(tmp_path / "missing.py") == "script"


WORKLOAD = "def workload(size, batch=4, *, depth=2, width): ..."


def _check(tmp_path: Path, text: str, *settings: tuple[str, str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(text)
    check_settings(path, find_form(path), settings)


def test_settings_that_fit_pass(tmp_path: Path) -> None:
    _check(tmp_path, WORKLOAD, ("size", "1"), ("width", "2"), ("depth", "3"))
    _check(tmp_path, "def workload(**anything): ...", ("size", "1"))


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (WORKLOAD, (("sise", "1"),), "no parameter 'sise'"),
        (WORKLOAD, (("size", "1"),), "needs a value for 'width'"),
        (WORKLOAD, (("width", "1"),), "needs a value for 'size'"),
        ("print()", (("size", "1"),), "needs a workload"),
    ],
)
def test_settings_that_do_not_fit_are_usage_errors(
    text: str, settings: tuple[tuple[str, str], ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        _check(tmp_path, text, *settings)
