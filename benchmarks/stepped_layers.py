"""What recurrent layers save that get whole sequences in place of single steps, and batches in place of single rows.

    OMP_NUM_THREADS=1 python -m benchmarks.stepped_layers

Each row is a module, a way (training or inference), its numbers of a state, rows and layers, the milliseconds of 50
steps one by one and in one call, and the part of the time that the call saves. One row and sixteen, compared for each
row, tell what a batch saves.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

_STEPS, _TIMES = 50, 5
_SIZES = ((32, 1), (32, 3), (128, 1), (128, 3), (512, 1))
_ROWS = (1, 16, 64)


def milliseconds(work: Callable[[], object]) -> float:
    """Median time of some calls, after two."""
    seconds = []
    for _ in range(_TIMES + 2):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:]) * 1e3


def outputs_step_by_step(layer: torch.nn.Module, sequence: torch.Tensor) -> torch.Tensor:
    """The outputs of a layer that gets one step in each call."""
    state, outputs = None, []
    for at in range(len(sequence)):
        output, state = layer(sequence[at : at + 1], state)
        outputs.append(output)
    return torch.cat(outputs)


def rows_of_table() -> Iterator[tuple[str, str, int, int, int, float, float]]:
    """Each combination with its times."""
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        for trains in (True, False):
            for hidden, layers in _SIZES:
                for count in _ROWS:
                    layer, sequence = kind(hidden, hidden, layers), torch.randn(_STEPS, count, hidden)

                    def run(outputs: Callable[[], torch.Tensor], trains: bool = trains) -> None:
                        with torch.set_grad_enabled(trains):
                            result = outputs()
                        if trains:
                            result.sum().backward()

                    def single(layer: torch.nn.Module = layer, given: torch.Tensor = sequence) -> torch.Tensor:
                        return outputs_step_by_step(layer, given)

                    def whole(layer: torch.nn.Module = layer, given: torch.Tensor = sequence) -> torch.Tensor:
                        return layer(given)[0]

                    times = (milliseconds(lambda work=work: run(work)) for work in (single, whole))
                    yield (kind.__name__, "training" if trains else "inference", hidden, count, layers, *times)


def main() -> None:
    """Prints the table."""
    torch.manual_seed(0)
    print("module  way        state  rows  layers  one by one, ms  one call, ms  saved")
    for name, way, hidden, count, layers, single, whole in rows_of_table():
        saved = 1 - whole / single
        print(f"{name:7} {way:9} {hidden:6} {count:5} {layers:7} {single:15.2f} {whole:13.2f} {saved:6.2f}", flush=True)


if __name__ == "__main__":
    main()
