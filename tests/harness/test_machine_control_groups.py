from pathlib import Path

import pytest

from bottleneck.harness.machine import count_memory_kills, group_memory_left, processor_quota


def groups(folder: Path, files: dict[str, str], line: str = "0::/a/b") -> tuple[Path, Path]:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "membership").write_text(line + "\n")
    return folder / "cgroup", folder / "membership"


@pytest.mark.parametrize(
    ("files", "line", "quota"),
    [
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b", 1.5),
        ({"a/b/cpu.max": "max 100000"}, "0::/a/b", None),
        ({"cpu/a/b/cpu.cfs_quota_us": "200000", "cpu/a/b/cpu.cfs_period_us": "100000"}, "4:cpu:/a/b", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/", None),
        ({"a/b/cpu.max": "nonsense"}, "0::/../a/b", None),
    ],
)
def test_the_strictest_group_sets_the_quota(
    tmp_path: Path, files: dict[str, str], line: str, quota: float | None
) -> None:
    assert processor_quota(*groups(tmp_path, files, line)) == quota


def test_memory_is_what_the_strictest_group_leaves(tmp_path: Path) -> None:
    files = {"a/memory.max": "3000", "a/memory.current": "1000", "a/b/memory.max": "max", "a/b/memory.current": "1"}
    assert group_memory_left(*groups(tmp_path, files)) == 2000


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/a/b", "a/b/memory.events"), ("4:memory:/a", "memory/a/memory.oom_control")],
    ids=["version 2", "version 1"],
)
def test_kills_for_lack_of_memory_are_counted_by_either_version(line: str, file: str, tmp_path: Path) -> None:
    line = f"3:cpuset:/\n{line}"
    assert count_memory_kills(*groups(tmp_path, {}, line)) is None
    assert count_memory_kills(*groups(tmp_path, {file: "oom 3\noom_kill 2\n"}, line)) == 2
