"""Analyses made by hand: one of every kind that a report must be able to tell."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bottleneck.schema.analysis import (
    GROUPS,
    Analysis,
    Caveat,
    Clause,
    CollectiveSummary,
    Coverage,
    CriticalPath,
    Finding,
    Fold,
    IdleCause,
    Interval,
    KernelSummary,
    LedgerEntry,
    PathPart,
    Phase,
    Queue,
    RankSummary,
    RecordingInfo,
    ReplayCheck,
    TelemetrySummary,
    Totals,
    UnknownWork,
    UserRange,
    Verdict,
    join_clauses,
)
from bottleneck.schema.device import Device
from bottleneck.schema.job import GroupUse, JobSummary, LeftOut, SlowLink, SlowRank
from bottleneck.schema.measurements import BatchProof, OptionCost, OptionCosts, ProfilerOption, Ratio, StepTimes, Timing

H100 = Device(
    name="NVIDIA H100 80GB HBM3",
    vendor="nvidia",
    kind="cuda",
    count=1,
    peaks_flops_per_s={"bf16_tensor": 989.4e12, "tf32_tensor": 494.7e12, "fp32_vector": 66.9e12},
    bandwidth_bytes_per_s=3.35e12,
    launch_floor_us=1.8,
    source="datasheet",
    ridge_flops_per_byte={"bf16_tensor": 295.3, "tf32_tensor": 147.7, "fp32_vector": 20.0},
    sm_count=132,
    memory_bytes=85018279936,
    cache_bytes=50e6,
    special_ops_per_s=4.2e12,
    link_bytes_per_s=63e9,
)

XEON = Device(
    name="Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz",
    vendor="intel",
    kind="cpu",
    count=1,
    peaks_flops_per_s={"fp32_vector": 160e9},
    bandwidth_bytes_per_s=14e9,
    launch_floor_us=2.4,
    source="measured",
    ridge_flops_per_byte={"fp32_vector": 11.4},
    bandwidth_by_bytes=((32e3, 210e9), (1e6, 90e9), (48e6, 14e9)),
)

NO_DEVICE = Device(
    name="",
    vendor=None,
    kind="other",
    count=1,
    peaks_flops_per_s={},
    bandwidth_bytes_per_s=None,
    launch_floor_us=None,
    source=None,
    ridge_flops_per_byte={},
)


def group_of(account: str) -> str:
    """The group that an account belongs to."""
    return account.partition(".")[0]


def ledger(accounts: Mapping[str, float]) -> tuple[LedgerEntry, ...]:
    """Entries of one step from microseconds per account."""
    wall_us = sum(accounts.values())
    return tuple(LedgerEntry(name, group_of(name), us, us / wall_us) for name, us in accounts.items())


def kernel(name: str, us: float, wall_us: float, **more: Any) -> KernelSummary:
    """A kernel row whose other fields are plain unless given."""
    plain: dict[str, Any] = {
        "family": "pointwise",
        "op": "aten::mul",
        "shapes": "[[64, 1024], [64, 1024], []]",
        "module": None,
        "source": None,
        "dtype": "bf16",
        "engine": "vector",
        "calls": 1.0,
        "flops": None,
        "bytes_low": None,
        "bytes_high": None,
        "compute_us": None,
        "memory_us": None,
        "launch_us": 1.8,
        "bound": "unknown",
        "regime": None,
        "explained": None,
        "confidence": "low",
        "reason": None,
        "headroom_us": None,
        "flops_per_s": more["flops"] / us * 1e6 if more.get("flops") else None,
        "bytes_per_s": more["bytes_low"] / us * 1e6 if more.get("bytes_low") else None,
    }
    return KernelSummary(name=name, us=us, share=us / wall_us, **{**plain, **more})


def phases(wall_us: float, **parts: tuple[float, dict[str, float]]) -> tuple[Phase, ...]:
    """Phases of these times, each with its shares by group."""
    return tuple(Phase(name, us, us / wall_us, shares) for name, (us, shares) in parts.items())  # type: ignore[arg-type]


def analysis(accounts: Mapping[str, float], **more: Any) -> Analysis:
    """An analysis of one ledger; everything else is plain unless given."""
    entries = ledger(accounts)
    wall_us = sum(entry.us for entry in entries)
    shares = {group: sum(entry.share for entry in entries if entry.group == group) for group in GROUPS}
    top = max(shares, key=lambda group: shares[group])
    busy_us = sum(entry.us for entry in entries if entry.group != "overhead")
    plain: dict[str, Any] = {
        "recording": RecordingInfo("recordings/train", "run", "PyTorch 2.13.0", "2026-03-02T10:00:00Z", None),
        "device": H100,
        "steps": StepTimes(1, wall_us, None, None, None, "the whole trace, for want of step marks"),
        "verdict": Verdict(top, None, shares[top], f"The step is bound by {top}.", shares),  # type: ignore[arg-type]
        "ledger": entries,
        "totals": totals(busy_us, wall_us, more.get("kernels", ())),
        "coverage": Coverage(0.998, 0.95, ()),
        "kernels": (),
        "ops": (),
        "modules": (),
        "lines": (),
        "idle": (),
        "ranks": (),
        "caveats": (),
        "version": "0.1.0",
    }
    return Analysis(**{**plain, **more})


def totals(busy_us: float, wall_us: float, kernels: tuple[KernelSummary, ...] = (), **more: Any) -> Totals:
    """Totals of a step with these kernels; other fields are plain unless given."""
    plain: dict[str, Any] = {
        "flops": sum(row.flops or 0.0 for row in kernels),
        "bytes_low": sum(row.bytes_low or 0.0 for row in kernels),
        "bytes_high": sum(row.bytes_high or 0.0 for row in kernels),
        "kernel_count": 412.0,
        "op_count": 980.0,
        "launch_count": 410.0,
        "sync_count": 3.0,
        "copy_count": 2.0,
        "h2d_bytes": 1.5e6,
        "d2h_bytes": 8.0,
        "peak_memory_bytes": 12_000_000_000,
        "model_flops_utilization": 0.031,
        "bandwidth_utilization": 0.08,
    }
    return Totals(busy_us=busy_us, idle_us=wall_us - busy_us, **{**plain, **more})


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::{lambda(float)#1}, "
    "std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType), "
    "std::array<char*, 2ul>)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false>, double const*>(at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>)"
)


_OPTION_TIMES: Mapping[ProfilerOption, float] = {
    "ops": 1.08,
    "shapes": 1.13,
    "stacks": 1.12,
    "memory": 1.0776,
    "all": 1.17,
}


ADVICE = (
    Finding(
        "input-wait",
        "The device waits for the data loader",
        ("5.12 ms of every step, at train.py:70", "num_workers is 0"),
        Interval(3900.0, 5120.0),
        Interval(1.47, 1.73),
        "Give the DataLoader workers that read ahead, into pinned memory.",
        "bottleneck verify --try loader-workers,loader-pinned --set batch_size=64 examples/train.py",
        code="for batch in DataLoader(dataset, num_workers=4, pin_memory=True):\n    train(batch)",
        added_gain_us=Interval(3900.0, 5120.0),
        tries=("loader-workers", "loader-pinned"),
        seen_at=("train.py:70",),
    ),
    Finding(
        "launch-late",
        "Kernels are launched late: the device waits for the host",
        ("2.48 ms of every step, at model.py:63", "96 kernels", "median kernel 6.1 us", "queue empty"),
        Interval(1540.0, 3080.0),
        Interval(1.14, 1.34),
        "Capture the step in a CUDA graph.",
        "bottleneck verify --try cuda-graph examples/train.py",
        added_gain_us=Interval(1240.0, 2480.0),
        tries=("cuda-graph",),
        seen_at=("model.py:63",),
    ),
    Finding(
        "item-sync",
        "A .item() in the loop stops the host 3 times per step",
        ("cudaStreamSynchronize under aten::item, train.py:91",),
        Interval(0.0, 880.0),
        Interval(1.0, 1.08),
        "Keep the loss on the device and read it every 100 steps.",
        None,
        code="total += loss.detach()",
        seen_at=("train.py:91",),
        added_gain_us=Interval(0.0, 0.0),
    ),
    Finding(
        "pageable-copy",
        "Copies to the device start in pageable memory",
        ("1.50 MB per step",),
        Interval(11.0, 21.3),
        Interval(1.0, 1.002),
        "Pin the batches.",
        None,
        added_gain_us=Interval(11.0, 21.3),
        within_noise=True,
    ),
    Finding(
        "cudnn-benchmark",
        "Convolutions run without cudnn.benchmark",
        ("12 convolutions of fixed shape",),
        None,
        None,
        "Let cuDNN choose by trying.",
        "bottleneck verify --try cudnn-benchmark examples/train.py",
        code="torch.backends.cudnn.benchmark = True",
        gain_reason="only trying tells which algorithm is quicker",
        tries=("cudnn-benchmark",),
    ),
)
"""One finding of each kind: plain, sharing its time, worth nothing more, hidden by noise, without a gain."""


def _critical_path() -> CriticalPath:
    us = {"input": 5120.2, "dispatch": 3100.0, "python": 1210.5, "sync": 420.0}
    host = [PathPart("host", name, "train.py:31", spent, spent / 12177.0) for name, spent in us.items()]
    kernel = PathPart("device", "void cutlass::Kernel2<softmax_kernel>(int)", None, 2200.3, 2200.3 / 12177.0)
    wait = PathPart("wait", "from launch to start", None, 126.0, 126.0 / 12177.0)
    parts = sorted((*host, kernel, wait), key=lambda part: -part.us)
    return CriticalPath(ReplayCheck(-0.0012, 0.031, 0.0, 6, None), 12177.0, tuple(parts))


_FIRST_STEP = "give the DataLoader workers that read ahead, into pinned memory (predicted: 1.47 to 1.73 times as fast)"
_INPUT_BOUND = (
    Clause("bound", "Overhead holds this step back: for 75.5 % of it the GPU does no useful work"),
    Clause("place", "most of all because it waits for input data (42.0 %)", ", "),
    Clause("first", _FIRST_STEP, source="input-wait", label="First"),
)


def gpu_overhead() -> Analysis:
    """A small model on a fast GPU: most of the step the device waits for the host."""
    accounts = {
        "compute": 1210.4,
        "memory": 1630.9,
        "memory.copy": 45.1,
        "overhead.launch_floor": 402.7,
        "overhead.input": 5120.2,
        "overhead.dispatch": 2481.3,
        "overhead.sync": 880.6,
        "overhead.python": 310.0,
        "overhead.gc": 0.3,
        "unknown": 95.5,
    }
    wall_us = sum(accounts.values())
    rows = (
        kernel(
            GEMM, 1210.4, wall_us, family="matmul", op="aten::addmm",
            shapes="[[4096], [512, 1024], [1024, 4096], [], []]",
            module="GPT.block.mlp.fc1", source="model.py:57", engine="matrix", calls=24.0, flops=0.98e12,
            bytes_low=0.4e9, bytes_high=0.5e9, compute_us=990.5, memory_us=149.2, launch_us=43.2, bound="compute",
            regime="near_roof", explained=0.8183, confidence="high", headroom_us=219.9,
        ),
        kernel(
            ADAM, 901.2, wall_us, family="optimizer", op="aten::_fused_adam_", shapes=None, source="train.py:88",
            dtype="fp32", calls=4.0, flops=2.2e9, bytes_low=2.4e9, bytes_high=2.4e9, compute_us=32.9,
            memory_us=716.4, launch_us=7.2, bound="memory", regime="near_roof", explained=0.795,
            confidence="high", headroom_us=184.8,
        ),
        kernel(
            GELU, 470.6, wall_us, op="aten::gelu", shapes="[[512, 4096]]", source="model.py:58", calls=24.0,
            flops=1.0e9, bytes_low=0.2e9, bytes_high=0.2e9, compute_us=15.0, memory_us=60.1, launch_us=43.2,
            bound="memory", regime="far_below_roof", explained=0.1277, confidence="medium",
            reason="too little parallelism: 64 blocks for 132 multiprocessors", headroom_us=410.5,
        ),
        kernel(
            ADD, 259.1, wall_us, op="aten::add", shapes="[[512, 1024]]", source="model.py:61", calls=48.0,
            flops=2.5e7, bytes_low=1.5e8, bytes_high=1.5e8, compute_us=0.4, memory_us=44.8, launch_us=86.4,
            bound="overhead", explained=0.333, confidence="medium",
        ),
        kernel(
            "Memcpy HtoD (Pageable -> Device)", 45.1, wall_us, family="copy", op="aten::copy_", shapes="[[64, 1024]]",
            source="train.py:71", dtype=None, engine="none", calls=2.0, bytes_low=1.5e6, bytes_high=1.5e6,
            memory_us=23.8, bound="copy", regime="far_below_roof", explained=0.528, confidence="high",
            reason="pageable host memory", headroom_us=21.3,
        ),
        kernel("my_custom_kernel(float*, int)", 95.5, wall_us, op=None, shapes=None, dtype=None, engine=None,
               calls=6.0, reason="no formula for this op"),
        *(
            kernel(f"triton_poi_fused_add_mul_{index}", 143.6 - 10 * index, wall_us, op="triton_poi_fused",
                   source="model.py:63", calls=8.0, flops=1.0e7, bytes_low=5.0e7, bytes_high=5.0e7, compute_us=0.2,
                   memory_us=15.0, launch_us=14.4, bound="overhead", explained=0.11, confidence="low")
            for index in range(9)
        ),
    )  # fmt: skip
    return analysis(
        accounts,
        steps=StepTimes(
            count=10,
            wall_us=wall_us,
            profiled_us=Timing(14250.0, 14110.0, 14630.0, 10),
            unprofiled_us=Timing(wall_us, 12110.0, 12320.0, 20),
            perturbation=14250.0 / wall_us,
            source="optimizer",
            settled=True,
            windows_us=(15120.0, 14270.0),
        ),
        verdict=Verdict(
            "overhead",
            None,
            9195.1 / wall_us,
            join_clauses(_INPUT_BOUND),
            {"compute": 0.0994, "memory": 0.1376, "overhead": 0.7552, "communication": 0.0, "unknown": 0.0078},
            _FIRST_STEP,
            _INPUT_BOUND,
        ),
        totals=totals(sum(row.us for row in rows), wall_us, rows),
        coverage=Coverage(0.998, 0.962, (UnknownWork("my_custom_kernel(float*, int)", 95.5, "no formula"),)),
        kernels=tuple(sorted(rows, key=lambda row: -row.us)),
        ops=(Fold("aten::addmm", 24.0, 1210.4, 0.0994, {"compute": 1.0}),),
        modules=(Fold("GPT.block.mlp", 48.0, 1681.0, 0.138, {"compute": 0.72, "memory": 0.28}),),
        module_classes=(
            Fold("GPT", 1.0, 0.0, 0.0, {}, 310.0),
            Fold("GPT > Block x 12 > MLP > Linear x 2", 24.0, 1210.4, 0.0994, {"compute": 1.0}, 1240.2),
            Fold("GPT > Block x 12 > MLP > GELU", 24.0, 470.6, 0.0386, {"memory": 1.0}, 1241.1),
            Fold("GPT > Embedding", 1.0, 20.1, 0.0017, {"memory": 1.0}, 0.4),
        ),
        phases=phases(
            wall_us,
            data=(5120.2, {"overhead": 1.0}),
            forward=(2140.0, {"compute": 0.2, "memory": 0.25, "overhead": 0.55}),
            backward=(3810.0, {"compute": 0.2, "memory": 0.15, "overhead": 0.645, "unknown": 0.005}),
            optimizer=(wall_us - 11070.2, {"memory": 0.81, "overhead": 0.19}),
        ),
        ranges=(
            UserRange(
                "train_step",
                1.0,
                7055.8,
                512.2,
                7055.8 / wall_us,
                {"compute": 0.17, "memory": 0.24, "unknown": 0.01, "overhead": 0.58},
            ),
            UserRange("loss", 1.0, 301.0, 301.0, 301.0 / wall_us, {"memory": 0.002, "overhead": 0.998}),
        ),
        lines=(
            Fold("train.py:70", 0.0, 0.0, 0.0, {}, 5120.2),
            Fold("model.py:63", 72.0, 930.7, 0.0764, {"memory": 1.0}, 2481.3),
            Fold("model.py:57", 24.0, 1210.4, 0.0994, {"compute": 1.0}),
        ),
        source_texts={
            "train.py:70": "for images, labels in loader:",
            "train.py:91": "running_loss += loss.item()",
            "model.py:63": "h = h + self.mlp(self.norm2(h))",
        },
        idle=(
            IdleCause(
                "input",
                5120.2,
                5120.2 / wall_us,
                "train.py:70",
                1.0,
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ > data.py(31): __getitem__",
            ),
            IdleCause("dispatch", 2481.3, 2481.3 / wall_us, "model.py:63", 96.0, "aten::add", "GPT.block.mlp"),
            IdleCause("sync", 880.6, 880.6 / wall_us, "train.py:91", 3.0, "aten::item > cudaStreamSynchronize"),
            IdleCause("python", 310.0, 310.0 / wall_us, None, 12.0),
            IdleCause("gc", 0.3, 0.3 / wall_us, None, 0.1),
        ),
        findings=ADVICE,
        batch_test=BatchProof(
            batch_size=64,
            once_us=Timing(12180.0, 12110.0, 12260.0, 120),
            twice_us=Timing(15220.0, 15160.0, 15310.0, 120),
            ratio=Ratio(1.25, 1.24, 1.27, 40),
            fixed_us=Timing(9135.0, 8891.4, 9256.8, 120),
            proportional_us=Timing(3045.0, 2923.2, 3288.6, 120),
            fixed_share=Ratio(0.75, 0.73, 0.76, 40),
            growth="both",
            agrees=True,
            sentence="A part of the step grows with its work, the rest is the same for any batch. The ledger agrees: "
            "it says 75.5 % overhead.",
        ),
        option_costs=OptionCosts(
            tuple(
                OptionCost(option, Ratio(times, times - 0.02, times + 0.03, 12))
                for option, times in _OPTION_TIMES.items()
            )
        ),
        critical_path=_critical_path(),
        queue=Queue(0.97, 0.0, 14, ((0.0, 0.0), (5200.0, 2.0), (5900.0, 14.0), (9000.0, 1.0), (12176.0, 0.0))),
        telemetry=TelemetrySummary(
            samples=142,
            sm_clock_mhz=1755.0,
            memory_clock_mhz=2619.0,
            power_w=310.5,
            energy_j=3.8,
            utilization=0.41,
            throttle=("power cap",),
            energy_error_j=0.19,
            temperature_c=61.0,
            sm_activity=0.38,
            tensor_activity=0.0004,
            dram_activity=0.22,
            process_processors=1.93,
        ),
        caveats=(
            Caveat("no-python-stacks", "The trace has no Python frames: source lines are missing for part.", 0.026),
            Caveat("clock-assumed", "Peaks assume the boost clock of 1980 MHz; the device ran at 1755 MHz."),
        ),
    )


def cpu() -> Analysis:
    """An MLP on two cores; ops take the place of kernels."""
    accounts = {
        "compute": 24_100.0,
        "memory": 6_300.0,
        "overhead.dispatch": 2_910.0,
        "overhead.python": 1_105.5,
        "overhead.allocator": 410.0,
        "unknown": 14.5,
    }
    wall_us = sum(accounts.values())
    cpu_kernel = {"engine": "vector", "dtype": "fp32", "launch_us": 2.4}
    return analysis(
        accounts,
        recording=RecordingInfo("cpu_mlp.json.gz", "trace", "PyTorch 2.13.0+cpu", None, None),
        device=XEON,
        steps=StepTimes(5, wall_us, Timing(34_800.0, 34_500.0, 36_000.0, 5), None, None, "ProfilerStep marks"),
        verdict=Verdict(
            "compute",
            "near_roof",
            24_100.0 / wall_us,
            "Compute holds this step back (69.2 %), mostly in aten::addmm, which runs near this CPU's peak.",
            {"compute": 0.6917, "memory": 0.1808, "overhead": 0.127, "communication": 0.0, "unknown": 0.0004},
        ),
        kernels=(
            kernel("aten::addmm", 24_100.0, wall_us, family="host", op="aten::addmm", calls=6.0,
                   shapes="[[1024], [256, 1024], [1024, 1024], [], []]", source="mlp.py:12",
                   compute_us=20_130.0, memory_us=1_400.0, bound="compute", regime="near_roof",
                   explained=0.8353, confidence="high", flops=3.2e9, bytes_low=1.9e7, bytes_high=1.9e7, **cpu_kernel),
            kernel("aten::relu", 6_300.0, wall_us, family="host", op="aten::relu", shapes="[[256, 1024]]", calls=3.0,
                   source="mlp.py:13", compute_us=5.0, memory_us=1_900.0, bound="memory", regime="far_below_roof",
                   explained=0.3016, confidence="medium", reason="one thread only", bytes_low=2e6, bytes_high=2e6,
                   flops=7.9e5, **cpu_kernel),
            kernel("aten::t", 910.0, wall_us, family="host", op="aten::t", calls=6.0, bound="dispatch",
                   confidence="high", **cpu_kernel),
        ),
        totals=totals(30_414.5, wall_us, flops=3.2e9, bytes_low=2.1e7, bytes_high=2.1e7,
                      peak_memory_bytes=None, model_flops_utilization=0.58),
        idle=(IdleCause("python", 1_105.5, 1_105.5 / wall_us, "mlp.py:30", 5.0),),
        telemetry=TelemetrySummary(
            samples=31,
            sm_clock_mhz=None,
            memory_clock_mhz=None,
            power_w=None,
            energy_j=None,
            utilization=None,
            throttle=(),
            process_processors=1.93,
            host_utilization=0.985,
            cpu_clock_mhz=2445.4,
            process_memory_bytes=1.2e9,
        ),
        caveats=(Caveat("two-cores", "Two cores only: peaks were measured with 2 threads."),),
    )  # fmt: skip


def memory_cached() -> Analysis:
    """A normalisation-heavy model whose tensors partly fit the cache; long steps, shown in seconds."""
    accounts = {"compute": 9.0e5, "memory": 1.31e7, "overhead.launch_floor": 1.0e4, "overhead.dependency": 40.0}
    wall_us = sum(accounts.values())
    norm = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)"
    flash = (
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, "
        "Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true, false>(flash::Flash_fwd_params)"
    )
    return analysis(
        accounts,
        steps=StepTimes(3, wall_us, Timing(wall_us, 1.39e7, 1.42e7, 3), None, None, "marks of the recording"),
        kernels=(
            kernel(norm, 1.31e7, wall_us, family="normalization", op="aten::native_layer_norm", calls=5000.0,
                   compute_us=1.0e5, memory_us=1.2e7, launch_us=9000.0, bound="memory", regime="near_roof",
                   explained=0.916, confidence="high", flops=9e12, bytes_low=2e13, bytes_high=4.02e13),
            kernel(flash, 9.0e5, wall_us, family="attention", op="aten::_flash_attention_forward", calls=320.0,
                   compute_us=6.4e5, memory_us=9.0e4, bound="compute", regime="far_below_roof", explained=0.711,
                   confidence="medium", reason="unexplained", flops=6.3e14, bytes_low=3e11, bytes_high=3.5e11,
                   engine="matrix"),
            kernel("tiny_kernel", 1.0e4, wall_us, calls=5000.0, compute_us=1e-3, memory_us=10.0, launch_us=9000.0,
                   bound="overhead", explained=0.9, confidence="high", flops=1e3, bytes_low=1e4, bytes_high=1e4),
        ),
    )  # fmt: skip


def multi_rank() -> Analysis:
    """Four ranks with one straggler; communication is the largest group."""
    accounts = {"compute": 41_000.0, "memory": 12_000.0, "communication": 60_500.0, "overhead.dispatch": 1_500.0}
    wall_us = sum(accounts.values())
    ranks = tuple(
        RankSummary(
            rank,
            f"trace.rank{rank}.json.gz",
            wall_us + rank,
            ledger({**accounts, "overhead.dispatch": 1_500.0 + rank}),
            12_400.0 if rank == 2 else 35.5 * rank,
            "communication",
        )
        for rank in range(4)
    )
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return analysis(
        accounts,
        recording=RecordingInfo("recordings/ddp", "run", "PyTorch 2.13.0", "2026-03-02T10:00:00Z", 4),
        device=replace(H100, count=4),
        kernels=(
            kernel(nccl, 60_500.0, wall_us, family="collective", op="c10d::allreduce_", calls=12.0,
                   bound="communication", confidence="high", engine="none", reason="waits for rank 2"),
            kernel(GEMM, 41_000.0, wall_us, family="matmul", op="aten::mm", calls=72.0, engine="matrix",
                   compute_us=30_000.0, memory_us=4_000.0, launch_us=130.0, bound="compute",
                   regime="far_below_roof", explained=0.7317, confidence="high", reason="wave quantisation",
                   flops=2.9e13, bytes_low=1.1e10, bytes_high=1.4e10),
            kernel(ADD, 12_000.0, wall_us, op="aten::add_", calls=300.0, compute_us=20.0, memory_us=10_800.0,
                   launch_us=540.0, bound="memory", regime="near_roof", explained=0.9, confidence="high",
                   flops=6e9, bytes_low=3.6e10, bytes_high=3.6e10),
        ),
        ranks=ranks,
        job=JobSummary(
            ranks=4,
            hosts=2,
            left_out=(LeftOut("trace.rank4.json.gz", None, "it holds no event"),),
            slow=(
                SlowRank("rank 2", (2,), "node-1", 12_600.0, 12_300.0, 0.32, "all_reduce", 3, True,
                         "waiting for data 12.8 ms per step, median rank 400 us"),
            ),
            slow_links=(SlowLink("mesh_tp", (2, 3), "node-1", 9_000.0, 3_000.0, 2, 0.2),),
            groups=(
                GroupUse("all ranks", "data", 4, 1, 10.0, 58e3, 46e3, 12e3, None),
                GroupUse("mesh_ep", "expert", 2, 2, 2.0, 2_500.0, None, None, 1.31),
            ),
            wait_share=0.104,
            bubble_share=None,
            clock_skew_us=812.0,
        ),
        collectives=(
            CollectiveSummary("all_reduce", "bf16", 4, 10.0, 58e3, 55_500.0, 5.0e8, 2.31e11, 46e3, 12e3, None),
            CollectiveSummary(
                "broadcast", None, None, 2.0, 5_000.0, 5_000.0, None, None, None, None, "no message size in the trace"
            ),
        ),
    )  # fmt: skip


def inconclusive() -> Analysis:
    """A device nobody knows, so no ceilings, no verdict."""
    accounts = {"unknown": 880.0, "overhead.unknown": 120.0}
    wall_us = sum(accounts.values())
    return analysis(
        accounts,
        recording=RecordingInfo("trace.json", "trace", None, None, None),
        device=NO_DEVICE,
        verdict=Verdict(
            "inconclusive",
            None,
            0.88,
            "No verdict: 88.0 % of the step is unmodelled work.",
            {"compute": 0.0, "memory": 0.0, "overhead": 0.12, "communication": 0.0, "unknown": 0.88},
        ),
        kernels=(
            kernel("mystery", 880.0, wall_us, op=None, dtype=None, engine=None, launch_us=None, flops=1e9,
                   bytes_low=1e6, bytes_high=2e6, reason="this device has no known peaks"),
        ),
        totals=totals(880.0, wall_us, flops=None, bytes_low=None, bytes_high=None, h2d_bytes=None, d2h_bytes=None,
                      peak_memory_bytes=None, model_flops_utilization=None, bandwidth_utilization=None),
        coverage=Coverage(None, None, (UnknownWork("mystery", 880.0, "this device has no known peaks"),)),
        caveats=(Caveat("unknown-device", "No ceilings are known for this device.", 1.0),),
    )  # fmt: skip


def empty() -> Analysis:
    """A window in which nothing ran."""
    return analysis({"overhead.unknown": 250.0}, coverage=Coverage(None, None, ()), totals=totals(0.0, 250.0))


HOSTILE_NAMES = (
    "rich[/]markup[bold red]x[/bold red][link=https://example.org]y[/link]:skull:",
    "\x1b[31mred\x1b[0m\x07\r\x00\x9b2J\x7f",
    "\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\",
    "user\u202egnp.exe\u2066\u200b\u2060\ufeff",
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    r"$\frac{$",
    "a|b\\|c||d",
    "`code` ```fence``` ![x](javascript:alert(1)) [y](https://example.org) @everyone #1 <!-- z -->",
    "=cmd|' /C calc'!A0",
    "lone \ud800 surrogate \udfff",
    "very_" * 400,
    "<<<((({{{operator()",
    "\u6838\u5fc3 \u0623\u0647\u0644\u0627 e\u0301 \U0001f9ee",
    "first\nsecond\n# heading\n| cell |\n---",
    "",
)


def hostile() -> Analysis:
    """Every text field holds something that some renderer somewhere would obey."""
    accounts = {"compute": 700.0, "memory": 200.0, "overhead.input": 80.0, "unknown": 20.0}
    wall_us = sum(accounts.values())
    names = HOSTILE_NAMES
    evil = names[0] + names[1] + names[3] + names[7]
    texts = {f"evil.py:{number}": name for number, name in enumerate(names)}
    rows = tuple(
        kernel(name, 60.0 - index, wall_us, op=name, shapes=name, module=name, source=name, dtype=name, family=name,
               library=name, flops=1e9, bytes_low=1e6, bytes_high=1e6, compute_us=10.0, memory_us=20.0, bound="memory",
               regime="far_below_roof", explained=0.3, reason=name)
        for index, name in enumerate(names)
    )  # fmt: skip
    return analysis(
        accounts,
        recording=RecordingInfo(evil, "trace", evil, evil, None),
        device=replace(H100, name=evil, vendor=evil),
        steps=StepTimes(1, wall_us, None, None, None, evil),
        verdict=Verdict("compute", None, 0.7, evil, {"compute": 0.7, "memory": 0.2, "overhead": 0.08, "unknown": 0.02}),
        coverage=Coverage(0.5, 0.5, tuple(UnknownWork(name, 1.0, name) for name in names)),
        kernels=rows,
        ops=tuple(Fold(name, 1.0, 1.0, 0.001, {"compute": 1.0}) for name in names),
        lines=tuple(Fold(name, 1.0, 1.0, 0.001, {"compute": 1.0}, 1.0) for name in (*texts, *names)),
        modules=tuple(Fold(name, 1.0, 1.0, 0.001, {"compute": 1.0}, 1.0) for name in names),
        idle=tuple(
            IdleCause(name, 80.0 / len(names), 0.08 / len(names), line, 1.0, name, name)
            for name, line in zip(names, texts, strict=True)
        ),
        source_texts=texts,
        collectives=tuple(
            CollectiveSummary(name, name, 2, 1.0, 9.0, 8.0, 1e6, 1e9, 7.0, 2.0, name) for name in names[:8]
        ),
        findings=tuple(
            Finding(
                name,
                name,
                (name, *texts),
                gain,
                Interval(1, 1.1),
                name,
                name,
                code=name,
                gain_reason=name,
                places=(name,),
                seen_at=tuple(texts),
            )
            for name in names
            for gain in (Interval(0, 1), None)
        ),
        telemetry=TelemetrySummary(1, None, None, None, None, None, (evil,)),
        ranks=(RankSummary(0, evil, wall_us, ledger(accounts), None, evil),),
        caveats=tuple(Caveat(name, name, 0.5) for name in names),
    )


SAMPLES: dict[str, Analysis] = {
    make.__name__: make() for make in (gpu_overhead, cpu, memory_cached, multi_rank, inconclusive, empty, hostile)
}
