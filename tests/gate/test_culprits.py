from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.gate.culprits import find_culprits
from bottleneck.gate.lockfile import kept
from bottleneck.gate.source_files import read_below
from bottleneck.schema.counters import Counts, Fingerprint, Lock, Site
from bottleneck.schema.gate_result import Culprit

MODEL = Site("net.py", 10, "x = self.norm(x)", {"ops": 10}, {"aten::layer_norm": 10})
BACKWARD = Site("train.py", 20, "loss.backward()", {"ops": 40}, {"aten::mm": 40})
ITEM = Site(
    "train.py",
    21,
    "seen.append(loss.item())",
    {"ops": 2, "syncs": 1},
    {"aten::item": 1, "aten::_local_scalar_dense": 1},
)


def counts_of(*sites: Site, modules: Mapping[str, Mapping[str, int]] | None = None, **values: int) -> Counts:
    """Counts with all that the lines count, and these counters besides."""
    sums: dict[str, int] = {}
    ops: dict[str, int] = {}
    for site in sites:
        for target, source in ((sums, site.counts), (ops, site.ops)):
            for name, value in source.items():
                target[name] = target.get(name, 0) + value
    return Counts({**sums, **values}, Fingerprint(), ops=ops, modules=modules or {}, sites=sites)


def as_locked(counts: Counts) -> Counts:
    """The counts as they come back from a lock-file."""
    return kept(Lock("net", (), counts)).counts


def culprits(metric: str, before: Counts, after: Counts, **touched: set[int]) -> tuple[Culprit, ...]:
    lines = {file.replace("_py", ".py"): frozenset(numbers) for file, numbers in touched.items()}
    return find_culprits(metric, as_locked(before), after, lines or None)


BEFORE = counts_of(MODEL, BACKWARD)


def test_an_added_item_is_named_with_its_line_and_op() -> None:
    (culprit,) = culprits("syncs", BEFORE, counts_of(MODEL, BACKWARD, ITEM))
    assert culprit.site == ITEM
    assert (culprit.what, culprit.change) == ("sync (aten::item)", 1)
    assert culprit.is_touched is None


def test_an_added_op_comes_before_what_follows_from_it_in_the_backward_pass() -> None:
    relu = Site("net.py", 11, "x = x.relu()", {"ops": 1}, {"aten::relu": 1})
    backward = Site("train.py", 21, "loss.backward()", {"ops": 43}, {"aten::mm": 40, "aten::threshold_backward": 3})
    first, second = culprits("ops", BEFORE, counts_of(MODEL, relu, backward))
    assert (first.site, first.what) == (relu, "op (aten::relu)")
    assert (second.site, second.what, second.change) == (backward, "ops (aten::threshold_backward)", 3)


def test_lines_that_only_moved_are_no_culprits() -> None:
    moved = Site("net.py", 99, MODEL.text, MODEL.counts, MODEL.ops)
    elsewhere = Site("other.py", 3, BACKWARD.text, BACKWARD.counts, BACKWARD.ops)
    assert [each.site for each in culprits("ops", BEFORE, counts_of(moved, elsewhere, ITEM))] == [ITEM]


def test_an_edited_line_grows_by_the_difference_only() -> None:
    edited = Site("net.py", 10, "x = self.norm(x) + 0", {"ops": 11}, {"aten::layer_norm": 10, "aten::add": 1})
    (culprit,) = culprits("ops", BEFORE, counts_of(edited, BACKWARD))
    assert (culprit.site, culprit.change, culprit.what) == (edited, 1, "op (aten::add)")


def test_a_line_that_reads_otherwise_and_counts_the_same_is_no_culprit() -> None:
    renamed = Site("net.py", 10, "y = self.norm(y)", MODEL.counts, MODEL.ops)
    assert [each.site for each in culprits("ops", BEFORE, counts_of(renamed, BACKWARD, ITEM))] == [ITEM]


def test_the_line_that_the_diff_touches_comes_first() -> None:
    first = Site("a.py", 1, "x = f(x)", {"ops": 5}, {"aten::add": 5})
    second = Site("b.py", 1, "y = g(y)", {"ops": 1}, {"aten::mul": 1})
    ranked = culprits("ops", BEFORE, counts_of(MODEL, BACKWARD, first, second), b_py={1})
    assert [(each.site, each.is_touched) for each in ranked] == [(second, True), (first, False)]


def test_of_lines_that_were_there_the_one_that_grew_as_the_counter_did_comes_first() -> None:
    small = Site("a.py", 1, "x = f(x)", {"ops": 5})
    large = Site("b.py", 1, "y = g(y)", {"ops": 5})
    before = counts_of(small, large)
    after = counts_of(Site("a.py", 1, "x = f(x)", {"ops": 7}), Site("b.py", 1, "y = g(y)", {"ops": 14}), ops=12)
    assert [each.change for each in culprits("ops", before, after)] == [2, 9]


def test_of_two_lines_that_read_the_same_the_touched_one_is_named() -> None:
    twice = (ITEM, Site("train.py", 40, ITEM.text, ITEM.counts, ITEM.ops))
    before, after = counts_of(BACKWARD, ITEM), counts_of(BACKWARD, *twice)
    (culprit,) = culprits("syncs", before, after, train_py={21, 40})
    assert culprit.site in twice
    (culprit,) = culprits("syncs", before, after, train_py={40})
    assert (culprit.site, culprit.change) == (twice[1], 1)


CAST = Site("net.py", 30, "x = x.double()", {"ops": 3, "float64_ops": 1}, {"aten::to": 1, "aten::_to_copy": 1})
DOWNSTREAM = [
    Site("net.py", line, f"x = self.layer{line}(x)", {"ops": 5, "float64_ops": 5}, {"aten::addmm": 5})
    for line in (4, 31, 32)
]


def test_the_line_of_the_upcast_is_named_and_not_all_that_goes_on_in_float64() -> None:
    before = counts_of(*(Site(each.file, each.line, each.text, {"ops": 5}, each.ops) for each in DOWNSTREAM))
    (culprit,) = culprits("float64_ops", before, counts_of(CAST, *DOWNSTREAM))
    assert culprit.site == CAST
    assert culprit.what == "float64 op (aten::to)"


def test_an_upcast_without_a_cast_is_the_first_line_that_was_written() -> None:
    made = Site("net.py", 2, "x = torch.from_numpy(rows)", {"ops": 2, "float64_ops": 1}, {"aten::mul": 1})
    before = counts_of(*(Site(each.file, each.line, each.text, {"ops": 5}, each.ops) for each in DOWNSTREAM))
    (culprit,) = culprits("float64_ops", before, counts_of(made, *DOWNSTREAM))
    assert culprit.site == made


def test_float64_from_elsewhere_names_the_lines_that_it_reaches() -> None:
    before = counts_of(*(Site(each.file, each.line, each.text, {"ops": 5}, each.ops) for each in DOWNSTREAM))
    assert len(culprits("float64_ops", before, counts_of(*DOWNSTREAM))) == 3


def test_bytes_to_the_host_are_those_of_the_line_that_copies() -> None:
    copy = Site("train.py", 9, "log(x.cpu())", {"ops": 3, "copies": 1}, {"aten::_to_copy": 1, "aten::copy_": 1})
    (culprit,) = culprits("d2h_bytes", BEFORE, counts_of(MODEL, BACKWARD, copy, d2h_bytes=4096))
    assert (culprit.site, culprit.what) == (copy, "copy (aten::_to_copy)")


def test_a_graph_break_is_at_the_line_that_the_compiler_tells() -> None:
    broken = Site("net.py", 12, "print(x)", {"graph_breaks": 1})
    (culprit,) = culprits("graph_breaks", BEFORE, counts_of(MODEL, BACKWARD, broken))
    assert (culprit.site, culprit.what) == (broken, "graph break")


def test_the_module_is_named_where_one_grew_by_as_much() -> None:
    before = counts_of(MODEL, BACKWARD, modules={"Net": {"ops": 4}, "Net.Norm": {"ops": 9}})
    relu = Site("net.py", 11, "x = x.relu()", {"ops": 1}, {"aten::relu": 1})
    one = counts_of(MODEL, BACKWARD, relu, modules={"Net": {"ops": 4}, "Net.Norm": {"ops": 10}})
    two = counts_of(MODEL, BACKWARD, relu, modules={"Net": {"ops": 5}, "Net.Norm": {"ops": 10}})
    assert culprits("ops", before, one)[0].module == "Net.Norm"
    assert culprits("ops", before, two)[0].module is None


def test_without_lines_the_ops_and_kernels_are_named() -> None:
    before = Counts({"ops": 1, "launches": 1}, Fingerprint(), ops={"aten::mm": 1}, kernels={"gemm": 1})
    after = Counts(
        {"ops": 3, "launches": 2}, Fingerprint(), ops={"aten::mm": 1, "aten::relu": 2}, kernels={"gemm": 1, "relu": 1}
    )
    assert [(each.what, each.change, each.site) for each in culprits("ops", before, after)] == [("aten::relu", 2, None)]
    assert [(each.what, each.change) for each in culprits("launches", before, after)] == [("relu", 1)]


@pytest.mark.parametrize("metric", ["syncs", "ops", "peak_bytes", "recompiles", "graph_breaks", "float64_ops"])
def test_where_nothing_else_grew_nothing_is_named(metric: str) -> None:
    before, after = counts_of(MODEL, BACKWARD, **{metric: 50}), counts_of(MODEL, BACKWARD, **{metric: 60})
    assert culprits(metric, before, after) == ()


def test_an_op_that_has_nothing_to_do_with_it_is_not_named() -> None:
    after = counts_of(MODEL, BACKWARD, Site("a.py", 1, "x.relu()", {"ops": 1}, {"aten::relu": 1}), recompiles=1)
    assert culprits("recompiles", BEFORE, after) == ()
    assert culprits("syncs", BEFORE, after) == ()


def test_at_most_three_are_named() -> None:
    many = [Site("a.py", line, f"x{line}.item()", {"syncs": 1}) for line in range(1, 10)]
    assert len(culprits("syncs", BEFORE, counts_of(*many))) == 3


lines = st.builds(
    Site,
    st.sampled_from(["a.py", "b.py"]),
    st.integers(1, 5),
    st.sampled_from(["", "x", "y = x", "y = x + 1"]),
    st.dictionaries(st.sampled_from(["ops", "syncs", "float64_ops"]), st.integers(1, 5)),
)


@given(
    st.lists(lines, max_size=6), st.lists(lines, max_size=6), st.sampled_from(["ops", "syncs", "float64_ops", "flops"])
)
def test_every_named_line_is_one_of_the_program_and_counts_more_than_before(
    before: list[Site], after: list[Site], metric: str
) -> None:
    found = culprits(metric, counts_of(*before), counts_of(*after))
    assert len(found) <= 3
    for culprit in found:
        assert culprit.site in after
        assert culprit.change > 0


def test_thousands_of_edited_lines_take_no_time_to_speak_of() -> None:
    before = counts_of(*(Site("a.py", n, f"before{n} = g({n})", {"ops": 1}) for n in range(4000)))
    after = counts_of(*(Site("a.py", n, f"after{n} = f({n})", {"ops": 2}) for n in range(4000)))
    assert len(culprits("ops", before, after)) == 3


SOURCE = """\
class Block:
    @cached
    def forward(self, x):
        y = self.linear(x)
        y = (
            y * 1.5
        )
        def inner(z):
            return z + 1
        return x + y

    def other(self, x):
        return x - 1
"""
HEAD = Site("net.py", 3, "def forward(self, x):", {"ops": 3}, {"aten::add": 3})
GROWN = Site("net.py", 3, "def forward(self, x):", {"ops": 6}, {"aten::add": 3, "aten::mul": 3})


@pytest.mark.parametrize(
    ("lines", "named", "text"),
    [
        ({6}, 6, "y * 1.5"),
        ({1, 6, 10}, 6, "y * 1.5"),
        ({10}, 10, "return x + y"),
        ({4}, 3, HEAD.text),  # a call, which has a line of its own
        ({9}, 3, HEAD.text),  # what another function does
        ({13}, 3, HEAD.text),
        ({99}, 3, HEAD.text),
        ({3}, 3, HEAD.text),
    ],
)
def test_an_operator_is_at_the_line_of_its_function_that_the_diff_touches(
    lines: set[int], named: int, text: str
) -> None:
    (culprit,) = find_culprits("ops", counts_of(HEAD), counts_of(GROWN), {"net.py": frozenset(lines)}, lambda _: SOURCE)
    assert culprit.site is not None
    assert (culprit.site.line, culprit.site.text) == (named, text)
    assert culprit.is_touched == (named in lines)


@pytest.mark.parametrize("source", ["", "def f(:", "x\0", "x = " + "(" * 1000, "y = 1\n"])
def test_a_source_that_tells_nothing_leaves_the_head_of_the_function(source: str) -> None:
    (culprit,) = find_culprits("ops", counts_of(HEAD), counts_of(GROWN), {"net.py": frozenset({1})}, lambda _: source)
    assert culprit.site == GROWN


def test_a_decorated_function_begins_at_its_decorator() -> None:
    head, grown = (Site("net.py", 2, "@cached", each.counts, each.ops) for each in (HEAD, GROWN))
    (culprit,) = find_culprits("ops", counts_of(head), counts_of(grown), {"net.py": frozenset({6})}, lambda _: SOURCE)
    assert culprit.site is not None
    assert culprit.site.line == 6


def test_only_files_of_the_program_are_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "net.py").write_text("x = 1\n")
    (tmp_path / "secret.py").write_text("y = 2\n")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "loop.py").symlink_to(root / "loop.py")
    read = read_below(root)
    assert read("net.py") == "x = 1\n"
    for name in ("../secret.py", str(tmp_path / "secret.py"), "link.py", "loop.py", ".", "none.py", "a\0b", "n" * 5000):
        assert read(name) == ""


def test_lines_without_text_are_known_by_the_order_of_what_they_count() -> None:
    before = counts_of(Site("net.py", 10, "", {"ops": 4}), Site("net.py", 11, "", {"ops": 9}))
    put_in = Site("net.py", 10, "", {"ops": 2})
    after = counts_of(put_in, Site("net.py", 11, "", {"ops": 4}), Site("net.py", 12, "", {"ops": 9}))
    assert [(each.site, each.change) for each in culprits("ops", before, after)] == [(put_in, 2)]


def test_a_line_without_text_that_counts_more_where_it_was_grew_by_the_difference() -> None:
    before = counts_of(Site("net.py", 10, "", {"ops": 4}), Site("net.py", 11, "", {"ops": 9}))
    grown = Site("net.py", 11, "", {"ops": 12})
    after = counts_of(Site("net.py", 10, "", {"ops": 4}), grown)
    assert [(each.site, each.change) for each in culprits("ops", before, after)] == [(grown, 3)]


def test_thousands_of_lines_without_text_are_known_by_their_number() -> None:
    before = counts_of(*(Site("a.py", n, "", {"ops": 1}) for n in range(4000)))
    after = counts_of(*(Site("a.py", n, "", {"ops": 2 if n == 7 else 1}) for n in range(4000)))
    assert [each.site.line for each in culprits("ops", before, after) if each.site] == [7]
