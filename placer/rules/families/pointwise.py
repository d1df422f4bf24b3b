"""Elementwise ops, and those that make tensors: every dim of the result may be cut; linear ones take partial sums."""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import Argument, Call, Value
from placer.rules.layouts import Choice
from placer.rules.patterns import Pattern, numbered, partial, pattern_choices


def pointwise(call: Call) -> tuple[Choice, ...]:
    """Any elementwise op, its arguments broadcast against each other."""
    rank = len(call.outputs[0].shape)
    inputs = tuple(numbered(value.shape, rank) for value in call.tensors)
    return pattern_choices(Pattern(inputs=inputs, outputs=tuple(numbered(out.shape) for out in call.outputs)))


def linear(call: Call) -> tuple[Choice, ...]:
    """An op that is linear in its only tensor (negation, copies)."""
    return (*pointwise(call), partial(call))


def cast(call: Call) -> tuple[Choice, ...]:
    """A change of type: linear where gradients flow, that is from floats to floats. A second tensor tells the type."""
    return _linear_in_first(call, call.outputs[0].requires_grad)


def addition(call: Call) -> tuple[Choice, ...]:
    """`a + b`, `a - b`: linear in both together; a number would count on every rank, unless it is 0."""
    first, second = call.arguments[0], call.argument(1, "other")
    linear = (isinstance(first, Value) and isinstance(second, Value)) or _zero(second)
    return (*pointwise(call), *((partial(call),) if linear else ()))


def product(call: Call) -> tuple[Choice, ...]:
    """`a * b`: linear in each of both."""
    sides = range(len(call.tensors))
    return (*pointwise(call), *(partial(call, frozenset({side})) for side in sides))


def quotient(call: Call) -> tuple[Choice, ...]:
    """`a / b`: linear in a, unless it rounds."""
    return _linear_in_first(call, call.argument(2, "rounding_mode") is None and isinstance(call.arguments[0], Value))


def where(call: Call) -> tuple[Choice, ...]:
    """`where(condition, a, b)`: linear in a and b together; a number among them must be 0. Not `where(condition)`."""
    branches = call.arguments[1:3]
    if len(branches) < 2:
        return ()
    if all(isinstance(branch, Value) or _zero(branch) for branch in branches):
        return (*pointwise(call), partial(call, frozenset(range(1, len(call.tensors)))))
    return pointwise(call)


def masked_fill(call: Call) -> tuple[Choice, ...]:
    """`masked_fill(x, mask, value)`: linear in x where the value is 0."""
    return _linear_in_first(call, _zero(call.argument(2, "value")))


def dropout(call: Call) -> tuple[Choice, ...]:
    """`dropout(x, p, train)`: the mask is the whole op's, so a rank must know where its piece lies."""
    drops = not _zero(call.argument(1, "p")) and call.argument(2, "train", True) is not False
    return tuple(replace(choice, local="dropout") for choice in pointwise(call)) if drops else pointwise(call)


def filled(call: Call) -> tuple[Choice, ...]:
    """`zeros(sizes)`, `full(sizes, value)`, `new_ones(like, sizes)`: any dim; `like` is cut too where it is as long."""
    made = numbered(call.outputs[0].shape)
    shape = call.outputs[0].shape
    likes = tuple(
        tuple(label if dim < len(shape) and size == shape[dim] else "" for dim, (size, label) in enumerate(labelled))
        for labelled in (tuple(zip(like.shape, numbered(like.shape), strict=True)) for like in call.tensors)
    )
    return pattern_choices(Pattern(inputs=likes, outputs=(made,)), local="sizes")


def arange(call: Call) -> tuple[Choice, ...]:
    """`arange(end)`, `arange(start, end, step)`: each rank counts on from where its piece starts."""
    return pattern_choices(Pattern(inputs=(), outputs=(numbered(call.outputs[0].shape),)), local="arange")


def _linear_in_first(call: Call, linear: bool) -> tuple[Choice, ...]:
    return (*pointwise(call), partial(call, frozenset({0}))) if linear else pointwise(call)


def _zero(argument: Argument) -> bool:
    return isinstance(argument, int | float) and argument == 0
