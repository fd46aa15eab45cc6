from benchmarks.exam import ROWS, figures_on, table


def test_rows_that_are_not_run_keep_their_figures() -> None:
    rows = table({1: "52/52", 8: "3/4; fails: x"}, {})
    page = f"before\n<!-- exam:begin -->\n{rows}\n<!-- exam:end -->\n| 2 | a | b | c |"
    assert figures_on(page)[1] == "52/52"
    assert figures_on(page)[8] == "3/4; fails: x"
    assert figures_on(page)[2] == "not run"
    assert "| 52/52 |" in table({2: "22/22"}, figures_on(page))
    assert set(figures_on(page)) == set(ROWS)
