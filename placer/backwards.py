"""What the backward of a run of blocks holds at its fullest, beside what was kept for it.

Backward goes through the blocks from the last to the first, each giving up what it kept and making gradients of its
parameters. While a block of the class k is at work there are, beside what the blocks before it keep,

    remade(k)   with recompute: what it saves as it runs again (not the model's last block, which kept that)
    op(k)       the most that one of its ops has: the gradients of its results and those of what it read

and what the blocks after it had kept is gone. Of a class the last block counts, after which least is gone.

`turning` is the most of what blocks before a cut keep and gradients of those after it, over all cuts (in long runs over
PIECES of them, each with what the next cut adds: never too little).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from placer.graph import Affine, BlockClass, Op, Tensor, affine_sum
from placer.numerics import Numerics, OpNumerics, op_name

PIECES = 12


class Kept(Protocol):
    """What the blocks of a model keep and hold, as `Spans` know it."""

    def kept(self, first: int, last: int, recompute: bool) -> Affine:
        """Bytes that blocks first..last-1 keep of a microbatch."""
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

    @property
    def final(self) -> int:
        """The model's last block."""
        ...


class _Moment(NamedTuple):
    """A block at work: what it made again, and the most that an op has besides, less what is gone by then."""

    remade: Affine
    ops: tuple[Affine, ...]


class Backward:
    """The backward of blocks first..last-1 of a model. Like runs have equal ones: searches price them once."""

    def __init__(self, known: Kept, first: int, last: int) -> None:
        self._known, self._first, self._last = known, first, last
        self._moments: dict[bool, tuple[_Moment, ...]] = {}
        self._cuts: dict[bool, tuple[tuple[Affine, int], ...]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backward) and self._known is other._known and self._order == other._order

    def __hash__(self) -> int:
        return self._last - self._first

    @cached_property
    def _order(self) -> object:
        return self._known.order(self._first, self._last)

    def temporaries(self, recompute: bool, rows: int) -> tuple[int, int]:
        """The most bytes beside what all blocks keep: made again, and with the ops' own."""
        if recompute not in self._moments:
            self._moments[recompute] = tuple(self._each(recompute))
        moments = self._moments[recompute]
        remade = max(moment.remade.at(rows) for moment in moments)
        inner = max(moment.remade.at(rows) + size.at(rows) for moment in moments for size in moment.ops)
        return max(0, remade), max(0, remade, inner)

    def turning(self, recompute: bool, rows: int, share: float) -> int:
        """The most of kept bytes and gradients, of which this device has a `share`."""
        if recompute not in self._cuts:
            self._cuts[recompute] = tuple(self._beside(recompute))
        return max(kept.at(rows) + round(share * made) for kept, made in self._cuts[recompute])

    def _each(self, recompute: bool) -> list[_Moment]:
        found, known = [], self._known
        for kind, block in known.last_blocks(self._first, self._last).items():
            again = recompute and block != known.final
            made = known.saved_by(kind) if again else Affine()
            gone = known.kept(block + 1, self._last, recompute) if block + 1 < self._last else Affine()
            left = Affine(made.fixed - gone.fixed, made.per_row - gone.per_row)
            found.append(_Moment(left, known.used_by_ops(kind) or (Affine(),)))
        return found

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


def ops_bytes(kind: BlockClass, numerics: Numerics) -> tuple[Affine, ...]:
    """Bytes of the gradients of each op's results and of what it read; those that no other op exceeds."""
    found = []
    for op, numbers in zip(kind.ops, numerics.ops(kind), strict=True):
        if op.kind == "communication":
            found.append(_conversion_bytes(op, numbers))
        elif op.kind != "view":
            # The loss of labels is made of two ops, each of which writes gradients of its own.
            back = op.backward_written_bytes.scaled(numbers.read * (1 + (op_name(op) == "cross_entropy_loss")))
            found.append(affine_sum((op.written_bytes.scaled(numbers.written), back)) if any(back) else Affine())
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
