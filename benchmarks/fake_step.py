"""Times a step under fake tensors, and eight changes of it that are priced on a device that is not here.

python -m benchmarks.fake_step                    records one step
python -m benchmarks.fake_step --device H100      runs `bottleneck verify --device`

By default a training step of a Llama of 7 billion parameters, from a configuration of `transformers` without weights.
With --device it is in fp32 and writes its attention out, so that each of the changes applies.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bottleneck.harness.fake_step import fake_steps
from bottleneck.harness.messages import Program
from bottleneck.predict.peak_memory import step_memory

_LLAMA = """
import torch
import transformers


def workload(
    batch_size=1, length=2048, width=4096, layers=32, heads=32, inner=11008, train=True,
    dtype="bfloat16", attention="sdpa",
):
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        attn_implementation=attention,
    )
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
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


_CHANGES = (
    *("tf32", "bf16-autocast", "fused-attention", "fused-optimizer"),
    *("checkpoint", "compile", "compile-max-autotune", "cuda-graph"),
)


def main() -> None:
    """Prints what the step or its changes are, and the time and the memory that recording them took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--device", metavar="NAME")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "llama.py"
        file.write_text(_LLAMA)
        started = time.perf_counter()
        if wanted.device:
            price_changes(file, wanted.device, wanted.settings)
        else:
            record_step(file, wanted.settings)
        seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"took         {seconds:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} s of CPU time")
    print(f"process      {usage.ru_maxrss / 2**20:.2f} GiB of memory, the largest one")


def record_step(file: Path, texts: Sequence[str]) -> None:
    """Prints calls, parameters and peak of the step."""
    settings = tuple(tuple(text.split("=", 1)) for text in texts)
    (calls,) = fake_steps(Program(str(file), settings=settings), other_sizes=False)  # type: ignore[arg-type]
    memory = step_memory(calls)
    assert memory is not None
    print(f"parameters   {calls.bytes_of('parameter') / 2 / 1e9:.2f} billion in bf16")
    print(f"op calls     {len(calls.calls):,}")
    print(f"peak         {memory.peak_bytes / 2**30:.1f} GiB on the device")


def price_changes(file: Path, device: str, texts: Sequence[str]) -> None:
    """Prints what each change is worth."""
    settings = [word for text in ("dtype=float32", "attention=eager", *texts) for word in ("--set", text)]
    command = [sys.executable, "-m", "bottleneck", "verify", "--device", device, "--try", ",".join(_CHANGES)]
    subprocess.run([*command, *settings, str(file)], check=True)


if __name__ == "__main__":
    main()
