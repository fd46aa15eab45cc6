"""Times a step under fake tensors: ``python -m benchmarks.fake_step``.

By default a training step of a Llama of 7 billion parameters, from a configuration of `transformers` without weights.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from bottleneck.harness.fake_step import fake_steps
from bottleneck.harness.messages import Program
from bottleneck.predict.peak_memory import step_memory

_LLAMA = """
import torch
import transformers


def workload(batch_size=1, length=2048, width=4096, layers=32, heads=32, inner=11008, train=True):
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    tokens = torch.zeros(batch_size, length, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    def infer():
        with torch.no_grad():
            model(input_ids=tokens)

    return step if train else infer
"""


def main() -> None:
    """Prints calls, parameters and peak of the step, and the time and the memory that recording it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    settings = tuple(tuple(text.split("=", 1)) for text in parser.parse_args().settings)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "llama.py"
        file.write_text(_LLAMA)
        started = time.perf_counter()
        (calls,) = fake_steps(Program(str(file), settings=settings), other_sizes=False)  # type: ignore[arg-type]
        seconds = time.perf_counter() - started
    memory = step_memory(calls)
    assert memory is not None
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"parameters   {calls.bytes_of('parameter') / 2 / 1e9:.2f} billion in bf16")
    print(f"op calls     {len(calls.calls):,}")
    print(f"peak         {memory.peak_bytes / 2**30:.1f} GiB on the device")
    print(f"took         {seconds:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} s of CPU time")
    print(f"process      {usage.ru_maxrss / 2**20:.2f} GiB of memory")


if __name__ == "__main__":
    main()
