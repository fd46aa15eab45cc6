"""Gains of the module of a whole sequence over its cell."""

# The module that runs a cell over a sequence.
CELLS = {"lstm_cell": "LSTM", "gru_cell": "GRU", "rnn_tanh_cell": "RNN", "rnn_relu_cell": "RNN"}
# Of a step's calls of a cell the module of the whole sequence saves this part of their time, and so many us per call,
# at least and at most, and no more than the last part: over hidden sizes of 32 to 1024, in inference and in training,
# by `python -m benchmarks.calls_for_few_rows` (torch 2.13, one thread of an EPYC). LSTM cells of 32 to 128 numbers lose
# 66 to 91 % of their time, of 1024 numbers 19 to 33 %; GRU cells lose 2 to 43 %, others 1 to 61 %. On an EPYC whose
# MKL is slow LSTM cells of 32 to 512 numbers lost 54 to 90 %, as oneDNN multiplies for the module.
_SAVED = {
    "LSTM": ((0.12, 15.0), (0.7, 25.0), 0.9),
    "GRU": ((0.02, 0.0), (0.2, 20.0), 0.45),
    "RNN": ((0.01, 0.0), (0.2, 20.0), 0.65),
}
# The call for the whole sequence takes time too: of what is saved at most so much is sure.
_SURE_OF_MOST = 0.9


def saved_by_sequence_us(module: str, us: float, calls: float) -> tuple[float, float]:
    """Returns what the module saves of so many calls, at least and at most.

    ``us`` is what they take, with their backward passes. For a CPU.
    """
    least, most, whole = _SAVED[module]
    low_us, high_us = (min(part * us + us_per_call * calls, whole * us) for part, us_per_call in (least, most))
    return min(low_us, _SURE_OF_MOST * high_us), high_us
