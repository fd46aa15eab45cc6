"""Traces in stores: fsspec's file systems of memory and of files stand for those of the network."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from bottleneck.cli import _run
from bottleneck.errors import TraceError, UsageError
from bottleneck.mapping.rank_reading import DigestFolder, RankReading, stamp
from bottleneck.pipeline import analyse
from bottleneck.report.json_text import to_json
from bottleneck.schema.sources import find_traces
from bottleneck.system import files as remote
from bottleneck.system.files import located
from bottleneck.trace.damage import Damage
from bottleneck.trace.inflate import BLOCK_BYTES, read_blocks
from tests.builders import write_trace
from tests.test_pipeline import gpu_events


@pytest.fixture
def store() -> Iterator[Any]:
    """The store memory://, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


@pytest.fixture
def job(store: Any, tmp_path: Path) -> Path:
    """The address of a job of two hosts."""
    for rank in range(4):
        file = tmp_path / f"{rank}.json"
        write_trace(file, gpu_events(), distributedInfo={"rank": rank, "world_size": 4})
        store.pipe(f"/bucket/job/node-{rank // 2}/{rank}.json", file.read_bytes())
    return located(Path("memory://bucket/job"))


def test_addresses_are_told_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("trace.json", "C:/trace.json", "a b:/x", "/s3:/x"):
        assert located(Path(text)) == Path(text) and isinstance(located(Path(text)), Path)
    assert str(located(Path("memory://bucket/a.json"))) == "memory://bucket/a.json"
    assert str(located(Path("file:///a/b.json"))) == "file:///a/b.json"
    (tmp_path / "memory:").mkdir()
    assert isinstance(located(Path("memory:/")), Path)


def test_ranks_and_hosts_of_a_job_in_a_store_are_found(job: Path) -> None:
    found = [(source.host, str(source.trace)) for source in find_traces(job)]
    assert found == [(f"node-{rank // 2}", f"memory://bucket/job/node-{rank // 2}/{rank}.json") for rank in range(4)]
    analysis = analyse([job])
    assert [rank.rank for rank in analysis.ranks] == [0, 1, 2, 3]
    assert analysis.recording.path == "memory://bucket/job"


def test_a_recording_in_a_store_is_read_with_what_it_states(store: Any) -> None:
    sample = Path("sample_traces/mlp")
    store.put(str(sample), "/bucket/run", recursive=True)
    address = located(Path("memory://bucket/run"))
    assert to_json(analyse([address])) == to_json(analyse([sample])).replace(str(sample), str(address))


def test_names_of_a_listing_are_no_addresses(job: Path, store: Any) -> None:
    store.pipe("/bucket/job/node-0/x::file://etc/hosts.json", b"{}")
    store.pipe("/bucket/job/node-0/..", b"{}")
    asked = {str(source.trace).rpartition("/")[2] for source in find_traces(job / "node-0")}
    assert asked == {"0.json", "1.json"}


def test_links_of_a_listing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    write_trace(tmp_path / "secret.json", gpu_events())
    write_trace(tmp_path / "job" / "0.json", gpu_events())
    (tmp_path / "job" / "1.json").symlink_to(tmp_path / "secret.json")
    found = find_traces(located(Path(f"file://{tmp_path}/job")))
    assert [source.trace.name for source in found] == ["0.json"]


def test_a_file_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(b"[" * (3 * BLOCK_BYTES + 5))
    kind = fsspec.get_filesystem_class("file")
    asked: list[int] = []
    opened = kind.open

    def counting(*args: Any, **options: Any) -> Any:
        found = opened(*args, **options)
        read = found.f.read
        found.read = lambda size: (asked.append(size), read(size))[1]
        return found

    monkeypatch.setattr(kind, "open", counting)
    blocks = list(read_blocks(located(Path(f"file://{file}")), Damage()))
    assert b"".join(blocks) == file.read_bytes()
    assert asked == [BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES, 5, 0]


def test_a_kept_digest_is_used_until_the_file_in_the_store_changes(job: Path, store: Any, tmp_path: Path) -> None:
    reading = RankReading(folder=DigestFolder(tmp_path / "kept"), resumes=True)
    first = analyse([job], reading=reading)
    before = {str(source.trace): stamp(source.trace) for source in find_traces(job)}
    store.pipe("/bucket/job/node-0/1.json", store.cat("/bucket/job/node-0/1.json"))
    after = {str(source.trace): stamp(source.trace) for source in find_traces(job)}
    assert {name for name in before if before[name] != after[name]} == {"memory://bucket/job/node-0/1.json"}
    assert analyse([job], reading=reading) == first
    assert len(list((tmp_path / "kept").iterdir())) == 5


def _lines(error: TraceError | UsageError) -> list[str]:
    assert len(error.lines()) == 3
    return error.lines()


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (FileNotFoundError("bucket/a.json"), "No such file or directory"),
        (PermissionError("Access Denied"), "Permission denied"),
        (RuntimeError("Unable to locate\ncredentials"), "RuntimeError: Unable to locate credentials"),
    ],
)
def test_what_a_store_refuses_is_said_in_three_lines(
    failure: Exception, why: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(type(store), "info", refuse)
    with pytest.raises(TraceError) as caught:
        analyse([located(Path("memory://bucket/a.json"))])
    what, told, fix = _lines(caught.value)
    assert what == "error: cannot read memory://bucket/a.json" and told == f"  why: {why}" and "credentials" in fix


def test_a_store_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match="s3:// needs s3fs") as caught:
        located(Path("s3://bucket/job"))
    assert _lines(caught.value)[2] == "  fix: install it: pip install s3fs"


def test_without_fsspec_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Any:
        raise ImportError("No module named fsspec")

    monkeypatch.setattr(remote, "import_module", absent)
    with pytest.raises(UsageError, match="s3:// needs fsspec") as caught:
        located(Path("s3://bucket/job"))
    assert _lines(caught.value)[2] == "  fix: install it: pip install fsspec"


@pytest.mark.parametrize("address", ["https://host/a.json", "reference://a.json", "zip://a.json", "github://a/b"])
def test_other_file_systems_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="cannot read") as caught:
        located(Path(address))
    assert "s3://" in _lines(caught.value)[1]


def test_chained_file_systems_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot read") as caught:
        located(Path("memory://a.json::https://host/a.json"))
    assert "::" in _lines(caught.value)[1]


def test_a_saved_analysis_in_a_store_is_shown(job: Path, store: Any) -> None:
    analysis = analyse([job])
    store.pipe("/bucket/analysis.json", to_json(analysis).encode())
    assert analyse([located(Path("memory://bucket/analysis.json"))]) == analysis


@pytest.mark.parametrize(
    "words", ["report {0}", "doctor {0}", "whatif {0}", "compare {0} {0}", "predict {0} --device A100"]
)
@pytest.mark.parametrize("what", ["job", "job/node-1", "job/node-1/2.json"])
def test_every_command_reads_from_a_store_what_report_reads(
    words: str, what: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(job) == "memory://bucket/job"
    assert _run(words.format(f"memory://bucket/{what}").split()) == 0, capsys.readouterr().err


def test_compare_reads_a_local_job_with_a_folder_for_each_host(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"job/node-{rank}").mkdir(parents=True)
        file = tmp_path / f"job/node-{rank}/{rank}.json"
        write_trace(file, gpu_events(), distributedInfo={"rank": rank, "world_size": 2})
    assert _run(["compare", str(tmp_path / "job"), str(tmp_path / "job")]) == 0


@pytest.mark.parametrize("stalls", ["info", "ls", "open"])
@pytest.mark.parametrize("command", ["report", "doctor", "whatif"])
def test_a_store_that_stalls_ends_with_a_message(
    stalls: str,
    command: str,
    job: Path,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(type(store), stalls, lambda *_, **__: is_over.wait())
    monkeypatch.setattr(remote, "STALLED_AFTER_S", 0.25)
    try:
        assert _run([command, str(job)]) == 3
    finally:
        is_over.set()
    said = capsys.readouterr()
    assert "the store has not answered for 0.25 s" in said.err + said.out


def test_a_file_that_stalls_while_it_is_read_ends_with_a_message(
    job: Path, store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_over = threading.Event()

    class Stalling:
        def read(self, _: int) -> bytes:
            is_over.wait()
            return b""

        def close(self) -> None:
            pass

    monkeypatch.setattr(type(store), "open", lambda *_, **__: Stalling())
    monkeypatch.setattr(remote, "STALLED_AFTER_S", 0.25)
    try:
        assert _run(["report", f"{job}/node-0/0.json"]) == 3
    finally:
        is_over.set()
    assert "the store has not answered for 0.25 s" in capsys.readouterr().err
