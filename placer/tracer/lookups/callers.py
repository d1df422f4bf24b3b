"""Who calls what a model asks: whether somebody may catch an error there, and what the names in its code are."""

from __future__ import annotations

import builtins
import logging
import pdb
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from types import FrameType

from placer.io.usercode import is_of_users
from placer.tracer.lookups.checks_in_code import Place, catching, checks, is_what_runs, is_within, tellings

# Packages of models whose checks are known to be no more than that.
LIBRARIES = frozenset({"transformers", "torchaudio", "torchvision", "diffusers", "timm"})
# Modules of Python's that pass errors on.
_PASSING = frozenset({"functools", "typing", "dataclasses", "collections", "abc", "enum", "copy", "operator"})
# Functions by which modes, and torch, pass on what is asked of a tensor.
_PASSED_ON = frozenset({"__torch_function__", "handle_torch_function", "__format__", "__repr__"})
# Methods with two underscores whose errors reach whoever called.
_CALLED = frozenset({"__call__", "__init__"})
# What is raised of values. (Others mean something to Python: StopIteration ends a loop.)
_ERRORS = (ValueError, RuntimeError, AssertionError, TypeError, ArithmeticError, FloatingPointError, OverflowError,
           Exception)  # fmt: skip
# What tells people of values, or stops for them.
_TELLING = (print, warnings.warn, breakpoint, pdb.set_trace, sys.exit, *(
    getattr(logging, name) for name in ("debug", "info", "warning", "error", "exception", "critical")
))  # fmt: skip


def package(frame: FrameType) -> str:
    """The package whose code a frame runs."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def of_a_library(frame: FrameType) -> bool:
    """Whether the code is of LIBRARIES."""
    return package(frame) in LIBRARIES


def asking(frame: FrameType | None) -> FrameType | None:
    """The innermost frame from this one on that is not placer's, nor passes on what is asked."""
    while frame is not None and (frame.f_code.co_name in _PASSED_ON or package(frame) == "placer"):
        frame = frame.f_back
    return frame


def known(frame: FrameType) -> bool:
    """Whether the code that a frame runs is what its file says."""
    return of_a_library(frame) or (is_of_users(frame) and is_what_runs(frame.f_code))


def may_be_caught(frame: FrameType) -> bool:
    """Whether what is raised where the frame stands may not end the step."""
    return any(_catches(one, sure=True) for one in _up_to_forward(frame))


def is_caught(frame: FrameType | None) -> bool:
    """Whether it is known that it may not."""
    return frame is not None and any(_catches(one, sure=False) for one in _up_to_forward(frame))


def is_told(frame: FrameType | None) -> bool:
    """Whether the frame runs a statement that tells people of something, and does nothing else."""
    if frame is None or not known(frame):
        return False
    place = _place(frame)
    return any(is_within(place, told) and tells(by, frame) for told, by in tellings(frame.f_code.co_filename))


def is_checked(frame: FrameType | None) -> bool:
    """Whether the frame asks for what a check asks, on which nothing but an error hangs, or what people are told."""
    if frame is None or not known(frame):
        return False
    place = _place(frame)
    return any(is_within(place, leaf) for leaf in checks(frame.f_code.co_filename))


def _place(frame: FrameType) -> Place:
    """Where what the frame's instruction is of stands."""
    return next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))


def tells(named: str, frame: FrameType) -> bool:
    """Whether that is, in the frame, the name of something that tells people of values."""
    first, *rest = named.split(".")
    found = _named(first, frame)
    for name in rest[:-1]:
        found = getattr(found, name, None)
    if rest and type(found) in (logging.Logger, logging.RootLogger):
        return hasattr(logging, rest[-1])
    found = getattr(found, rest[-1], None) if rest else found
    return any(found is one for one in (*_TELLING, getattr(builtins, "exit", None), getattr(builtins, "quit", None)))


def raises(named: str, frame: FrameType) -> bool:
    """Whether that is, in the frame, the name of an error of Python's that ends a step."""
    return any(_named(named, frame) is one for one in _ERRORS)


def _named(name: str, frame: FrameType) -> object:
    for names in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in names:
            return names[name]
    return None


def _up_to_forward(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames that call this one, it among them, up to what runs the model."""
    while frame is not None and not (package(frame) == "placer" and frame.f_code.co_name == "_results"):
        yield frame
        frame = frame.f_back


def _catches(frame: FrameType, *, sure: bool) -> bool:
    """Whether an error may end at the frame. sure: also where that is not known."""
    if package(frame) in ("placer", "torch"):
        return False
    name = frame.f_code.co_filename
    if not is_of_users(frame) and not name.startswith("<"):
        return sure and package(frame) not in _PASSING
    lines = catching(name, of_a_library(frame), sure)
    if lines is None or not known(frame):
        return sure
    own = frame.f_code.co_name
    asked = own.startswith("__") and own not in _CALLED and not of_a_library(frame)
    return (sure and asked) or any(frame.f_lineno in one for one in lines)
