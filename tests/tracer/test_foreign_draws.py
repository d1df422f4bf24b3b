"""A forward that draws by Python's or numpy's random numbers is refused, with its line."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placer.errors import UncapturableError
from placer.tracer import capture

Draw = Callable[["Drawing"], float]


def rare(model: Drawing) -> float:
    return 2.0 if random.random() < 1e-9 else 1.0


def between(model: Drawing) -> float:
    return random.uniform(0.5, 1.5)


def of_numpy(model: Drawing) -> float:
    return float(np.random.rand())


def of_a_random(model: Drawing) -> float:
    return model.by_python.random()


def of_a_generator(model: Drawing) -> float:
    return float(model.by_numpy.random())


class Drawing(nn.Module):
    """A layer times a number; generators are made in any case, which is nobody's concern."""

    def __init__(self, factor: Draw | None) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 4), factor
        self.by_python, self.by_numpy = random.Random(1), np.random.default_rng(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x).square().mean()
        return found if self.factor is None else found * self.factor(self)


@pytest.mark.in_turns
@pytest.mark.parametrize("factor", [rare, between, of_numpy, of_a_random, of_a_generator])
def test_what_an_export_would_hold_as_it_fell_is_refused_with_its_line(factor: Draw) -> None:
    line = factor.__code__.co_firstlineno + 1
    with pytest.raises(
        UncapturableError, match=rf"random numbers of Python's or numpy's at .*test_foreign_draws.py:{line} "
    ):
        capture(Drawing(factor), batch={"x": (6, 4)})


def test_generators_that_forward_leaves_alone_are_left_alone() -> None:
    model = Drawing(None)
    states = random.getstate(), model.by_python.getstate(), str(model.by_numpy.bit_generator.state)
    capture(model, batch={"x": (6, 4)})
    assert (random.getstate(), model.by_python.getstate(), str(model.by_numpy.bit_generator.state)) == states


def checked(function: Draw) -> Draw:
    """`function` as beartype wraps one: code of no file, which looks at a random one of some items."""
    code = "def wrapped(model):\n    getrandbits(32)\n    return function(model)"
    names: dict[str, Any] = {"function": function, "getrandbits": random.getrandbits}
    exec(compile(code, f"<@beartype(factor) at {id(function):#x}>", "exec"), names)
    found: Draw = names["wrapped"]
    return found


def fixed(model: Drawing) -> float:
    return 0.5


def test_what_a_check_of_types_draws_is_nobodys_concern() -> None:
    graph = capture(Drawing(checked(fixed)), batch={"x": (6, 4)})
    assert graph.blocks


@pytest.mark.parametrize("factor", [rare, of_numpy])
def test_beside_such_a_check_the_line_is_the_one_that_draws(factor: Draw) -> None:
    line = factor.__code__.co_firstlineno + 1
    with pytest.raises(UncapturableError, match=rf"numpy's at .*test_foreign_draws.py:{line} "):
        capture(Drawing(checked(factor)), batch={"x": (6, 4)})


class DrawingBesideNumbers(Drawing):
    """Makes a tensor that lies on no device of an export, which is then tried another way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.ones(4))


class DrawingAfterALook(Drawing):
    """Looks at values of what it makes of numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.sum(torch.arange(1, x.dim() - 1).tolist()))


@pytest.mark.parametrize("kind", [DrawingBesideNumbers, DrawingAfterALook])
def test_so_is_it_where_the_export_succeeds_on_another_try(kind: type[Drawing]) -> None:
    line = rare.__code__.co_firstlineno + 1
    with pytest.raises(UncapturableError, match=rf"numpy's at .*test_foreign_draws.py:{line} "):
        capture(kind(rare), batch={"x": (6, 3, 4)})
