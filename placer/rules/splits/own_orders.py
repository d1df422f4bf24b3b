"""Which sort an order of rows is of, so that what one sort put in order only its own inverse puts back.

Layouts say that rows are in an order of a rank's own (`Cut.own`), not in which: the rows of one sort beside those of
another, or an order taken twice, would pass for the routing of experts. Values are followed by what they are:

    keys, order = sort(ids)        the keys, lowest first, and the numbers of rows in that order
    x[order], x[order // k]        its rows, of as many rows as the order's, or of those that k in a row stand for
    inverse[order] = arange        its inverse, where nothing else was written
    y[inverse]                     rows in their places again, where y are those of the same sort
    table[keys]                    an entry for each row, of a table that no row makes longer: biases of experts
    cumsum(histc(keys))            where the rows of each key end: what products of experts take beside its rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from placer.graph import Op
from placer.rules.calls import MARKED_ROWS, Call, Value
from placer.rules.graph_calls import tensor_arguments
from placer.rules.patterns import integer

What = Literal["keys", "rows", "numbers", "inverse", "counts", "offsets", "blank", "arange"]

#: Ops that hand on what they are given, and those that read nothing of it but its size.
COPIES = frozenset(("clone", "contiguous", "alias", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as"))
_BLANK = frozenset(("empty_like", "zeros_like", "ones_like", "full_like"))
_PRODUCTS = frozenset(("grouped_mm", "_grouped_mm", "grouped_mm_fallback"))
# Bytes of numbers that hold those of all rows.
_WIDE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """What a value is to the sort at a place (block, number; none of an `arange`): its `keys` or other `rows` in its
    order, the `numbers` of rows (of every `each` one), their `inverse`, `counts` of its keys, `offsets` (their sums),
    `blank` where nothing was written. `ids`: which value of the block was sorted, lowest first; "" where not so, or
    where another block sorted it."""

    what: What
    sort: tuple[int, int] = (-1, -1)
    ids: str = ""
    each: int = 1

    def now(self, what: What) -> Sorted:
        """Something else to the same sort."""
        return replace(self, what=what, each=1)


#: Of each result what it is; None where it is nothing of any sort.
Facts = tuple[Sorted | None, ...]
ARANGE = Sorted(what="arange")


@dataclass(kw_only=True)
class Orders:
    """The ops of a block in order. known: what its inputs are."""

    block: int = 0
    known: dict[str, Sorted | None] = field(default_factory=dict)
    #: Of copies the value that they are copies of.
    _roots: dict[str, str] = field(default_factory=dict)

    def follow(self, op: Op, call: Call, number: int) -> bool:
        """Whether the block's op of this number may be done on rows in a rank's own order."""
        references = tensor_arguments(op)
        given = [self.known.get(one) for one in references]
        roots = [self._roots.get(one, one) for one in references]
        allowed, made = _facts(call, given, roots, (self.block, number))
        self.known.update({f"o{number}.{at}": one for at, one in enumerate(made)})
        if roots and call.pure_name in COPIES:
            self._roots[f"o{number}.0"] = roots[0]
        return allowed

    def left(self, outputs: Sequence[str], block: int) -> Facts:
        """What leaves the block, whose number is this one."""
        found = (self.known.get(one) for one in outputs)
        return tuple(None if one is None else _told_apart(one, self.block, block) for one in found)


def _told_apart(one: Sorted, here: int, block: int) -> Sorted:
    """A value that leaves a block: others have no names for its values."""
    sort = (block, one.sort[1]) if one.sort[0] == here else one.sort
    return replace(one, sort=sort, ids="")


def _facts(
    call: Call, given: Sequence[Sorted | None], roots: Sequence[str], place: tuple[int, int]
) -> tuple[bool, Facts]:
    """Whether an op may be done in a rank's own order, and what its results are."""
    name, nothing = call.pure_name, (None,) * len(call.outputs)
    if name == "sort":
        rising = call.argument(2, "descending", False) is False
        made = Sorted(what="keys" if rising else "rows", sort=place, ids=roots[0] if rising else "")
        return True, (made, made.now("numbers"))
    if name == "arange":
        return False, (ARANGE if counts_all(call) else None,)
    known = [one for one in given if one is not None]
    if not known:
        return False, nothing
    if name == "index":
        return _index(call, given, roots)
    if name == "index_put":
        return _index_put(call, given)
    if name in _BLANK and given[0] is not None:
        return True, (given[0].now("blank"),)
    if name in COPIES and given[0] is not None:
        return _copied(call, given[0])
    if len({one.sort for one in known}) > 1 or "arange" in {one.what for one in known}:
        return False, nothing
    return _of_one_sort(call, name, given, known) or (False, nothing)


def _of_one_sort(
    call: Call, name: str, given: Sequence[Sorted | None], known: Sequence[Sorted]
) -> tuple[bool, Facts] | None:
    """An op on values of one sort; None where it may not be done on a piece of them."""
    kinds, first = [one.what for one in known], known[0]
    if name == "histc":
        return (True, (first.now("counts"),)) if kinds == ["keys"] else None
    if name == "cumsum":
        along = integer(call.argument(1, "dim"), -1)
        if kinds == ["counts"]:
            return (True, (first.now("offsets"),)) if along == 0 else None
    if name in _PRODUCTS:
        fits = len(given) == 3 and given[1] is None and kinds[0] in ("rows", "keys") and kinds[1:] == ["offsets"]
        return (True, (first.now("rows"),)) if fits else None
    if kinds == ["numbers"]:
        return _divided(call, name, first)
    if not set(kinds) <= {"rows", "keys", "blank"}:
        return None
    length = next(value.shape[0] for value, one in zip(call.tensors, given, strict=True) if one is not None)
    kept = all(out.shape[:1] == (length,) for out in call.outputs)
    return (True, (first.now("rows"),) * len(call.outputs)) if kept else None


def _copied(call: Call, one: Sorted) -> tuple[bool, Facts]:
    """A copy of the same size, in a type that holds numbers where it is one."""
    numbers = one.what in ("numbers", "inverse", "arange", "offsets")
    kept = call.tensor(0).shape == call.outputs[0].shape and (not numbers or call.outputs[0].item_bytes >= _WIDE)
    return kept, (one if kept else None,)


def counts_all(call: Call) -> bool:
    """Whether an `arange` is the number of every row, from 0 on."""
    bounds = [one for one in call.arguments if isinstance(one, int) and not isinstance(one, bool)]
    if any(isinstance(one, float) for one in call.arguments) or not 1 <= len(bounds) <= 3:
        return False
    start, end, step = bounds if len(bounds) == 3 else (*bounds, 1) if len(bounds) == 2 else (0, *bounds, 1)
    return start == 0 and step == 1 and call.outputs[0].shape == (end,)


def _index(call: Call, given: Sequence[Sorted | None], roots: Sequence[str]) -> tuple[bool, Facts]:
    """`x[numbers]`: rows of the sort, keys where x is what was sorted; `rows[inverse]`: rows in their places;
    `table[keys]`: what belongs to the key of each row."""
    x, at = given[0], given[1] if len(given) == 2 else None
    if at is None:
        return False, (None,)
    size, order = call.tensor(0).shape[0], call.tensors[1].shape[0]
    if at.what == "numbers" and x is None:
        keys = at.ids == roots[0] and at.each == 1
        fits = size * at.each == order
        return fits, (at.now("keys" if keys else "rows") if fits else None,)
    if at.what == "keys" and x is None and size % MARKED_ROWS:
        return True, (at.now("rows"),)
    mine = x is not None and x.what in ("rows", "keys") and x.sort == at.sort
    return mine and at.what == "inverse" and size == order, (None,)


def _index_put(call: Call, given: Sequence[Sorted | None]) -> tuple[bool, Facts]:
    """`blank[numbers] = arange`: the inverse."""
    if len(given) != 3 or call.argument(3, "accumulate", False) is not False:
        return False, (None,)
    x, at, values = given
    if x is None or at is None or values != ARANGE:
        return False, (None,)
    whole = call.tensors[0].shape == call.tensors[1].shape == call.tensors[2].shape
    inverse = x.what == "blank" and (at.what, at.sort, at.each) == ("numbers", x.sort, 1) and whole
    return inverse, (at.now("inverse") if inverse else None,)


def _divided(call: Call, name: str, numbers: Sorted) -> tuple[bool, Facts] | None:
    """Numbers by a whole number, rounded down: those of the rows that so many in a row stand for."""
    rounded = name in ("floor_divide", "__floordiv__") or (
        name in ("div", "divide") and call.argument(2, "rounding_mode") == "floor"
    )
    by = call.argument(1, "other")
    if not rounded or isinstance(by, Value) or integer(by, 0) < 1:
        return None
    return True, (replace(numbers, each=numbers.each * integer(by, 1)),)
