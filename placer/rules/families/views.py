"""Views and moves of data: a dim that stays whole within the result may be cut. All are linear."""

from __future__ import annotations

import math
from dataclasses import replace

from placer.rules.calls import Argument, Call
from placer.rules.layouts import Choice, Halo
from placer.rules.patterns import (
    Labels,
    Pattern,
    all_but,
    divisible,
    integer,
    integers,
    linear_choices,
    numbered,
    partial,
    pattern_choices,
    without,
)


def transpose(call: Call) -> tuple[Choice, ...]:
    """`transpose(x, dim0, dim1)`, also `swapaxes`."""
    rank = len(call.tensor(0).shape)
    order = list(range(rank))
    first, second = integer(call.argument(1, "dim0")) % rank, integer(call.argument(2, "dim1")) % rank
    order[first], order[second] = second, first
    return _permuted(call, tuple(order))


def permute(call: Call) -> tuple[Choice, ...]:
    """`permute(x, dims)`."""
    rank = len(call.tensor(0).shape)
    return _permuted(call, tuple(dim % rank for dim in integers(call.argument(1, "dims"))))


def movedim(call: Call) -> tuple[Choice, ...]:
    """`movedim(x, source, destination)`."""
    rank = len(call.tensor(0).shape)
    sources = [dim % rank for dim in integers(call.argument(1, "source"))]
    places = [dim % rank for dim in integers(call.argument(2, "destination"))]
    moved = dict(zip(places, sources, strict=True))
    rest = iter(dim for dim in range(rank) if dim not in sources)
    return _permuted(call, tuple(moved[dim] if dim in moved else next(rest) for dim in range(rank)))


def turned(call: Call) -> tuple[Choice, ...]:
    """`t(x)`, `mT`, `numpy_T`: the last two dims change places (of fewer, nothing does)."""
    rank = len(call.tensor(0).shape)
    order = tuple(range(rank)) if rank < 2 else (*range(rank - 2), rank - 1, rank - 2)
    return _permuted(call, order)


def _permuted(call: Call, order: tuple[int, ...]) -> tuple[Choice, ...]:
    labels = numbered(call.tensor(0).shape)
    return linear_choices(call, Pattern(inputs=(labels,), outputs=(tuple(labels[dim] for dim in order),)))


def reshape(call: Call) -> tuple[Choice, ...]:
    """`view`, `reshape`, `flatten`, `unflatten`, `squeeze`, `unsqueeze`: the sizes before and after tell all.

    A cut survives where the cut dim is the outermost of those that merge or divide with it.
    """
    if call.name == "view" and len(call.arguments) > 1 and not isinstance(call.arguments[1], tuple):
        return ()  # bits taken for another type
    before, after = _reshaped(call.tensor(0).shape, call.outputs[0].shape)
    like = tuple(after for _ in call.tensors[1:])
    choices = pattern_choices(Pattern(inputs=(before, *like), outputs=(after,)), local="sizes")
    return (*choices, partial(call, frozenset({0})))


def _reshaped(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Labels, Labels]:
    """Labels of a shape and of the shape it becomes; none where they are not of as many numbers, as a dim of rows times
    rows is not at another number of rows than those of the batch."""
    ours, theirs = [""] * len(before), [""] * len(after)
    if 0 in before or math.prod(before) != math.prod(after):
        return tuple(ours), tuple(theirs)
    left, right = [d for d in range(len(before)) if before[d] != 1], [d for d in range(len(after)) if after[d] != 1]
    while left and right:
        start = (left[0], right[0])
        ours[start[0]] = theirs[start[1]] = f"dim {start[0]}"
        a, b = before[left.pop(0)], after[right.pop(0)]
        while a != b:
            if a < b:
                a *= before[left.pop(0)]
            else:
                b *= after[right.pop(0)]
    return tuple(ours), tuple(theirs)


def expand(call: Call) -> tuple[Choice, ...]:
    """`expand(x, sizes)`, `broadcast_to`, `expand_as(x, y)`: dims that are repeated may be cut in the result alone."""
    x, out = call.tensor(0), call.outputs[0]
    lead = len(out.shape) - len(x.shape)
    after = numbered(out.shape)
    before = tuple(after[lead + dim] if size == out.shape[lead + dim] else "" for dim, size in enumerate(x.shape))
    others = tuple(numbered(value.shape, len(out.shape)) for value in call.tensors[1:])
    choices = pattern_choices(Pattern(inputs=(before, *others), outputs=(after,)), local="sizes")
    return (*choices, partial(call, frozenset({0})))


def broadcast_tensors(call: Call) -> tuple[Choice, ...]:
    """`broadcast_tensors(tensors)`: every dim of the common shape."""
    rank = len(call.outputs[0].shape)
    inputs = tuple(numbered(value.shape, rank) for value in call.tensors)
    return linear_choices(call, Pattern(inputs=inputs, outputs=(numbered(call.outputs[0].shape),) * len(call.outputs)))


def repeat(call: Call) -> tuple[Choice, ...]:
    """`repeat(x, times)`: a dim repeated once is kept, a dim of size 1 is as in `expand`."""
    x, out = call.tensor(0), call.outputs[0]
    lead = len(out.shape) - len(x.shape)
    sizes = (1,) * lead + x.shape
    free = tuple(
        f"dim {dim}" if size in (1, whole) and whole != 1 else ""
        for dim, (size, whole) in enumerate(zip(sizes, out.shape, strict=True))
    )
    before = divisible(free, sizes)[lead:]
    return linear_choices(call, Pattern(inputs=(before,), outputs=(free,)), local="repeat")


def repeat_interleave(call: Call) -> tuple[Choice, ...]:
    """`repeat_interleave(x, times, dim)`: every dim; each row of dim and its copies stay together."""
    x, out = call.tensor(0), call.outputs[0]
    if len(x.shape) != len(out.shape) or len(call.tensors) > 1:
        return ()
    return (*all_but(call), partial(call))


def halved(call: Call) -> tuple[Choice, ...]:
    """`glu(x, dim)`: not along dim, whose halves are multiplied."""
    return all_but(call, integer(call.argument(1, "dim", -1), -1))


def select(call: Call) -> tuple[Choice, ...]:
    """`select(x, dim, index)`: dim leaves."""
    labels = numbered(call.tensor(0).shape)
    dim = integer(call.argument(1, "dim")) % len(labels)
    return linear_choices(call, Pattern(inputs=(without(labels, dim),), outputs=(labels[:dim] + labels[dim + 1 :],)))


def unbind(call: Call) -> tuple[Choice, ...]:
    """`unbind(x, dim)`: like `select` for every index."""
    labels = numbered(call.tensor(0).shape)
    dim = integer(call.argument(1, "dim", 0)) % len(labels)
    outputs = (labels[:dim] + labels[dim + 1 :],) * len(call.outputs)
    return linear_choices(call, Pattern(inputs=(without(labels, dim),), outputs=outputs))


def split(call: Call) -> tuple[Choice, ...]:
    """`split(x, size, dim)`, `chunk(x, count, dim)`, `split_with_sizes`: not along dim."""
    return (*all_but(call, integer(call.argument(2, "dim", 0))), partial(call))


def slice_(call: Call) -> tuple[Choice, ...]:
    """`slice(x, dim, start, end, step)`, `narrow`: other dims freely; along dim the rank's rows lie with neighbours."""
    x, out = call.tensor(0), call.outputs[0]
    labels = numbered(x.shape)
    dim = integer(call.argument(1, "dim", 0)) % len(labels)
    if x.shape == out.shape:
        return linear_choices(call, Pattern(inputs=(labels,), outputs=(labels,)), local="slice")
    choices = (*all_but(call, dim), partial(call))
    if not labels[dim] or out.shape[dim] <= 1:
        return choices
    start = _bounded(call.argument(2, "start"), x.shape[dim], 0)
    window = Halo(dim, 1, max(1, integer(call.argument(4, "step", 1), 1)), -start)
    return (*choices, _windowed(labels, dim, window, "slice"))


def pad(call: Call) -> tuple[Choice, ...]:
    """`pad(x, sizes, mode, value)`: a dim that is padded is windowed, where the padding is constant.

    One that loses at one end what it gets at the other keeps its size and is shifted all the same.
    """
    x, out = call.tensor(0), call.outputs[0]
    labels = numbered(x.shape)
    plain = call.name == "constant_pad_nd"
    constant = plain or call.argument(2, "mode", "constant") == "constant"
    value = call.argument(2 if plain else 3, "value", 0)
    sizes = (*integers(call.argument(1, "pad")), *(0, 0) * len(labels))
    ends = [sizes[2 * at : 2 * at + 2] for at in range(len(labels) - 1, -1, -1)]
    changed = [dim for dim, own in enumerate(ends) if any(own)]
    kept = without(labels, *changed) if changed else labels
    choices = pattern_choices(Pattern(inputs=(kept,), outputs=(divisible(kept, out.shape),)))
    if constant and not value:
        choices = (*choices, partial(call))
    windows = tuple(
        _windowed(labels, dim, Halo(dim, 1, 1, ends[dim][0]), "pad") for dim in changed if constant and labels[dim]
    )
    return (*choices, *windows)


def _windowed(labels: Labels, dim: int, window: Halo, local: str) -> Choice:
    only = tuple(label if at == dim else "" for at, label in enumerate(labels))
    made = pattern_choices(Pattern(inputs=(only,), outputs=(only,)), local=local)[0]
    return replace(made, halo=(window,))


def cat(call: Call) -> tuple[Choice, ...]:
    """`cat(tensors, dim)`: not along dim. Legacy empty tensors of shape (0,) take no part."""
    out = call.outputs[0]
    dim = integer(call.argument(1, "dim", 0)) % len(out.shape)
    inputs = tuple(
        without(numbered(value.shape), dim) if len(value.shape) == len(out.shape) else ("",) * len(value.shape)
        for value in call.tensors
    )
    return linear_choices(call, Pattern(inputs=inputs, outputs=(without(numbered(out.shape), dim),)))


def stack(call: Call) -> tuple[Choice, ...]:
    """`stack(tensors, dim)`: not along the new dim."""
    out = call.outputs[0]
    dim = integer(call.argument(1, "dim", 0)) % len(out.shape)
    after = without(numbered(out.shape), dim)
    before = after[:dim] + after[dim + 1 :]
    return linear_choices(call, Pattern(inputs=(before,) * len(call.tensors), outputs=(after,)))


def mirrored(call: Call) -> tuple[Choice, ...]:
    """`flip(x, dims)`, `roll(x, shifts, dims)`, `tril`, `triu`: not along their dims."""
    name = call.name.rstrip("_")
    if name in ("tril", "triu"):
        dims: tuple[int, ...] = (-2, -1)
    else:
        dims = integers(call.argument(2 if name == "roll" else 1, "dims")) or tuple(range(len(call.tensor(0).shape)))
    return (*all_but(call, *dims), partial(call))


def scattered_slice(call: Call) -> tuple[Choice, ...]:
    """`slice_scatter(x, source, dim, ...)`, `select_scatter(x, source, dim, index)`: not along dim."""
    x, source = call.tensor(0), call.tensor(1)
    labels = numbered(x.shape)
    dim = integer(call.argument(2, "dim", 0)) % len(labels)
    kept = without(labels, dim)
    placed = kept if len(source.shape) == len(x.shape) else kept[:dim] + kept[dim + 1 :]
    return linear_choices(call, Pattern(inputs=(kept, placed), outputs=(kept,)))


def diagonal(call: Call) -> tuple[Choice, ...]:
    """`diagonal(x, offset, dim1, dim2)`: not along both dims."""
    labels = numbered(call.tensor(0).shape)
    rank = len(labels)
    gone = {integer(call.argument(2, "dim1", 0)) % rank, integer(call.argument(3, "dim2", 1)) % rank}
    kept = without(labels, *gone)
    rest = tuple(label for dim, label in enumerate(labels) if dim not in gone)
    return linear_choices(call, Pattern(inputs=(kept,), outputs=((*rest, ""),)))


def _bounded(argument: Argument, size: int, default: int) -> int:
    """A start or end of a slice, counted from the end where negative, within the dim."""
    if not isinstance(argument, int):
        return default
    return min(max(argument + size if argument < 0 else argument, 0), size)
