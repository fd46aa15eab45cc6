import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.errors import TraceError, UsageError
from bottleneck.gate.lockfile import kept, lock_text, read_lock, read_lock_at, write_lock
from bottleneck.schema.counters import COUNTERS, Acceptance, Anchor, Counts, Fingerprint, Lock, Site
from tests.experiment.clones import commit, git

LOCK = Lock(
    name="bench-train",
    program=("bench/train.py",),
    counts=Counts(
        values={"ops": 2629, "launches": 303, "syncs": 0, "peak_bytes": 9680904},
        fingerprint=Fingerprint(
            portable={"torch": "2.13", "compiled": True, "world_size": 1},
            backend={"sm": "9.0"},
            host={"cpu": "Xeon", "clock": 2.5},
        ),
        unknown={"recompiles": "nothing was compiled"},
        unstable={"allocations": "8..10: DataLoader prefetch"},
        ops={"aten::addmm": 24},
        modules={"decoder.0.attn": {"ops": 61, "launches": 9}},
        kernels={"gemm": 24},
        sites=(
            Site("train.py", 57, "loss.backward()", {"ops": 9}, {"aten::mm": 3}),
            Site("train.py", 9, "", {"ops": 2}),
        ),
        input_sha="9f2c41d0",
        steps=5,
        runs=2,
    ),
    anchor=Anchor("v1.2", {"launches": 300}),
    accepted=(Acceptance("2026-09-30", "77aa01b", "launches", 300, 303, "per-head norm"),),
)

names = st.text(min_size=1, max_size=12).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text))
texts = names | st.just("")
counts = st.integers(0, 2**63 - 1)
values = st.dictionaries(st.sampled_from(sorted(COUNTERS)), counts, max_size=4)
# A lock-file adds up the counts of lines with the same text; the sum of four has to fit too.
line_counts = st.dictionaries(st.sampled_from(sorted(COUNTERS)), st.integers(0, 2**61 - 1), max_size=4)
facts = st.dictionaries(
    names, names | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False), max_size=3
)
sites = st.builds(
    Site, file=names, line=st.integers(1, 10**6), text=texts | st.sampled_from([":5", "::5", "x"]), counts=line_counts
)
locks = st.builds(
    Lock,
    name=texts,
    program=st.lists(texts, max_size=2).map(tuple),
    counts=st.builds(
        Counts,
        values=values,
        fingerprint=st.builds(Fingerprint, facts, facts, facts),
        unknown=st.dictionaries(names, texts, max_size=2),
        unstable=st.dictionaries(names, texts, max_size=2),
        ops=st.dictionaries(names, counts, max_size=2),
        modules=st.dictionaries(texts, values, max_size=2),
        kernels=st.dictionaries(names, counts, max_size=2),
        sites=st.lists(sites, max_size=4).map(tuple),
        input_sha=texts,
        steps=counts,
        runs=counts,
    ),
    anchor=st.none() | st.builds(Anchor, texts, values),
    accepted=st.lists(st.builds(Acceptance, texts, texts, texts, counts, counts, texts), max_size=2).map(tuple),
)


def read(text: str, tmp_path: Path) -> Lock:
    path = tmp_path / "a.lock.toml"
    path.write_bytes(text.encode())
    return read_lock(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("locks")


@given(lock=locks)
def test_what_is_read_is_what_the_file_keeps_of_what_was_written(folder: Path, lock: Lock) -> None:
    assert read(lock_text(lock), folder) == kept(lock)


@given(lock=locks)
def test_a_lock_that_was_read_is_written_as_it_stood(folder: Path, lock: Lock) -> None:
    text = lock_text(lock)
    assert lock_text(read(text, folder)) == text


def test_every_counter_op_module_and_source_line_has_a_line_of_its_own() -> None:
    lines = lock_text(LOCK).splitlines()
    assert "launches = 303" in lines
    assert "peak_bytes = 9680904" in lines
    assert '"aten::addmm" = 24' in lines
    assert '"decoder.0.attn" = { launches = 9, ops = 61 }' in lines
    assert '"loss.backward()" = { ops = 9 }' in lines
    assert '":9" = { ops = 2 }' in lines


def test_one_counter_more_changes_one_line() -> None:
    more = replace(LOCK, counts=replace(LOCK.counts, values={**LOCK.counts.values, "launches": 304}))
    before, after = lock_text(LOCK).splitlines(), lock_text(more).splitlines()
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ("launches = 303", "launches = 304")
    ]


def test_a_line_that_moved_changes_nothing() -> None:
    site = LOCK.counts.sites[0]
    moved = replace(LOCK.counts, sites=(replace(site, line=58), *LOCK.counts.sites[1:]))
    assert lock_text(replace(LOCK, counts=moved)) == lock_text(LOCK)


def test_lines_with_one_text_in_one_file_are_one() -> None:
    twice = replace(
        LOCK.counts, sites=(Site("a.py", 3, "x.item()", {"syncs": 1}), Site("a.py", 8, "x.item()", {"syncs": 2}))
    )
    assert kept(replace(LOCK, counts=twice)).counts.sites == (Site("a.py", 0, "x.item()", {"syncs": 3}),)


def test_the_order_of_what_was_counted_does_not_show() -> None:
    back = replace(
        LOCK.counts, values=dict(reversed(LOCK.counts.values.items())), sites=tuple(reversed(LOCK.counts.sites))
    )
    assert lock_text(replace(LOCK, counts=back)) == lock_text(LOCK)


def test_no_time_stands_in_the_file() -> None:
    assert not [key for key in tomllib.loads(lock_text(LOCK))["counters"] if key.endswith(("_us", "_ms", "_s"))]


BROKEN = {
    "a text for a number": ("launches = 303", 'launches = "303"', "counters.launches"),
    "a negative number": ("launches = 303", "launches = -1", "counters.launches"),
    "true for a number": ("launches = 303", "launches = true", "counters.launches"),
    "a number beyond 63 bits": ("launches = 303", f"launches = {2**63}", "counters.launches"),
    "a number of thousands of digits": ("launches = 303", f"launches = {'9' * 9000}", "is not valid"),
    "a counter that nobody knows": ("launches = 303", "lanches = 303", "launches"),
    "a key that nobody knows": ('workload = "bench-train"', 'workloads = "bench-train"', "workload"),
    "a table for a text": ('workload = "bench-train"', "workload = {}", "workload"),
    "a module that is a number": ('"decoder.0.attn" = { launches = 9, ops = 61 }', '"decoder.0.attn" = 9', "decoder"),
    "a line that is a text": ('"loss.backward()" = { ops = 9 }', '"loss.backward()" = "x"', "backward"),
    "a fact that is a list": ('sm = "9.0"', "sm = [9, 0]", "fingerprint.backend.sm"),
    "a fact that is no number": ('sm = "9.0"', "sm = nan", "fingerprint.backend.sm"),
    "an acceptance without a reason": ('reason = "per-head norm"', "", "accepted[0].reason"),
    "an anchor without a commit": ('commit = "v1.2"', "", "anchor.commit"),
    "deep nesting": ("launches = 303", f"launches = {'[' * 100_000}", "is not valid"),
    "deep nesting that closes": ("launches = 303", f"launches = {'[' * 400}{']' * 400}", "is not valid"),
    "a key of thousands of parts": ("launches = 303", f"{'a.' * 5000}b = 1", "over 100 parts"),
    "a key of thousands of quoted parts": ("launches = 303", '"a".' * 5000 + "b = 1", "over 100 parts"),
    "no TOML": ("launches = 303", "launches is 303", "is not valid TOML"),
    "a key twice": ("launches = 303", "launches = 303\nlaunches = 304", "is not valid TOML"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_reported_with_its_name_the_place_and_what_to_do(name: str, tmp_path: Path) -> None:
    old, new, place = BROKEN[name]
    text = lock_text(LOCK)
    assert old in text
    with pytest.raises(TraceError) as caught:
        read(text.replace(old, new, 1), tmp_path)
    assert "a.lock.toml" in caught.value.what
    assert place in f"{caught.value.what} {caught.value.why}"
    assert "gate --update" in caught.value.fix
    assert len(caught.value.what) + len(caught.value.why) < 1200


def test_texts_may_hold_as_many_dots_and_quotes_as_they_like(tmp_path: Path) -> None:
    odd = replace(LOCK, accepted=(replace(LOCK.accepted[0], reason='it\'s "so" \\ ' + ". ' " * 500),))
    assert read(lock_text(odd), tmp_path).accepted == odd.accepted


def test_an_unresolved_merge_is_called_one(tmp_path: Path) -> None:
    text = lock_text(LOCK).replace(
        "launches = 303", "<<<<<<< HEAD\nlaunches = 303\n=======\nlaunches = 304\n>>>>>>> topic"
    )
    with pytest.raises(TraceError, match="unresolved merge"):
        read(text, tmp_path)


def test_a_line_of_the_program_that_looks_like_a_merge_is_none(tmp_path: Path) -> None:
    odd = replace(LOCK.counts, sites=(Site("a.py", 0, "\u2028<<<<<<< HEAD", {"ops": 1}),))
    assert read(lock_text(replace(LOCK, counts=odd)), tmp_path).counts.sites == odd.sites


@pytest.mark.parametrize(("schema", "word"), [(2, "a later"), (0, "an earlier")])
def test_a_file_of_another_schema_says_which_version_it_is_for(schema: int, word: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read(lock_text(LOCK).replace("schema = 1", f"schema = {schema}\nother = 1"), tmp_path)
    assert f"schema {schema}" in caught.value.what
    assert word in caught.value.why


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    assert read(lock_text(LOCK).replace("\n", "\r\n"), tmp_path) == kept(LOCK)


def test_a_file_that_is_not_there_is_an_error_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_lock(tmp_path / "none.lock.toml")
    assert "gate --update" in caught.value.fix


def test_writing_makes_the_folder_and_leaves_nothing_else_in_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.lock.toml"
    write_lock(path, LOCK)
    write_lock(path, LOCK)
    assert read_lock(path) == kept(LOCK)
    assert [each.name for each in path.parent.iterdir()] == ["a.lock.toml"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a.lock.toml").symlink_to(tmp_path / "precious")
    write_lock(tmp_path / "a.lock.toml", LOCK)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_place_that_takes_no_file_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        write_lock(tmp_path / "file" / "a.lock.toml", LOCK)


WRITER = """
import sys
from pathlib import Path
from bottleneck.schema.counters import Counts, Fingerprint, Lock
from bottleneck.gate.lockfile import write_lock
lock = Lock(sys.argv[2], (), Counts({}, Fingerprint(), ops={f"op{n}": n for n in range(2000)}))
for _ in range(30):
    write_lock(Path(sys.argv[1]), lock)
"""


def test_two_jobs_that_write_at_once_leave_a_whole_file_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "a.lock.toml"
    write_lock(path, LOCK)
    jobs = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("one", "two")]
    seen = {read_lock(path).name}
    while any(job.poll() is None for job in jobs):
        seen.add(read_lock(path).name)
    assert [job.returncode for job in jobs] == [0, 0]
    assert seen & {"one", "two"}
    assert list(tmp_path.iterdir()) == [path]


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def lock(ops: int) -> Lock:
    return Lock("net", ("net.py",), Counts({"ops": ops}, Fingerprint()))


@needs_git
def test_the_lock_file_of_a_commit_is_read_and_not_that_of_now(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    path = tmp_path / "sub" / ".bottleneck" / "net.lock.toml"
    empty = commit(tmp_path, "nothing")
    write_lock(path, lock(3))
    first = commit(tmp_path, "lock")
    path.write_text("broken")
    broken = commit(tmp_path, "broken")
    write_lock(path, lock(4))
    assert read_lock_at(first, path) == kept(lock(3))
    assert read_lock_at(empty, path) is None
    assert read_lock_at(broken, path) is None
    assert read_lock_at("", path) is None


@needs_git
def test_a_lock_file_that_is_a_link_to_elsewhere_is_that_of_the_commit(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "--quiet")
    write_lock(root / "net.lock.toml", lock(3))
    first = commit(root, "lock")
    (root / "net.lock.toml").unlink()
    (root / "net.lock.toml").symlink_to(tmp_path / "elsewhere")
    assert read_lock_at(first, root / "net.lock.toml") == kept(lock(3))


@needs_git
def test_outside_of_a_clone_there_is_none(tmp_path: Path) -> None:
    assert read_lock_at("HEAD", tmp_path / "net.lock.toml") is None


def test_a_counter_that_was_taken_out_by_hand_is_known_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "net.lock.toml"
    write_lock(path, lock(3))
    assert read_lock(path).removed == ()
    path.write_text(re.sub(r"(?m)^ops = \d+\n", "", path.read_text()))
    assert read_lock(path).removed == ("ops",)
    # Lock-files of the first version had no list, and held every counter that it knew.
    path.write_text(re.sub(r"(?m)^counted = .*\n", "", path.read_text()))
    assert "ops" in read_lock(path).removed


def test_a_counter_younger_than_a_lock_file_without_a_list_was_not_taken_out(tmp_path: Path) -> None:
    """An upgrade that counts more breaks nobody's gate."""
    path = tmp_path / "net.lock.toml"
    write_lock(path, lock(3))
    path.write_text(re.sub(r"(?m)^(counted = .*|cudagraph_skips = .*)\n", "", path.read_text()))
    assert "cudagraph_skips" not in read_lock(path).removed
