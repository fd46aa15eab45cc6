"""Row 2 of the reliability exam: torch programs give the same bytes and status, and leave a recording."""

import textwrap
from pathlib import Path

import pytest

from bottleneck.schema.recording import read_recording

from .exam_runs import run_plainly, run_quietly
from .exam_torch import EXCEPTIONS, TORCH_SCRIPTS, UNTRACED, program

pytestmark = pytest.mark.process

pytest.importorskip("torch")
RESIDUAL = "import torch\nclass Bottleneck(torch.nn.Identity): pass\n"


@pytest.mark.parametrize("name", TORCH_SCRIPTS)
def test_torch_script_gives_the_same_bytes_and_status_and_a_recording(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "sets_variables_first":
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "program.py").write_text(textwrap.dedent(program(name)).lstrip("\n"))
    if name == "has_a_module_of_our_name":
        (tmp_path / "theirs" / "bottleneck.py").write_text(RESIDUAL)
    plain = run_plainly(tmp_path, "theirs/program.py")
    (tmp_path / "meeting").unlink(missing_ok=True)
    recorded = run_quietly(tmp_path, "theirs/program.py")
    assert (recorded == plain) is (name not in EXCEPTIONS), (recorded, plain)
    assert bool(read_recording(tmp_path / "recording").traces) is (name not in UNTRACED)


@pytest.mark.sample
def test_exceptions_are_few_and_each_has_its_reason() -> None:
    assert len(TORCH_SCRIPTS) >= 22
    assert len(EXCEPTIONS) <= len(TORCH_SCRIPTS) - 20
    assert all(EXCEPTIONS.values()) and all(UNTRACED.values())
