"""What a block range holds and moves, whatever device it is on: parameters, kept values, values that leave it.

`BlockRanges(work, backend).of(first, last)` answers for blocks first..last-1 and remembers the answer: searches ask for
one range with many devices and sizes.

The backward of a range goes through the blocks from the last to the first, each giving up what it kept and making
gradients of its parameters. While a block k of the class c is at work there are, beside what the blocks before it keep
and itself keeps,

    remade(c)   with recompute: what it saves as it runs again, beside results that products kept (not the model's last
                block, which kept all)
    op(c)       the most that one of its ops has: the gradients of its results and those of what it read
    moved(k)    where parameters are sharded: those of the block and of the one before, gathered, and those of the root,
                which several blocks read; where gradients are, the block's and the root's whole ones

and what the blocks after it had kept is gone. Of a class the last block counts, after which least is gone.

Before a first backward ends there are gradients of the blocks after k only: `first` is the most of what is kept and
made by then, with the above, of the first and the last block of each class, and besides of what blocks before a cut
keep and gradients of those after it, over all cuts (in long ranges over PIECES of them, each with what the next adds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add
from typing import NamedTuple

from placer.cluster.cluster import Backend
from placer.costs.memory.parameters import ParameterCounts, ParameterSums
from placer.costs.memory.values import CrossingValues, KeptValues
from placer.costs.workload import Workload
from placer.graph import Affine, affine_sum
from placer.io.memo import remembered
from placer.plans.plan import Again, Partly

# Of a long range so many cuts are looked at: by definition no price, but what a bound may leave out.
PIECES = 12


class Moved(NamedTuple):
    """What sharding moves while a block goes backward: its parameters, those of the next one and of the root; its
    gradients and the root's."""

    parameters: bool = False
    gradients: bool = False


class _Moment(NamedTuple):
    """A block at work: what it made again and what is kept by then, less all that was kept; the most that an op has
    besides; parameters gathered, gradients it makes and gradients made before."""

    beside: Affine
    ops: tuple[Affine, ...]
    gathered: int
    making: int
    made: int

    def at(self, rows: int) -> int:
        """Bytes beside all that was kept, those of the largest op among them."""
        return self.beside[0] + self.beside[1] * rows + max([fixed + per_row * rows for fixed, per_row in self.ops])

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
    """The backward of blocks first..last-1 of a model. Like ranges have equal ones: searches price them once."""

    def __init__(self, kept: KeptValues, parameters: ParameterSums, first: int, last: int) -> None:
        self._kept, self._parameters, self._first, self._last = kept, parameters, first, last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backward) and self._kept is other._kept and self._order == other._order

    def __hash__(self) -> int:
        return self._last - self._first

    @cached_property
    def _order(self) -> object:
        """Equal for ranges that keep and make the same block by block, and share the same."""
        first, last = self._first, self._last
        everywhere = (*self._kept.shared, *((where, Affine(size)) for where, size in self._parameters.shared))
        shared = ((tuple(user - first for user in users if first <= user < last), size) for users, size in everywhere)
        return *self._kept.order(first, last), sorted(one for one in shared if one[0])

    def kept(self, recompute: Partly) -> Affine:
        """What is kept of a microbatch in flight where some blocks run again."""
        return self._kept.kept(self._first, self._last, recompute)

    def beside(self, recompute: Partly) -> Affine:
        """Messages that stay beside it."""
        return self._kept.staying(self._first, self._last, recompute)

    def saved_again(self, recompute: Partly) -> Affine:
        """What the blocks save that run again."""
        return self._kept.saved_again(self._first, self._last, recompute)

    @remembered
    def temporary(self, recompute: Again, rows: int, what: Moved) -> Temporary:
        """What is there besides when there are all gradients."""
        moments = self._at_work(recompute, ends=False)
        remade = max([0, *(moment.beside.at(rows) for moment in moments)])
        each = [moment.at(rows) for moment in moments]
        moved = [moment.moved(what) for moment in moments]
        at_once = max(0, *map(add, each, moved))
        return Temporary(remade=remade, workspace=max(0, max(each) - remade), moved=max(moved), at_once=at_once)

    def first(self, recompute: Again, rows: int, share: float, what: Moved) -> int:
        """The most of what is kept, of gradients, of which this device has a `share`, and of what is there besides."""
        whole = self._kept.kept(self._first, self._last, recompute).at(rows)
        between = max([kept[0] + kept[1] * rows + round(share * made) for kept, made in self._beside(recompute)])
        at_work = [
            moment.at(rows) + moment.moved(what) + round(share * moment.made)
            for moment in self._at_work(recompute, ends=True)
        ]
        return max(between, whole + max(at_work))

    @remembered
    def _at_work(self, recompute: Again, *, ends: bool) -> tuple[_Moment, ...]:
        """The last block of each class at work; ends: the first ones too."""
        numbered = [(block, self._kept.work.graph.blocks[block].kind) for block in range(self._first, self._last)]
        blocks = {*{kind: block for block, kind in numbered}.values()}
        if ends:
            blocks |= {*{kind: block for block, kind in reversed(numbered)}.values()}
        if isinstance(recompute, Partly):  # the last that runs again, and the first that does not
            again, others = numbered[: recompute.blocks], numbered[recompute.blocks :]
            blocks |= {*{kind: block for block, kind in (*again, *reversed(others))}.values()}
            blocks |= {*{kind: block for block, kind in again}.values()}
        return tuple(self._moment(block, recompute) for block in sorted(blocks))

    def _moment(self, block: int, recompute: Again) -> _Moment:
        known, first, last = self._kept, self._first, self._last
        blocks, whole = known.work.graph.blocks, known.kept(first, last, recompute)
        index = blocks[block].kind
        remade = known.saved_again(block, block + 1, _of_block(recompute, block - first))
        left = known.kept(first, block + 1, recompute)
        root, units = self._units(block)
        return _Moment(
            beside=affine_sum((left, Affine(-whole.fixed, -whole.per_row), remade)),
            ops=known.at_work[index] or (Affine(),),
            gathered=sum(unit.parameters for unit in (root, *units)),
            making=(root.trainable + units[0].trainable) * known.work.numerics.weight_bytes,
            made=self._parameters.gradient_bytes(block + 1, last),
        )

    def _units(self, block: int) -> tuple[ParameterCounts, list[ParameterCounts]]:
        """What FSDP2 has gathered as a block goes backward: the root, and the units of the block and the one before."""
        rooted = self._parameters.rooted(self._first, self._last)
        blocks = range(block, max(self._first, block - 1) - 1, -1)
        return self._parameters.root(rooted), [self._parameters.unit(one, rooted) for one in blocks]

    @cached_property
    def _edges(self) -> Sequence[int]:
        count = self._last - self._first
        pieces = min(count, PIECES)
        return [self._first + index * count // pieces for index in range(pieces + 1)]

    @remembered
    def _beside(self, recompute: Again) -> list[tuple[Affine, int]]:
        known, first, last = self._kept, self._first, self._last
        exact = len(self._edges) == last - first + 1
        cached = Affine(known.cached(first, last, recompute))
        found = [(affine_sum((known.kept(first, last, recompute), cached)), 0)]
        for at, cut in enumerate(self._edges[:-1]):
            reached = cut if exact else self._edges[at + 1]
            kept = known.kept(first, reached, recompute) if reached > first else Affine()
            found.append((kept, self._parameters.gradient_bytes(cut, last)))
        return found


def _of_block(recompute: Again, number: int) -> Again:
    """What of a range's block `number` runs again."""
    if isinstance(recompute, Partly):
        return recompute.recompute if number < recompute.blocks else False
    return recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """Blocks first..last-1. Sizes in bytes per row count; `received` enters forward, `sent` leaves, `returned`
    are the gradients of what is sent.

    `saved` is what autograd keeps without recompute, `inputs` with it (what enters the blocks, and all that the model's
    last block saves), `results` where it is selective (the same, and what products made); `again` and `remade` what its
    blocks save that run again, all or but for products. `staying` and `staying_apart` are received and sent
    beside what is kept without recompute and with it: it stays with the stage until its backward. `arrived` what a
    backward in two parts keeps between them, `unit` parameters of the largest block, `whole` that it is the whole
    model, `tied` gradients of parameters that earlier blocks use too. `apart`: trainable elements of a device where the
    devices of a replica that hold the same divide it.
    """

    counts: ParameterCounts
    apart: int
    saved: Affine
    inputs: Affine
    results: Affine
    again: Affine
    remade: Affine
    staying: Affine
    staying_apart: Affine
    arrived: Affine
    backward: Backward
    received: Affine
    sent: Affine
    returned: Affine
    messages: int
    unit: int
    tied: tuple[int, ...]
    prologue: bool
    whole: bool

    def kept(self, recompute: Again) -> Affine:
        """What is kept of a microbatch in flight."""
        if isinstance(recompute, Partly):
            return self.backward.kept(recompute)
        return self.results if recompute == "selective" else self.inputs if recompute else self.saved

    def beside(self, recompute: Again) -> Affine:
        """Messages that stay beside it."""
        if isinstance(recompute, Partly):
            return self.backward.beside(recompute)
        return self.staying_apart if recompute else self.staying

    def saved_again(self, recompute: Again) -> Affine:
        """What blocks save that run again."""
        if isinstance(recompute, Partly):
            return self.backward.saved_again(recompute)
        return self.remade if recompute == "selective" else self.again if recompute else Affine()


@dataclass(frozen=True, eq=False)
class BlockRanges:
    """Every block range of one graph, of three values: what crosses its borders, what it keeps, what it holds.

    Kernels of CPUs and of accelerators (`backend`) do not keep the same.
    """

    work: Workload
    backend: Backend
    _alike: dict[BlockRange, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def crossing(self) -> CrossingValues:
        """What crosses borders."""
        return CrossingValues(self.work)

    @cached_property
    def kept(self) -> KeptValues:
        """What is kept for backward."""
        return KeptValues(self.work, self.backend, self.crossing)

    @cached_property
    def parameters(self) -> ParameterSums:
        """What is held."""
        return ParameterSums(self.work)

    @cached_property
    def _whole(self) -> ParameterSums:
        """What all devices of a replica hold together."""
        return ParameterSums(replace(self.work, graph=self.work.whole, kept_whole={}))

    @remembered
    def alike(self, first: int, last: int) -> tuple[int, int]:
        """The first range that was asked for of those that hold and move the very same as first..last-1."""
        return self._alike.setdefault(self.of(first, last), (first, last))

    @remembered
    def of(self, first: int, last: int) -> BlockRange:
        """The range of blocks first..last-1."""
        crossing, kept, parameters, blocks = self.crossing, self.kept, self.parameters, self.work.graph.blocks
        leaving = crossing.leaving(first, last)
        return BlockRange(
            counts=parameters.of(first, last),
            apart=-(-self._whole.of(first, last).trainable // self.work.degree),
            saved=kept.kept(first, last, recompute=False),
            inputs=kept.kept(first, last, recompute=True),
            results=kept.kept(first, last, recompute="selective"),
            again=kept.saved_again(first, last, True),
            remade=kept.saved_again(first, last, "selective"),
            staying=kept.staying(first, last, recompute=False),
            staying_apart=kept.staying(first, last, recompute=True),
            arrived=kept.arrived(first, last),
            backward=Backward(kept, parameters, first, last),
            received=crossing.bytes_of(crossing.entering(first, last)),
            sent=crossing.bytes_of(leaving),
            returned=crossing.returned(leaving),
            messages=len(leaving),
            unit=max((parameters.units[kind] for kind in {block.kind for block in blocks[first:last]}), default=0),
            tied=parameters.tied(first, last),
            prologue=any(r.startswith("b-1.") for block in blocks[first:last] for r in block.inputs),
            whole=last - first == len(blocks),
        )
