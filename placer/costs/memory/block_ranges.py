"""What a block range holds and moves, whatever device it is on: parameters, kept values, values that leave it.

`BlockRanges(graph, numerics, settings).of(first, last)` answers for blocks first..last-1, from prefix sums and a short
list of what several blocks share, and remembers the answer: searches ask for one range with many devices and sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType

from placer.cluster.cluster import Backend
from placer.costs.compute.attention import saved_bytes, score_bytes
from placer.costs.memory.backward import Backward, arrived_bytes, ops_bytes
from placer.costs.memory.dropout_masks import mask_bytes
from placer.costs.memory.parameters import ParameterCounts, ParameterSums
from placer.costs.precision import FLOATING, Numerics
from placer.graph import Affine, BlockClass, Graph, Parameter, Tensor, affine_sum
from placer.plans.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """Blocks first..last-1. Sizes in bytes per row count; `received` enters forward, `sent` leaves, `returned`
    are the gradients of what is sent.

    `saved` is what autograd keeps without recompute, `inputs` with it (what enters the blocks, and all that the model's
    last block saves), `again` what its blocks save that run again. `staying` and `staying_apart` are received and sent
    beside the one and beside the other: it stays with the stage until its backward. `arrived` what a backward in two
    parts keeps between them, `unit` parameters of the largest block, `whole` that it is the whole model.
    """

    counts: ParameterCounts
    saved: Affine
    inputs: Affine
    again: Affine
    staying: Affine
    staying_apart: Affine
    arrived: Affine
    backward: Backward
    received: Affine
    sent: Affine
    returned: Affine
    messages: int
    unit: int
    tied: int
    prologue: bool
    whole: bool


class BlockRanges:
    """Everything `BlockRange` says, for every block range of one graph, whose rows are `apart` rows of a replica each.

    Of parameters named in `whole` every device of a replica holds that, whatever its blocks read. Kernels of CPUs and
    of accelerators (`backend`) do not keep the same.
    """

    def __init__(
        self, graph: Graph, numerics: Numerics, settings: RunSettings, apart: int = 1,
        whole: Mapping[str, Parameter] = MappingProxyType({}), backend: Backend = "cuda",
    ) -> None:  # fmt: skip
        self.graph = graph
        self.numerics = numerics
        self.settings = settings
        self.backend: Backend = backend
        self.apart = apart
        self.holdings = ParameterSums(graph, numerics, whole)
        self._known: dict[tuple[int, int], BlockRange] = {}

    def of(self, first: int, last: int) -> BlockRange:
        """The span of blocks first..last-1."""
        found = self._known.get((first, last))
        if found is None:
            found = self._known[first, last] = self._make(first, last)
        return found

    def value_bytes(self, reference: str) -> Affine:
        """Bytes of a value (`x:input_ids`, `b7.0`) as it crosses blocks."""
        return self._per_row(affine_bytes(self.numerics, self.graph.value(reference)))

    def leaving(self, first: int, last: int) -> tuple[str, ...]:
        """Values made by blocks first..last-1 and read after them."""
        return tuple(r for i in range(first, last) for r in self._made[i] if self._reader[r] >= last)

    def own_inputs(self, block: int) -> Affine:
        """Bytes of the values that enter this block and no other."""
        own = (r for r in dict.fromkeys(self.graph.blocks[block].inputs) if r in self._users)
        return affine_sum(self.value_bytes(r) for r in own if len(self._users[r]) == 1)

    @cached_property
    def least_sent(self) -> tuple[Affine, Affine]:
        """Lower bounds of what any stage but the last sends on and gets back: what its last block makes for later."""
        sent, returned = [], []
        for block in range(len(self.graph.blocks) - 1):
            leaving = [r for r in self._made[block] if self._reader[r] > block]
            sent.append(affine_sum(self.value_bytes(r) for r in leaving))
            returned.append(affine_sum(self.value_bytes(r) for r in leaving if self.graph.value(r).requires_grad))
        return _fewest(sent), _fewest(returned)

    def _make(self, first: int, last: int) -> BlockRange:
        leaving = self.leaving(first, last)
        kinds = {block.kind for block in self.graph.blocks[first:last]}
        return BlockRange(
            counts=self.holdings.of(first, last),
            saved=self._kept_values(first, last),
            inputs=self._kept_inputs(first, last),
            again=_between(self._saved_sums, first, max(first, min(last, self.final))),
            staying=affine_sum(self._staying(first, last, self._keepers)),
            staying_apart=affine_sum(self._staying(first, last, self._users)),
            arrived=_between(self._arrived_sums, first, last),
            backward=Backward(self, first, last),
            received=affine_sum(map(self.value_bytes, self._entering(first, last))),
            sent=affine_sum(self.value_bytes(r) for r in leaving),
            returned=affine_sum(self.value_bytes(r) for r in leaving if self.graph.value(r).requires_grad),
            messages=len(leaving),
            unit=max((self.holdings.units[kind] for kind in kinds), default=0),
            tied=self.holdings.tied(first, last),
            prologue=any(r.startswith("b-1.") for block in self.graph.blocks[first:last] for r in block.inputs),
            whole=last - first == len(self.graph.blocks),
        )

    @cached_property
    def _made(self) -> list[list[str]]:
        """For each block the values it makes that another block reads."""
        made: list[list[str]] = [[] for _ in self.graph.blocks]
        for reference in self._reader:
            made[_maker(reference)].append(reference)
        return made

    @cached_property
    def _reader(self) -> dict[str, int]:
        """The last block that reads each block output (being an output of the model is no reading)."""
        last: dict[str, int] = {}
        for index, block in enumerate(self.graph.blocks):
            for reference in block.inputs:
                if reference.startswith("b") and not reference.startswith("b-1."):
                    last[reference] = index
        return last

    @cached_property
    def _floating(self) -> frozenset[str]:
        return frozenset(r for r in self._reader if self.graph.value(r).dtype in FLOATING)

    @cached_property
    def _users(self) -> dict[str, list[int]]:
        """The blocks that read each value made by a block."""
        users: dict[str, list[int]] = {}
        for index, block in enumerate(self.graph.blocks):
            for reference in dict.fromkeys(block.inputs):
                if reference in self._floating:
                    users.setdefault(reference, []).append(index)
        return users

    @cached_property
    def _input_sums(self) -> list[Affine]:
        """Prefix sums of values by the first block that reads them."""
        own = [Affine()] * len(self.graph.blocks)
        for reference, users in self._users.items():
            own[users[0]] = affine_sum((own[users[0]], self.value_bytes(reference)))
        return _sums(own)

    def _kept_inputs(self, first: int, last: int) -> Affine:
        """Bytes kept with recompute: inputs of the blocks, but all that the model's last block saves."""
        end = len(self.graph.blocks) - 1
        if last <= end:
            return self._inputs(first, last)
        return affine_sum((self._inputs(first, end), self._kept_values(end, last)))

    def _inputs(self, first: int, last: int) -> Affine:
        """Bytes of the values that enter blocks of the span, each once."""
        total = _between(self._input_sums, first, last)
        for reference, users in self._users.items():
            if len(users) > 1 and users[0] < first and any(first <= user < last for user in users):
                total = affine_sum((total, self.value_bytes(reference)))
        return total

    @cached_property
    def _saved(self) -> list[Affine]:
        return [self._class_saved(kind) for kind in self.graph.classes]

    def _class_saved(self, kind: BlockClass) -> Affine:
        """Bytes a block of this class keeps for backward at the run's precision and attention kernel."""
        fixed = per_row = 0.0
        for op, numbers in zip(kind.ops, self.numerics.ops(kind), strict=True):
            kept = saved_bytes(kind, op, self.settings, self.backend)
            fixed += numbers.saved * kept.fixed
            per_row += numbers.saved * kept.per_row
        return self._per_row(Affine(round(fixed), round(per_row)))

    @cached_property
    def _saved_sums(self) -> list[Affine]:
        return _sums([self._saved[block.kind] for block in self.graph.blocks])

    def _kept_values(self, first: int, last: int) -> Affine:
        """Bytes of what the ops of blocks first..last-1 keep, each storage once."""
        met = (size for block, size in self._kept_again[first] if block < last)
        return affine_sum((_between(self._saved_sums, first, last), *met))

    @cached_property
    def _keepers(self) -> dict[str, list[int]]:
        """The blocks that keep each value that a block reads of another, or makes for one, in order."""
        found: dict[str, list[int]] = {}
        for index, block in enumerate(self.graph.blocks):
            kind = self.graph.classes[block.kind]
            read = (block.inputs[i] for i in kind.kept_inputs)
            made = (f"b{index}.{i}" for i in kind.kept_outputs)
            for reference in dict.fromkeys((*read, *made)):
                if reference in self._reader:
                    found.setdefault(reference, []).append(index)
        return found

    @cached_property
    def _kept_again(self) -> list[list[tuple[int, Affine]]]:
        """For each block what an earlier one is the first to keep: the next block that keeps it too, and its size."""
        met = _met(self._keepers, len(self.graph.blocks))
        return [[(block, self.value_bytes(reference)) for block, reference in found] for found in met]

    @cached_property
    def _coming(self) -> list[list[tuple[int, str]]]:
        """For each block what is made before it: the next block that reads it, and its name."""
        where: dict[str, list[int]] = {reference: [_maker(reference)] for reference in self._reader}
        for index, block in enumerate(self.graph.blocks):
            for reference in dict.fromkeys(block.inputs):
                if reference in where:
                    where[reference].append(index)
        return _met(where, len(self.graph.blocks))

    def _staying(self, first: int, last: int, keepers: Mapping[str, list[int]]) -> Iterator[Affine]:
        """Sizes of the values that blocks first..last-1 get of others, or make for others, and none of them keeps."""
        for reference in (*self._entering(first, last), *self.leaving(first, last)):
            if not any(first <= block < last for block in keepers.get(reference, ())):
                yield self.value_bytes(reference)

    def _entering(self, first: int, last: int) -> tuple[str, ...]:
        """Values that blocks first..last-1 read of earlier ones."""
        return tuple(reference for block, reference in self._coming[first] if block < last)

    # What a backward asks (`Kept`).

    def kept(self, first: int, last: int, recompute: bool) -> Affine:
        """Bytes that blocks first..last-1 keep of a microbatch."""
        return self._kept_inputs(first, last) if recompute else self._kept_values(first, last)

    def kind(self, block: int) -> int:
        """The class of a block."""
        return self.graph.blocks[block].kind

    def first_blocks(self, first: int, last: int) -> dict[int, int]:
        """The first block of each class among blocks first..last-1."""
        return {self.graph.blocks[block].kind: block for block in range(last - 1, first - 1, -1)}

    def last_blocks(self, first: int, last: int) -> dict[int, int]:
        """The last block of each class among blocks first..last-1."""
        return {block.kind: first + at for at, block in enumerate(self.graph.blocks[first:last])}

    def saved_by(self, kind: int) -> Affine:
        """Bytes that a block of a class saves."""
        return self._saved[kind]

    def used_by_ops(self, kind: int) -> tuple[Affine, ...]:
        """Bytes that an op of a class has in backward: the largest at some number of rows."""
        return self._ops[kind]

    def gradient_bytes(self, first: int, last: int) -> int:
        """Bytes of the gradients that blocks first..last-1 make."""
        return self.holdings.gradient_bytes(first, last)

    def parameter_bytes(self, first: int, last: int) -> int:
        """Bytes of the parameters that blocks first..last-1 read."""
        return self.holdings.of(first, last).parameters

    @property
    def final(self) -> int:
        """The model's last block."""
        return len(self.graph.blocks) - 1

    def order(self, first: int, last: int) -> object:
        """Equal for runs whose blocks are alike one by one, enter, share and hold the same in the same places."""
        shared = ((tuple(user - first for user in users if first <= user < last), size) for users, size in self._shared)
        again = [(block - first, size) for block, size in self._kept_again[first] if block < last]
        return self._alone[first:last], last > self.final, sorted(one for one in shared if one[0]), again

    @cached_property
    def _alone(self) -> list[tuple[int, Affine]]:
        """The class of each block, and bytes of what enters it alone."""
        return [(block.kind, self.own_inputs(index)) for index, block in enumerate(self.graph.blocks)]

    @cached_property
    def _shared(self) -> list[tuple[tuple[int, ...], Affine]]:
        """What several blocks read, parameters among it: those blocks and its size."""
        values = ((tuple(users), self.value_bytes(r)) for r, users in self._users.items() if len(users) > 1)
        return [*values, *((where, Affine(size)) for where, size in self.holdings.shared)]

    @cached_property
    def _ops(self) -> list[tuple[Affine, ...]]:
        return [tuple(map(self._per_row, self._op_sizes(kind))) for kind in self.graph.classes]

    def _op_sizes(self, kind: BlockClass) -> tuple[Affine, ...]:
        scores, masks = (
            [of(kind, op, self.settings, self.backend) for op in kind.ops] for of in (score_bytes, mask_bytes)
        )
        return ops_bytes(kind, self.numerics, scores, masks)

    @cached_property
    def _arrived_sums(self) -> list[Affine]:
        each = [self._per_row(arrived_bytes(kind, self.numerics)) for kind in self.graph.classes]
        return _sums([each[block.kind] for block in self.graph.blocks])

    def _per_row(self, size: Affine) -> Affine:
        """A size in the graph's rows as one in rows of a replica, rounded up."""
        return Affine(size.fixed, -(-size.per_row // self.apart))


def affine_bytes(numerics: Numerics, tensor: Tensor) -> Affine:
    """Bytes of a value at the run's precision; of values that grow with rows, all of it per row."""
    if tensor.batched:
        return Affine(0, numerics.bytes_of(tensor, 1))
    return Affine(numerics.bytes_of(tensor, 1), 0)


def _maker(reference: str) -> int:
    """The block that makes a value (`b7.0`)."""
    return int(reference[1:].split(".")[0])


def _met(where: Mapping[str, list[int]], count: int) -> list[list[tuple[int, str]]]:
    """For each of `count` blocks the values met in blocks before it and again from it on: where next, and which."""
    found: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for reference, blocks in where.items():
        for before, after in pairwise(blocks):
            for block in range(before + 1, after + 1):
                found[block].append((after, reference))
    return found


def _sums(own: list[Affine]) -> list[Affine]:
    return list(accumulate(own, lambda a, b: Affine(a.fixed + b.fixed, a.per_row + b.per_row), initial=Affine()))


def _between(sums: list[Affine], first: int, last: int) -> Affine:
    low, high = sums[first], sums[last]
    return Affine(high.fixed - low.fixed, high.per_row - low.per_row)


def _fewest(sizes: list[Affine]) -> Affine:
    """A lower bound of all the sizes at any number of rows."""
    return Affine(min((s.fixed for s in sizes), default=0), min((s.per_row for s in sizes), default=0))
