"""YAML a person writes, read safely, with the line of every field, so that an error can name it.

In: text and a pydantic model. Out: the validated model, or a UsageError that names file, line, field and what to do.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from placer.errors import UsageError
from placer.io.refusals import short

Location = tuple[str | int, ...]
Data = dict[str, "Data"] | list["Data"] | str | int | float | bool | None
Model = TypeVar("Model", bound=BaseModel)

# A file of a few kilobytes can name billions of values through aliases of aliases.
_MOST_VALUES = 200_000

# What pydantic calls things, in the words of YAML.
_EXPECTED = {
    "tuple_type": "a list, as in [a, b]",
    "dict_type": "named fields, as in {a: 1}",
    "model_type": "named fields, as in {a: 1}",
    "string_type": "a text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """The data of a YAML file and the line of each of its fields."""

    path: str
    data: Data
    lines: dict[Location, int]

    def line(self, location: Location) -> int:
        """The line of a field; of what should hold it where it is missing."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def parse(text: str, path: str) -> YamlDocument:
    """The document of `text`, called `path` in errors. Raises UsageError for what is not YAML and for doubled keys."""
    lines: dict[Location, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        data = _Reader(loader=loader, path=path, lines=lines).value(root, ()) if root is not None else None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}, {_unreadable(error)}") from None
    except RecursionError:
        raise UsageError(f"{path}: this YAML is nested too deeply to be a cluster; write it flatter") from None
    except ValueError as error:  # a date or number of a shape YAML knows, with a value it does not have
        raise UsageError(f"{path}: this YAML holds a value that cannot be read: {error}; put it in quotes") from None
    return YamlDocument(path=path, data=data, lines=lines)


def _unreadable(error: yaml.YAMLError) -> str:
    """Where and why a text is not YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1 if mark is not None else 1}: this is not YAML placer can read: {problem}"


def validated(document: YamlDocument, model: type[Model]) -> Model:
    """`document` as a `model`. Raises UsageError listing every wrong field with its line."""
    if not isinstance(document.data, dict):
        what = "an empty file" if document.data is None else f"{document.data!r:.60}"
        fields = ", ".join(_fields(model))
        raise UsageError(f"{document.path}, line 1: expected fields such as {fields}; found {what}; write them")
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        every = error.errors()
        found = [p for p in every if p["type"] != "too_short" or p["input"] in ((), [])] or every
        problems = sorted({(document.line(p["loc"]), _problem(p, model)) for p in found})
        shown = [f"{document.path}, line {line}: {problem}" for line, problem in problems[:10]]
        raise UsageError("\n".join(shown)) from None


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Turns YAML nodes into plain data, noting lines."""

    loader: yaml.SafeLoader
    path: str
    lines: dict[Location, int]
    count: int = 0

    def value(self, node: yaml.Node, location: Location) -> Data:
        self.lines.setdefault(location, node.start_mark.line + 1)
        self.count += 1
        if self.count > _MOST_VALUES or len(location) > 50:
            raise UsageError(f"{self.path}: this YAML names more values than a cluster can have (aliases in a circle?)")
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return dict(self.items(node, location))
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(child, (*location, i)) for i, child in enumerate(node.value)]
        constructed: Data = self.loader.construct_object(node)
        return constructed

    def items(self, node: yaml.MappingNode, location: Location) -> Iterator[tuple[str, Data]]:
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(self.value(key_node, (*location, "?"))), key_node.start_mark.line + 1
            if key in first:
                field = dotted((*location, key))
                raise UsageError(
                    f"{self.path}, line {line}: {field} is given twice, first in line {first[key]}; keep one"
                )
            first[key] = self.lines[(*location, key)] = line
            yield key, self.value(value_node, (*location, key))


def dotted(location: Location) -> str:
    """A location as people write it: `nodes[0].link.latency`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{short(part)}" for part in location)
    return text.removeprefix(".") or "the file"


def close(name: str, known: Iterable[str]) -> str:
    """`known` for a message, what resembles `name` first."""
    names = sorted(known)
    like = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(like)}? known: {', '.join(names)}" if like else f"known: {', '.join(names)}"


def _problem(details: ErrorDetails, model: type[BaseModel]) -> str:
    """One error of pydantic in our words."""
    location = details["loc"]
    field = dotted(location)
    if details["type"] == "missing":
        return f"{field} is missing; add it"
    if details["type"] == "extra_forbidden":
        return f"{field} is no field placer knows; {close(str(location[-1]), _fields_at(model, location[:-1]))}"
    if details["type"] == "too_short":
        return f"{field} is empty; give at least one"
    if details["type"] in _EXPECTED:
        return f"{field}: expected {_EXPECTED[details['type']]} (found {details['input']!r:.60})"
    message = details["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    given = details["input"]
    told = short(repr(given) if isinstance(given, str) else given)
    found = f" (found {told})" if isinstance(given, int | float | str) and short(given) not in message else ""
    return f"{field}: {short(message, 400)}{found}"


def _fields_at(model: type[BaseModel], location: Location) -> tuple[str, ...]:
    """The fields known at a location of `model`."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return _fields(model)


def _fields(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(model.model_fields)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The pydantic models a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)
