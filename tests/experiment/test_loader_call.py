import sys
from typing import Any

import pytest

from bottleneck.experiment.loader_call import SourceCall, call_under_way, write_constructor
from bottleneck.schema.measurements import LoaderSetting

NONE, FOUR = LoaderSetting(), LoaderSetting(4, 2, persistent_workers=True)
ADDED = "num_workers=4, prefetch_factor=2, persistent_workers=True"


@pytest.mark.parametrize(
    ("text", "setting", "written"),
    [
        ("DataLoader(data, batch_size=64)", FOUR, f"DataLoader(data, batch_size=64, {ADDED})"),
        ("DataLoader(data, num_workers=1, shuffle=True)", NONE, "DataLoader(data, shuffle=True)"),
        (
            "DataLoader(data, num_workers=1, timeout=3, prefetch_factor=9, shuffle=True)",
            NONE,
            "DataLoader(data, shuffle=True)",
        ),
        (
            "torch.utils.data.DataLoader(data, 64, True, None, None, n)",
            FOUR,
            "torch.utils.data.DataLoader(data, 64, True, None, None, 4, prefetch_factor=2, persistent_workers=True)",
        ),
        (
            "DataLoader(data, **options)",
            LoaderSetting(1, 2),
            "DataLoader(data, **{**options, 'num_workers': 1, 'pin_memory': False, 'prefetch_factor': 2, "
            "'persistent_workers': False})",
        ),
        ("DataLoader(*arguments)", FOUR, f"DataLoader(..., {ADDED})"),
        (None, LoaderSetting(1, 8), "DataLoader(..., num_workers=1, prefetch_factor=8)"),
        ("DataLoader(data)", LoaderSetting(pin_memory=True), "DataLoader(data, pin_memory=True)"),
        ("DataLoader(data, batch_size=size)", LoaderSetting(batch_size=64), "DataLoader(data, batch_size=64)"),
        ("DataLoader(data, size, True)", LoaderSetting(batch_size=64), "DataLoader(data, 64, True)"),
        ("DataLoader(data, size, True)", NONE, "DataLoader(data, size, True)"),
    ],
)
def test_arguments_of_the_program_stay_and_the_setting_is_written(
    text: str | None, setting: LoaderSetting, written: str
) -> None:
    assert write_constructor(text, setting) == written


def DataLoader(*_: Any) -> SourceCall | None:  # noqa: N802 - a namesake of torch's
    return call_under_way(sys._getframe(1))


def other(*_: Any) -> SourceCall | None:
    return call_under_way(sys._getframe(1))


def test_a_call_over_several_lines_is_found_among_others_of_its_line() -> None:
    first, second = (
        DataLoader(1),
        DataLoader(
            2,
            3,
        ),
    )
    assert first is not None and second is not None
    assert (first.text, second.text) == ("DataLoader(1)", "DataLoader(2, 3)")
    assert first.path == __file__


def test_a_call_of_another_name_or_of_no_file_is_not_told() -> None:
    assert other(1) is None
    names: dict[str, Any] = {"DataLoader": DataLoader}
    exec("made = DataLoader(1)", names)
    assert names["made"] is None
