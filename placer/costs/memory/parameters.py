"""Parameters and buffers that a block range holds, those of several blocks counted once.

`ParameterSums(work).of(first, last)` answers for blocks first..last-1, from prefix sums and a short list of
what several blocks share.

FSDP2 gathers and scatters a unit at a time: what one block of a stage reads is that block's unit (`unit`), what several
of them read is left to the root of the stage (`root`); `program.buckets.shard_units` is the same of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add, sub
from typing import NamedTuple, TypeAlias

from placer.costs.precision import Numerics
from placer.costs.workload import Workload
from placer.graph import ITEM_BYTES, Block, Parameter, Summed
from placer.io.memo import remembered

# Of parameters that several blocks of a stage read: for each set of readers those blocks, of the whole model.
Rooted: TypeAlias = tuple[tuple[int, ...], ...]


class ParameterCounts(NamedTuple):
    """Parameters of a block range, those it uses twice counted once: bytes, elements and tensors that train; bytes of
    buffers.

    `summed` are those of the trainable elements whose gradients are summed over the devices of a replica,
    `summed_outer` and `summed_inner` over those along an axis, `elsewhere` those that blocks outside of the range use
    too.
    """

    parameters: int = 0
    trainable: int = 0
    tensors: int = 0
    buffers: int = 0
    summed: int = 0
    summed_outer: int = 0
    summed_inner: int = 0
    elsewhere: int = 0


@dataclass(frozen=True, eq=False)
class ParameterSums:
    """What every block range of one graph holds; of parameters cut over a replica that its devices need whole, all."""

    work: Workload

    @remembered
    def of(self, first: int, last: int) -> ParameterCounts:
        """What blocks first..last-1 hold."""
        counts = [b - a for a, b in zip(self._sums[first], self._sums[last], strict=True)]
        elsewhere = 0
        for where, copy in self._shared:
            users = sum(first <= index < last for index in where)
            if users > 1:
                counts = [count - (users - 1) * one for count, one in zip(counts, copy, strict=True)]
            if 0 < users < len(where):
                elsewhere += copy.trainable
        return ParameterCounts(*counts)._replace(elsewhere=elsewhere)

    def unshared(self, first: int, last: int) -> ParameterCounts:
        """Of what blocks first..last-1 hold what no two blocks of the graph share: stages that have these between them
        hold that at least."""
        return ParameterCounts(*map(sub, self._unshared[last], self._unshared[first]))

    def gradient_bytes(self, first: int, last: int) -> int:
        """Bytes of the gradients that blocks first..last-1 make."""
        return self.of(first, last).trainable * self.work.numerics.weight_bytes

    def tied(self, first: int, last: int) -> tuple[int, ...]:
        """Bytes of the gradient of each parameter that blocks first..last-1 use and an earlier block too."""
        found = []
        for where, copy in self._shared:
            if copy.trainable and where[0] < first and any(first <= index < last for index in where):
                found.append(copy.trainable * self.work.numerics.weight_bytes)
        return tuple(found)

    @remembered
    def rooted(self, first: int, last: int) -> Rooted:
        """Who reads what a stage of blocks first..last-1 leaves to its root: parameters that several of them read."""
        return tuple(readers for readers in self.by_readers if sum(first <= block < last for block in readers) > 1)

    @remembered
    def unit(self, block: int, rooted: Rooted) -> ParameterCounts:
        """What is left in a block's unit where those parameters are the root's."""
        counts = self.of(block, block + 1)
        for readers in rooted:
            if block in readers:
                counts = ParameterCounts(*map(sub, counts, self.by_readers[readers]))
        return counts

    @remembered
    def root(self, rooted: Rooted) -> ParameterCounts:
        """What the root holds."""
        held = ParameterCounts()
        for readers in rooted:
            held = _plus(held, self.by_readers[readers])
        return held

    @cached_property
    def by_readers(self) -> dict[tuple[int, ...], ParameterCounts]:
        """Parameters of several blocks, by these: what one copy of them counts for."""
        found: dict[tuple[int, ...], ParameterCounts] = {}
        for readers, copy in self._shared:
            if copy.parameters:
                found[readers] = _plus(found.get(readers, ParameterCounts()), copy)
        return found

    @cached_property
    def units(self) -> list[int]:
        """Bytes of the parameters of a block of each class."""
        return [own.parameters for own in self._of_class]

    @cached_property
    def shared(self) -> list[tuple[tuple[int, ...], int]]:
        """Of parameters of several blocks: those blocks, and the elements of one copy that train."""
        return [(where, copy.trainable) for where, copy in self._shared]

    @cached_property
    def _sums(self) -> list[ParameterCounts]:
        own = map(self._own, self.work.graph.blocks)
        return list(accumulate(own, _plus, initial=ParameterCounts()))

    @cached_property
    def _unshared(self) -> list[ParameterCounts]:
        """Sums over the first blocks of what no other block holds."""
        each = [self.of(block, block + 1)._replace(elsewhere=0) for block in range(len(self.work.graph.blocks))]
        for where, copy in self._shared:
            for block in set(where) if len(set(where)) > 1 else ():
                each[block] = ParameterCounts(*map(sub, each[block], copy))
        return list(accumulate(each, _plus, initial=ParameterCounts()))

    @cached_property
    def _shared(self) -> list[tuple[tuple[int, ...], ParameterCounts]]:
        """Parameters and buffers of several blocks: those blocks and the counts of one copy."""
        users: dict[str, list[int]] = {}
        for index, block in enumerate(self.work.graph.blocks):
            for name in block.parameters:
                users.setdefault(name, []).append(index)
        several = [(name, tuple(where)) for name, where in users.items() if len(where) > 1]
        known = {**self.work.graph.parameters, **self.work.kept_whole}
        return [(where, _counts((known[name],), self.work.numerics)) for name, where in several]

    @cached_property
    def _of_class(self) -> list[ParameterCounts]:
        return [_counts(kind.parameters, self.work.numerics) for kind in self.work.graph.classes]

    def _own(self, block: Block) -> ParameterCounts:
        if self.work.kept_whole.keys().isdisjoint(block.parameters):
            return self._of_class[block.kind]
        named = zip(block.parameters, self.work.graph.classes[block.kind].parameters, strict=True)
        return _counts(tuple(self.work.kept_whole.get(name, one) for name, one in named), self.work.numerics)


def _plus(one: ParameterCounts, other: ParameterCounts) -> ParameterCounts:
    return ParameterCounts(*map(add, one, other))


def _counts(parameters: tuple[Parameter, ...], numerics: Numerics) -> ParameterCounts:
    """What parameters and buffers count for, one by one."""
    size = trainable = tensors = buffers = 0
    summed = dict.fromkeys(Summed, 0)
    for parameter in parameters:
        own = parameter.elements * ITEM_BYTES[numerics.kept(parameter.dtype)]
        size += 0 if parameter.buffer else own
        buffers += own if parameter.buffer else 0
        if parameter.trainable and not parameter.buffer:
            trainable += parameter.elements
            tensors += 1
            summed[parameter.summed] += parameter.elements
    return ParameterCounts(
        size, trainable, tensors, buffers, summed[Summed.REPLICA], summed[Summed.OUTER], summed[Summed.INNER]
    )
