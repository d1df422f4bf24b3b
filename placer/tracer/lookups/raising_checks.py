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
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from placer.io.usercode import is_of_users
from placer.tracer.lookups.checks_in_code import Check, Place, bounds, called_checks, catching, checks, is_what_runs

# What asks for the truth of what stands at its place.
_JUMPS = ("POP_JUMP", "JUMP_IF", "UNARY_NOT", "TO_BOOL")
# Packages of models whose checks are known to be no more than that.
LIBRARIES = frozenset({"transformers", "torchaudio", "torchvision", "diffusers", "timm"})
#: What checks are for.
RAISING, BOUNDING = "to raise", "to bound what is not finite"
TELLING, KEEPING = "to tell of them", "to keep numbers"
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
            asking = _asking(sys._getframe(1))
            check, place = _passed(asking), f"{os.path.basename(asking.f_code.co_filename)}:{asking.f_lineno}"
            if check is not None:
                self._passed.add(f"{RAISING if check.raises else TELLING} ({place})")
                return check.truth
            if _is_bounded(asking):
                self._passed.add(f"{BOUNDING} ({place})")
                return True
        return func(*args, **(kwargs or {}))


def _asking(frame: FrameType) -> FrameType:
    """The frame that asks, past other modes and numbers that were read, which pass on what is asked."""
    while frame.f_back is not None and (frame.f_code.co_name == "__torch_function__" or _package(frame) == "placer"):
        frame = frame.f_back
    return frame


def _passed(frame: FrameType) -> Check | None:
    """What the frame's instruction asks, where nothing but an error, or what people are told, hangs on it."""
    code, at = frame.f_code, frame.f_lasti
    name = dis.opname[code.co_code[at]]
    if not name.startswith((*_JUMPS, *_CALLS)) or not _known(frame):
        return None
    if name.startswith(_CALLS):
        found = called_checks(code.co_filename).get(_before(code, at)[0])
    else:  # Python 3.11 says of some jumps the statement alone, and of what stands before it what it asks
        known = checks(code.co_filename)
        found = next((known[place] for place in _before(code, at)[:2] if place in known), None)
    return None if found is None or any(map(_caught, _of_users(frame))) else found


def _before(code: CodeType, at: int) -> list[Place]:
    """Where what the instruction at an offset is of stands, and those before it, from the last to the first."""
    return [place for offset, place in reversed(_places(code)) if offset <= at]


@functools.lru_cache(maxsize=256)
def _places(code: CodeType) -> list[tuple[int, Place]]:
    steps = (one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG")
    return [(one.offset, tuple(one.positions or (None,) * 4)) for one in steps]  # type: ignore[misc]


def _known(frame: FrameType) -> bool:
    """Whether the code that a frame runs is what its file says."""
    return _of_a_library(frame) or (is_of_users(frame) and is_what_runs(frame.f_code))


def _is_bounded(frame: FrameType) -> bool:
    """Whether the frame asks whether all numbers are finite, to bound them where they are not."""
    code, at = frame.f_code, frame.f_lasti
    if not _of_a_library(frame) or not dis.opname[code.co_code[at]].startswith(_JUMPS):
        return False
    bounded = frame.f_locals.get(bounds(code.co_filename).get(_before(code, at)[0], ""))
    return isinstance(bounded, torch.Tensor) and bounded.dtype in (torch.float64, torch.float32, torch.bfloat16)


def _of_a_library(frame: FrameType) -> bool:
    return _package(frame) in LIBRARIES


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _of_users(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the model that call this one, it among them, and those of whom nothing is known."""
    while frame is not None and _package(frame) != "placer":
        if is_of_users(frame) or frame.f_code.co_filename.startswith("<"):
            yield frame
        frame = frame.f_back


def _caught(frame: FrameType) -> bool:
    """Whether what is raised where the frame stands may be caught there."""
    lines = catching(frame.f_code.co_filename, _of_a_library(frame))
    return lines is None or not _known(frame) or any(frame.f_lineno in own for own in lines)
