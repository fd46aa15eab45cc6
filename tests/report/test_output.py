"""A report reaches its file whole or not at all, and standard output whatever its encoding."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.report import write_text
from bottleneck.report.output import wrap_status, write_bytes, write_status


def test_a_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_text("überall\n", tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "überall\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_report_is_as_readable_for_others_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text("x", tmp_path / "report.md")
    assert (tmp_path / "report.md").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_is_not_there_is_wrong_usage_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*report\.md") as caught:
        write_text("x", tmp_path / "absent" / "report.md")
    assert caught.value.why and caught.value.fix
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_the_file_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write_text("x", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes(b"report", pipe)
    assert os.read(reader, 100) == b"report"
    os.close(reader)
    assert pipe.is_fifo()


def test_standard_output_gets_escapes_for_what_its_encoding_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write_text("a…b\n", None)
    assert raw.getvalue() == b"a\\u2026b\n"


def test_importing_reports_imports_nothing_heavy() -> None:
    probe = (
        "import sys, bottleneck.report; print(*{'pandas', 'numpy', 'matplotlib', 'rich', 'msgspec'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_probe_for_heavy_imports_can_find_one() -> None:
    probe = "import sys, bottleneck.report.plots.roofline_plot; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "True\n"


def test_long_status_lines_wrap_at_words_and_nothing_else_does() -> None:
    status = "bottleneck: the ceilings of this CPU may be too low: other programs kept 1.5 processors busy"
    wrapped = wrap_status(status, 40).split("\n")
    assert len(wrapped) == 3 and max(map(len, wrapped)) <= 40
    assert wrapped[0].startswith("bottleneck: the") and all(line.startswith("  ") for line in wrapped[1:])
    assert " ".join(line.strip() for line in wrapped) == status
    for kept in ("  fix: bottleneck report --repair " + "x" * 60, "COMPARE " + "word " * 20, status[:40]):
        assert wrap_status(kept, 40) == kept
    assert wrap_status(f"COMPUTE\n{status}", 40).split("\n")[0] == "COMPUTE"


def test_a_number_keeps_its_unit_and_a_command_at_the_end_its_words() -> None:
    status = "bottleneck: measure them again, in about 30 s: bottleneck calibrate --device cpu"
    for width in range(45, 80):
        assert "about 30 s: " in wrap_status(status, width).replace("\n  ", " ")
        assert "30 s:" in wrap_status(status, width) and "bottleneck calibrate --device cpu" in wrap_status(
            status, width
        )


def test_a_status_line_stays_one_line_where_no_terminal_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_status("bottleneck: " + "word " * 100 + "end")
    assert capsys.readouterr().err.count("\n") == 1
