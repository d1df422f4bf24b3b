"""Compiled code whose results have a gradient in some steps and none in others, as behind them opaque parts decide.

Op by op a value that no gradient reaches has none; compiled code takes zeros for none and gives them to all that it
read. So of each gradient that leaves it is asked whether one of those that came reaches there (`Reaching`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node, saved_tensors_hooks

from placer.runtime.stages.recompute import Tensors

#: Of each result the numbers, among the tensors that were read, of those that a gradient of it reaches.
Reaching = tuple[frozenset[int], ...]


@dataclass(slots=True)
class _Call:
    reaching: Reaching
    came: list[int] = field(default_factory=list)


def with_told_gradients(run: Callable[..., Tensors], reaching: Reaching, given: Sequence[object]) -> Tensors:
    """`run(*given)`, where what no gradient reaches has none."""
    call, values = _Call(reaching), list(given)
    places = [place for place, one in enumerate(values) if isinstance(one, torch.Tensor) and one.requires_grad]
    if not places or not torch.is_grad_enabled():
        return run(*values)
    read = _Read.apply(call, places, *(values[place] for place in places))  # type: ignore[no-untyped-call]
    for place, one in zip(places, read, strict=True):
        values[place] = one
    made = list(run(*values))
    trained = [place for place, one in enumerate(made) if one.requires_grad]
    if trained:
        results = _Made.apply(call, trained, *(made[place] for place in trained))  # type: ignore[no-untyped-call]
        for place, one in zip(trained, results, strict=True):
            made[place] = one
    return tuple(made)


def reaching(run: Callable[..., Tensors], given: Sequence[object]) -> Reaching:
    """What gradients of the results of `run(*given)` reach, by running it on copies op by op."""
    leaves = {
        place: one.detach().requires_grad_(one.requires_grad)
        for place, one in enumerate(given)
        if isinstance(one, torch.Tensor)
    }
    with saved_tensors_hooks(_same, _same):  # of its own: what runs again in backward would count what this run saves
        made = run(*(leaves[place].clone() if place in leaves else one for place, one in enumerate(given)))
    return tuple(
        frozenset(place for place, leaf in leaves.items() if any(leaf is one for one in _leaves(result)))
        for result in made
    )


def _same(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _leaves(result: torch.Tensor) -> list[torch.Tensor]:
    """The leaves of its graph."""
    waiting = [result.grad_fn] if result.grad_fn is not None else []
    seen: set[Node] = set(waiting)
    found = []
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        below = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= below
        waiting += below
    return found


class _Context(torch.autograd.function.FunctionCtx):
    call: _Call
    places: list[int]


class _Beside(torch.autograd.Function):
    """Tensors as they are, whose gradients come with those of a call, none where there is none."""

    @staticmethod
    def forward(ctx: _Context, call: _Call, places: list[int], *given: torch.Tensor) -> Tensors:
        ctx.call, ctx.places = call, places
        ctx.set_materialize_grads(False)
        return tuple(one.detach() for one in given)


class _Read(_Beside):
    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor | None) -> tuple[object, ...]:
        reached = frozenset[int]().union(*(ctx.call.reaching[place] for place in ctx.call.came))
        told = (one if at in reached else None for at, one in zip(ctx.places, gradients, strict=True))
        return None, None, *told


class _Made(_Beside):
    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor | None) -> tuple[object, ...]:
        ctx.call.came = [at for at, one in zip(ctx.places, gradients, strict=True) if one is not None]
        return None, None, *gradients
