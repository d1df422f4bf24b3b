"""Which sort an order of rows is of, so that what one sort put in order only its own inverse puts back.

Layouts say that rows are in an order of a rank's own (`Cut.own`), not in which: the rows of one sort beside those of
another, or an order taken twice, would pass for the routing of experts. Values are followed by what they are:

    order = sort(keys)             rows of the sort, and the numbers of rows in its order
    x[order], x[order // k]        its rows, of as many rows as the order's, or of those that k in a row stand for
    inverse[order] = arange        its inverse, where nothing else was written
    y[inverse]                     rows in their places again, where y are those of the same sort
    histogram of its rows          its counts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from placer.rules.calls import Call, Value
from placer.rules.patterns import integer

# Ops that hand on what they are given, and those that read nothing of it but its size.
_COPIES = frozenset(("clone", "contiguous", "alias", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as"))
_BLANK = frozenset(("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_full"))
#: The sort of numbers that no sort made.
NO_SORT = (-1, -1)


class Sorted(NamedTuple):
    """What a value is to a sort, known by its block and number: `rows` in its order, the `numbers` of rows (of every
    `each` one), their `inverse`, `counts` of its rows, `blank` where nothing was written; or an `arange`."""

    sort: tuple[int, int]
    what: Literal["rows", "numbers", "inverse", "counts", "blank", "arange"]
    each: int = 1


#: Of each result what it is; None where it is nothing of any sort.
Facts = tuple[Sorted | None, ...]


def facts(call: Call, given: Sequence[Sorted | None], place: tuple[int, int]) -> tuple[bool, Facts]:
    """Whether an op at `place` may be done in a rank's own order, and what its results are."""
    name = call.name if call.name.endswith("__") else call.name.rstrip("_")
    nothing: Facts = (None,) * len(call.outputs)
    if name == "sort":
        return True, (Sorted(place, "rows"), Sorted(place, "numbers"))
    if name == "arange":
        return False, (Sorted(NO_SORT, "arange") if _counts_all(call) else None,)
    known = [one for one in given if one is not None]
    if not known:
        return False, nothing
    if name == "index":
        return _index(call, given)
    if name == "index_put":
        return _index_put(call, given)
    if name in _BLANK:
        return True, (known[0]._replace(what="blank", each=1) if given[0] is not None else None,)
    if name in _COPIES and given[0] is not None and call.tensor(0).shape == call.outputs[0].shape:
        return True, (given[0],)
    if any(one.what in ("numbers", "inverse", "arange") for one in known):
        return _divided(call, name, given[0], nothing)
    if len({one.sort for one in known}) > 1:
        return False, nothing
    what: Literal["rows", "counts"] = "rows" if any(one.what != "counts" for one in known) else "counts"
    found = Sorted(known[0].sort, "counts" if name == "histc" else what)
    return True, (found,) * len(call.outputs)


def _counts_all(call: Call) -> bool:
    """Whether an `arange` is the number of every row, from 0 on."""
    bounds = [one for one in call.arguments if isinstance(one, int) and not isinstance(one, bool)]
    start, end, step = bounds if len(bounds) == 3 else (*bounds, 1) if len(bounds) == 2 else (0, *bounds[:1], 1)
    return start == 0 and step == 1 and call.outputs[0].shape == (end,)


def _index(call: Call, given: Sequence[Sorted | None]) -> tuple[bool, Facts]:
    """`x[numbers]`: rows of the sort; `rows[inverse]`: rows in their places."""
    x, at = given[0], given[1] if len(given) == 2 else None
    if at is None:
        return False, (None,)
    if at.what == "numbers" and x is None:
        fits = call.tensor(0).shape[0] * at.each == call.tensors[1].shape[0]
        return fits, (Sorted(at.sort, "rows") if fits else None,)
    undone = at.what == "inverse" and x is not None and x == Sorted(at.sort, "rows")
    return undone, (None,)


def _index_put(call: Call, given: Sequence[Sorted | None]) -> tuple[bool, Facts]:
    """`blank[numbers] = arange`: the inverse."""
    if len(given) != 3 or None in given:
        return False, (None,)
    x, at, values = given
    assert x is not None
    assert at is not None
    whole = call.tensors[1].shape == call.tensors[2].shape == call.tensors[0].shape
    inverse = x.what == "blank" and at == Sorted(x.sort, "numbers") and whole
    inverse = inverse and values == Sorted(NO_SORT, "arange")
    return inverse, (Sorted(at.sort, "inverse") if inverse else None,)


def _divided(call: Call, name: str, first: Sorted | None, nothing: Facts) -> tuple[bool, Facts]:
    """Numbers by a whole number, rounded down: those of the rows that so many in a row stand for."""
    rounded = name in ("floor_divide", "__floordiv__") or (
        name in ("div", "divide") and call.argument(2, "rounding_mode") == "floor"
    )
    by = call.argument(1, "other")
    if not rounded or first is None or first.what != "numbers" or isinstance(by, Value) or integer(by, 0) < 1:
        return False, nothing
    return True, (first._replace(each=first.each * integer(by, 1)),)
