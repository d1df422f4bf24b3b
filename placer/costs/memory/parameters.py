"""Parameters and buffers that a block range holds, those of several blocks counted once.

`ParameterSums(graph, numerics).of(first, last)` answers for blocks first..last-1, from prefix sums and a short list of
what several blocks share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add
from types import MappingProxyType
from typing import NamedTuple

from placer.costs.precision import Numerics
from placer.graph import ITEM_BYTES, Block, Graph, Parameter, Summed


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters of a run of blocks, those it uses twice counted once: bytes, elements and tensors that train.

    `elsewhere` are those of the trainable elements that blocks outside of the run use too, `summed` those whose
    gradients are summed over the devices of a replica, `summed_outer` and `summed_inner` over those along an axis.
    """

    parameters: int = 0
    trainable: int = 0
    tensors: int = 0
    buffers: int = 0
    elsewhere: int = 0
    summed: int = 0
    summed_outer: int = 0
    summed_inner: int = 0


class _Counts(NamedTuple):
    """Bytes of parameters, elements that train, tensors that train, bytes of buffers, elements summed in a replica or
    along an axis of it."""

    parameters: int = 0
    trainable: int = 0
    tensors: int = 0
    buffers: int = 0
    summed: int = 0
    summed_outer: int = 0
    summed_inner: int = 0

    def held(self, elsewhere: int) -> ParameterCounts:
        """The same as `ParameterCounts`."""
        return ParameterCounts(**self._asdict(), elsewhere=elsewhere)


class ParameterSums:
    """What every run of blocks of one graph holds; of parameters named in `whole` that, whatever a block reads."""

    def __init__(self, graph: Graph, numerics: Numerics, whole: Mapping[str, Parameter] = MappingProxyType({})) -> None:
        self.graph, self.numerics, self._whole = graph, numerics, whole

    def of(self, first: int, last: int) -> ParameterCounts:
        """What blocks first..last-1 hold."""
        low, high = self._sums[first], self._sums[last]
        counts = [b - a for a, b in zip(low, high, strict=True)]
        elsewhere = 0
        for where, copy in self._shared:
            users = sum(first <= index < last for index in where)
            if users > 1:
                counts = [count - (users - 1) * one for count, one in zip(counts, copy, strict=True)]
            if 0 < users < len(where):
                elsewhere += copy.trainable
        return _Counts(*counts).held(elsewhere)

    def gradient_bytes(self, first: int, last: int) -> int:
        """Bytes of the gradients that blocks first..last-1 make."""
        return self.of(first, last).trainable * self.numerics.weight_bytes

    def tied(self, first: int, last: int) -> int:
        """Bytes of gradients of parameters that blocks first..last-1 use and an earlier block too."""
        total = 0
        for where, copy in self._shared:
            if where[0] < first and any(first <= index < last for index in where):
                total += copy.trainable * self.numerics.weight_bytes
        return total

    @cached_property
    def units(self) -> list[int]:
        """Bytes of the parameters of a block of each class."""
        return [own.parameters for own in self._of_class]

    @cached_property
    def shared(self) -> list[tuple[tuple[int, ...], int]]:
        """Of parameters of several blocks: those blocks, and the elements of one copy that train."""
        return [(where, copy.trainable) for where, copy in self._shared]

    @cached_property
    def _sums(self) -> list[_Counts]:
        own = map(self._own, self.graph.blocks)
        return list(accumulate(own, lambda a, b: _Counts(*map(add, a, b)), initial=_Counts()))

    @cached_property
    def _shared(self) -> list[tuple[tuple[int, ...], _Counts]]:
        """Parameters and buffers of several blocks: those blocks and the counts of one copy."""
        users: dict[str, list[int]] = {}
        for index, block in enumerate(self.graph.blocks):
            for name in block.parameters:
                users.setdefault(name, []).append(index)
        return [
            (tuple(where), _counts((self._whole.get(name) or self.graph.parameters[name],), self.numerics))
            for name, where in users.items()
            if len(where) > 1
        ]

    @cached_property
    def _of_class(self) -> list[_Counts]:
        return [_counts(kind.parameters, self.numerics) for kind in self.graph.classes]

    def _own(self, block: Block) -> _Counts:
        if self._whole.keys().isdisjoint(block.parameters):
            return self._of_class[block.kind]
        named = zip(block.parameters, self.graph.classes[block.kind].parameters, strict=True)
        return _counts(tuple(self._whole.get(name, one) for name, one in named), self.numerics)


def _counts(parameters: tuple[Parameter, ...], numerics: Numerics) -> _Counts:
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
    return _Counts(
        size, trainable, tensors, buffers, summed[Summed.REPLICA], summed[Summed.OUTER], summed[Summed.INNER]
    )
