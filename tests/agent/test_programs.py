"""Which programs may run: those that lie in an allowed folder once links are followed."""

from pathlib import Path

import pytest

pytest.importorskip("pydantic", reason="it comes with the SDK: pip install mcp")

from bottleneck.agent.programs import AllowedFolders, RefusedError
from bottleneck.cli import _run
from bottleneck.errors import UsageError


@pytest.fixture
def allowed(tmp_path: Path) -> AllowedFolders:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.py").touch()
    (tmp_path / "in-law.py").touch()
    return AllowedFolders([tmp_path / "in"])


def test_a_program_is_found_by_its_path_in_the_folder_or_in_full(tmp_path: Path, allowed: AllowedFolders) -> None:
    by_name, in_full = allowed.program("deep/a.py"), allowed.program(str(tmp_path / "in" / "deep" / "a.py"))
    assert by_name == in_full
    assert (by_name.file, by_name.folder) == (tmp_path / "in" / "deep" / "a.py", tmp_path / "in")


@pytest.mark.parametrize("text", ["../in-law.py", "/etc/passwd", "deep/../../in-law.py"])
def test_a_program_outside_is_refused(allowed: AllowedFolders, text: str) -> None:
    with pytest.raises(RefusedError):
        allowed.program(text)


def test_a_folder_that_is_a_link_counts_as_what_it_links_to(tmp_path: Path, allowed: AllowedFolders) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert AllowedFolders([tmp_path / "link"]).program("deep/a.py") == allowed.program("deep/a.py")


def test_a_file_that_is_not_there_or_no_program_is_wrong_usage(tmp_path: Path, allowed: AllowedFolders) -> None:
    (tmp_path / "in" / "run.sh").touch()
    for text in ("b.py", "run.sh", "deep"):
        with pytest.raises(UsageError) as wrong:
            allowed.program(text)
        assert not isinstance(wrong.value, RefusedError)


def test_a_folder_that_is_none_cannot_be_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["mcp", "--allow-run", str(tmp_path / "missing")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_without_the_package_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bottleneck.agent.server", None)
    assert _run(["mcp"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 3 and error[2] == '  fix: install it: pip install "mcp>=2.3"'
