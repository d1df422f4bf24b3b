"""What the backward of a run of blocks holds at its fullest, beside what was kept for it.

Backward goes through the blocks from the last to the first, each giving up what it kept and making gradients of its
parameters. While a block k of the class c is at work there are, beside what the blocks before it keep and itself keeps,

    remade(c)   with recompute: what it saves as it runs again (not the model's last block, which kept that)
    op(c)       the most that one of its ops has: the gradients of its results and those of what it read
    moved(k)    where parameters are sharded: those of the block and of the one before, gathered; where gradients are,
                the block's whole ones

and what the blocks after it had kept is gone. Of a class the last block counts, after which least is gone.

Before a first backward ends there are gradients of the blocks after k only: `first` is the most of what is kept and
made by then, with the above, of the first and the last block of each class, and besides of what blocks before a cut
keep and gradients of those after it, over all cuts (in long runs over PIECES of them, each with what the next adds).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from placer.costs.precision import Numerics, OpNumerics, op_name
from placer.graph import Affine, BlockClass, Op, Tensor, affine_sum

PIECES = 12
# Ops that hand the gradient they get on as it is, or pieces of it.
PASSING = frozenset({"add", "add_", "cat", "concat", "stack"})


class Kept(Protocol):
    """What the blocks of a model keep and hold, as `BlockRanges` know it."""

    def kept(self, first: int, last: int, recompute: bool) -> Affine:
        """Bytes that blocks first..last-1 keep of a microbatch."""
        ...

    def kind(self, block: int) -> int:
        """The class of a block."""
        ...

    def first_blocks(self, first: int, last: int) -> dict[int, int]:
        """The first block of each class among blocks first..last-1."""
        ...

    def last_blocks(self, first: int, last: int) -> dict[int, int]:
        """The last block of each class among blocks first..last-1."""
        ...

    def saved_by(self, kind: int) -> Affine:
        """Bytes that a block of a class saves."""
        ...

    def used_by_ops(self, kind: int) -> tuple[Affine, ...]:
        """Bytes of `op(k)`: the largest at some number of rows."""
        ...

    def order(self, first: int, last: int) -> object:
        """Equal for runs that keep and make the same block by block."""
        ...

    def gradient_bytes(self, first: int, last: int) -> int:
        """Bytes of the gradients that blocks first..last-1 make."""
        ...

    def parameter_bytes(self, first: int, last: int) -> int:
        """Bytes of the parameters that blocks first..last-1 read."""
        ...

    @property
    def final(self) -> int:
        """The model's last block."""
        ...


class Moved(NamedTuple):
    """What sharding moves while a block goes backward: its parameters and those of the next one, its gradients."""

    parameters: bool = False
    gradients: bool = False


class _Moment(NamedTuple):
    """A block at work: what is kept by then, less all that was; what it made again; the most that an op has besides;
    parameters gathered, gradients it makes and gradients made before."""

    left: Affine
    remade: Affine
    ops: tuple[Affine, ...]
    gathered: int
    making: int
    made: int

    def inner(self, rows: int) -> int:
        """Bytes of the largest op."""
        return max(size.at(rows) for size in self.ops)

    def moved(self, what: Moved) -> int:
        """Bytes that collectives hold."""
        return what.parameters * self.gathered + what.gradients * self.making


class Temporary(NamedTuple):
    """The most bytes beside what all blocks keep: made again, of ops, of collectives, and of all at once."""

    remade: int
    workspace: int
    moved: int
    at_once: int


class Backward:
    """The backward of blocks first..last-1 of a model. Like runs have equal ones: searches price them once."""

    def __init__(self, known: Kept, first: int, last: int) -> None:
        self._known, self._first, self._last = known, first, last
        self._moments: dict[tuple[bool, bool], tuple[_Moment, ...]] = {}
        self._cuts: dict[bool, tuple[tuple[Affine, int], ...]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backward) and self._known is other._known and self._order == other._order

    def __hash__(self) -> int:
        return self._last - self._first

    @cached_property
    def _order(self) -> object:
        return self._known.order(self._first, self._last)

    def temporary(self, recompute: bool, rows: int, what: Moved) -> Temporary:
        """What is there besides when there are all gradients."""
        moments = self._at_work(recompute, ends=False)
        remade = max(0, *(moment.remade.at(rows) + moment.left.at(rows) for moment in moments))
        each = [moment.left.at(rows) + moment.remade.at(rows) + moment.inner(rows) for moment in moments]
        moved = [moment.moved(what) for moment in moments]
        return Temporary(
            remade=remade,
            workspace=max(0, max(each) - remade),
            moved=max(moved),
            at_once=max(0, *(a + b for a, b in zip(each, moved, strict=True))),
        )

    def first(self, recompute: bool, rows: int, share: float, what: Moved) -> int:
        """The most of what is kept, of gradients, of which this device has a `share`, and of what is there besides."""
        if recompute not in self._cuts:
            self._cuts[recompute] = tuple(self._beside(recompute))
        whole = self._known.kept(self._first, self._last, recompute).at(rows)
        between = max(kept.at(rows) + round(share * made) for kept, made in self._cuts[recompute])
        at_work = (
            one.left.at(rows) + one.remade.at(rows) + one.inner(rows) + one.moved(what) + round(share * one.made)
            for one in self._at_work(recompute, ends=True)
        )
        return max(between, whole + max(at_work))

    def _at_work(self, recompute: bool, *, ends: bool) -> tuple[_Moment, ...]:
        """The last block of each class at work; ends: the first ones too."""
        if (recompute, ends) not in self._moments:
            known, first, last = self._known, self._first, self._last
            blocks = {*known.last_blocks(first, last).values()}
            if ends:
                blocks |= {*known.first_blocks(first, last).values()}
            self._moments[recompute, ends] = tuple(self._moment(block, recompute) for block in sorted(blocks))
        return self._moments[recompute, ends]

    def _moment(self, block: int, recompute: bool) -> _Moment:
        known, first, last = self._known, self._first, self._last
        kind, whole = known.kind(block), known.kept(first, last, recompute)
        return _Moment(
            left=affine_sum((known.kept(first, block + 1, recompute), Affine(-whole.fixed, -whole.per_row))),
            remade=known.saved_by(kind) if recompute and block != known.final else Affine(),
            ops=known.used_by_ops(kind) or (Affine(),),
            gathered=known.parameter_bytes(max(first, block - 1), block + 1),
            making=known.gradient_bytes(block, block + 1),
            made=known.gradient_bytes(block + 1, last),
        )

    @cached_property
    def _edges(self) -> Sequence[int]:
        count = self._last - self._first
        pieces = min(count, PIECES)
        return [self._first + index * count // pieces for index in range(pieces + 1)]

    def _beside(self, recompute: bool) -> list[tuple[Affine, int]]:
        known, first, last = self._known, self._first, self._last
        exact = len(self._edges) == last - first + 1
        found = [(known.kept(first, last, recompute), 0)]
        for at, cut in enumerate(self._edges[:-1]):
            reached = cut if exact else self._edges[at + 1]
            kept = known.kept(first, reached, recompute) if reached > first else Affine()
            found.append((kept, known.gradient_bytes(cut, last)))
        return found


def ops_bytes(
    kind: BlockClass, numerics: Numerics, scores: Sequence[Affine], masks: Sequence[Affine]
) -> tuple[Affine, ...]:
    """Bytes of the gradients of each op's results and of what it read; those that no other op exceeds.

    scores: of each op, which have a gradient before and one behind their softmax. masks: what they are made of in the
    forward of each op.
    """
    found = [*masks]
    for op, numbers, own in zip(kind.ops, numerics.ops(kind), scores, strict=True):
        if op.kind == "communication":
            found.append(_conversion_bytes(op, numbers))
        elif op.kind != "view":
            # The loss of labels is made of two ops, each of which writes gradients of its own.
            back = op.backward_written_bytes.scaled(numbers.read * (1 + (op_name(op) == "cross_entropy_loss")))
            read = Affine() if op_name(op) in PASSING else affine_sum((back, own.scaled(2 * numbers.read)))
            found.append(affine_sum((op.written_bytes.scaled(numbers.written), read)) if any(back) else Affine())
    return tuple(size for size in set(found) if not any(_exceeds(other, size) for other in found))


def _conversion_bytes(op: Op, numbers: OpNumerics) -> Affine:
    """Bytes of both gradients where a value is laid out anew; the op writes as many as the whole has (`communication`).

    A halo and what an op says inside itself have no results of their own: nothing beside that op's.
    """
    after = affine_sum(_line_of(value) for value in op.outputs)
    words = op.target.split(".")[1:3]
    before = after if "all_to_all" in words or not op.outputs else op.backward_written_bytes
    return affine_sum((after.scaled(numbers.written), before.scaled(numbers.read)))


def _line_of(value: Tensor) -> Affine:
    """Bytes of a value as traced, for any number of rows."""
    size = value.bytes_at(1)
    return Affine(0, size) if value.batched else Affine(size, 0)


def arrived_bytes(kind: BlockClass, numerics: Numerics) -> Affine:
    """Bytes of the gradients of the results of ops with weights: what a backward in two parts keeps between them."""
    weights, total = {f"p{index}" for index, one in enumerate(kind.parameters) if one.trainable}, Affine()
    for index, (op, numbers) in enumerate(zip(kind.ops, numerics.ops(kind), strict=True)):
        if not weights.intersection(op.inputs):
            continue
        if op.kind == "view":
            weights.update(f"o{index}.{output}" for output in range(len(op.outputs)))
        else:
            total = affine_sum((total, op.written_bytes.scaled(numbers.written)))
    return total


def _exceeds(other: Affine, size: Affine) -> bool:
    return other != size and other.fixed >= size.fixed and other.per_row >= size.per_row
