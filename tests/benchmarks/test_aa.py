from benchmarks.aa import Outcome, table
from bottleneck.schema.measurements import Ratio

OUTCOMES = (
    Outcome("mlp.py", "no effect", Ratio(1.0, 0.99, 1.01, 40), ""),
    Outcome("mlp.py", "faster", Ratio(1.05, 1.02, 1.08, 40), ""),
    Outcome("other.py", "inconclusive", None, "faster in one process, which a fresh one did not confirm"),
)


def test_every_program_has_a_row_and_what_is_false_is_counted() -> None:
    lines = table(OUTCOMES, 21.4).splitlines()
    assert lines[2] == "| mlp.py | 2 | 1 | 1 | 0 | 0 | 1.9% |"
    assert lines[3] == "| other.py | 1 | 0 | 0 | 1 | 1 | - |"
    assert lines[-1] == "Faster or slower than itself 1 times of 3 (33.3%); 21 s each."


def test_nothing_tried_is_nothing_told() -> None:
    assert table((), 0.0).endswith("Faster or slower than itself 0 times of 0 (-); 0 s each.")
