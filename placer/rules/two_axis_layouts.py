"""Two axes of a mesh at once: what is said along each, said of both.

The devices of a replica are a mesh of outer x inner axis, counted along the inner one first, whose links are the fast
ones. A tensor lies along each axis as it would alone, and the two cut different dims: so its piece is the piece of the
piece, in any order, and what is done along one axis leaves the other as it is.

    both(outer, inner, fast)    a layout along both; along(lay, axis) is its part
    steps(have, want)           from one state to another, each step along one axis
    combined(one, other, fast)  an op's choice along the outer axis and along the inner one
"""

from __future__ import annotations

from typing import NamedTuple

from placer.rules.layouts import OWN, SAME, Both, Choice, Cut, Lay, Line, State, held_size, is_own

OUTER, INNER = 0, 1
# Between the names of the choices along each axis.
AND = " / "


def both(outer: Line, inner: Line, fast: int) -> Lay:
    """The layout along both axes; every device has all of it, or a part of the sum, where both say so."""
    return outer if outer is inner and not isinstance(outer, Cut) else Both(outer, inner, fast)


def along(lay: Lay, axis: int) -> Line:
    """The layout along one axis of two; that of any axis where it does not tell them apart."""
    if isinstance(lay, Both):
        return lay.inner if axis == INNER else lay.outer
    return lay


def both_states(outer: State, inner: State, fast: int) -> State:
    """The state along both axes."""
    return State(both(outer.value, inner.value, fast), both(outer.gradient, inner.gradient, fast))  # type: ignore[arg-type]


def state_along(state: State, axis: int) -> State:
    """The state along one axis."""
    return State(along(state.value, axis), along(state.gradient, axis))


def fast_of(*states: State) -> int:
    """The devices of the inner axis of states along two; 1 of states along one."""
    lays = (lay for state in states for lay in state)
    return next((lay.fast for lay in lays if isinstance(lay, Both)), 1)


def place(degree: int, rank: int, fast: int, axis: int) -> tuple[int, int]:
    """The devices along an axis of a mesh of `degree`, and which of them `rank` is."""
    return (fast, rank % fast) if axis == INNER else (degree // fast, rank // fast)


def devices_along(degree: int, fast: int, axis: int | None) -> int:
    """How many devices of `degree` lie along an axis; all, where there is one axis (None)."""
    return degree if axis is None else place(degree, 0, fast, axis)[0]


def middle(degree: int, fast: int = 1) -> int:
    """The rank whose pieces stand for all: in the middle of both axes."""
    return degree // fast // 2 * fast + (fast // 2 if fast > 1 else 0)


class AxisPiece(NamedTuple):
    """The piece that rank `rank` of `degree` has of a dim, along an axis (None: the only one)."""

    lay: Cut
    degree: int
    rank: int
    axis: int | None = None


def pieces(lay: Lay, degree: int, rank: int) -> tuple[AxisPiece, ...]:
    """The piece of each dim that is cut."""
    if isinstance(lay, Cut):
        return (AxisPiece(lay, degree, rank),)
    if not isinstance(lay, Both):
        return ()
    parts = ((axis, along(lay, axis)) for axis in (OUTER, INNER))
    return tuple(
        AxisPiece(one, *place(degree, rank, lay.fast, axis), axis) for axis, one in parts if isinstance(one, Cut)
    )


def held_shape(shape: tuple[int, ...], lay: Lay, degree: int, rank: int) -> tuple[int, ...]:
    """The shape of what a rank has of a tensor of `shape`."""
    sizes = list(shape)
    for one in pieces(lay, degree, rank):
        sizes[one.lay.dim] = held_size(one.lay, sizes[one.lay.dim], one.degree, one.rank)
    return tuple(sizes)


def lies_clear(state: State) -> bool:
    """Whether no dim is cut along both axes."""
    return all(
        not (isinstance(lay, Both) and isinstance(lay.outer, Cut) and isinstance(lay.inner, Cut))
        or lay.outer.dim != lay.inner.dim
        for lay in state
    )


class AxisStep(NamedTuple):
    """Along `axis` (None: all devices at once) `have` becomes `want`, and with it `before` becomes `after`."""

    axis: int | None
    have: State
    want: State
    before: State
    after: State


def steps(have: State, want: State) -> tuple[AxisStep, ...]:
    """How one state becomes another: what makes a tensor smaller first, along the fast axis, else along the slow one.

    Where a dim would be cut along both axes on the way, the outer axis gives up its cut in between.
    """
    fast = fast_of(have, want)
    if fast == 1:
        return (AxisStep(None, have, want, have, want),) if have != want else ()
    for order in _orders(have, want):
        found = _taken(have, want, order, fast)
        if all(lies_clear(step.after) for step in found):
            return found
    via = both_states(SAME, state_along(have, INNER), fast)
    return (*_taken(have, via, (OUTER,), fast), *_taken(via, want, (INNER, OUTER), fast))


def _orders(have: State, want: State) -> tuple[tuple[int, int], tuple[int, int]]:
    pairs = ((along(have.value, axis), along(want.value, axis)) for axis in (OUTER, INNER))
    growth = [isinstance(before, Cut) - isinstance(after, Cut) for before, after in pairs]
    inner_first = growth[INNER] < growth[OUTER] or (growth[INNER] == growth[OUTER] < 1)
    one, other = (OUTER, INNER), (INNER, OUTER)
    return (other, one) if inner_first else (one, other)


def _taken(have: State, want: State, order: tuple[int, ...], fast: int) -> tuple[AxisStep, ...]:
    found, at = [], have
    for axis in order:
        own, wanted = state_along(at, axis), state_along(want, axis)
        if own == wanted:
            continue
        parts = [wanted if other == axis else state_along(at, other) for other in (OUTER, INNER)]
        after = both_states(parts[OUTER], parts[INNER], fast)
        found.append(AxisStep(axis, own, wanted, at, after))
        at = after
    return tuple(found)


class Strand(NamedTuple):
    """A choice along one axis (None: the only one)."""

    axis: int | None
    choice: Choice


def strands(choice: Choice) -> tuple[Strand, ...]:
    """What an op does along each axis, the outer one first."""
    return tuple(Strand(axis, one) for axis, one in enumerate(choice.axes)) or (Strand(None, choice),)


def axis_names(name: str) -> tuple[str, ...]:
    """The names of the choices, or the borders, along each axis."""
    return tuple(name.split(AND))


def combined(outer: Choice, inner: Choice, fast: int) -> Choice | None:
    """An op done as `outer` along the outer axis and as `inner` along the inner one; None where that cannot be."""
    inputs = tuple(both_states(*pair, fast) for pair in zip(outer.inputs, inner.inputs, strict=True))
    outputs = tuple(both_states(*pair, fast) for pair in zip(outer.outputs, inner.outputs, strict=True))
    if not all(map(lies_clear, (*inputs, *outputs))) or not _runs_together(outer.local, inner.local):
        return None
    if not all(map(_own_along_one, (*inputs, *outputs))):
        return None
    return Choice(name=f"{outer.name}{AND}{inner.name}", inputs=inputs, outputs=outputs, axes=(outer, inner), fast=fast)


def _own_along_one(state: State) -> bool:
    lay = state.value
    return not (isinstance(lay, Both) and is_own(lay.outer) and is_own(lay.inner)) and lay is not OWN


def _runs_together(one: str, other: str) -> bool:
    """Whether an op that is one local op along an axis can be the other along the other."""
    return one not in NAMED or other not in NAMED or frozenset((one, other)) in TOGETHER


#: Local ops that are more than the op on smaller tensors, and those of them that may be one inside the other.
NAMED = frozenset(
    {
        "mean_share", "mean_loss", "batch_norm", "window", "transposed_window", "experts", "experts_apart",
        "experts_to", "experts_at", "experts_from", "own_numbers", "vocabulary", "vocabulary_loss", "arange",
        "dropout", "attention_rows", "attention_heads", "attention_dropout", "slice",
    }
)  # fmt: skip
TOGETHER = frozenset(
    frozenset(pair)
    for pair in (
        ("window",), ("transposed_window",), ("batch_norm",), ("mean_share",), ("mean_loss",), ("dropout",),
        ("attention_dropout",), ("mean_loss", "vocabulary_loss"), ("attention_rows", "attention_heads"),
    )
)  # fmt: skip
