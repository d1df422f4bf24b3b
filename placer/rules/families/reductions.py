"""Reductions and scans along dims: the other dims freely; a sum or mean also along the reduced ones, partially."""

from __future__ import annotations

from placer.rules.calls import Call
from placer.rules.layouts import Choice
from placer.rules.patterns import (
    Labels,
    Pattern,
    all_but,
    integer,
    integers,
    linear_choices,
    numbered,
    partial,
    pattern_choices,
)


def total(call: Call) -> tuple[Choice, ...]:
    """`sum(x, dims, keepdim)`: the reduced dims give partial sums."""
    return linear_choices(call, _reduced(call, 1, summed=True))


def mean(call: Call) -> tuple[Choice, ...]:
    """`mean(x, dims, keepdim)`: like a sum, each rank's mean weighted by its share of the count."""
    pattern = _reduced(call, 1, summed=True)
    return (*pattern_choices(pattern, local="mean_share", at=pattern.summed), partial(call))


def extreme(call: Call) -> tuple[Choice, ...]:
    """`amax(x, dims)`, `max(x, dim)`, `var`, `any`, `argmax`, `logsumexp` and the like: the other dims."""
    return pattern_choices(_reduced(call, 1, summed=False))


def norm(call: Call) -> tuple[Choice, ...]:
    """`linalg_vector_norm(x, order, dims, keepdim)`, `linalg_norm`, `norm(x, p, dims)`: the other dims."""
    return pattern_choices(_reduced(call, 2, summed=False))


def matrix_norm(call: Call) -> tuple[Choice, ...]:
    """`linalg_matrix_norm(x, order, dims, keepdim)`, of the last two dims where none are given: the other dims."""
    return pattern_choices(_reduced(call, 2, summed=False, dims=(-2, -1)))


def scan(call: Call) -> tuple[Choice, ...]:
    """`cumsum(x, dim)`: the other dims; linear."""
    return (*ordered(call), partial(call))


def ordered(call: Call) -> tuple[Choice, ...]:
    """`cumprod(x, dim)`, `sort(x, dim)`, `argsort`: the other dims."""
    # sort.stable(x, *, stable, dim) and sort(x, dim): a keyword wins.
    position = len(call.arguments) if "dim" in dict(call.keywords) else 1
    return all_but(call, integer(call.argument(position, "dim", -1), -1))


def topk(call: Call) -> tuple[Choice, ...]:
    """`topk(x, k, dim)`: the other dims."""
    return all_but(call, integer(call.argument(2, "dim", -1), -1))


def difference(call: Call) -> tuple[Choice, ...]:
    """`diff(x, n, dim, prepend, append)`: the other dims; linear."""
    return (*all_but(call, integer(call.argument(2, "dim", -1), -1)), partial(call))


def one_hot(call: Call) -> tuple[Choice, ...]:
    """`one_hot(x, classes)`: the dims of x."""
    labels = numbered(call.tensor(0).shape)
    return pattern_choices(Pattern(inputs=(labels,), outputs=((*labels, ""),)))


def _reduced(call: Call, position: int, *, summed: bool, dims: tuple[int, ...] = ()) -> Pattern:
    """What reduces the dims of an argument, or `dims` where it has none of these, of which none are all."""
    x = call.tensor(0).shape
    labels = numbered(x)
    given = integers(call.argument(position, "dim")) or dims
    gone = {dim % len(x) for dim in given} if given and x else set(range(len(x)))
    outputs = tuple(_left(labels, gone, len(out.shape) == len(x)) for out in call.outputs)
    inside = tuple(label for dim, label in enumerate(labels) if dim in gone and label)
    return Pattern(inputs=(labels,), outputs=outputs, summed=inside if summed else ())


def _left(labels: Labels, dims: set[int], keeps: bool) -> Labels:
    if keeps:
        return tuple("" if dim in dims else label for dim, label in enumerate(labels))
    return tuple(label for dim, label in enumerate(labels) if dim not in dims)
