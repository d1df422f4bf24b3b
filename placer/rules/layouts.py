"""How tensors lie along a mesh axis, and what an op may do there: the values that split rules are written in.

A tensor lies along an axis as `Cut(dim)` (each rank has its piece), `WHOLE` (each rank has all of it) or `PARTIAL` (the
sum over the ranks is it). An edge of the graph has a `State`, the layout of the value and that of its gradient:

    (Cut d, Cut d)     the gradient of a piece is the piece of the gradient
    (WHOLE, PARTIAL)   every rank uses all of it for its part of the result, so each finds a part of the gradient
    (WHOLE, WHOLE)     every rank does the same with it
    (PARTIAL, WHOLE)   what is summed receives the gradient of the sum

A `Choice` is one way to do an op along one axis: a state for each tensor argument (in order of appearance, nested lists
flattened) and for each result. The sizes of pieces follow from `piece`, so a choice holds no sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from placer.rules.calls import Call, Value


class Cut(NamedTuple):
    """Each rank has its piece of dim `dim`, in the order of the ranks.

    With `own` the pieces are not those of the whole: each rank works on rows of its own in an order of its own (tokens
    sorted by expert, indices counting from the rank's first row), and nothing converts from or to it.

    With `sent` those rows lie at the ranks of their experts, sorted by expert, as many as came.

    With `parts` the dim is that many equal parts one after another (query, key and value of one product), and each rank
    has its piece of every part: `ranges` gives the rows.

    With `every` the dim is blocks of so many, one for each row of the batch (the tokens of all rows in one dim), and
    each rank has its piece of every block.

    With an `order` the pieces are of the dim in that order: the experts of each rank, rank after rank.
    """

    dim: int
    own: bool = False
    parts: int = 1
    sent: bool = False
    order: tuple[int, ...] = ()
    every: int = 0

    def of(self, size: int) -> Cut:
        """The same for a dim of `size`, its blocks as parts."""
        return self._replace(parts=size // self.every, every=0) if self.every else self


class Everywhere(Enum):
    """The layouts in which every rank holds a tensor of the full shape.

    OWN: it belongs to rows in an order of the rank's own (their count per expert), and nothing converts from or to it.
    """

    WHOLE = "whole"
    PARTIAL = "partial"
    OWN = "own"

    __hash__ = object.__hash__  # that of Enum is the name's, in Python: searches look states up by the million


class Both(NamedTuple):
    """Along the two axes of a mesh: `outer` along the first, `inner` along the second, of `fast` devices.

    They cut different dims, so that it does not matter along which a tensor is cut first (`two_axis_layouts`).
    """

    outer: Cut | Everywhere
    inner: Cut | Everywhere
    fast: int


Line: TypeAlias = Cut | Everywhere
Lay: TypeAlias = Line | Both
WHOLE = Everywhere.WHOLE
PARTIAL = Everywhere.PARTIAL
OWN = Everywhere.OWN


class State(NamedTuple):
    """The layout of a value and of its gradient (which says nothing where no gradient flows)."""

    value: Lay
    gradient: Lay


SAME = State(WHOLE, WHOLE)
SHARED = State(WHOLE, PARTIAL)
SUMMED = State(PARTIAL, WHOLE)
OWNED = State(OWN, OWN)


def cut(dim: int, *, own: bool = False) -> State:
    """Value and gradient cut on `dim`."""
    return State(Cut(dim, own), Cut(dim, own))


class Halo(NamedTuple):
    """A window slides over dim `dim` of an input: row i of the result reads its rows

        i * stride - padding + dilation * (0 .. kernel - 1)

    `transposed`: row i of the input writes those rows of the result instead.
    """

    dim: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False


class Rows(NamedTuple):
    """Rows start..end of an input, and how many rows of padding the window reads before and behind them."""

    start: int
    end: int
    before: int = 0
    behind: int = 0


Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class Inner(NamedTuple):
    """A collective within an op, forward or backward, over `times` * the product of `sizes` elements on each rank.

    sizes: pairs (tensor argument, dim), read from the rank's pieces; none means one element. Elements are as wide as
    those of the first argument. In an all-to-all they are what a rank holds, of which it sends (degree - 1) / degree
    where the load is balanced.
    """

    collective: Collective
    backward: bool
    sizes: tuple[tuple[int, int], ...] = ()
    times: int = 1
    reduce: Literal["sum", "max"] = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to do an op along one axis.

    `local` names what differs in the op that each rank runs ("" nothing, see `localise`). `halo` has an entry per
    tensor argument where some argument needs rows of its neighbours, else it is empty. `counts` are numbers that the
    degree must divide besides the cut sizes (groups). `uneven`: the sizes need not divide.

    `axes`: along two axes the choice along each, of which this is made (`two_axis_layouts.combined`); the inner one has
    `fast` devices, the states are `Both`, and what else a choice says is said by those two.
    """

    name: str
    inputs: tuple[State, ...]
    outputs: tuple[State, ...]
    local: str = ""
    halo: tuple[Halo | None, ...] = ()
    inner: tuple[Inner, ...] = ()
    counts: tuple[int, ...] = ()
    uneven: bool = False
    axes: tuple[Choice, ...] = ()
    fast: int = 1

    def relaid(self, name: str, changed: Callable[[Cut], Lay]) -> Choice:
        """The choice under another name, with all that it cuts laid otherwise."""

        def other(state: State) -> State:
            lay = state.value
            return State(changed(lay), changed(lay)) if isinstance(lay, Cut) else state

        return replace(self, name=name, inputs=tuple(map(other, self.inputs)), outputs=tuple(map(other, self.outputs)))

    def cuts(self, call: Call) -> tuple[tuple[int, Cut], ...]:
        """Of each tensor argument and result of `call` that is cut, the size of the dim and how it is cut."""
        pairs = (*zip(call.tensors, self.inputs, strict=True), *zip(call.outputs, self.outputs, strict=True))
        return tuple(
            (value.shape[state.value.dim], state.value) for value, state in pairs if isinstance(state.value, Cut)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOp:
    """A rank's op that is not the whole op on smaller tensors: `name` says which, `numbers` where the rank stands.

    `order` is that of the experts over the ranks, where it is not their own. `call` is the op it is made of, with the
    shapes of the rank's pieces: it says what the rank computes and moves.
    """

    name: str
    call: Call
    numbers: tuple[tuple[str, int], ...] = ()
    order: tuple[int, ...] = ()

    def number(self, name: str) -> int:
        """The number of that name."""
        return dict(self.numbers)[name]


def is_own(lay: Lay) -> bool:
    """Whether a layout is of rows in an order of each rank's own."""
    if isinstance(lay, Both):
        return is_own(lay.outer) or is_own(lay.inner)
    return lay.own if isinstance(lay, Cut) else lay is OWN


def piece(size: int, degree: int, rank: int) -> tuple[int, int]:
    """Start and end of the rank's piece of a dim: size * rank // degree on, so pieces differ by at most one."""
    return size * rank // degree, size * (rank + 1) // degree


def even(size: int, degree: int) -> list[int]:
    """The sizes of all ranks' pieces."""
    return [end - start for start, end in (piece(size, degree, rank) for rank in range(degree))]


def ranges(lay: Cut, size: int, degree: int, rank: int) -> tuple[tuple[int, int], ...]:
    """The rows of a dim that the rank has, in order: one range for each of the cut's parts, or some of its `order`."""
    parts = lay.of(size).parts
    part = size // max(1, parts)
    start, end = piece(part, degree, rank)
    if lay.order:
        return tuple(_runs(lay.order[start:end]))
    return tuple((part * at + start, part * at + end) for at in range(parts))


def held_size(lay: Cut, size: int, degree: int, rank: int) -> int:
    """How many rows of a dim the rank has."""
    parts = lay.of(size).parts
    start, end = piece(size // max(1, parts), degree, rank)
    return (end - start) * parts


def _runs(indices: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Start and end of each run of consecutive numbers."""
    start = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield indices[start], indices[at - 1] + 1
            start = at


def wanted(halo: Halo, size: int, start: int, end: int) -> Rows:
    """The rows of an input of `size` rows that output rows start..end read."""
    reach = halo.dilation * (halo.kernel - 1)
    if end <= start:
        return Rows(0, 0)
    if halo.transposed:
        first = -((reach - start - halo.padding) // halo.stride)
        last = (end - 1 + halo.padding) // halo.stride + 1
    else:
        first = start * halo.stride - halo.padding
        last = (end - 1) * halo.stride - halo.padding + reach + 1
    low = min(max(first, 0), size)
    high = max(low, min(last, size))
    if halo.transposed:
        return Rows(low, high)
    return Rows(low, high, max(0, min(last, 0) - first), max(0, last - max(first, size)))


def inner_bytes(inner: Inner, pieces: tuple[Value, ...]) -> int:
    """Bytes that each rank puts into the collective; `pieces` are the tensor arguments of its local op."""
    return inner.times * prod(pieces[tensor].shape[dim] for tensor, dim in inner.sizes) * pieces[0].item_bytes


def conversion(have: Lay, want: Lay) -> Collective | Literal["", "none"]:
    """What makes layout `want` of `have`; "" is free (a slice, a share, zeros around), "none": there is no way.

    A value goes from its maker's layout to its user's; its gradient from the user's to the maker's. Along two axes it
    goes step by step (`placer.rules.two_axis_layouts.steps`), each along one.
    """
    if have == want:
        return ""
    if isinstance(have, Both) or isinstance(want, Both):
        raise TypeError(f"{have} becomes {want} in steps, each along one axis")
    if is_own(have) or is_own(want):
        return "none"
    if isinstance(have, Cut):
        return "all_to_all" if isinstance(want, Cut) else "all_gather" if want is WHOLE else ""
    if have is WHOLE:
        return ""
    return "reduce_scatter" if isinstance(want, Cut) else "all_reduce"
