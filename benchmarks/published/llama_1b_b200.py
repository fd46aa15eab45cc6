"""Runs and trains Llama-3.2-1B on one sequence of 512 tokens on a B200, op by op and compiled."""

ITEM = 23
DEVICE = "B200"
SOURCE = "github.com/stas00/ml-engineering, training/performance/benchmarks/torch-compile-bench.py"
NEEDS = ("transformers",)
_MS = {"forward": (8.1, 3.4, 1.9), "backward": (48.8, 12.6, 8.1), "optimizer": (58.8, 18.7, 17.6)}
_WAYS = (("eager", ()), ("compile", ("compile",)), ("reduce-overhead", ("compile-reduce-overhead",)))
TIMES = {
    f"{work} {way}": ({"work": work, "compiled": bool(changes)}, changes, ms)
    for work, times in _MS.items()
    for (way, changes), ms in zip(_WAYS, times, strict=True)
}
GAINS = [
    (f"{work} {before}", f"{work} {after}")
    for work in _MS
    for before, after in (("eager", "compile"), ("compile", "reduce-overhead"))
]


def workload(work="backward", compiled=False):
    from benchmarks.published.llama import benchmark_step, llama_1b  # noqa: PLC0415

    return benchmark_step(llama_1b(), 512, work, compiled)
