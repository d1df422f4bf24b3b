"""Forwards that draw by Python's or numpy's random numbers: an export holds what they drew once, as a constant or the
branch that was taken, and every step would have the same. They are refused.
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


def _line_of_a_draw(generators: list[_Generator], again: Callable[[], object]) -> str:
    """The first line of the model's own code that moves a generator; "" where none does."""
    lines: list[str] = []
    last, before = "", _states(generators)

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal last
        if lines or not is_of_users(frame):
            return None
        if _states(generators) != before:
            lines.append(last)
            return None
        last = line_text(frame.f_code.co_filename, frame.f_lineno)
        return watch

    tracing = sys.gettrace()
    sys.settrace(watch)
    try:
        again()
    finally:
        sys.settrace(tracing)
    return next(iter(lines), "")
