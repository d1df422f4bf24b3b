"""Fields of a JSON file, checked one by one; every complaint names the file, the field and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placer.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A JSON object at `where` ("nodes[3]") of the file `name`; the methods raise UsageError."""

    name: str
    where: str
    values: dict[str, object]

    @classmethod
    def of(cls, value: object, name: str, where: str) -> Fields:
        """`value` as an object."""
        if not isinstance(value, dict):
            at = where or "the whole file"
            raise UsageError(f"{name}: {at} is {_kind(value)}, an object with fields was expected; mend it")
        return cls(name=name, where=where, values=value)

    def number(self, field: str, *, default: float | None = None) -> float:
        """A finite number of at least 0."""
        value = self._get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, f"is {_kind(value)}, a number was expected")
        if not math.isfinite(value) or value < 0:
            raise self.wrong(field, f"is {value}, a finite number of at least 0 was expected")
        return float(value)

    def count(self, field: str) -> int:
        """A whole number of at least 0."""
        value = self.number(field)
        if value != int(value):
            raise self.wrong(field, f"is {value}, a whole number was expected")
        return int(value)

    def flag(self, field: str, *, default: bool | None = None) -> bool:
        """true, false, 1 or 0."""
        value = self._get(field, default)
        if value not in (True, False):
            raise self.wrong(field, f"is {value!r}, true, false, 1 or 0 was expected")
        return bool(value)

    def identity(self, field: str) -> int | str:
        """A whole number or a text."""
        value = self._get(field, None)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.wrong(field, f"is {_kind(value)}, a whole number or a text was expected")
        return value

    def colour(self, field: str) -> int | None:
        """A whole number, or nothing."""
        value = self.values.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.wrong(field, f"is {_kind(value)}, a whole number was expected")
        return value

    def objects(self, field: str) -> tuple[Fields, ...]:
        """A list of objects."""
        value = self._get(field, None)
        if not isinstance(value, list):
            raise self.wrong(field, f"is {_kind(value)}, a list was expected")
        prefix = f"{self.where}.{field}" if self.where else field
        return tuple(Fields.of(entry, self.name, f"{prefix}[{index}]") for index, entry in enumerate(value))

    def wrong(self, field: str, found: str) -> UsageError:
        """The complaint about `field`."""
        at = f"{self.where}.{field}" if self.where else field
        return UsageError(f"{self.name}: {at} {found}; mend that field")

    def _get(self, field: str, default: object) -> object:
        value = self.values.get(field, default)
        if value is None:
            raise self.wrong(field, "is missing")
        return value


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), f"the number {value}")
