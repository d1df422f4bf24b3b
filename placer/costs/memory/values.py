"""The values of a block range: those that cross its borders, and those its blocks keep for their backward.

Both are of one graph, in bytes per rows of a replica, from prefix sums and short lists of what several blocks share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from placer.cluster.cluster import Backend
from placer.costs.memory.op_memory import ClassMemory, class_memory
from placer.costs.precision import FLOATING
from placer.costs.workload import Workload
from placer.graph import Affine, affine_sum, making_block
from placer.io.memo import remembered
from placer.plans.plan import Again, Partly


@dataclass(frozen=True, eq=False)
class CrossingValues:
    """What blocks first..last-1 read of earlier ones, and make for later ones."""

    work: Workload

    def bytes_of(self, references: Iterable[str]) -> Affine:
        """Bytes of values (`b7.0`) together, as they cross blocks."""
        return affine_sum(map(self._bytes, references))

    @remembered
    def leaving(self, first: int, last: int) -> tuple[str, ...]:
        """Values made by blocks first..last-1 and read after them."""
        return tuple(r for i in range(first, last) for r in self._made[i] if self.users[r][-1] >= last)

    @remembered
    def entering(self, first: int, last: int) -> tuple[str, ...]:
        """Values that blocks first..last-1 read of earlier ones."""
        return tuple(reference for block, reference in self._coming[first] if block < last)

    def returned(self, references: Iterable[str]) -> Affine:
        """Bytes of the gradients of values."""
        return self.bytes_of(r for r in references if self.work.graph.value(r).requires_grad)

    @cached_property
    def least_sent(self) -> tuple[Affine, Affine]:
        """Lower bounds of what any stage but the last sends on and gets back: what its last block makes for later."""
        leaving = [self.leaving(block, block + 1) for block in range(len(self.work.graph.blocks) - 1)]
        return _fewest([*map(self.bytes_of, leaving)]), _fewest([*map(self.returned, leaving)])

    @cached_property
    def users(self) -> dict[str, list[int]]:
        """The blocks that read each block output, in order (being an output of the model is no reading)."""
        users: dict[str, list[int]] = {}
        for index, block in enumerate(self.work.graph.blocks):
            for reference in dict.fromkeys(block.inputs):
                if reference.startswith("b") and not reference.startswith("b-1."):
                    users.setdefault(reference, []).append(index)
        return users

    @cached_property
    def floating(self) -> dict[str, list[int]]:
        """Of the `users` those of values that training may have to keep."""
        return {r: users for r, users in self.users.items() if self.work.graph.value(r).dtype in FLOATING}

    @cached_property
    def _made(self) -> list[list[str]]:
        """For each block the values it makes that another block reads."""
        made: list[list[str]] = [[] for _ in self.work.graph.blocks]
        for reference in self.users:
            made[making_block(reference)].append(reference)
        return made

    @cached_property
    def _coming(self) -> list[list[tuple[int, str]]]:
        """For each block what is made before it: the next block that reads it, and its name."""
        return _met({r: [making_block(r), *users] for r, users in self.users.items()}, len(self.work.graph.blocks))

    @remembered
    def _bytes(self, reference: str) -> Affine:
        tensor = self.work.graph.value(reference)
        size = self.work.numerics.bytes_of(reference, tensor, 1)
        return self.work.per_row(Affine(0, size) if tensor.batched else Affine(size, 0))


@dataclass(frozen=True, eq=False)
class KeptValues:
    """What blocks keep of a microbatch until its backward, each storage once, with the kernels of a `backend`."""

    work: Workload
    backend: Backend
    crossing: CrossingValues

    @remembered
    def kept(self, first: int, last: int, recompute: Again) -> Affine:
        """Bytes that blocks first..last-1 keep: with recompute their inputs (and, selective, the results of products),
        but all that the model's last saves."""
        final = len(self.work.graph.blocks) - 1
        if isinstance(recompute, Partly):
            return self._partly_kept(first, min(first + recompute.blocks, final), last, recompute.recompute)
        if recompute and last > final:
            return affine_sum((self.kept(first, final, recompute), self.kept(final, last, False)))
        if recompute:
            results = _between(self._result_sums, first, last) if recompute == "selective" else Affine()
            return affine_sum((self._inputs(first, last), results))
        met = (self.crossing.bytes_of((r,)) for block, r in self._kept_again[first] if block < last)
        return affine_sum((_between(self._saved_sums, first, last), *met))

    def _partly_kept(self, first: int, until: int, last: int, recompute: Again) -> Affine:
        """Bytes that blocks first..last-1 keep of which those before `until` recompute: what the others keep of what
        these read counts once."""
        if last <= until:
            return self.kept(first, last, recompute)
        both = (
            size
            for read, kept, size in self._read_and_kept
            if any(first <= block < until for block in read) and any(until <= block < last for block in kept)
        )
        parts = (self.kept(first, until, recompute), self.kept(until, last, False), affine_sum(both).scaled(-1))
        return affine_sum(parts)

    def saved_again(self, first: int, last: int, recompute: Again) -> Affine:
        """Bytes that those of the blocks save that run again, beside what they kept."""
        if isinstance(recompute, Partly):
            return self.saved_again(first, min(last, first + recompute.blocks), recompute.recompute)
        if not recompute:
            return Affine()
        sums = self._remade_sums if recompute == "selective" else self._saved_sums
        return _between(sums, first, max(first, min(last, len(self.work.graph.blocks) - 1)))

    def cached(self, first: int, last: int, recompute: Again) -> int:
        """Bytes of autocast's copies of parameters beside what is kept, as those of the blocks that run again have
        run."""
        if isinstance(recompute, Partly):
            return self.cached(first, min(last, first + recompute.blocks), recompute.recompute)
        end = min(last, len(self.work.graph.blocks) - 1)
        return sum(self._classes[block.kind].cached for block in self.work.graph.blocks[first:end]) if recompute else 0

    def arrived(self, first: int, last: int) -> Affine:
        """Bytes that a backward in two parts keeps between them."""
        return _between(self._arrived_sums, first, last)

    def staying(self, first: int, last: int, recompute: Again) -> Affine:
        """Bytes of the values that the blocks get of others, or make for others, and none of them keeps."""
        crossing = self.crossing
        count = recompute.blocks if isinstance(recompute, Partly) else last - first if recompute else 0
        until = min(last, first + count)
        references = (*crossing.entering(first, last), *crossing.leaving(first, last))
        return crossing.bytes_of(
            r
            for r in references
            if not any(first <= b < until for b in crossing.floating.get(r, ()))
            and not any(until <= b < last for b in self._keepers.get(r, ()))
        )

    def own_inputs(self, block: int) -> Affine:
        """Bytes of the values that enter this block and no other."""
        users = self.crossing.floating
        own = (r for r in dict.fromkeys(self.work.graph.blocks[block].inputs) if r in users)
        return self.crossing.bytes_of(r for r in own if len(users[r]) == 1)

    @remembered
    def spared(self, recompute: Again, rows: int) -> list[int]:
        """Sums over the first blocks of the most bytes that each keeps less where it does not run again: some read more
        than they save."""
        more = {}
        for kind, entering in set(self._reading):
            kept = entering.at(rows) + (self.results[kind].at(rows) if recompute == "selective" else 0)
            more[kind, entering] = max(0, kept - self.saved[kind].at(rows))
        sums = list(accumulate((more[one] for one in self._reading), initial=0))
        return [*sums, sums[-1]]

    @cached_property
    def _reading(self) -> list[tuple[int, Affine]]:
        """Of each block but the last its class, and the bytes of the values that enter it."""
        floating, found = self.crossing.floating, []
        for block in self.work.graph.blocks[:-1]:
            entering = (r for r in dict.fromkeys(block.inputs) if r in floating)
            found.append((block.kind, self.crossing.bytes_of(entering)))
        return found

    def order(self, first: int, last: int) -> tuple[object, ...]:
        """Equal for ranges whose blocks are alike one by one, enter, share and keep the same in the same places."""
        again = [(block - first, self.crossing.bytes_of((r,))) for block, r in self._kept_again[first] if block < last]
        return self._alone[first:last], last == len(self.work.graph.blocks), again

    @cached_property
    def shared(self) -> list[tuple[tuple[int, ...], Affine]]:
        """Values that several blocks read: those blocks and its size."""
        users = self.crossing.floating.items()
        return [(tuple(blocks), self.crossing.bytes_of((r,))) for r, blocks in users if len(blocks) > 1]

    @cached_property
    def _classes(self) -> list[ClassMemory]:
        work = self.work
        return [class_memory(one, work.numerics, work.settings, self.backend) for one in work.graph.classes]

    @cached_property
    def saved(self) -> list[Affine]:
        """Bytes that a block of each class saves."""
        return [self.work.per_row(one.saved) for one in self._classes]

    @cached_property
    def results(self) -> list[Affine]:
        """Bytes of the results that products of a block of each class keep where the others run again."""
        return [self.work.per_row(one.results) for one in self._classes]

    @cached_property
    def remade(self) -> list[Affine]:
        """Bytes that a block of each class saves as it runs again but for its products."""
        return [self.work.per_row(one.remade) for one in self._classes]

    @cached_property
    def at_work(self) -> list[tuple[Affine, ...]]:
        """Bytes that an op of each class has in backward: the largest at some number of rows."""
        return [tuple(map(self.work.per_row, one.at_work)) for one in self._classes]

    @cached_property
    def _saved_sums(self) -> list[Affine]:
        blocks = enumerate(self.work.graph.blocks)
        return _sums([affine_sum((self.saved[block.kind], self._late.get(index, Affine()))) for index, block in blocks])

    @cached_property
    def _late(self) -> dict[int, Affine]:
        """Of blocks the bytes of values that they are the first to keep as they are, copied by ones before them."""
        found: dict[int, Affine] = {}
        copied: set[str] = set()
        for index, block in enumerate(self.work.graph.blocks):
            kind = self.work.graph.classes[block.kind]
            own = {block.inputs[i] for i in kind.kept_inputs if i not in self._classes[block.kind].copied}
            found[index] = self.crossing.bytes_of(copied & own & self.crossing.floating.keys())
            copied -= own
            for r in (block.inputs[i] for i in self._classes[block.kind].copied):
                if r not in self._keepers or self._keepers[r][0] > index:
                    copied.add(r)
        return {index: size for index, size in found.items() if any(size)}

    @cached_property
    def _remade_sums(self) -> list[Affine]:
        return _sums([self.remade[block.kind] for block in self.work.graph.blocks])

    @cached_property
    def _result_sums(self) -> list[Affine]:
        return _sums([self.results[block.kind] for block in self.work.graph.blocks])

    @cached_property
    def _arrived_sums(self) -> list[Affine]:
        return _sums([self.work.per_row(self._classes[block.kind].arrived) for block in self.work.graph.blocks])

    @cached_property
    def _input_sums(self) -> list[Affine]:
        """Prefix sums of values by the first block that reads them."""
        entering: list[list[str]] = [[] for _ in self.work.graph.blocks]
        for reference, users in self.crossing.floating.items():
            entering[users[0]].append(reference)
        return _sums([*map(self.crossing.bytes_of, entering)])

    def _inputs(self, first: int, last: int) -> Affine:
        """Bytes of the values that enter blocks first..last-1, each once."""
        before = (
            size for users, size in self.shared if users[0] < first and any(first <= user < last for user in users)
        )
        return affine_sum((_between(self._input_sums, first, last), *before))

    @cached_property
    def _keepers(self) -> dict[str, list[int]]:
        """The blocks that keep each value that a block reads of another, or makes for one, in order."""
        keepers: dict[str, list[int]] = {}
        for index, block in enumerate(self.work.graph.blocks):
            block_class = self.work.graph.classes[block.kind]
            read = (block.inputs[i] for i in block_class.kept_inputs if i not in self._classes[block.kind].copied)
            made = (f"b{index}.{i}" for i in block_class.kept_outputs)
            for reference in dict.fromkeys((*read, *made)):
                if reference in self.crossing.users:
                    keepers.setdefault(reference, []).append(index)
        return keepers

    @cached_property
    def _read_and_kept(self) -> list[tuple[list[int], list[int], Affine]]:
        """Values that some block reads before another keeps them: those that read, those that keep, and its size."""
        pairs = ((r, read, self._keepers.get(r, [])) for r, read in self.crossing.floating.items())
        return [(read, kept, self.crossing.bytes_of((r,))) for r, read, kept in pairs if kept and read[0] < kept[-1]]

    @cached_property
    def _kept_again(self) -> list[list[tuple[int, str]]]:
        """For each block what an earlier one is the first to keep: the next block that keeps it too, and its name."""
        return _met(self._keepers, len(self.work.graph.blocks))

    @cached_property
    def _alone(self) -> list[tuple[int, Affine, Affine]]:
        """The class of each block, and bytes of what enters it alone, and of what it keeps besides its class."""
        blocks = enumerate(self.work.graph.blocks)
        return [(block.kind, self.own_inputs(index), self._late.get(index, Affine())) for index, block in blocks]


def _met(where: Mapping[str, list[int]], count: int) -> list[list[tuple[int, str]]]:
    """For each of `count` blocks the values met in blocks before it and again from it on: where next, and which."""
    found: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for reference, blocks in where.items():
        for before, after in pairwise(blocks):
            for block in range(before + 1, after + 1):
                found[block].append((after, reference))
    return found


def _sums(each: list[Affine]) -> list[Affine]:
    return list(accumulate(each, lambda a, b: Affine(a.fixed + b.fixed, a.per_row + b.per_row), initial=Affine()))


def _between(sums: list[Affine], first: int, last: int) -> Affine:
    low, high = sums[first], sums[last]
    return Affine(high.fixed - low.fixed, high.per_row - low.per_row)


def _fewest(sizes: list[Affine]) -> Affine:
    """A lower bound of all the sizes at any number of rows."""
    return Affine(min((s.fixed for s in sizes), default=0), min((s.per_row for s in sizes), default=0))
