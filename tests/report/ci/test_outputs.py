"""Laws of all formats of the gate, its golden outputs, and gate.json, which holds the whole gate."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bottleneck.errors import UsageError
from bottleneck.report.ci import outputs as gate_module
from bottleneck.report.ci.outputs import GATE_FORMATS, GateFormat, to_json, write_formats
from bottleneck.report.ci.phrases import VERDICTS, verdict_of
from bottleneck.schema.gate_result import Gate
from bottleneck.schema.measurements import Ratio
from tests.report.gate_golden import FOLDER, GOLDEN
from tests.report.gates import FINE, GATES, PASSED, gate

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
FORM = pytest.mark.parametrize("form", GATE_FORMATS)


@EACH
@FORM
def test_every_format_renders_every_gate_and_twice_the_same(form: str, gate: Gate) -> None:
    text = GATE_FORMATS[form].render(gate)
    assert text.endswith("\n")
    assert text == GATE_FORMATS[form].render(gate)


@EACH
@FORM
def test_no_format_holds_a_character_that_acts_on_a_screen(form: str, gate: Gate) -> None:
    # A page joins numbers to their units by no-break spaces.
    spaces = "\n\u00a0" if form == "html" else "\n"
    assert all(character.isprintable() or character in spaces for character in GATE_FORMATS[form].render(gate))


def exit_codes(form: str, text: str) -> tuple[str, int]:
    """The verdict and the exit code that a text of this format tells, as one who reads that format finds them."""
    if form == "json":
        tree = json.loads(text)
        return VERDICTS[tree["verdict"]], tree["exit_code"]
    if form == "sarif":
        run = json.loads(text)["runs"][0]
        return run["properties"]["verdict"], run["invocations"][0]["exitCode"]
    if form == "junit":
        told = {each.get("name"): each.get("value") for each in ET.fromstring(text).iter("property")}
        return str(told["verdict"]), int(str(told["exit_code"]))
    if form == "openmetrics":
        found = re.search(r'^bottleneck_gate_exit_code\{verdict="(.+)"\} (\d+)$', text, re.MULTILINE)
    else:
        found = re.search(r"\b([A-Z]+(?: [A-Z]+)?), exit code (\d+)", text)
    assert found is not None
    return found[1], int(found[2])


@EACH
@FORM
def test_verdict_and_exit_code_are_reported_and_agree(form: str, gate: Gate) -> None:
    text = GATE_FORMATS[form].render(gate)
    if form == "gitlab" and not json.loads(text):
        assert gate.exit_code == 0  # an empty list of issues is how that format tells a pass
        return
    assert exit_codes(form, text) == (VERDICTS[verdict_of(gate)], gate.exit_code)


def errors(form: str, text: str) -> int:
    """The number of things that a format shows in red."""
    found: Any
    if form == "github":
        return len(re.findall(r"^::error ", text, re.MULTILINE))
    if form == "gitlab":
        return sum(issue["severity"] == "major" for issue in json.loads(text))
    if form == "sarif":
        return sum(result["level"] == "error" for result in json.loads(text)["runs"][0]["results"])
    found = ET.fromstring(text)
    return int(found.get("failures", "")) + int(found.get("errors", ""))


@EACH
@pytest.mark.parametrize("form", ["github", "gitlab", "sarif", "junit"])
def test_something_is_red_if_and_only_if_the_gate_fails(form: str, gate: Gate) -> None:
    assert (errors(form, GATE_FORMATS[form].render(gate)) > 0) == (gate.exit_code != 0)


def test_a_strict_gate_that_fails_though_all_passed_is_red_everywhere() -> None:
    strict = replace(GATES["passed"], exit_code=5)
    for form in ("github", "gitlab", "sarif", "junit"):
        assert errors(form, GATE_FORMATS[form].render(strict)) == 1


@pytest.mark.parametrize("form", ["terminal", "markdown", "github", "junit"])
def test_how_long_it_took_and_what_it_could_have_seen_are_reported(form: str) -> None:
    told = " ".join(GATE_FORMATS[form].render(GATES["passed"]).split()).replace("%25", "%")
    assert "41 s" in told
    if form != "github":
        assert "could see 1.8 % or more" in told


def test_all_files_are_written_and_their_paths_given(tmp_path: Path) -> None:
    paths = write_formats(GATES["several"], tmp_path / "new" / "gate", GATE_FORMATS)
    assert [path.name for path in paths] == [form.file for form in GATE_FORMATS.values()]
    assert sorted(path.name for path in (tmp_path / "new" / "gate").iterdir()) == sorted(path.name for path in paths)
    assert paths[0].read_text(encoding="utf-8") == GATE_FORMATS["terminal"].render(GATES["several"])


def test_formats_have_files_of_their_own() -> None:
    assert len({form.file for form in GATE_FORMATS.values()}) == len(GATE_FORMATS)


def test_a_name_given_twice_is_written_once(tmp_path: Path) -> None:
    assert len(write_formats(GATES["passed"], tmp_path, ["json", "json"])) == 1


def test_one_file_that_cannot_be_written_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    for name in ("gate.txt", "junit.xml"):
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*gate\.txt") as caught:
        write_formats(GATES["passed"], tmp_path, GATE_FORMATS)
    assert len(caught.value.__notes__) == 1 and "junit.xml" in caught.value.__notes__[0]
    written = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert written == {form.file for form in GATE_FORMATS.values()} - {"gate.txt", "junit.xml"}


def test_one_format_that_cannot_be_rendered_keeps_no_other_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(gate: Gate) -> str:
        raise AssertionError("a bug")

    broken = {"broken": GateFormat("broken.txt", fail), "json": GATE_FORMATS["json"]}
    monkeypatch.setattr(gate_module, "GATE_FORMATS", broken)
    with pytest.raises(AssertionError, match="a bug"):
        write_formats(GATES["passed"], tmp_path, broken)
    assert [path.name for path in tmp_path.iterdir()] == ["gate.json"]


def test_a_folder_that_cannot_be_made_is_a_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("a file")
    with pytest.raises(UsageError, match="cannot make the folder"):
        write_formats(GATES["passed"], tmp_path / "gate", ["json"])


GATE_JSON_EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def read_gate(text: str) -> Gate:
    return msgspec.convert(json.loads(text), Gate)


@GATE_JSON_EACH
def test_what_is_read_is_written_again_the_same(gate: Gate) -> None:
    assert to_json(read_gate(to_json(gate))) == to_json(gate)


@pytest.mark.parametrize("name", sorted(set(GATES) - {"hostile"}))
def test_a_gate_is_read_back_as_it_was(name: str) -> None:
    assert read_gate(to_json(GATES[name])) == GATES[name]


def test_hostile_names_are_read_back_as_they_were_but_for_lone_surrogates() -> None:
    read = read_gate(to_json(GATES["hostile"]))
    assert "\\udc80" in repr(GATES["hostile"].results[0].counters)
    counters = repr(GATES["hostile"].results[0].counters)
    assert repr(read.results[0].counters) == counters.replace("\\udc80", "\\\\udc80")


@GATE_JSON_EACH
def test_the_file_is_ascii(gate: Gate) -> None:
    assert to_json(gate).isascii()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_ratio_that_is_not_finite_is_unknown(bad: float) -> None:
    time = replace(FINE, ratio=Ratio(1.0, 0.9, bad, 3), smallest_visible=bad)
    text = to_json(gate(replace(PASSED, time=time), exit_code=0, sentence="."))
    read = read_gate(text).results[0].time
    assert read is not None and read.ratio is None and read.smallest_visible is None


@pytest.mark.parametrize("name", GOLDEN)
def test_an_output_reads_as_the_golden_one_does(name: str) -> None:
    golden = (FOLDER / name).read_text(encoding="utf-8")
    assert GOLDEN[name]() == golden, "look at the difference; python -m tests.report.gate_golden accepts it"


def test_every_golden_output_has_its_maker() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)
