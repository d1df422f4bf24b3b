"""Checks of model libraries on the values of tensors that do nothing but raise: while exported they are passed.

    if labels is not None and labels.max() >= classes:      the condition is false
        raise ValueError(...)
    assert not torch.isnan(x).any()                         what is asserted is true

An export has no values. What is traced is what training does with values that are right, and with others it raises. Of
other code it cannot be told that nothing hangs on a check: that a condition changes nothing, that nobody catches what
it raises, that the file is still what runs.

So it is of what DETR and its kin do in training where numbers are not finite, which bounds them by the largest of their
type: they are taken for finite, but in a type of 16 bits in which they get as large (float16).
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from placer.io.usercode import is_of_users

# First and last line, first and last column.
Place: TypeAlias = tuple[int | None, int | None, int | None, int | None]

# What asks for the truth of what stands at its place.
_JUMPS = ("POP_JUMP", "JUMP_IF", "UNARY_NOT", "TO_BOOL")
# Packages of models whose checks are known to be no more than that.
LIBRARIES = frozenset({"transformers", "torchaudio", "torchvision", "diffusers", "timm"})
# What they raise of values. (Others mean something to Python: StopIteration ends a loop.)
ERRORS = frozenset({"ValueError", "RuntimeError", "AssertionError", "TypeError"})
# How transformers bounds what is not finite; nothing else hangs on it.
_BOUNDED = re.compile(
    r"if not torch\.isfinite\((\w+)\)\.all\(\):\n    clamp_value = torch\.finfo\(\1\.dtype\)\.max - 1000\n"
    r"    \1 = torch\.clamp\(\1, min=-clamp_value, max=clamp_value\)"
)
_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+) \(")
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
            truth, place = _passed(asking), f"{os.path.basename(asking.f_code.co_filename)}:{asking.f_lineno}"
            if truth is not None:
                self._passed.add(f"to raise ({place})")
                return truth
            if _is_bounded(asking):
                self._passed.add(f"to bound what is not finite ({place})")
                return True
        return func(*args, **(kwargs or {}))


def only_checks(where: str) -> bool:
    """Whether what is asked at `file:line (code)` does nothing but raise, whoever may catch that."""
    found = _LINE.match(where)
    return found is not None and any(
        one.lineno <= int(found["line"]) <= (one.test.end_lineno or 0)
        for one in ast.walk(_parsed(found["file"]))
        if isinstance(one, ast.Assert) or (isinstance(one, ast.If) and _raises_alone(one))
    )


def _raises_alone(one: ast.If) -> bool:
    return not one.orelse and len(one.body) == 1 and isinstance(one.body[0], ast.Raise)


def _asking(frame: FrameType) -> FrameType:
    """The frame that asks, past other modes, which pass on what is asked."""
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _passed(frame: FrameType) -> bool | None:
    """The truth of what the frame's instruction asks that raises nothing; None where more than an error hangs on it."""
    code, at = frame.f_code, frame.f_lasti
    name = dis.opname[code.co_code[at]]
    if not _of_a_library(frame) or not name.startswith((*_JUMPS, *_CALLS)):
        return None
    place = next(islice(code.co_positions(), at // 2, None))
    checks = _called(code.co_filename) if name.startswith(_CALLS) else _checks(code.co_filename)
    return None if place not in checks or any(map(_caught, _of_users(frame))) else checks[place]


def _is_bounded(frame: FrameType) -> bool:
    """Whether the frame asks whether all numbers are finite, to bound them where they are not."""
    code, at = frame.f_code, frame.f_lasti
    if not _of_a_library(frame) or not dis.opname[code.co_code[at]].startswith(_JUMPS):
        return False
    bounded = frame.f_locals.get(_bounds(code.co_filename).get(next(islice(code.co_positions(), at // 2, None)), ""))
    return isinstance(bounded, torch.Tensor) and bounded.dtype in (torch.float64, torch.float32, torch.bfloat16)


def _of_a_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in LIBRARIES


def _of_users(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the model that call this one, it among them, and those of whom nothing is known."""
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] != "placer":
        if is_of_users(frame) or frame.f_code.co_filename.startswith("<"):
            yield frame
        frame = frame.f_back


def _caught(frame: FrameType) -> bool:
    """Whether what is raised where the frame stands may be caught there."""
    lines = _catching(frame.f_code.co_filename, _of_a_library(frame))
    return lines is None or any(frame.f_lineno in own for own in lines)


@functools.lru_cache(maxsize=64)
def _checks(filename: str) -> Mapping[Place, bool]:
    """The truth that passes, for each expression of a file that a check asks, by where it stands.

    Where Python says of a jump only the statement that it is of, all that the statement asks must pass alike.
    """
    found: dict[Place, bool] = {}
    for one in ast.walk(_parsed(filename)):
        asked = {_place(leaf): wanted for leaf, wanted in _asked(one)}
        found.update(asked)
        if isinstance(one, ast.stmt) and len(set(asked.values())) == 1:
            found[_place(one)] = next(iter(asked.values()))
    return found


@functools.lru_cache(maxsize=64)
def _bounds(filename: str) -> Mapping[Place, str]:
    """The names of what a file bounds where it is not finite, by where that is asked."""
    found: dict[Place, str] = {}
    for one in ast.walk(_parsed(filename)):
        named = _BOUNDED.fullmatch(ast.unparse(one)) if isinstance(one, ast.If) else None
        if isinstance(one, ast.If) and named is not None:
            places = (_place(one), *(_place(leaf) for leaf, _ in _leaves(one.test, True)))
            found.update(dict.fromkeys(places, named[1]))
    return found


@functools.lru_cache(maxsize=64)
def _called(filename: str) -> Mapping[Place, bool]:
    """Of these the calls of `bool`."""
    asked = [found for one in ast.walk(_parsed(filename)) for found in _asked(one)]
    return {_place(leaf): wanted for leaf, wanted in asked if isinstance(leaf, ast.Call) and _is_bool(leaf)}


@functools.lru_cache(maxsize=64)
def _catching(filename: str, of_a_library: bool) -> tuple[range, ...] | None:
    """The lines of a file from which an error may not reach the caller; None where its lines are not known.

    A library's handlers that end by raising only say more of it, and its contexts let errors pass.
    """
    if not linecache.getlines(filename):
        return None
    catching = (ast.Try, ast.TryStar) if of_a_library else (ast.Try, ast.TryStar, ast.With)
    found = [one for one in ast.walk(_parsed(filename)) if isinstance(one, catching)]
    kept = [one for one in found if not (of_a_library and _raises_again(one))]
    return tuple(range(one.body[0].lineno, (one.body[-1].end_lineno or 0) + 1) for one in kept)


def _raises_again(one: ast.stmt) -> bool:
    handlers = one.handlers if isinstance(one, ast.Try | ast.TryStar) else []
    return all(isinstance(handler.body[-1], ast.Raise) for handler in handlers)


def _parsed(filename: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _asked(one: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """What a statement that checks asks for its truth, and the truth with which it raises nothing."""
    if isinstance(one, ast.Assert):
        yield from _leaves(one.test, True)
    elif isinstance(one, ast.If) and not one.orelse and len(one.body) == 1 and _names_error(one.body[0]):
        yield from _leaves(one.test, False)


def _names_error(one: ast.stmt) -> bool:
    """Whether a statement raises one of ERRORS."""
    raised = one.exc if isinstance(one, ast.Raise) else None
    named = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(named, ast.Name) and named.id in ERRORS


def _leaves(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _leaves(part, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, not wanted)
    elif not (isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))):
        yield test, wanted


def _is_bool(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "bool"


def _place(one: ast.expr | ast.stmt) -> Place:
    return one.lineno, one.end_lineno, one.col_offset, one.end_col_offset
