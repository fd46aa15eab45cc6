"""Makes traces of GPU programs, each slow for one reason, for an expert's blind judgements.

    python -m tests.judged.makers.devices FOLDER

A host thread issues work op by op and streams run it in order, so that gaps and delays follow from the given times.
"""

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.builders import H100, Event, complete, kernel, launch, memcpy, op, step

A100_40 = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-40GB",
    "totalGlobalMem": 42_298_834_944,
    "computeMajor": 8,
    "computeMinor": 0,
    "warpSize": 32,
    "numSms": 108,
}
A100_80 = {**A100_40, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_974_239_744}
BF16 = "c10::BFloat16"
MIX = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_kernel__5x_cublas"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<c10::BFloat16>, std::array<char*, 2ul> >"
Shapes = Sequence[Sequence[object]]


class Program:
    """A host that issues ops and streams that run them; times are in microseconds."""

    def __init__(self, issue_us: float = 12.0) -> None:
        self.issue_us, self.now, self.events = issue_us, 1000.0, list[Event]()
        self.free: dict[int, float] = defaultdict(float)
        self.number, self.steps = 0, 0

    def start(self, stream: int, after: float) -> float:
        """The earliest start of work issued now on a stream, not before a time."""
        return max(self.free[stream], self.now + self.issue_us * 0.6 + 4, after)

    def run(self, name: str, dims: Shapes, kernels: Sequence[tuple[str, float]], **more: Any) -> float:
        """An op with its kernels on a stream; the end of the last."""
        stream, after = more.pop("stream", 7), more.pop("after", 0.0)
        types = [more.pop("types", BF16) if size else "Scalar" for size in dims]
        span = self.issue_us * max(1, len(kernels))
        self.number += 1
        begun = op(name, self.now, span - 1, dims=dims, types=types, external_id=self.number, **more)
        self.events.append(begun)
        for kernel_name, length in kernels:
            self.number += 1
            self.events.append(launch(self.number, self.now + self.issue_us * 0.4, self.issue_us * 0.4))
            begin = self.start(stream, after)
            self.events.append(kernel(self.number, begin, length, kernel_name, stream=stream))
            self.free[stream] = begin + length
            self.now += self.issue_us
        return self.free[stream]

    def product(self, rows: int, inner: int, columns: int, name: str, rate: float) -> float:
        """A matrix product at a rate in TFLOP/s."""
        length = 2 * rows * inner * columns / rate / 1e6
        return self.run("aten::mm", [[rows, inner], [inner, columns]], [(name, length)])

    def collective(self, kind: str, numbers: int, ranks: int, rate: float, after: float = 0.0) -> float:
        """A collective over ``ranks`` on stream 20 whose result has ``numbers`` of bf16, at a rate in GB/s."""
        self.number += 1
        gathers = kind == "_allgather_base"
        sizes = {
            "In msg nelems": numbers // ranks if gathers else numbers,
            "Out msg nelems": numbers if gathers else numbers // ranks,
        }
        args = {
            "Collective name": kind,
            "dtype": "BFloat16",
            "Group size": ranks,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            **sizes,
        }
        span = complete("record_param_comms", "cpu_op", self.now, self.issue_us - 1)
        span["args"] = {"External id": self.number, **args}
        self.events += [span, launch(self.number, self.now + 4, 5, "cudaLaunchKernelExC")]
        begin = self.start(20, after)
        length = numbers * 2 * (ranks - 1) / ranks / rate / 1e3
        verb = "AllGather" if gathers else "ReduceScatter_Sum_bf16"
        name = f"ncclDevKernel_{verb}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.events.append(kernel(self.number, begin, length, name, stream=20, grid=[16, 1, 1], args=args))
        self.free[20] = begin + length
        self.now += self.issue_us
        return self.free[20]

    def wait(self, name: str = "cudaStreamSynchronize", stream: int = 7) -> None:
        """The host waits for a stream."""
        self.number += 1
        end = max(self.now + 3, self.free[stream] + 3)
        self.events.append(launch(self.number, self.now, end - self.now, name))
        self.now = end

    def copy(self, nbytes: int, rate: float, kind: str) -> None:
        """A copy on stream 7 at a rate in GB/s, for which the host waits where memory is pageable."""
        self.number += 1
        begin = self.start(7, 0.0)
        length = max(1.5, nbytes / rate / 1e3)
        self.free[7] = begin + length
        self.events.append(memcpy(self.number, begin, length, nbytes, kind))
        blocked = begin + length - self.now if "Pageable" in kind else 6.0
        self.events.append(launch(self.number, self.now + 1, blocked, "cudaMemcpyAsync"))
        self.now += blocked + 2

    def marked(self, body: Callable[[], None]) -> None:
        """A profiler's step around some work."""
        begun = self.now
        self.now += 20
        body()
        self.now += 20
        self.events.append(step(self.steps, begun, self.now - begun))
        self.steps += 1


def sharded_training() -> tuple[Program, dict[str, Any]]:
    """Fully sharded training over two nodes: each layer's weights take longer to gather than to use."""
    program = Program(8.0)
    tokens, hidden = 4096, 4096
    weights = hidden * hidden * 12
    sizes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]

    def layer(ready: float, backward: bool) -> float:
        program.free[7] = max(program.free[7], ready)
        for inner, columns in sizes:
            program.product(tokens, inner, columns, MIX, 620)
            if backward:
                program.product(inner, tokens, columns, MIX, 600)
        dims = [[1, 32, tokens, 128]] * (5 if backward else 3)
        name = "aten::_flash_attention_backward" if backward else "aten::_flash_attention_forward"
        verb, length = ("bwd_dq_dk_dv_loop_seqk_parallel", 1700.0) if backward else ("fwd", 620.0)
        return program.run(name, dims, [(f"void flash_{verb}_kernel<Flash_kernel_traits<128, 128, 64>>", length)])

    def body() -> None:
        for backward in (False, True):
            ready = program.collective("_allgather_base", weights, 16, 42)
            for number in range(3):
                following = program.collective("_allgather_base", weights, 16, 42) if number < 2 else ready
                end = layer(ready, backward)
                if backward:
                    program.collective("_reduce_scatter_base", weights, 16, 42, after=end)
                ready = following
        program.free[7] = max(program.free[7], program.free[20])
        program.run("aten::_fused_adamw_", [[]], [("void at::native::multi_tensor_apply_kernel<FusedAdam>", 300.0)])
        program.wait()

    for _ in range(2):
        program.marked(body)
    return program, {"deviceProperties": [H100], "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 16}}


def generation_without_cache() -> tuple[Program, dict[str, Any]]:
    """Text generation that passes the whole sequence through the model for each new token."""
    program = Program(9.0)

    def token(length: int) -> None:
        rows = 4 * length
        for _ in range(4):
            program.run("aten::rms_norm", [[4, length, 4096], []], [("void vectorized_layer_norm_kernel<bf16>", 22.0)])
            program.product(rows, 4096, 6144, MIX, 610)
            dims = [[4, 32, length, 128], [4, 8, length, 128], [4, 8, length, 128]]
            attention = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"
            program.run("aten::_flash_attention_forward", dims, [(attention, 95.0)])
            program.product(rows, 4096, 4096, MIX, 590)
            program.product(rows, 4096, 28672, MIX, 640)
            silu = POINTWISE.format("silu_kernel")
            program.run("aten::silu", [[rows, 14336]], [(silu, rows * 14336 * 4 / 2.6e6)])
            mul = POINTWISE.format("MulFunctor")
            program.run("aten::mul", [[rows, 14336], [rows, 14336]], [(mul, rows * 14336 * 6 / 2.6e6)])
            program.product(rows, 14336, 4096, MIX, 615)
        program.product(rows, 4096, 128256, MIX, 640)
        argmax = "void at::native::reduce_kernel<512, 1, ArgMaxOps<c10::BFloat16>>"
        program.run("aten::argmax", [[4, 128256], [], []], [(argmax, 14.0)])
        program.wait()

    for number in range(4):
        program.marked(lambda length=900 + number: token(length))  # type: ignore[misc]
    return program, {"deviceProperties": [H100]}


def pageable_images() -> tuple[Program, dict[str, Any]]:
    """Training whose images are copied from pageable memory before each step."""
    program = Program(11.0)
    fprop = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4"

    def body() -> None:
        program.copy(256 * 3 * 224 * 224 * 4, 5.7, "HtoD (Pageable -> Device)")
        for channels, side, length in ((64, 56, 285.0), (128, 28, 262.0), (256, 14, 255.0), (512, 7, 262.0)) * 3:
            image = [256, channels, side, side]
            weight = [channels, channels, 3, 3]
            dims = [image, weight, [], [1], [1], [1], [], [1], []]
            program.run("aten::cudnn_convolution", dims, [(fprop, length)], types="c10::Half")
            norm = "void at::native::batch_norm_transform_input_channels_last_kernel<c10::Half, float>"
            size = 256 * channels * side * side
            program.run("aten::cudnn_batch_norm", [image, [channels]], [(norm, size * 4 / 1.1e6)], types="c10::Half")
            dims = [image, image, weight, [], [1], [1], [1], [], [1], [], []]
            names = [(fprop.replace("fprop", kind), length * 1.1) for kind in ("dgrad", "wgrad")]
            program.run("aten::convolution_backward", dims, names, types="c10::Half")
        program.run("aten::_fused_adam_", [[]], [("void at::native::multi_tensor_apply_kernel<FusedAdam>", 190.0)])

    for _ in range(3):
        program.marked(body)
    program.wait("cudaDeviceSynchronize")
    return program, {"deviceProperties": [A100_40]}


def looped_experts() -> tuple[Program, dict[str, Any]]:
    """A mixture of experts whose rows are looked up on the host, expert by expert."""
    program = Program(11.0)
    skinny = "nvjet_tst_64x16_64x13_4x1_v_bz_TNT"

    def expert(rows: int) -> None:
        program.run("aten::eq", [[64, 2], []], [(POINTWISE.format("CompareEqFunctor"), 1.6)], types="long int")
        scan = [("void cub::DeviceReduceSingleTileKernel<NonZeroOp>", 3.0), ("void cub::DeviceSelectSweepKernel", 3.4)]
        program.run("aten::nonzero", [[64, 2]], scan, types="bool")
        program.copy(8, 0.1, "DtoH (Device -> Pinned)")
        program.wait()
        index = "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>"
        program.run("aten::index", [[64, 2048], []], [(index, 2.4)])
        for _ in range(2):
            program.run("aten::mm", [[rows, 2048], [2048, 5632]], [(skinny, 10.4)])
        program.run("aten::silu", [[rows, 5632]], [(POINTWISE.format("silu_kernel"), 1.7)])
        program.run("aten::mul", [[rows, 5632], [rows, 5632]], [(POINTWISE.format("MulFunctor"), 1.8)])
        program.run("aten::mm", [[rows, 5632], [5632, 2048]], [(skinny, 10.9)])
        program.run("aten::mul", [[rows, 2048], [rows, 1]], [(POINTWISE.format("MulFunctor"), 1.7)])
        added = "void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true, ReduceAdd>"
        program.run("aten::index_add_", [[64, 2048], [], [rows], [rows, 2048], []], [(added, 3.1)])

    def body() -> None:
        for rows in (21, 9, 16, 14, 25, 11, 18, 14):
            expert(rows)

    for _ in range(2):
        program.marked(body)
    program.wait("cudaDeviceSynchronize")
    return program, {"deviceProperties": [H100]}


def decoding() -> tuple[Program, dict[str, Any]]:
    """Decoding of one sequence, whose products read all weights near the rate of the memory."""
    program = Program(8.0)
    name = "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn"

    def product(inner: int, columns: int) -> None:
        length = inner * columns * 2 / 1.72e6
        program.run("aten::mm", [[1, inner], [inner, columns]], [(name, length)])

    def body() -> None:
        for _ in range(4):
            norm = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>"
            program.run("aten::rms_norm", [[1, 1, 8192], []], [(norm, 5.5)])
            product(8192, 10240)
            attention = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>"
            dims = [[1, 64, 1, 128], [1, 8, 2048, 128], [1, 8, 2048, 128]]
            program.run("aten::_flash_attention_forward", dims, [(attention, 14.0)])
            product(8192, 8192)
            product(8192, 28672)
            product(8192, 28672)
            program.run("aten::silu", [[1, 28672]], [(POINTWISE.format("silu_kernel"), 3.0)])
            program.run("aten::mul", [[1, 28672], [1, 28672]], [(POINTWISE.format("MulFunctor"), 3.1)])
            product(28672, 8192)
        argmax = "void at::native::reduce_kernel<512, 1, ArgMaxOps<c10::BFloat16>>"
        program.run("aten::argmax", [[1, 8192], [], []], [(argmax, 9.0)])
        program.copy(8, 0.1, "DtoH (Device -> Pinned)")
        program.wait()

    for _ in range(3):
        program.marked(body)
    program.wait("cudaDeviceSynchronize")
    return program, {"deviceProperties": [A100_80]}


PROGRAMS = (sharded_training, generation_without_cache, pageable_images, looped_experts, decoding)


def main() -> None:
    """Writes the traces into the folder."""
    for make in PROGRAMS:
        program, top = make()
        trace = {"schemaVersion": 1, **top, "traceEvents": program.events}
        path = Path(sys.argv[1]) / f"made_{make.__name__}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 9, mtime=0))
        print(path)


if __name__ == "__main__":
    main()
