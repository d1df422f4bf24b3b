"""The catalogue's data files under hardware/, raw: each entry under its name, with aliases and its source."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from placer.errors import UsageError
from placer.io.yaml_document import Data, close, parse

Section = Literal["devices", "links", "storage", "nodes"]
_FILES: dict[Section, tuple[str, ...]] = {
    "devices": ("devices.yaml",),
    "links": ("links.yaml", "networks.yaml"),
    "storage": ("storage.yaml",),
    "nodes": ("nodes.yaml",),
}


@cache
def entries(section: Section) -> dict[str, dict[str, Data]]:
    """Every entry of a section under its name, `aliases` left out."""
    return {name: _merged(section, name) for name in _file(section)}


@cache
def aliases(section: Section) -> dict[str, str]:
    """The entry each name and alias means."""
    found = {name: name for name in _file(section)}
    for name, entry in _file(section).items():
        for alias in _strings(entry.get("aliases", [])):
            found[alias] = name
    return found


def short_names(section: Section) -> tuple[str, ...]:
    """The shortest name of every entry: what to show a person."""
    names: dict[str, str] = {}
    for name, entry in aliases(section).items():
        if len(name) < len(names.get(entry, entry)) or entry not in names:
            names[entry] = name
    return tuple(sorted(names.values()))


def find(section: Section, name: str) -> dict[str, Data]:
    """The entry that `name` or an alias means. Raises UsageError with what is known."""
    known = aliases(section)
    lowered = name.strip().lower()
    if lowered not in known:
        raise UsageError(f"{name!r} is not in the catalogue's {section}; {close(lowered, short_names(section))}")
    return entries(section)[known[lowered]]


def _merged(section: Section, name: str) -> dict[str, Data]:
    """An entry over the one it takes with `use`."""
    own = _file(section)[name]
    under = _merged(section, str(own["use"])) if "use" in own else {}
    return {**under, **{key: value for key, value in own.items() if key not in ("aliases", "use")}}


@cache
def _file(section: Section) -> dict[str, dict[str, Data]]:
    found: dict[str, dict[str, Data]] = {}
    for file in _FILES[section]:
        text = files("placer.cluster").joinpath("hardware", file).read_text(encoding="utf-8")
        data = parse(text, f"placer/hardware/{file}").data
        assert isinstance(data, dict)
        found |= {name: entry for name, entry in data.items() if isinstance(entry, dict)}
    return found


def _strings(data: Data) -> list[str]:
    return [str(item) for item in data] if isinstance(data, list) else []
