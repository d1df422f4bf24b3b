"""What bounds an integer input: the tables it indexes and the classes it names, read off the graph.

Each use is followed from the input on. `cats[:, 0]` of a table bounds the first column alone, and a number that is
replaced on the way (`masked_fill`, `where`) is bounded by nothing that the input holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from placer.graph import IndexedPart, Tensor
from placer.tracer.export.cleaning import short_name
from placer.tracer.measure.losses import WITH_CLASSES, ignored_label
from placer.tracer.measure.meta_run import Played

# Operators that hand on the integers they are given: all at their places, all at others, or some or others.
_IN_PLACE = ("to", "_to_copy", "clone", "contiguous", "type_as", "alias", "detach")
_MOVED = (
    "view", "reshape", "expand", "flatten", "unsqueeze", "squeeze", "transpose", "permute", "expand_as", "cat", "roll",
    "unflatten",
)  # fmt: skip
_CHANGED = ("masked_fill", "where", "slice_scatter", "select_scatter", "new_zeros")
_PADS = ("pad", "constant_pad_nd")
# What torch's losses over classes leave out unless told otherwise.
_IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a node holds of an input: of which dim each of its dims is (None: of unknown ones), and a part of one dim.

    certain: whether all of that is there, as it was.
    """

    dims: tuple[int, ...] | None
    part: tuple[int, int, int] | None = None
    certain: bool = True


def indexed(
    placeholder: fx.Node, tensor: Tensor, facts: dict[fx.Node, Played]
) -> tuple[int | None, tuple[IndexedPart, ...] | None]:
    """The smallest table or class count an integer input indexes (None: no bound), and its parts where they differ."""
    bounds: list[int] = []
    parts: dict[IndexedPart, None] = {}
    pending, known = [(placeholder, _Seen(dims=tuple(range(len(tensor.shape)))))], {placeholder}
    while pending:
        node, seen = pending.pop()
        for user in node.users:
            use = _use(user, node, seen, facts)
            if use is not None:
                bounds.append(use.high)
                parts.update({use: None} if seen.certain else {})
            elif user not in known and (passed := _passed(user, seen, tensor, facts)) is not None:
                known.add(user)
                pending.append((user, passed))
    if not bounds:
        return None, None
    plain = parts and all(part == IndexedPart(high=min(bounds), ignored=part.ignored) for part in parts)
    usual = all(part.ignored in (None, _IGNORED) for part in parts)
    return min(bounds), None if plain and usual else tuple(sorted(parts, key=repr))


def _use(user: fx.Node, node: fx.Node, seen: _Seen, facts: dict[fx.Node, Played]) -> IndexedPart | None:
    """What `user` takes `node` for, where it is an index of a table or the number of a class."""
    name = short_name(user)
    if name not in ("embedding", *WITH_CLASSES) or user.args[1] is not node:
        return None
    table = name == "embedding"
    high, ignored = _shape(user.args[0], facts)[0 if table else 1], None if table else ignored_label(user)
    if seen.part is None:
        return IndexedPart(high=int(high), ignored=ignored)
    dim, first, last = seen.part
    return IndexedPart(dim=dim, first=first, last=last, high=int(high), ignored=ignored)


def _passed(user: fx.Node, seen: _Seen, tensor: Tensor, facts: dict[fx.Node, Played]) -> _Seen | None:
    """What `user` holds of the input, of which it is given `seen`; None where it is something else."""
    name = short_name(user)
    if name in _IN_PLACE:
        return seen
    if name in _MOVED:
        return replace(seen, dims=None)
    if name in _PADS:
        return _padded(user, seen)
    if name in _CHANGED:
        return replace(seen, dims=None, certain=False)
    if name in ("select", "slice"):
        return _narrowed(user, seen, tensor, facts)
    return None


def _padded(user: fx.Node, seen: _Seen) -> _Seen:
    """Behind a padding: places stay where they are where it adds to the ends alone."""
    pads = user.args[1]
    if not isinstance(pads, (tuple, list)) or not all(isinstance(pad, int) and pad >= 0 for pad in pads):
        return replace(seen, dims=None, certain=False)
    return replace(seen, dims=None) if any(pads[::2]) else seen


def _narrowed(user: fx.Node, seen: _Seen, tensor: Tensor, facts: dict[fx.Node, Played]) -> _Seen:
    """Behind `select` or `slice`."""
    size, given = _shape(user.args[0], facts), (*user.args[1:], 0, 0)
    taken = _shape(user, facts)
    sliced = short_name(user) == "slice"
    dim, start = given[0], given[1] or 0
    if not isinstance(dim, int) or not isinstance(start, int) or seen.dims is None or given[3:-2] not in ((), (1,)):
        return replace(seen, dims=None, certain=False)
    at = dim % len(size)
    if sliced and taken[at] == size[at]:
        return seen
    fixed = not tensor.shape[seen.dims[at]].per_row
    if not fixed or seen.part is not None:
        return replace(seen, dims=None, certain=False)
    first = start + size[at] if start < 0 else start
    last = min(first + (taken[at] if sliced else 1), tensor.shape[seen.dims[at]].fixed)
    dims = tuple(one for index, one in enumerate(seen.dims) if sliced or index != at)
    return replace(seen, dims=dims, part=(seen.dims[at], first, last), certain=seen.certain and first < last)


def _shape(node: object, facts: dict[fx.Node, Played]) -> torch.Size:
    assert isinstance(node, fx.Node)
    return facts[node].results[0].shape
