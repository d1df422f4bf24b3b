"""Checks of a model on the values of tensors that do nothing but raise, or tell: while exported they are passed.

    if labels is not None and labels.max() >= classes:      the condition is false
        raise ValueError(...)
    assert not torch.isnan(x).any()                         what is asserted is true
    if loss > 100:                                          the condition is false
        print("large", loss)

An export has no values. What is traced is what training does with values that are right; with others it raises, where
a run goes on. It must be sure that no more hangs on a check: that nobody catches what it raises, and that the file is
still what runs. Of the packages of models that are known this is taken for granted.

So it is of what DETR and its kin do in training where numbers are not finite, which bounds them by the largest of their
type: they are taken for finite, but in a type of 16 bits in which they get as large (float16).
"""

from __future__ import annotations

import dis
import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from placer.tracer.lookups.callers import asking, known, may_be_caught, of_a_library, raises, tells
from placer.tracer.lookups.checks_in_code import Check, Place, bounds, called_checks, checks

# What asks for the truth of what stands at its place.
_JUMPS = ("POP_JUMP", "JUMP_IF", "UNARY_NOT", "TO_BOOL")
#: What checks are for.
RAISING, TELLING, BOUNDING = "to raise", "to tell of them", "to bound what is not finite"
# What may ask for it while it runs, as `bool(...)` does.
_CALLS = ("CALL", "PRECALL")


class ChecksPassed(TorchFunctionMode):
    """While it is entered, a tensor on whose truth nothing but an error depends has the truth that raises none.

    passed: takes what each of them is for, and where it stands.
    """

    def __init__(self, passed: set[str]) -> None:
        super().__init__()
        self._passed = passed

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, unless the answer is known."""
        if getattr(func, "__name__", "") == "__bool__":
            frame = asking(sys._getframe(1)) or sys._getframe(1)
            check, place = _found(frame), f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            if check is not None:
                self._passed.add(f"{RAISING if check.error else TELLING} ({place})")
                return check.truth
            if _is_bounded(frame):
                self._passed.add(f"{BOUNDING} ({place})")
                return True
        return func(*args, **(kwargs or {}))


def _found(frame: FrameType) -> Check | None:
    """What the frame's instruction asks, where nothing but an error, or what people are told, hangs on it."""
    code, at = frame.f_code, frame.f_lasti
    name = dis.opname[code.co_code[at]]
    if not name.startswith((*_JUMPS, *_CALLS)) or not known(frame):
        return None
    if name.startswith(_CALLS):
        found = called_checks(code.co_filename).get(_before(code, at)[0])
    else:  # Python 3.11 says of some jumps the statement alone, and of what stands before it what it asks
        of_file = checks(code.co_filename)
        found = next((of_file[place] for place in _before(code, at)[:2] if place in of_file), None)
    if found is None or may_be_caught(frame) or (found.error and not raises(found.error, frame)):
        return None
    return found if all(tells(one, frame) for one in found.calls) else None


def _before(code: CodeType, at: int) -> list[Place]:
    """Where what the instruction at an offset is of stands, and those before it, from the last to the first."""
    return [place for offset, place in reversed(_places(code)) if offset <= at]


@functools.lru_cache(maxsize=256)
def _places(code: CodeType) -> list[tuple[int, Place]]:
    steps = (one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG")
    return [(one.offset, tuple(one.positions or (None,) * 4)) for one in steps]  # type: ignore[misc]


def _is_bounded(frame: FrameType) -> bool:
    """Whether the frame asks whether all numbers are finite, to bound them where they are not."""
    code, at = frame.f_code, frame.f_lasti
    if not of_a_library(frame) or not dis.opname[code.co_code[at]].startswith(_JUMPS):
        return False
    bounded = frame.f_locals.get(bounds(code.co_filename).get(_before(code, at)[0], ""))
    return isinstance(bounded, torch.Tensor) and bounded.dtype in (torch.float64, torch.float32, torch.bfloat16)
