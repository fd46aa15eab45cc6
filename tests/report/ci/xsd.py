"""Checks an XML document against an XML Schema, for the few constructs that junit-10.xsd uses.

These are elements that refer to others, sequences and choices of them, attributes, mixed text, and texts by pattern. No
validator is among our dependencies; ``test_schemas.py`` holds that what this one does not know stops it.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

_XS = "{http://www.w3.org/2001/XMLSchema}"
_CONTENT = frozenset({"sequence", "choice", "element"})
_KNOWN = frozenset({"schema", "simpleType", "restriction", "pattern", "complexType", "attribute", *_CONTENT})


class Schema:
    """The elements and types of a schema; ValueError for a construct that is not known here."""

    def __init__(self, path: Path) -> None:
        root = ET.parse(path).getroot()
        strange = {each.tag for each in root.iter()} - {f"{_XS}{name}" for name in _KNOWN}
        if strange:
            raise ValueError(f"{path} holds {sorted(strange)}")
        self._elements = {each.get("name", ""): each for each in root.findall(f"{_XS}element")}
        named = [*root.findall(f"{_XS}complexType"), *root.findall(f"{_XS}simpleType")]
        self._types = {each.get("name", ""): each for each in named}

    def errors(self, element: ET.Element) -> Iterator[str]:
        """What the schema does not allow in the element and in those below it."""
        declared = self._elements.get(element.tag)
        if declared is None:
            yield f"<{element.tag}> is no element"
            return
        kind = self._types.get(declared.get("type", "")) if declared.get("type") else declared.find(f"{_XS}complexType")
        if kind is None:  # a text
            yield from (f"<{element.tag}> holds <{child.tag}>" for child in element)
            return
        yield from self._attribute_errors(
            element, {each.get("name", ""): each for each in kind.findall(f"{_XS}attribute")}
        )
        if kind.get("mixed") != "true" and any((text or "").strip() for text in _texts(element)):
            yield f"<{element.tag}> holds text"
        particle = next((each for each in kind if each.tag.removeprefix(_XS) in _CONTENT), None)
        pattern = "" if particle is None else _expression(particle)
        if not re.fullmatch(pattern, "".join(f"<{child.tag}>" for child in element)):
            yield f"<{element.tag}> holds {[child.tag for child in element]}, not {pattern}"
        for child in element:
            yield from self.errors(child)

    def _attribute_errors(self, element: ET.Element, allowed: Mapping[str, ET.Element]) -> Iterator[str]:
        for name, declared in allowed.items():
            if declared.get("use") == "required" and name not in element.attrib:
                yield f"<{element.tag}> has no {name}"
        for name, value in element.attrib.items():
            kind = self._types.get(allowed[name].get("type", "")) if name in allowed else None
            if name not in allowed:
                yield f"<{element.tag}> has {name}"
            elif kind is not None and not all(re.fullmatch(each, value) for each in _patterns(kind)):
                yield f"{name}={value!r} of <{element.tag}> is no {allowed[name].get('type')}"


def _texts(element: ET.Element) -> list[str | None]:
    return [element.text, *(child.tail for child in element)]


def _patterns(kind: ET.Element) -> list[str]:
    return [each.get("value", "") for each in kind.iter(f"{_XS}pattern")]


def _expression(particle: ET.Element) -> str:
    """The content model as a regular expression over '<name>' of each child."""
    name = particle.get("ref") or particle.get("name")
    if particle.tag == f"{_XS}element":
        inner = f"<{name}>"
    else:
        inner = ("|" if particle.tag == f"{_XS}choice" else "").join(map(_expression, particle))
    least, most = particle.get("minOccurs", "1"), particle.get("maxOccurs", "1")
    return f"(?:{inner}){{{least},{'' if most == 'unbounded' else most}}}"
