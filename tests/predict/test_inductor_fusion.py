"""The groups that Inductor would fuse."""

from bottleneck.cost.fusion import live_calls, reduction_kernels
from bottleneck.predict.inductor_fusion import fuse, least_bytes, uses_channels_last
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls
from tests.predict.steps import call, convolution, step, use

N = 1 << 20
MIB4 = 4.0 * N


def chain(*names: str) -> StepCalls:
    return step(*(call(name, [use(at, N)], use(at + 1, N)) for at, name in enumerate(names)))


def test_a_chain_of_pointwise_ops_reads_once_and_writes_once() -> None:
    (group,), unknown = fuse(chain("relu", "sigmoid", "tanh"))
    assert group.calls == (0, 1, 2)
    assert sum(kernel.bytes for kernel in group.kernels) == 2 * MIB4
    assert unknown == {}


def test_a_result_that_outlives_the_step_is_written_too() -> None:
    (group,), _ = fuse(step(*chain("relu", "sigmoid").calls, kept=(1,)))
    assert sum(kernel.bytes for kernel in group.kernels) == 3 * MIB4


def test_a_product_between_two_chains_keeps_them_apart() -> None:
    square = [use(at, 1024, 1024) for at in range(5)]
    calls = [
        call("relu", [square[0]], square[1]),
        call("mm", [square[1], square[2]], square[3]),
        call("tanh", [square[3]], square[4]),
    ]
    groups, _ = fuse(step(*calls))
    assert [group.calls for group in groups] == [(0,), (1,), (2,)]
    assert groups[1].kernels[0].kind == "product"


def test_a_reduction_takes_on_what_makes_its_input() -> None:
    calls = [call("relu", [use(0, N)], use(1, N)), call("sum", [use(1, N)], use(2, 1))]
    (group,), _ = fuse(step(*calls))
    assert group.kernels[0].kind == "fused reduction"
    assert group.kernels[0].bytes == MIB4 + 4


def test_two_reductions_of_one_input_read_it_once() -> None:
    calls = [call("sum", [use(0, N)], use(1, 1)), call("amax", [use(0, N)], use(2, 1))]
    (group,), _ = fuse(step(*calls, kept=(1,)))
    assert group.calls == (0, 1)
    assert group.kernels[0].bytes == MIB4 + 8


def test_a_call_does_not_join_a_loop_that_its_other_input_waits_for() -> None:
    big, row = use(0, 1024, 1024), use(2, 1024, 1024)
    calls = [
        call("relu", [big], use(1, 1024, 1024)),
        call("mm", [use(1, 1024, 1024), use(3, 1024, 1024)], row),
        call("add", [use(1, 1024, 1024), row], use(4, 1024, 1024)),
    ]
    groups, _ = fuse(step(*calls))
    assert [group.calls for group in groups] == [(0,), (1,), (2,)]


def test_a_call_whose_result_nothing_uses_is_dropped() -> None:
    calls = [call("relu", [use(0, N)], use(1, N)), call("tanh", [use(0, N)], use(2, N))]
    assert live_calls(step(*calls)) == [False, True]
    groups, _ = fuse(step(*calls))
    assert [group.calls for group in groups] == [(1,)]


def test_a_step_that_leaves_nothing_behind_gives_back_what_it_held_at_its_end() -> None:
    calls = step(call("relu", [use(0, N)], use(1, N)), call("tanh", [use(0, N)], use(2, N)))
    unused, dropped = replace(calls.storages[1], freed=1), replace(calls.storages[2], freed=2)
    assert live_calls(replace(calls, storages=(calls.storages[0], unused, dropped))) == [False, True]


def test_no_fusion_spares_the_input_and_the_result() -> None:
    assert least_bytes(chain("relu", "sigmoid", "tanh")) == 2 * MIB4


def test_a_gather_may_read_less_than_its_table() -> None:
    gather = call("index_select", [use(0, 1000, 64), use(1, 8, dtype="long int")], use(2, 8, 64), ("0",))
    assert least_bytes(step(gather, given=(0, 1))) == 4.0 * 8 * 64


def test_grouped_convolutions_keep_their_layout_and_others_change_it() -> None:
    assert uses_channels_last(step(convolution(64, 128)))
    assert not uses_channels_last(step(convolution(64, 128, groups=4)))
    assert not uses_channels_last(chain("relu"))


def kinds(calls: StepCalls, backend: Backend = "compile") -> list[str]:
    return [kernel.kind for group in fuse(calls, backend)[0] for kernel in group.kernels]


def test_a_convolution_in_channels_last_copies_weight_contiguous_input_and_kept_result() -> None:
    assert kinds(step(convolution(64, 128))) == ["convolution channels last", *["fused pointwise"] * 3]


def test_a_window_of_one_element_is_a_product_only_where_kernels_are_chosen_by_timing() -> None:
    one = step(convolution(64, 128, window=1))
    assert kinds(one)[0] == "convolution channels last"
    assert kinds(one, "max-autotune")[0] == "product"


def test_a_reduction_to_few_results_is_split_and_one_to_many_is_not() -> None:
    assert reduction_kernels(N, 1, is_strided=False) == 2
    assert reduction_kernels(8192, 1, is_strided=False) == 1
    assert reduction_kernels(N, 1024, is_strided=False) == 1
    assert reduction_kernels(128 * 900, 16, is_strided=True) == 3


def test_a_pointwise_call_does_not_join_a_reduction_that_is_split() -> None:
    calls = [call("sum", [use(0, N)], use(1, 1)), call("div", [use(0, N), use(1, 1)], use(2, N))]
    groups, _ = fuse(step(*calls))
    assert [group.kernels[0].launches for group in groups] == [2.0, 1.0]


def test_few_pointwise_results_are_computed_where_they_are_concatenated_and_many_are_copied() -> None:
    def joined(count: int) -> list[float]:
        made = [call("relu", [use(at, N)], use(count + at, N)) for at in range(count)]
        joins = call("cat", [use(count + at, N) for at in range(count)], use(2 * count, count * N))
        groups, _ = fuse(step(*made, joins, given=tuple(range(count))))
        return [kernel.launches for group in groups for kernel in group.kernels]

    assert joined(4) == [1.0]
    assert joined(9) == [*[1.0] * 9, 9.0]


def test_training_leaves_small_channels_in_their_layout() -> None:
    small = step(convolution(32, 32))
    training = replace(small, settings=replace(small.settings, training=True))
    assert uses_channels_last(small)
    assert not uses_channels_last(training)


def decode(weight_type: str) -> StepCalls:
    """A row times the transpose of a weight, which is brought to the type of the row first."""
    narrow = replace(use(1, 4096, 4096), type=weight_type)
    return step(
        call("_to_copy", [narrow], use(2, 4096, 4096)),
        call("mm", [use(0, 1, 4096), use(2, 4096, 4096)], use(3, 1, 4096)),
    )


def test_a_compiler_that_tunes_reads_narrow_weights_of_a_product_with_one_row_as_they_are() -> None:
    (group,), _ = fuse(decode("signed char"), "max-autotune")
    assert group.calls == (0, 1) and group.kernels[0].kind == "vector product"
    assert group.kernels[0].bytes == 4096 * 4096 + 2 * 4 * 4096


def test_without_tuning_or_with_several_rows_the_product_is_one_of_the_library() -> None:
    groups, _ = fuse(decode("signed char"), "compile")
    assert [group.kernels[0].kind for group in groups] == ["fused pointwise", "product"]
    several = step(call("mm", [use(0, 16, 4096), use(1, 4096, 4096)], use(2, 16, 4096)))
    assert [group.kernels[0].kind for group in fuse(several, "max-autotune")[0]] == ["product"]
