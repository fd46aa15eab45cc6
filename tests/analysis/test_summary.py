"""Analyses of hand-made scenes: folds that add up, totals, coverage, and the undisturbed step."""

import math

import pytest

from bottleneck.analysis import kernel_rows
from bottleneck.analysis.summary import fold_classes
from bottleneck.schema.analysis import GROUPS, Analysis, Caveat, Fold
from bottleneck.schema.device import Device
from bottleneck.schema.measurements import Timing
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.tables import COSTS, MEMORY, SIGNATURES
from tests.analysis.scenes import Event, Kernel, Op, Scene, analysis_of, table

_TRAIN = Event("annotation", "train", 0, 200)


def _analysis(scene: Scene, **more: object) -> Analysis:
    return analysis_of(scene, **more)


def _us(analysis: Analysis) -> dict[str, float]:
    return {entry.account: entry.us for entry in analysis.ledger}


def test_kernels_and_idle_time_add_up_to_the_step() -> None:
    kernels = [Kernel(0, 30, launch=(-9, 2)), Kernel(10, 40, "compute", stream="0/8"), Kernel(60, 20, launch=(52, 5))]
    analysis = _analysis(Scene(100, kernels, events=[_TRAIN], steps=2))
    total = math.fsum(row.us for row in (*analysis.kernels, *analysis.idle))
    assert total == pytest.approx(analysis.steps.wall_us)
    assert math.fsum(row.share for row in (*analysis.kernels, *analysis.idle)) == pytest.approx(1.0)
    assert analysis.totals.busy_us + analysis.totals.idle_us == analysis.steps.wall_us


def test_ops_and_idle_time_of_a_cpu_add_up_to_the_step() -> None:
    loader = Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20)
    ops = [Op(0, 10), Op(30, 50, bound="dispatch"), Op(40, 20, bound="compute", parent=1)]
    analysis = _analysis(Scene(100, ops=ops, events=[_TRAIN, loader]))
    assert math.fsum(row.us for row in (*analysis.kernels, *analysis.idle)) == pytest.approx(100.0)
    assert {row.cause: row.us for row in analysis.idle} == {"input": 20.0, "python": 30.0}


def test_kernels_and_causes_of_each_account_add_up_to_it() -> None:
    ops = [
        Op(0, 10, name="aten::empty", bound="dispatch"),
        Op(20, 30, name="aten::linear", bound="dispatch"),
        Op(25, 20, bound="compute", parent=1),
        Op(60, 5, bound="unknown"),
    ]
    analysis = _analysis(Scene(100, ops=ops, events=[_TRAIN]))
    sums = dict.fromkeys(_us(analysis), 0.0)
    for kernel in analysis.kernels:
        assert kernel.account is not None
        sums[kernel.account] += kernel.us
    for cause in analysis.idle:
        sums[f"overhead.{cause.cause}"] += cause.us
    assert sums == pytest.approx(_us(analysis))
    assert sums["overhead.allocator"] == pytest.approx(10.0)  # of an op whose bound is dispatch


def test_kernels_that_differ_only_in_duration_fold_into_one_row() -> None:
    kernels = [Kernel(0, 30), Kernel(30, 10), Kernel(40, 20, source="a.py:1"), Kernel(60, 16, name="other")]
    rows = _analysis(Scene(100, kernels, steps=2)).kernels
    assert [(row.name, row.source, row.calls, row.us) for row in rows] == [
        ("some_kernel", None, 1.0, 20.0),
        ("some_kernel", "a.py:1", 0.5, 10.0),
        ("other", None, 0.5, 8.0),
    ]


def test_of_very_many_rows_those_with_the_least_time_are_one_row_per_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [
        Kernel(10 * number, 1 + number % 10, "compute" if number % 2 else "memory", name=f"k{number}")
        for number in range(12)
    ]
    whole = _analysis(Scene(120, kernels))
    monkeypatch.setattr(kernel_rows, "_MOST_ROWS", 3)
    folded = _analysis(Scene(120, kernels))
    assert [(row.name, row.bound, row.calls, row.us) for row in folded.kernels] == [
        ("other kernels", "memory", 5.0, 17.0),
        ("other kernels", "compute", 4.0, 14.0),
        ("k9", "compute", 1.0, 10.0),
        ("k8", "memory", 1.0, 9.0),
        ("k7", "compute", 1.0, 8.0),
    ]
    assert folded.ledger == whole.ledger and folded.totals == whole.totals
    assert math.fsum(row.us for row in folded.kernels) == math.fsum(row.us for row in whole.kernels)


def test_shapes_keep_rows_apart_and_are_cut_when_long() -> None:
    dims = ["[\n  [8,\n 8]\n]", f"[{', '.join(['[8, 8]'] * 100)}]"]
    signatures = table(SIGNATURES, [{"name": "aten::mm", "dims": text} for text in dims])
    scene = Scene(100, [Kernel(0, 30, op=0), Kernel(40, 20, op=1)], ops=[Op(-9, 1, "aten::mm"), Op(-8, 1, "aten::mm")])
    linked = scene.linked()
    linked = replace(
        linked,
        trace=replace(linked.trace, signatures=signatures),
        ops=linked.ops.assign(signature=linked.ops["signature"].fillna(0).where([True, False], 1)),
    )
    costs = table(COSTS, [{"math_dtype": "bf16"}, {}])
    short, long = _analysis(scene, linked=linked, costs=costs).kernels
    assert (short.op, short.shapes, short.dtype) == ("aten::mm", "[[8, 8]]", "bf16")
    assert long.shapes is not None and len(long.shapes) == 200 and long.shapes.endswith("…")
    assert long.dtype is None


@pytest.mark.parametrize(
    ("types", "kernel", "shown"),
    [
        ('["c10::BFloat16", ""]', {"engine": "vector"}, "bf16"),
        ('["bool", "c10::Half", "c10::Half"]', {"engine": "vector"}, "fp16"),
        ('["long int", "Scalar"]', {}, "int64"),
        ('["float", "float"]', {"engine": "matrix", "math_dtype": "tf32"}, "tf32"),
        ('["c10::Half", "c10::Half"]', {"engine": "vector", "math_dtype": "fp32"}, "fp16"),
        ('["TensorList", ""]', {}, "fp32"),
        ("no list", {}, "fp32"),
        ("3", {}, "fp32"),
        (None, {"engine": "vector", "math_dtype": "fp64"}, "fp64"),
    ],
)
def test_row_shows_the_dtype_of_the_data_and_on_matrix_units_of_the_arithmetic(
    types: str | None, kernel: dict[str, str], shown: str
) -> None:
    scene = Scene(100, [Kernel(0, 30, op=0, kernel=kernel)], ops=[Op(-9, 1, "aten::gelu")])
    linked = scene.linked()
    signatures = table(SIGNATURES, [{"name": "aten::gelu", "dims": "[[8]]", "types": types}])
    linked = replace(
        linked,
        trace=replace(linked.trace, signatures=signatures),
        ops=linked.ops.assign(signature=linked.ops["signature"].fillna(0)),
    )
    costs = table(COSTS, [{"math_dtype": "fp32"}])
    assert _analysis(scene, linked=linked, costs=costs).kernels[0].dtype == shown


def test_rates_are_those_of_the_time_in_which_a_kernel_runs_also_where_others_run_beside_it() -> None:
    modelled = {"flops": 6e6, "bytes_low": 3e4}
    alone, beside = Kernel(0, 30, roofline=modelled), Kernel(40, 30, name="other", roofline=modelled)
    twin = Kernel(40, 30, name="twin", stream="1/8")
    rows = {row.name: row for row in _analysis(Scene(100, [alone, beside, twin])).kernels}
    assert rows["other"].us == 15.0
    for name in ("some_kernel", "other"):
        assert (rows[name].flops_per_s, rows[name].bytes_per_s) == pytest.approx((2e11, 1e9))
    assert (rows["twin"].flops_per_s, rows["twin"].bytes_per_s) == (None, None)


def test_row_shows_the_module_path_that_its_kernels_share() -> None:
    paths = ["Net.layer.0.fc", "Net.layer.1.fc", "Net.layer.10.fc"]
    kernels = [Kernel(at * 20.0, 20, kernel={"module": path}) for at, path in enumerate(paths)]
    analysis = _analysis(Scene(60, kernels))
    assert [row.module for row in analysis.kernels] == ["Net.layer"]
    assert {fold.name for fold in analysis.modules} == set(paths)


def test_modules_of_a_class_are_one_with_their_number_in_each_module_around_them() -> None:
    paths = [f"Net_0.Layer_{layer}.Linear_{2 * layer + at}" for layer in range(3) for at in range(2)]
    kernels = [Kernel(at * 10.0, 10, kernel={"module": path}) for at, path in enumerate([*paths, "Net_0.Norm_0"])]
    folded = _analysis(Scene(100, kernels)).module_classes
    assert {fold.name: fold.us for fold in folded} == {"Net > Layer x 3 > Linear x 2": 60.0, "Net > Norm": 10.0}


def _folded(paths: list[str], known: dict[str, str]) -> dict[str, float]:
    folds = [Fold(path, 1.0, 1.0, 0.01, dict.fromkeys(GROUPS, 0.0)) for path in paths]
    return {fold.name: fold.us for fold in fold_classes(folds, known)}


def test_modules_are_folded_by_their_attributes_where_these_are_known() -> None:
    known = {"Net_0": "Net"}
    for layer in range(3):
        known |= {f"Layer_{layer}": f"encoder.layer.{layer}", f"Linear_{2 * layer}": f"encoder.layer.{layer}.query"}
    paths = [f"Net_0.Layer_{layer}.Linear_{2 * layer + at}" for layer in range(3) for at in range(2)]
    assert _folded(paths, known) == {
        "Net > encoder.layer.* x 3 > query": 3.0,
        "Net > encoder.layer.* x 3 > Linear": 3.0,  # those without a path
    }


def test_numbered_modules_of_several_classes_are_told_apart() -> None:
    known = {"Net_0": "Net", "Linear_0": "body.0", "ReLU_0": "body.1", "Linear_1": "body.2", "Head_0": "head"}
    assert _folded([f"Net_0.{name}" for name in known if name != "Net_0"], known) == {
        "Net > body.* (Linear) x 2": 2.0,
        "Net > body.* (ReLU)": 1.0,
        "Net > head": 1.0,
    }


def test_paths_that_begin_with_the_class_of_a_model_name_it_once() -> None:
    assert _folded(["Net_0.Linear_0"], {"Net_0": "Net", "Linear_0": "Net.head"}) == {"Net > head": 1.0}


def test_analysis_keeps_the_attribute_paths_that_its_rows_need() -> None:
    kernels = [Kernel(0, 20, kernel={"module": "Net_0.Layer_0"})]
    found = _analysis(Scene(60, kernels, more={"module_paths": {"Layer_0": "encoder.0", "Layer_1": "encoder.1"}}))
    assert (found.kernels[0].module, found.module_paths) == ("Net_0.Layer_0", {"Layer_0": "encoder.0"})


def test_modules_that_only_some_of_a_class_hold_are_counted_in_all() -> None:
    paths = ["Net_0.Layer_0.Conv_0", "Net_0.Layer_1.Conv_1", "Net_0.Layer_1.Skip_0"]
    kernels = [Kernel(at * 10.0, 10, kernel={"module": path}) for at, path in enumerate(paths)]
    names = {fold.name for fold in _analysis(Scene(100, kernels)).module_classes}
    assert names == {"Net > Layer x 2 > Conv", "Net > Layer x 2 > Skip (1 in all)"}


def test_row_takes_the_regime_and_reason_with_most_of_its_time() -> None:
    fast, slow = {"regime": "near_roof"}, {"regime": "far_below_roof", "reason": Reason("no_bytes")}
    kernels = [Kernel(0, 10, roofline=fast), Kernel(10, 10, roofline=fast), Kernel(20, 30, roofline=slow)]
    (row,) = _analysis(Scene(50, kernels)).kernels
    assert (row.regime, row.reason) == ("far_below_roof", "no bytes in the trace")


@pytest.mark.parametrize(("explained", "regime"), [(0.1, "far_below_roof"), (0.5, "below_roof"), (0.9, "near_roof")])
def test_row_of_runs_in_several_bands_takes_the_one_of_the_whole_row(explained: float, regime: str) -> None:
    floor = {
        "memory_us": 30 * explained,
        "explained": explained,
        "regime": "far_below_roof",
        "reason": Reason("unexplained"),
    }
    fast = {"memory_us": 9.0, "explained": 0.9, "regime": "near_roof"}
    (row,) = _analysis(Scene(40, [Kernel(0, 10, roofline=fast), Kernel(10, 30, roofline=floor)])).kernels
    assert row.regime == regime and (row.reason == "unexplained") == (regime == "far_below_roof")


def test_floors_of_a_shared_instant_are_shared_too() -> None:
    floors = {"compute_us": 4.0, "memory_us": 8.0, "launch_us": 2.0, "explained": 0.8}
    kernels = [Kernel(0, 10, roofline=floors, name="a"), Kernel(0, 10, stream="0/8", name="b")]
    a, b = sorted(_analysis(Scene(10, kernels)).kernels, key=lambda row: row.name)
    assert (a.us, a.compute_us, a.memory_us, a.launch_us) == (5.0, 2.0, 4.0, 1.0)
    assert a.explained == 0.8
    assert a.headroom_us == pytest.approx(1.0)
    assert (b.compute_us, b.explained, b.headroom_us) == (None, None, None)


def test_floor_above_the_time_explains_all_of_it_and_no_more() -> None:
    (row,) = _analysis(Scene(10, [Kernel(0, 10, roofline={"memory_us": 11.0, "explained": 1.0})])).kernels
    assert (row.explained, row.headroom_us) == (1.0, 0.0)


def test_launch_floor_alone_explains_nothing_of_unmodelled_work() -> None:
    (row,) = _analysis(Scene(10, [Kernel(0, 10, "unknown", roofline={"launch_us": 2.0})])).kernels
    assert (row.launch_us, row.explained, row.headroom_us) == (2.0, None, None)


def test_time_of_an_op_is_split_by_group() -> None:
    kernels = [Kernel(0, 30, "compute", op=0), Kernel(30, 10, "memory", op=0), Kernel(40, 10)]
    (fold,) = _analysis(Scene(50, kernels, ops=[Op(-9, 1, "aten::linear")])).ops
    assert (fold.name, fold.us, fold.calls, fold.share) == ("aten::linear", 40.0, 2.0, 0.8)
    assert fold.shares == {**dict.fromkeys(GROUPS, 0.0), "compute": 0.75, "memory": 0.25}


def test_lines_tell_work_and_waiting_of_one_line_apart() -> None:
    waits = [Kernel(0, 30, source="a.py:1"), Kernel(60, 10, launch=(52, 5), source="a.py:1")]
    (fold,) = _analysis(Scene(70, waits, events=[_TRAIN])).lines
    assert (fold.name, fold.us, fold.idle_us) == ("a.py:1", 40.0, 30.0)


def test_line_that_only_waits_is_a_line_too() -> None:
    loader = Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 30, 40)
    ops = [Op(0, 30, source="a.py:1"), Op(30, 40, source="data.py:9")]
    lines = {fold.name: (fold.us, fold.idle_us) for fold in _analysis(Scene(70, ops=ops, events=[loader])).lines}
    assert lines == {"a.py:1": (30.0, 0.0), "data.py:9": (0.0, 40.0)}


def test_work_is_counted_per_step_and_for_the_part_in_the_window() -> None:
    amounts = {"flops": 100.0, "bytes_low": 10.0, "bytes_high": 20.0}
    kernels = [Kernel(0, 10, roofline=amounts), Kernel(95, 10, roofline=amounts), Kernel(500, 10, roofline=amounts)]
    totals = _analysis(Scene(100, kernels, steps=2)).totals
    assert (totals.flops, totals.bytes_low, totals.bytes_high) == (75.0, 7.5, 15.0)
    assert totals.kernel_count == 0.75


def test_unknown_work_is_null_and_not_zero() -> None:
    totals = _analysis(Scene(100, [Kernel(0, 10)])).totals
    assert (totals.flops, totals.bytes_low, totals.model_flops_utilization, totals.bandwidth_utilization) == (None,) * 4


def test_copies_are_counted_by_direction() -> None:
    names = ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)"]
    kernels = [
        Kernel(10.0 * at, 5, "copy", kind="copy", name=name, kernel={"bytes": 100}) for at, name in enumerate(names)
    ]
    totals = _analysis(Scene(40, [*kernels, Kernel(30, 5)], steps=2)).totals
    assert (totals.h2d_bytes, totals.d2h_bytes, totals.copy_count, totals.kernel_count) == (50.0, 50.0, 1.5, 0.5)


def test_copy_of_unknown_size_makes_its_direction_unknown() -> None:
    totals = _analysis(Scene(40, [Kernel(0, 5, "copy", kind="copy", name="Memcpy HtoD (Pinned -> Device)")])).totals
    assert (totals.h2d_bytes, totals.d2h_bytes) == (None, 0.0)


def test_launches_waits_and_ops_are_counted_in_the_window() -> None:
    scene = Scene(
        100,
        [Kernel(10, 5, launch=(5, 2)), Kernel(20, 5, launch=(15, 2))],
        ops=[Op(4, 5), Op(-20, 5), Op(150, 5)],
        events=[Event("runtime", "cudaStreamSynchronize", 30, 5), Event("runtime", "cudaStreamSynchronize", 300, 5)],
    )
    totals = _analysis(scene).totals
    assert (totals.launch_count, totals.sync_count, totals.op_count) == (2.0, 1.0, 1.0)


def test_peak_memory_is_the_devices_and_a_trace_does_not_know_that_of_a_host() -> None:
    common = {"ts_us": 1.0, "thread": "1/1", "bytes": 5}
    memory = table(
        MEMORY,
        [{**common, "on_device": True, "total_allocated": 70}, {**common, "on_device": False, "total_allocated": 900}],
    )
    assert _analysis(Scene(10, [Kernel(0, 5)], more={"memory": memory})).totals.peak_memory_bytes == 70
    # The profiler counts host memory from where it begins: a product of two matrices of 16 MiB had a "peak" of 16 MiB.
    host = _analysis(Scene(10, ops=[Op(0, 5)], more={"memory": memory})).totals
    assert host.peak_memory_bytes is None
    assert host.peak_memory_reason == "a trace counts host memory from where it begins, not what was in use before"
    assert _analysis(Scene(10, [Kernel(0, 5)])).totals.peak_memory_bytes is None


def _device(**more: object) -> Device:
    ceilings = {"peaks_flops_per_s": {"bf16_tensor": 1e12, "bf16_vector": 1e11}, "bandwidth_bytes_per_s": 1e12}
    plain = {"launch_floor_us": None, "source": None, "ridge_flops_per_byte": {}}
    return Device(**{"name": "d", "vendor": None, "kind": "cuda", "count": 1, **ceilings, **plain, **more})


def _priced(flops: float, nbytes: float, **kernel: object) -> Scene:
    amounts = {"flops": flops, "bytes_low": nbytes, "bytes_high": nbytes}
    return Scene(100, [Kernel(0, 50, roofline=amounts, kernel={"math_dtype": "bf16", **kernel})])


def test_utilisation_is_the_part_of_the_ceilings_used_over_the_step() -> None:
    totals = _analysis(_priced(25e6, 40e6), device=_device()).totals
    assert totals.model_flops_utilization == pytest.approx(0.25)
    assert totals.bandwidth_utilization == pytest.approx(0.4)


def test_utilisation_of_vector_work_is_judged_by_the_vector_peak() -> None:
    totals = _analysis(_priced(2.5e6, 0, engine="vector"), device=_device()).totals
    assert totals.model_flops_utilization == pytest.approx(0.25)


@pytest.mark.parametrize(("compute_us", "peak"), [(25.0, "bf16_vector"), (2.5, "bf16_tensor"), (3.0, "bf16_tensor")])
def test_a_kernel_that_names_no_engine_is_judged_by_the_peak_of_its_floor(compute_us: float, peak: str) -> None:
    amounts = {"flops": 2.5e6, "bytes_low": 0.0, "bytes_high": 0.0, "compute_us": compute_us}
    scene = Scene(100, [Kernel(0, 50, roofline=amounts, kernel={"math_dtype": "bf16"})])
    totals = _analysis(scene, device=_device()).totals
    assert totals.peak == peak


def test_utilisation_above_the_ceiling_is_unknown() -> None:
    totals = _analysis(_priced(25e9, 40e9), device=_device()).totals
    assert (totals.model_flops_utilization, totals.bandwidth_utilization) == (None, None)


def test_utilisation_without_ceilings_is_unknown() -> None:
    device = _device(peaks_flops_per_s={"fp32_vector": 1e12}, bandwidth_bytes_per_s=None)
    totals = _analysis(_priced(25e6, 40e6), device=device).totals
    assert (totals.model_flops_utilization, totals.bandwidth_utilization) == (None, None)


def test_unmodelled_work_is_named_with_its_time_and_reason() -> None:
    odd = {"reason": Reason("no_formula", ("aten::odd",))}
    kernels = [
        Kernel(0, 10, "unknown", op=0, roofline=odd),
        Kernel(10, 10, "unknown", op=0, roofline=odd),
        Kernel(20, 5, "unknown", name="lost"),
        Kernel(30, 15, "memory"),
    ]
    analysis = _analysis(Scene(50, kernels, ops=[Op(-9, 1, "aten::odd")]))
    assert [(row.name, row.us, row.reason, row.reason_code) for row in analysis.coverage.unknown] == [
        ("aten::odd", 20.0, "no formula for aten::odd", "no_formula"),
        ("lost", 5.0, "no cost formula", None),
    ]
    assert analysis.coverage.modelled_share == pytest.approx(15 / 40)
    assert [caveat.share for caveat in analysis.caveats if caveat.slug == "unmodelled-work"] == [0.5]


def test_fully_modelled_work_needs_no_caveat() -> None:
    assert _analysis(Scene(50, [Kernel(0, 50, launch=(-10, 5))])).caveats == ()


def test_launches_without_kernels_leave_no_verdict() -> None:
    lost = Caveat("kernels-missing", "half of the launches have no kernel")
    assert _analysis(Scene(50, [Kernel(0, 50)]), caveats=(lost,)).verdict.bound == "inconclusive"


def test_step_times_have_a_median_and_an_interval() -> None:
    steps = _analysis(Scene(100, [Kernel(0, 50)], steps=4)).steps
    assert (steps.count, steps.wall_us, steps.profiled_us) == (4, 25.0, Timing(25.0, 25.0, 25.0, 4))
    assert (steps.unprofiled_us, steps.perturbation) == (None, None)


_BUSY = Scene(
    100,
    [Kernel(0, 40, "compute", launch=(-9, 2)), Kernel(60, 20, "memory", launch=(45, 5))],
    events=[_TRAIN],
)


def test_undisturbed_step_keeps_device_work_and_scales_the_host() -> None:
    before, after = _analysis(_BUSY), _analysis(_BUSY, unprofiled=Timing(80, 79, 81, 20))
    assert after.steps.wall_us == 80
    assert after.steps.perturbation == pytest.approx(1.25)
    assert math.fsum(_us(after).values()) == pytest.approx(80, rel=1e-9)
    assert (_us(after)["compute"], _us(after)["memory"]) == (40.0, 20.0)
    for account in ("overhead.python", "overhead.launch"):
        assert _us(after)[account] == pytest.approx(_us(before)[account] / 2)
    assert math.fsum(row.us for row in (*after.kernels, *after.idle)) == pytest.approx(80)
    assert [caveat.slug for caveat in after.caveats] == ["perturbation"]
    assert "scaled by 0.5" in after.caveats[0].message


def test_undisturbed_step_shorter_than_the_work_shortens_the_work_and_says_so() -> None:
    analysis = _analysis(_BUSY, unprofiled=Timing(30, 29, 31, 20))
    assert _us(analysis) == pytest.approx({"compute": 20.0, "memory": 10.0})
    assert "the work is scaled by 0.5" in analysis.caveats[0].message
    assert analysis.totals.idle_us == 0.0


def test_undisturbed_step_that_is_much_longer_leaves_the_rest_unexplained() -> None:
    analysis = _analysis(_BUSY, unprofiled=Timing(200, 190, 210, 20))
    assert _us(analysis)["overhead.unknown"] == pytest.approx(200 - 60 - 40 * 1.25)
    assert {row.cause: row.us for row in analysis.idle}["unknown"] == pytest.approx(90)
    assert math.fsum(_us(analysis).values()) == pytest.approx(200)


def test_wait_of_the_device_itself_is_not_scaled() -> None:
    scene = Scene(100, [Kernel(0, 20, launch=(-9, 2)), Kernel(50, 20, launch=(-6, 2))], events=[_TRAIN])
    analysis = _analysis(scene, unprofiled=Timing(85, 84, 86, 20))
    assert _us(analysis)["overhead.dependency"] == 30.0
    assert _us(analysis)["overhead.python"] == pytest.approx(15.0)


def test_undisturbed_step_of_a_cpu_scales_every_overhead_and_no_work() -> None:
    ops = [Op(0, 60, bound="dispatch"), Op(10, 20, bound="compute", parent=0), Op(60, 10, bound="overhead")]
    scene = Scene(100, ops=ops, events=[_TRAIN])
    analysis = _analysis(scene, unprofiled=Timing(60, 59, 61, 20))
    assert _us(analysis) == pytest.approx(
        {"compute": 20.0, "overhead.launch_floor": 5.0, "overhead.dispatch": 20.0, "overhead.python": 15.0}
    )
    assert math.fsum(row.us for row in (*analysis.kernels, *analysis.idle)) == pytest.approx(60)


def test_undisturbed_step_without_length_is_ignored() -> None:
    analysis = _analysis(_BUSY, unprofiled=Timing(0, 0, 0, 1))
    assert (analysis.steps.wall_us, analysis.steps.perturbation) == (100.0, None)


def test_trace_without_any_work_has_an_analysis() -> None:
    analysis = _analysis(Scene(0))
    assert (analysis.kernels, analysis.idle, analysis.coverage.modelled_share) == ((), (), None)


DTYPE, SIZES = "dtype from kernel names", "sizes from the ops around it"


def caveat(evidence: list[tuple[str, ...] | None], kernels: list[Kernel]) -> list[Caveat]:
    """The caveats on evidence of a scene whose ops rest on these facts, in order."""
    scene = Scene(100, kernels, ops=[Op(-9 + at, 1, "aten::mm") for at in range(len(evidence))])
    linked = scene.linked()
    linked = replace(
        linked,
        trace=replace(linked.trace, signatures=table(SIGNATURES, [{"name": "aten::mm"}] * len(evidence))),
        ops=linked.ops.assign(signature=linked.ops["signature"].fillna(0).to_numpy() + range(len(evidence))),
    )
    linked = replace(linked, ops=linked.ops.astype({"signature": "Int32"}))
    costs = table(COSTS, [{"evidence": facts} for facts in evidence])
    analysis = analysis_of(scene, linked=linked, costs=costs)
    return [each for each in analysis.caveats if each.slug == "completed-calls"]


def test_facts_are_reported_once_each_and_the_longest_first():
    kernels = [Kernel(0, 10, op=0), Kernel(10, 40, op=1), Kernel(50, 50, op=2)]
    (found,) = caveat([(DTYPE,), (SIZES, DTYPE), None], kernels)
    assert found.share == 0.5
    assert f"({SIZES}; {DTYPE})" in found.message and "50.0 %" in found.message


def test_what_hardly_matters_is_not_reported():
    assert caveat([(DTYPE,), None], [Kernel(0, 0.5, op=0), Kernel(1, 99, op=1)]) == []


def test_recorded_calls_are_nothing_to_tell():
    assert caveat([None], [Kernel(0, 100, op=0)]) == []
