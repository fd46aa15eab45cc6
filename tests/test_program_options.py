import pytest

from bottleneck.commands.run import end_at_module

WITH_VALUE = {"-m", "--module", "-o", "--output", "--set"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m package --algo ppo -o theirs", "-m package -- --algo ppo -o theirs"),
        ("-o ours --module package -h", "-o ours --module package -- -h"),
        ("--strict --module=package -m x", "--strict --module=package -- -m x"),
        ("-mpackage --steps 3", "-mpackage -- --steps 3"),
        ("-m package", "-m package --"),
        ("-m", "-m --"),
    ],
)
def test_what_follows_a_module_is_the_programs(arguments: str, expected: str) -> None:
    assert end_at_module(arguments.split(), WITH_VALUE) == expected.split()


@pytest.mark.parametrize(
    "arguments",
    ["train.py -m theirs --x", "-o -m train.py --module x", "-- -m x", "-m package -- -x", "--strict train.py -mx", ""],
)
def test_other_arguments_stay_as_they_are(arguments: str) -> None:
    assert end_at_module(arguments.split(), WITH_VALUE) == arguments.split()
