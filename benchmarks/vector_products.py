"""Holds the rates of products with a vector (vector_products.csv) against the steps that they were solved from.

python -m benchmarks.vector_products        prints predicted beside stated times

They are steps of gpt-fast on an A100 80GB that are no published case here: models of 70 billion weights, of which the
other kernels take little. A rate is right where the ratio is 1; the two devices of the first also add up their halves.
"""

from pathlib import Path

from bottleneck.devices.match import device_by_name
from bottleneck.harness.fake_step import fake_steps
from bottleneck.harness.target import make_program
from bottleneck.predict.price import price_work

PROGRAM = Path(__file__).with_name("published") / "gpt_fast_a100.py"
# Tokens per second by model and weights (github.com/pytorch-labs/gpt-fast, README).
STATED = {
    ("llama2-70b-half", "bf16"): 21.32,
    ("llama2-70b", "int8"): 19.13,
    ("llama3-70b", "int8"): 18.04,
    ("llama2-70b", "int4"): 25.25,
}


def main() -> None:
    """Prices each step and prints it."""
    device = device_by_name("A100 80GB")
    for (model, weights), rate in STATED.items():
        program = make_program(str(PROGRAM), settings=(f"model={model}", f"weights={weights}"))
        priced = price_work(fake_steps(program, other_sizes=False)[0], device, "max-autotune")
        assert not isinstance(priced, str), priced
        stated, predicted = 1e3 / rate, priced.us() / 1e3
        ratio = predicted / stated
        print(f"{model:16}{weights:5} stated {stated:.1f} ms, predicted {predicted:.1f} ms: {ratio:.2f}")


if __name__ == "__main__":
    main()
