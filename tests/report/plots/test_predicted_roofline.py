"""The picture of a prediction's rooflines: a panel per device, on the same axes."""

from dataclasses import replace
from pathlib import Path

from bottleneck.devices.match import device_by_name
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.predicted_roofline import predicted_roofline
from tests.report.test_predict import ANSWER, FLOOR_ONLY, ON_H100

ON_T4 = replace(ON_H100, device=device_by_name("Tesla T4"), bound="memory")


def test_each_device_with_a_time_has_a_panel_with_its_roofs() -> None:
    figure = predicted_roofline(replace(ANSWER, devices=(ON_H100, ON_T4, FLOOR_ONLY)))
    first, second = figure.axes
    assert first.get_title(loc="left") == "H100 80GB HBM3: 2.84 ms, compute-bound"
    assert second.get_title(loc="left") == "T4: 2.84 ms, memory-bound"
    assert first.get_xlim() == second.get_xlim() and first.get_ylim() == second.get_ylim()
    labels = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert any("fp32 vector 66.9 TFLOP/s" in text for text in labels[0])
    assert any("fp32 vector 8.1" in text for text in labels[1])
    assert any(text.startswith("matmul (70.2 %)") for text in labels[0])
    assert any("no time is predicted for H100 80GB HBM3" in text.get_text() for text in figure.texts)


def test_same_prediction_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save_figure(predicted_roofline, tmp_path / name, ANSWER)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    save_figure(predicted_roofline, tmp_path / "one.png", ANSWER)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_prediction_without_any_time_is_a_picture_without_panels() -> None:
    figure = predicted_roofline(replace(ANSWER, devices=(FLOOR_ONLY,)))
    assert not figure.axes
    assert any("no time is predicted" in text.get_text() for text in figure.texts)
