"""What is read of tensors in one export, and what was refused of it."""

from __future__ import annotations

import weakref
from typing import NoReturn


class ReadError(Exception):
    """Something is asked of a number that only its value tells."""


class Readings:
    """What was read in one export. refused: what was refused of it, which a model may catch."""

    def __init__(self) -> None:
        self.refused: list[Exception] = []
        self._read: list[weakref.ref[object]] = []

    def note(self, one: object) -> None:
        """Take note of what was read, to see what becomes of it."""
        self._read.append(weakref.ref(one))

    def alive(self) -> bool:
        """Whether something that was read is still held."""
        return any(one() is not None for one in self._read)

    def refuse(self, what: str) -> NoReturn:
        """Raises ReadError."""
        error = ReadError(f"a number that is read of a tensor {what}, which is data-dependent")
        self.refused.append(error)
        raise error


class WasRead:
    """What was read of a tensor."""

    __slots__ = ()


def is_read(one: object) -> bool:
    """Whether it was read of a tensor, whatever it says that it is."""
    return issubclass(type(one), WasRead)
