"""Forwards that draw by Python's or numpy's random numbers: an export holds what they drew once, as a constant or the
branch that was taken, and every step would have the same. They are refused.

But for what checkers of types draw (beartype looks at one item of a list): nothing else hangs on it.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
from torch import nn

from placer.errors import UncapturableError
from placer.io.usercode import is_of_users, line_text

_Generator = random.Random | np.random.Generator | np.random.RandomState


@contextlib.contextmanager
def foreign_draws_refused(model: nn.Module, again: Callable[[], object]) -> Iterator[None]:
    """Raises UncapturableError where the body draws from a generator of Python's or numpy's that programs share, or
    that a module of the model holds. again: does the same once more, to find the line."""
    generators = _generators(model)
    before = _states(generators)
    yield
    if _states(generators) != before:
        where = _line_of_a_draw(generators, again)
        if where is None:
            return
        raise UncapturableError(
            f"forward draws random numbers of Python's or numpy's{f' at {where}' if where else ''}: a capture would "
            "hold what they were once, for every step; draw by torch, without a branch on the value (torch.where)"
        )


def _generators(model: nn.Module) -> list[_Generator]:
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, _Generator)]
    shared = (getattr(random, "_inst", None), getattr(np.random.mtrand, "_rand", None))
    return [*(one for one in shared if isinstance(one, _Generator)), *held]


def _states(generators: list[_Generator]) -> list[bytes]:
    return [pickle.dumps(_state(one)) for one in generators]


def _state(generator: _Generator) -> object:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def _line_of_a_draw(generators: list[_Generator], again: Callable[[], object]) -> str | None:
    """The first line of the model's own code that moves a generator; "" where none does, None where checkers do."""
    watch = _Watch(generators)
    tracing = sys.gettrace()
    sys.settrace(watch)
    try:
        again()
    finally:
        sys.settrace(tracing)
    return watch.found()


class _Watch:
    """What Python calls where a line of the model's own code, or of what checks its types, begins or ends."""

    def __init__(self, generators: list[_Generator]) -> None:
        self._generators, self._before = generators, _states(generators)
        self._last, self._line, self._checked = "", "", False

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """Itself, to hear of the frame's next line."""
        checks = _checks_types(frame)
        if self._line or not (checks or is_of_users(frame)):
            return None
        moved = _states(self._generators)
        if moved != self._before and _checks_types(frame.f_back if event == "call" else frame):
            self._before, self._checked = moved, True
        elif moved != self._before:
            self._line = self._last or "?"
            return None
        if not checks:
            self._last = line_text(frame.f_code.co_filename, frame.f_lineno)
        return self

    def found(self) -> str | None:
        """See `_line_of_a_draw`."""
        if self._line or not self._checked or _states(self._generators) != self._before:
            return self._line.removeprefix("?")
        return None


def _checks_types(frame: FrameType | None) -> bool:
    """Whether a frame is of what beartype writes around a function."""
    return frame is not None and frame.f_code.co_filename.startswith("<@beartype(")
