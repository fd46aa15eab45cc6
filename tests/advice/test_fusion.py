"""Rules of fusing: chains in trace order, norms, attention by hand, the loss over a vocabulary."""

import math
from pathlib import Path

import pytest

from bottleneck.advice.fusion import (
    find_chains,
    unfused_attention,
    unfused_chain,
    unfused_norm,
    vocabulary_loss,
    written_loss,
)
from bottleneck.devices.match import device_by_name
from bottleneck.predict.price import price_work
from bottleneck.schema.learned_rates import fused_share
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from tests import trace_cache
from tests.advice.cases import case_of
from tests.advice.programs import Call, on_cpu, on_gpu
from tests.analysis.frames import CPU
from tests.builders import Event, frame, kernel, launch, op, step
from tests.predict.steps import call, use
from tests.predict.steps import step as priced_step

N = 25_000_000  # 100 MB of fp32: 10 ms to move once on the CPU of these tests
MS = 1000.0


def mul_(us: float = 20 * MS, numbers: int = N) -> Call:
    return Call("aten::mul_", us, [[numbers], []])


def test_a_chain_in_place_is_worth_all_but_one_pass(tmp_path: Path) -> None:
    draft = unfused_chain(on_cpu(tmp_path, [mul_()] * 8))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.tries == ("compile",)
    assert draft.gain_us.high == pytest.approx(140 * MS, rel=0.01)
    assert draft.gain_us.low == pytest.approx(120 * MS, rel=0.01)  # a fused loop at half of the bandwidth
    assert draft.evidence[0].startswith("1 chain of 8 ops per step, in trace order, take 160 ms")
    assert draft.evidence[1] == "they move 1.60 GB per step; one pass of each needs about 200 MB"
    assert "aten::mul_ in train() (train.py:12): 160 ms per step" in draft.evidence[2]
    assert draft.claims["kernel:0"] == pytest.approx(140 * MS, rel=1e-3)
    assert math.fsum(draft.claims.values()) == pytest.approx(draft.gain_us.high)


def test_gains_are_those_of_the_unprofiled_step(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, [mul_()] * 8, unprofiled=Timing(80 * MS, 79 * MS, 81 * MS, 50))
    draft = unfused_chain(case)
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(70 * MS, rel=0.01)


def test_the_backward_pass_may_need_what_lies_between_ops_out_of_place(tmp_path: Path) -> None:
    calls = [Call("aten::mul", 20 * MS, [[N], []])] * 4
    backward = Call("autograd::engine::evaluate_function: MulBackward0", 1, [])
    inference, training = (
        unfused_chain(on_cpu(tmp_path / name, [*calls, *more])) for name, more in (("a", []), ("b", [backward]))
    )
    assert inference is not None
    assert training is not None
    assert inference.gain_us is not None
    assert training.gain_us is not None
    assert inference.gain_us.high == pytest.approx(60 * MS, rel=0.01)  # neither written nor read again
    assert training.gain_us.high == pytest.approx(60 * MS, rel=0.01)
    assert inference.gain_us.low == pytest.approx(40 * MS, rel=0.01)  # a loop at half of the bandwidth
    assert training.gain_us.low == 0  # still written


def test_new_pages_of_results_in_between_are_saved_with_them(tmp_path: Path) -> None:
    device = replace(CPU, fresh_bytes_per_s=1e9)
    draft = unfused_chain(on_cpu(tmp_path, [Call("aten::mul", 120 * MS, [[N], []])] * 3, device=device))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(360 * MS - 120 * MS, rel=0.01)  # the last result stays new
    assert draft.gain_us.low == pytest.approx(220 * MS, rel=0.01)


def test_pages_that_are_dearer_than_calibrated_are_not_taken_for_arithmetic(tmp_path: Path) -> None:
    device = replace(CPU, fresh_bytes_per_s=1e9)
    calls = [Call("aten::mul", 420 * MS, [[N], []]), Call("aten::tanh", 440 * MS, [[N]])] * 2
    draft = unfused_chain(on_cpu(tmp_path, [*calls, calls[0]], device=device))
    assert draft is not None
    assert draft.gain_us is not None
    # Kept: one pass, the last result's pages, and at least half of the 20 ms that each tanh takes beyond its pages.
    assert draft.gain_us.high == pytest.approx((3 * 420 + 2 * 440 - 20 - 400 - 20) * MS, rel=0.01)


def test_arithmetic_of_special_functions_stays(tmp_path: Path) -> None:
    draft = unfused_chain(on_cpu(tmp_path, [mul_(), Call("aten::tanh_", 120 * MS, [[N]])]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high < 140 * MS - 20 * MS - 49 * MS


@pytest.mark.parametrize(
    "calls",
    [
        [mul_()],
        [mul_(), mul_(numbers=2 * N)],
        [mul_(), Call("aten::mm", 400 * MS, [[2000, 2000], [2000, 2000]]), mul_()],
        [Call("aten::_foreach_mul_", 20 * MS, [[N], []])] * 4,
    ],
    ids=["one op", "other sizes", "a product between", "the optimizer's own"],
)
def test_no_chain_no_advice(tmp_path: Path, calls: list[Call]) -> None:
    assert unfused_chain(on_cpu(tmp_path, calls)) is None


def test_the_optimizer_is_left_to_the_rules_about_optimizers(tmp_path: Path) -> None:
    assert unfused_chain(on_cpu(tmp_path, [mul_()] * 4, marks=["Optimizer.step#Adam.step"])) is None


def test_a_chain_does_not_reach_over_the_end_of_a_step(tmp_path: Path) -> None:
    assert unfused_chain(on_cpu(tmp_path, [mul_()], steps=5)) is None


def test_a_chain_with_a_norm_is_reported_as_one(tmp_path: Path) -> None:
    rows = [[5000, 5000]]
    calls = [
        Call("aten::add", 30 * MS, [*rows, *rows, []]),
        Call(
            "aten::native_layer_norm",
            40 * MS,
            [*rows, [], [5000], [5000], []],
            more={"concrete": ["", "[5000]", *[""] * 3]},
        ),
        Call("aten::gelu", 60 * MS, rows),
    ]
    case = on_cpu(tmp_path, calls)
    draft = unfused_norm(case)
    assert draft is not None
    assert draft.slug == "unfused-norm"
    assert draft.gain_us is not None
    assert draft.gain_us.low == 0  # ATen's norm has wider vectors than a compiled one
    assert 50 * MS < draft.gain_us.high < 130 * MS
    assert unfused_chain(case) is None
    assert unfused_norm(on_cpu(tmp_path / "plain", [mul_()] * 4)) is None


def dropout_draft(tmp_path: Path, threads: int) -> float:
    calls = [Call("aten::bernoulli_", 80 * MS, [[N], [], []]), Call("aten::div_", 20 * MS, [[N], []])]
    draft = unfused_norm(on_cpu(tmp_path / str(threads), calls, threads=threads))
    return 0.0 if draft is None or draft.gain_us is None else draft.gain_us.high


def test_random_numbers_are_drawn_by_all_threads_and_not_faster(tmp_path: Path) -> None:
    assert dropout_draft(tmp_path, 8) > dropout_draft(tmp_path, 2) > dropout_draft(tmp_path, 1)
    assert dropout_draft(tmp_path, 1) < 10 * MS


def test_numbers_that_are_drawn_ahead_of_a_chain_stay_ahead_of_it(tmp_path: Path) -> None:
    drawn = Call("aten::normal_", 80 * MS, [[N], [], [], []], inside="aten::randn")
    ahead, between = ([drawn, *[mul_()] * 4], [mul_(), drawn, *[mul_()] * 3])
    case = on_cpu(tmp_path / "ahead", ahead)
    draft = unfused_chain(case)
    assert draft is not None and draft.gain_us is not None and draft.gain_us.low > 35 * MS
    assert find_chains(case).ops.tolist() == [4, 4]
    case = on_cpu(tmp_path / "between", between)
    assert find_chains(case).ops.tolist() == [5, 5]


def test_one_change_fuses_all_chains_and_one_finding_tells_of_them(tmp_path: Path) -> None:
    dropout = [Call("aten::bernoulli_", 50 * MS, [[N], [], []]), Call("aten::div_", 20 * MS, [[N], []])]
    product = Call("aten::mm", 50 * MS, [[1000, 1000], [1000, 1000]])
    few, many = (on_cpu(tmp_path / str(n), [*dropout, product, *[mul_()] * n]) for n in (2, 8))
    assert unfused_chain(few) is None
    norm, chain = unfused_norm(few), unfused_chain(many)
    assert unfused_norm(many) is None
    assert norm is not None
    assert chain is not None
    assert norm.evidence[0].startswith("2 chains of 2 ops per step, in trace order, take 110 ms")
    assert chain.evidence[0].startswith("2 chains of 2 to 8 ops per step, in trace order, take 230 ms")


ROWS, WIDTH = 8192, 4096


def half(name: str, us: float, *dims: object, **more: object) -> Call:
    """A call on bf16 tensors (``types`` for others)."""
    given = {"types": ["c10::BFloat16"] * len(dims), "concrete": [""] * len(dims), **more}
    return Call(f"aten::{name}", us, [*dims], more=given)


def rms_norm(slow: float = 1.0) -> list[Call]:
    """RMSNorm as models write it: to fp32, the mean square of each row, its root, two products, and back to bf16."""
    x, row = [ROWS, WIDTH], [ROWS, 1]
    fp32 = {"types": ["float"] * 2}
    return [
        half("copy_", 70 * slow, x, x, types=["float", "c10::BFloat16"]),
        half("pow", 90 * slow, x, [], types=["float", "Scalar"]),
        half("mean", 50 * slow, x, [], types=["float", "ScalarList"], concrete=["", "[-1]"]),
        half("add", 3 * slow, row, [], types=["float", "Scalar"]),
        half("rsqrt", 3 * slow, row, types=["float"]),
        half("mul", 90 * slow, x, row, **fp32),
        half("copy_", 70 * slow, x, x, types=["c10::BFloat16", "float"]),
        half("mul", 70 * slow, [WIDTH], x),
    ]


def test_a_norm_written_out_is_one_chain_from_cast_to_cast(tmp_path: Path) -> None:
    case = on_gpu(tmp_path, rms_norm())
    chains, draft = find_chains(case), unfused_norm(case)
    assert chains.ops.tolist() == [8]
    # One pass reads and writes 64 MB: 40 us at 3.35 TB/s.
    assert chains.fused_bytes[0] == pytest.approx(2 * 2 * ROWS * WIDTH, rel=0.3)
    assert draft is not None and draft.gain_us is not None
    best_us = 446 - 38 / fused_share("reduction")[0]
    assert 270 < draft.gain_us.low < draft.gain_us.high <= best_us  # a loop that reduces does not reach the bandwidth


def test_a_rotary_embedding_is_a_chain_through_its_two_halves(tmp_path: Path) -> None:
    heads, side, angles = [4, 32, 4096, 128], [4, 32, 4096, 64], [4, 1, 4096, 128]
    joined = Call(
        "aten::cat", 110, [[side, side], []], more={"types": ["TensorList", "Scalar"], "concrete": ["", "-1"]}
    )
    embed = [half("neg", 60, side), joined, half("mul", 110, heads, angles), half("add", 160, heads, heads, [])]
    assert find_chains(on_gpu(tmp_path, embed)).ops.tolist() == [4]
    # Without the op that joins them, a half and a whole are different loops.
    apart = [embed[0], *embed[2:]]
    assert find_chains(on_gpu(tmp_path / "apart", apart)).ops.tolist() == [2]


def test_the_mean_of_columns_ends_a_chain(tmp_path: Path) -> None:
    x = [ROWS, WIDTH]
    for dims, ops in (("[-1]", [3]), ("[1]", [3]), ("[0]", [2])):
        mean = half("mean", 50, x, [], types=["float", "ScalarList"], concrete=["", dims])
        square = half("pow", 90, x, [], types=["float", "Scalar"])
        less = half("sub", 90, x, [ROWS, 1], types=["float"] * 2)
        assert find_chains(on_gpu(tmp_path / dims, [square, mean, less])).ops.tolist() == ops


def test_the_fill_inside_a_reduction_on_a_cpu_cuts_no_chain(tmp_path: Path) -> None:
    """ATen's sum on a CPU first fills its result: an op of its own in the trace, and none of the program."""
    rows, x = 100_000, [100_000, 250]  # the result of 400 kB is no trifle
    events = [frame("train.py(12): train", 0, 200 * MS), step(0, 0, 199 * MS)]
    events += [
        op("aten::mul", 1, 20 * MS, dims=[x, []]),
        op("aten::sum", 21 * MS, 12 * MS, dims=[x, [], [], []], concrete=["", "[-1]", "True", ""]),
        op("aten::fill_", 21 * MS + 10, 100, dims=[[rows, 1], []]),
        op("aten::div", 34 * MS, 20 * MS, dims=[x, [rows, 1]]),
    ]
    assert find_chains(case_of(tmp_path, events)).ops.tolist() == [3]
    apart = [each for each in events if each["name"] != "aten::sum"]  # a fill of the program's own
    assert find_chains(case_of(tmp_path / "apart", apart)).ops.tolist() == []


def test_copies_alone_are_no_chain(tmp_path: Path) -> None:
    x = [ROWS, WIDTH]
    copies = [half("copy_", 50, x, x, []), half("copy_", 50, x, x, [])]
    assert not find_chains(on_gpu(tmp_path, copies)).ops.size
    assert find_chains(on_gpu(tmp_path / "cast", [*copies, half("mul", 50, x, [])])).ops.tolist() == [3]


def launched_slowly(every_us: float, kernel_us: float, chains: int = 6) -> list[Event]:
    """One step of chains of five ops of 4 MB, each launched so long after the one before, and a product after each."""
    events: list[Event] = []
    free = 0.0
    for index in range(6 * chains):
        now, product = 2 + every_us * index, index % 6 == 5
        name, dims = ("aten::mm", [[64, 64], [64, 64]]) if product else ("aten::mul", [[1_000_000], []])
        free = max(free, now + 8)
        events += [
            op(name, now, every_us * 0.8, dims=dims, external_id=index + 1),
            launch(index + 1, now + 1, every_us * 0.2),
            kernel(index + 1, free, kernel_us),
        ]
        free += kernel_us + 1
    ends = 6 * chains * every_us + 2
    waits = [launch(999, ends, free - ends, "cudaDeviceSynchronize")] if free > ends else []
    return [step(0, 0, max(free, ends) + 5), *events, *waits]


def test_fewer_launches_are_worth_what_the_device_waits_for_them(tmp_path: Path) -> None:
    slow, fast = (case_of(tmp_path / str(us), launched_slowly(us, 10.0)) for us in (50.0, 1.5))
    waiting, queued = unfused_chain(slow), unfused_chain(fast)
    assert waiting is not None and waiting.gain_us is not None
    assert queued is not None and queued.gain_us is not None
    # 4 of 6 launches fall away, but the device's idle time is all that they can bring.
    assert waiting.gain_us.low < 0.05 * slow.step_us
    assert waiting.gain_us.high == pytest.approx(4 / 6 * slow.step_us, rel=0.2)
    assert waiting.gain_us.high <= sum(waiting.claims.values()) * (1 + 1e-9)
    assert any("24 of 36 launches" in line for line in waiting.evidence)
    # A device that is behind its host gains nothing from fewer launches.
    assert queued.gain_us.high == pytest.approx(24 * 10.0, rel=0.2)
    assert not any("launches" in line for line in queued.evidence)


def test_a_host_close_behind_its_device_does_not_bound_the_gain_since_it_launches_less(tmp_path: Path) -> None:
    case = case_of(tmp_path, launched_slowly(9.0, 10.0))
    draft = unfused_chain(case)
    assert draft is not None and draft.gain_us is not None
    # With all launches the step could not get shorter than 36 x 9 us.
    assert draft.gain_us.low < case.step_us - 36 * 9.0 + 1
    assert draft.gain_us.high == pytest.approx(24 * 10.0, rel=0.2)
    assert draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9)
    assert any("24 of 36 launches" in line for line in draft.evidence)


def test_casts_around_a_product_are_a_chain_in_a_public_trace(traces: Path) -> None:
    case = trace_cache.evidence(traces / "pytorch+ao__ref_ep_moe_fwd.json.gz")
    draft = unfused_chain(case)
    assert draft is not None and draft.gain_us is not None
    assert any("aten::copy_" in line and "8192x7168" in line for line in draft.evidence)
    assert 0.05 < draft.gain_us.low / case.step_us < draft.gain_us.high / case.step_us < 0.12


def attention(softmax: str = "aten::_softmax", inside: str | None = None) -> list[Call]:
    q, scores = [8, 1024, 64], [8, 1024, 1024]
    return [
        Call("aten::bmm", 40, [q, [8, 64, 1024]], "ampere_sgemm_128x64_nn", inside=inside),
        Call("aten::mul", 60, [scores, []], inside=inside),
        Call(
            softmax,
            80,
            [scores, [], []],
            "void softmax_warp_forward<float>(int)",
            inside=inside,
            more={"concrete": ["", "-1", "False"]},
        ),
        Call("aten::bmm", 40, [scores, q], "ampere_sgemm_128x64_nn", inside=inside),
    ]


def test_a_softmax_between_two_products_is_attention_by_hand(tmp_path: Path) -> None:
    draft = unfused_attention(on_gpu(tmp_path, attention()))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high < 220
    assert draft.gain_us.high > 90
    assert draft.code is not None
    assert "scaled_dot_product_attention" in draft.code


def test_a_head_with_a_bias_before_a_softmax_is_no_attention(tmp_path: Path) -> None:
    """Weights over classes that a product then mixes: the head is most of the time, and stays."""
    _, scaled, softmax, mixes = attention()
    head = Call("aten::addmm", 40, [[1024], [8192, 64], [64, 1024]], "ampere_sgemm_128x64_nn")
    assert unfused_attention(on_gpu(tmp_path, [head, scaled, softmax, mixes])) is None


def test_masks_that_are_made_and_filled_in_belong_to_attention_by_hand(tmp_path: Path) -> None:
    first, scaled, *rest = attention()
    fills = [Call(name, 20, scaled.dims, "vectorized_elementwise_kernel") for name in ("aten::mul", "aten::where") * 6]
    draft = unfused_attention(on_gpu(tmp_path, [first, scaled, *fills, *rest]))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high > 12 * 20


def test_attention_on_tensor_cores_is_worth_what_it_is_worth_where_it_is_predicted(tmp_path: Path) -> None:
    batch, length, width = 32, 4096, 128
    q, scores = [batch, length, width], [batch, length, length]
    types = {"types": ["c10::BFloat16", "c10::BFloat16"]}
    product = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
    calls = [
        Call("aten::bmm", 500, [q, [batch, width, length]], product, more=types),
        Call("aten::mul", 900, [scores, []], more={"types": ["c10::BFloat16", "Scalar"]}),
        Call(
            "aten::_softmax",
            1200,
            [scores, [], []],
            "void softmax_warp_forward<float>(int)",
            more={"concrete": ["", "-1", "False"], "types": ["c10::BFloat16", "Scalar", "Scalar"]},
        ),
        Call("aten::bmm", 500, [scores, q], product, more=types),
    ]
    draft = unfused_attention(on_gpu(tmp_path, calls))
    assert draft is not None and draft.gain_us is not None
    heads = [use(at, 1, batch, length, width, dtype="c10::BFloat16") for at in range(4)]
    texts = ("0.0", "False", "False", "")
    fused = priced_step(call("_scaled_dot_product_flash_attention", heads[:3], heads[3], texts))
    work = price_work(fused, device_by_name("H100"), "eager")
    assert not isinstance(work, str)
    saved_us = 3100 - work.busy_us
    assert draft.gain_us.low < saved_us < draft.gain_us.high
    assert draft.gain_us.low > 0.75 * saved_us


def backward_of_attention(length: int = 1024) -> list[Call]:
    q, scores = [8, length, 64], [8, length, length]
    before, after = (
        [Call("aten::bmm", 40, sizes, "ampere_sgemm_128x64_nt") for sizes in pair]
        for pair in (([[8, length, length], q], [q, [8, 64, length]]), ([scores, q], [[8, 64, length], scores]))
    )
    between = [
        Call("aten::mul", 60, [scores, scores]),
        Call("aten::_softmax_backward_data", 90, [scores, scores, [], []], "softmax_warp_backward<float>(int)"),
        Call("aten::mul", 60, [scores, []]),
    ]
    return [*before, *between, *after]


def test_the_backward_pass_of_attention_by_hand_goes_as_a_whole(tmp_path: Path) -> None:
    forward = unfused_attention(on_gpu(tmp_path / "forward", attention()))
    training = unfused_attention(on_gpu(tmp_path / "training", [*attention(), *backward_of_attention()]))
    # Products of other sizes are not its.
    apart = [Call("aten::mm", 40, [[64, 64], [64, 64]], "ampere_sgemm_128x64_nn")] * 2
    calls = [*attention(), *apart, *backward_of_attention()[2:5], *apart]
    other = unfused_attention(on_gpu(tmp_path / "other", calls))
    assert forward is not None and training is not None and other is not None
    assert forward.gain_us is not None and training.gain_us is not None and other.gain_us is not None
    work = 4 * 40 + 60 + 90 + 60
    assert 0.5 * work < training.gain_us.high - forward.gain_us.high <= work
    assert training.gain_us.low > forward.gain_us.low
    assert other.gain_us.high - forward.gain_us.high == pytest.approx(90, rel=0.2)


def test_attention_that_could_not_fuse_is_told_what_holds_it(tmp_path: Path) -> None:
    draft = unfused_attention(on_gpu(tmp_path, attention(inside="aten::_scaled_dot_product_attention_math")))
    assert draft is not None
    assert draft.code is not None
    assert "need_weights=False" in draft.code


def test_a_softmax_that_no_product_reads_is_no_attention(tmp_path: Path) -> None:
    assert unfused_attention(on_gpu(tmp_path, attention()[:3])) is None
    other = [*attention()[:3], Call("aten::mm", 40, [[64, 64], [64, 64]], "ampere_sgemm_128x64_nn")]
    assert unfused_attention(on_gpu(tmp_path / "other", other)) is None


def loss(classes: int) -> list[Call]:
    logits = [4096, classes]
    return [
        Call("aten::mm", 900, [[4096, 512], [512, classes]], "ampere_sgemm_128x64_nn"),
        Call(
            "aten::_log_softmax",
            1500,
            [logits, [], []],
            "void softmax_forward<float>(int)",
            more={"concrete": ["", "1", "False"]},
        ),
        Call(
            "aten::nll_loss_forward",
            30,
            [logits, [4096], [], [], []],
            "void nll_loss_forward<float>(int)",
            more={"types": ["float", "long int", "", "Scalar", "Scalar"]},
        ),
    ]


def test_logits_of_a_large_vocabulary_are_worth_chunks(tmp_path: Path) -> None:
    draft = vocabulary_loss(on_gpu(tmp_path, loss(50_000)))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.low == pytest.approx(draft.gain_us.high / 2)
    assert draft.gain_us.high < 1530
    assert vocabulary_loss(on_gpu(tmp_path / "few", loss(1000))) is None


def with_other_work(loss_calls: list[Call], other_us: float) -> list[Call]:
    """The loss beside products that move ten times as many bytes in this time."""
    size = [40_000, 40_000]
    return [*loss_calls, *[Call("aten::mul", other_us / 4, [size, size], "some_kernel")] * 4]


def test_a_loss_that_takes_a_large_part_of_the_time_counts_whatever_else_moves_bytes(tmp_path: Path) -> None:
    assert vocabulary_loss(on_gpu(tmp_path / "large", with_other_work(loss(50_000), 8000))) is not None
    assert vocabulary_loss(on_gpu(tmp_path / "small", with_other_work(loss(50_000), 60_000))) is None


def test_a_cast_of_the_logits_counts_with_their_loss(tmp_path: Path) -> None:
    cast = Call("aten::copy_", 700, [[4096, 50_000], [4096, 50_000], []], "direct_copy_kernel_cuda")
    other = Call("aten::copy_", 700, [[4096, 4096], [4096, 4096], []], "direct_copy_kernel_cuda")
    plain, with_cast, beside = (
        vocabulary_loss(on_gpu(tmp_path / name, [*loss(50_000), *more]))
        for name, more in (("plain", []), ("cast", [cast]), ("beside", [other]))
    )
    assert plain is not None and with_cast is not None and beside is not None
    assert plain.gain_us is not None and with_cast.gain_us is not None and beside.gain_us is not None
    assert with_cast.gain_us.high > plain.gain_us.high + 300
    assert beside.gain_us.high == pytest.approx(plain.gain_us.high)


def test_a_cross_entropy_that_is_written_out_is_told_to_be_called(tmp_path: Path) -> None:
    logits = [[192, 50304]]
    calls = [
        Call("aten::mm", 400, [[192, 96], [96, 50304]]),
        Call("aten::_softmax", 100, logits),
        Call("aten::log", 100, logits),
        Call("aten::mul", 150, [*logits, *logits]),
        Call("aten::sum", 50, logits),
    ]
    draft = written_loss(on_cpu(tmp_path, calls))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(0.9 * 400, rel=0.01)
    assert draft.gain_us.low == pytest.approx(150, rel=0.01)
    assert "192x50304" in draft.evidence[0]
    without = [call for call in calls if call.name != "aten::log"]
    assert written_loss(on_cpu(tmp_path / "attention", without)) is None


def test_attention_inside_of_torchs_module_is_told_the_argument_that_the_call_lacks(tmp_path: Path) -> None:
    frames = ("torch/nn/functional.py(6206): multi_head_attention_forward",)
    draft = unfused_attention(on_gpu(tmp_path, attention(), called_by=frames))
    assert draft is not None
    assert draft.advice.startswith("Pass need_weights=False to nn.MultiheadAttention in train() (train.py:12):")
