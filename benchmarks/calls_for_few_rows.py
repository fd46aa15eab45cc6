"""Times recurrent cells and small models that are called step by step, and the one call that does the same.

python -m benchmarks.calls_for_few_rows

The first table is behind the gain of the finding `looped-cell`: a cell in a Python loop against the module of the whole
sequence. The second is behind `many-small-calls`: a policy that is called for one environment after the other against
one call for all. One thread; the quickest of some runs counts.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

_STEPS, _RUNS = 48, 5
_SIZES = ((32, 8), (128, 8), (256, 32), (512, 64), (1024, 64))
_ENVIRONMENTS = 8


def main() -> None:
    """Times and prints."""
    torch.set_num_threads(1)
    print(f"{'cell':6}{'hidden':>7}{'batch':>6}{'inference saves':>17}{'training saves':>16}")
    for cell, module in ((nn.LSTMCell, nn.LSTM), (nn.GRUCell, nn.GRU), (nn.RNNCell, nn.RNN)):
        for hidden, batch in _SIZES:
            looped, whole = looped_and_whole(cell(hidden, hidden), module(hidden, hidden), hidden, batch)
            saved = (1 - quickest(whole, train=train) / quickest(looped, train=train) for train in (False, True))
            inference, training = (f"{share:.0%}" for share in saved)
            print(f"{module.__name__:6}{hidden:7}{batch:6}{inference:>17}{training:>16}")
    policy, rows = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)), torch.randn(_ENVIRONMENTS, 4)
    one_by_one = quickest(lambda: sample(policy, rows, one_by_one=True), train=False)
    at_once = quickest(lambda: sample(policy, rows, one_by_one=False), train=False)
    print(f"\na policy for {_ENVIRONMENTS} environments: one call for all saves {1 - at_once / one_by_one:.0%}")


def looped_and_whole(
    cell: nn.Module, module: nn.Module, hidden: int, batch: int
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """The cell over a sequence in a loop, and the module over all of it."""
    sequence = torch.randn(_STEPS, batch, hidden)
    has_two_states = isinstance(cell, nn.LSTMCell)

    def looped() -> torch.Tensor:
        state = torch.zeros(batch, hidden)
        states = (state, torch.zeros(batch, hidden)) if has_two_states else state
        outputs = []
        for row in sequence:
            states = cell(row, states)
            outputs.append(states[0] if has_two_states else states)
        return torch.stack(outputs)

    return looped, lambda: module(sequence)[0]


def sample(policy: nn.Module, rows: torch.Tensor, *, one_by_one: bool) -> torch.Tensor:
    """Actions of a policy for these observations, with the logarithm of what each was likely to be."""
    parts = rows if one_by_one else [rows]
    actions = []
    for part in parts:
        chosen = torch.distributions.Categorical(logits=policy(part))
        action = chosen.sample()
        actions.append(action + 0 * chosen.log_prob(action))
    return torch.stack(actions) if one_by_one else actions[0]


def quickest(work: Callable[[], torch.Tensor], *, train: bool) -> float:
    """Seconds of the quickest run; with a backward pass in training."""
    seconds = []
    for _ in range(_RUNS + 1):
        with torch.set_grad_enabled(train):
            begin = time.perf_counter()
            result = work()
            if train:
                result.sum().backward()
            seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
