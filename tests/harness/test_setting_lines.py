"""The lines of a program that choose threads, dtypes and loaders are found by their words."""

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bottleneck.harness import lines
from bottleneck.harness.setting_lines import setting_lines

_PROGRAM = """import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
class Embedding(torch.nn.Module): pass
table = torch.nn.Embedding(1000, 16)
model = model.half()  # not .double()
x = x.to(torch.bfloat16)
train = DataLoader(rows, batch_size=8)
"""


def test_each_setting_has_its_lines_without_imports_comments_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text(_PROGRAM)
    os.utime(file, (0, 0))  # what was written since the process began is not what it runs
    module = ModuleType("__main__")
    module.__file__ = str(file)
    monkeypatch.setattr(lines, "sys", SimpleNamespace(modules={"__main__": module}))
    assert setting_lines() == {
        "threads": ("train.py:3",),
        "narrow": ("train.py:6", "train.py:7"),
        "loader": ("train.py:8",),
        "embedding": ("train.py:5",),
    }
