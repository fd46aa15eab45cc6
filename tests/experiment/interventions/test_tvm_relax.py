"""The parts of TVM's backend that need no TVM; `test_compilers_backends` runs it where it is installed."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.experiment.interventions import tvm_relax
from bottleneck.experiment.interventions.subject import Missing, NotApplicable
from bottleneck.experiment.interventions.tvm_relax import failure_of_search, target_of

V2 = {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "level"),
    [(set(), "x86-64"), (V2, "x86-64-v2"), (V3, "x86-64-v3"), (V4, "x86-64-v4"), (V4 - {"fma"}, "x86-64-v2")],
)
def test_a_target_has_the_level_of_which_all_instructions_are_there(flags: set[str], level: str) -> None:
    assert target_of(flags, "x86_64", 2) == {"kind": "llvm", "mcpu": level, "num-cores": 2}


def test_a_target_names_instructions_beyond_its_level() -> None:
    assert target_of(V4 | {"avx512_vnni", "avx_vnni"}, "x86_64", 1)["mattr"] == ["+avx512vnni", "+avxvnni"]
    arm = target_of({"asimd", "asimddp", "avx512f"}, "aarch64", 4)
    assert (arm["mcpu"], arm["mattr"]) == ("generic", ["+dotprod", "+neon"])


def test_a_target_of_an_unknown_processor_is_the_least_of_all() -> None:
    assert target_of((), "riscv64", 1) == {"kind": "llvm", "mcpu": "generic", "num-cores": 1}


def test_a_search_that_crashed_says_which_versions_fit() -> None:
    failure = failure_of_search(-11, "")
    assert isinstance(failure, Missing)
    assert "signal 11" in str(failure) and "apache-tvm-ffi<0.1.15" in str(failure)


def test_a_search_that_failed_gives_its_last_line() -> None:
    failure = failure_of_search(1, "Traceback\nValueError: no tasks to tune.\n\n")
    assert isinstance(failure, NotApplicable)
    assert str(failure).endswith("ValueError: no tasks to tune.")
    assert str(failure_of_search(3, "")).endswith("exit status 3")


class _Json:
    """Stands for a TVM whose modules are texts."""

    ir = SimpleNamespace(save_json=str, load_json=str)


def test_what_was_tuned_is_not_tuned_again_in_the_same_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[str]()

    def search(source: Path, output: Path) -> None:
        asked = json.loads(source.read_text())
        searched.append(asked["module"])
        output.write_text(json.dumps({"module": f"tuned {asked['module']}"}))

    monkeypatch.setattr(tvm_relax, "_search", search)
    monkeypatch.setitem(sys.modules, "tvm", _Json)  # type: ignore[arg-type]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert [tvm_relax.tuned(name, {}) for name in ("a", "a", "b")] == ["tuned a", "tuned a", "tuned b"]
    assert searched == ["a", "b"]
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    tvm_relax.tuned("a", {})
    assert searched == ["a", "b", "a"]


def test_a_search_without_end_is_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: Any, timeout: float, **options: Any) -> Any:
        raise subprocess.TimeoutExpired("tvm", timeout)

    monkeypatch.setattr(tvm_relax.subprocess, "run", endless)
    with pytest.raises(NotApplicable, match="was not done"):
        tvm_relax._search(tmp_path / "module.json", tmp_path / "tuned.json")
