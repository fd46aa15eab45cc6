"""Trains Llama-3.1-8B on one sequence of 8,192 tokens on a B200, op by op and compiled: compiling it is a loss."""

ITEM = 38
DEVICE = "B200"
SOURCE = "github.com/stas00/ml-engineering, training/performance/benchmarks/torch-compile-bench.py"
NEEDS = ("transformers",)
TIMES = {
    "eager": ({}, (), 590.7),
    "compile": ({"compiled": True}, ("compile",), 630.2),
    "reduce-overhead": ({"compiled": True}, ("compile-reduce-overhead",), 629.2),
    "max-autotune": ({"compiled": True}, ("compile-max-autotune",), 633.7),
}
GAINS = [("eager", way, "nothing") for way in ("compile", "reduce-overhead", "max-autotune")]


def workload(work="backward", compiled=False):
    from benchmarks.published.llama import benchmark_step, llama_8b  # noqa: PLC0415

    return benchmark_step(llama_8b(), 8192, work, compiled)
