"""What is read of tensors in one export, and what was refused of it."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import NoReturn

from torch import Tensor


class ReadError(Exception):
    """Something is asked of a number that only its value tells. asked: the frame that asks, and where in its code."""

    asked: tuple[int, int] | None = None


class Readings:
    """What was read in one export. refused: what was refused of it, which a model may catch."""

    def __init__(self) -> None:
        self.refused: list[Exception] = []
        self._read: list[weakref.ref[object]] = []
        self._copies: list[tuple[Tensor, int]] = []

    def note(self, one: object) -> None:
        """Take note of what was read, to see what becomes of it."""
        self._read.append(weakref.ref(one))

    def note_copy(self, one: Tensor, whole: Tensor) -> None:
        """Take note of a copy in place of a view of the whole, to see that nothing is written into either."""
        self._copies += [(each, each._version) for each in (one, whole)]

    def written(self) -> bool:
        """Whether something was written into such a copy, or the whole, which on one device is written in both."""
        return any(one._version != before for one, before in self._copies)

    def alive(self) -> bool:
        """Whether something that was read is still held."""
        return any(one() is not None for one in self._read)

    def refuse(self, what: str, frame: FrameType | None = None) -> NoReturn:
        """Raises ReadError. frame: the one that asks."""
        error = ReadError(f"a number that is read of a tensor {what}, which is data-dependent")
        error.asked = None if frame is None else (id(frame), frame.f_lasti)
        self.refused.append(error)
        raise error

    def answer(self, frame: FrameType | None) -> None:
        """Take back what was refused to calls that this frame is in: torch asks for a number before it asks what a
        call makes of it."""
        now = set[tuple[int, int] | None]()
        while frame is not None:
            now.add((id(frame), frame.f_lasti))
            frame = frame.f_back
        self.refused = [one for one in self.refused if not (isinstance(one, ReadError) and one.asked in now)]


class WasRead:
    """What was read of a tensor."""

    __slots__ = ()


def is_read(one: object) -> bool:
    """Whether it was read of a tensor, whatever it says that it is."""
    return issubclass(type(one), WasRead)
