"""What ops keep under torch.autocast: of what products read the copies that autocast made in their type.

A copy is kept beside the value it was made of, if another op keeps that, and each product that reads the value has one
of its own. Of a parameter there is one for all that read it while a stage runs forward over a microbatch
(`torch.autocast`, `cache_enabled`): it stays in the cache until then, kept or not. Casts that the model makes itself
(`to`) hand on what has the type already, as they did when the model was captured, and copy the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from placer.costs.autocast import Copy, elements_of
from placer.costs.kept_results import OWN_RESULT
from placer.costs.precision import FLOATING, Numerics, op_name
from placer.graph import ITEM_BYTES, Affine, BlockClass, Op, Tensor, affine_sum


@dataclass
class Casts:
    """A block class walked through op by op: `kept` by each; of the values that enter it those that it keeps as copies
    alone (`copied`)."""

    block_class: BlockClass
    numerics: Numerics
    kept: list[Affine] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)  # kept as they are by now
    _unkept: set[str] = field(default_factory=set)  # captured as kept by now, and are not
    _copied: set[int] = field(default_factory=set)
    _owned: set[int] = field(default_factory=set)

    @staticmethod
    def of(block_class: BlockClass, numerics: Numerics, alone: Sequence[Affine]) -> Casts:
        """Given what each op is the first to keep, of one type (`OpNumerics.saved`)."""
        found = Casts(block_class, numerics)
        for number, size in enumerate(alone):
            found.kept.append(found._kept_by(number, size))
        return found

    @property
    def copied(self) -> frozenset[int]:
        """The numbers of the inputs that are kept as copies alone."""
        return frozenset(self._copied - self._owned)

    def _kept_by(self, index: int, size: Affine) -> Affine:
        op, copies = self.block_class.ops[index], self.numerics.copies(self.block_class)[index]
        if op.kind == "view":
            self._viewed(op, index)
            return size
        sizes = [self._first_kept(op, size) if not copies else size]
        for copy in copies:
            source = self._source(op.inputs[copy.number])
            self._copied |= _entering(source)
            if copy.number in op.kept_again:
                sizes.append(copy.bytes)
            elif any(op.saved_bytes) and source not in self._known and op_name(op) not in OWN_RESULT:
                # Among the bytes that it is the first to keep.
                self._unkept.add(source)
        for number in {*range(len(op.inputs))} - {copy.number for copy in copies}:
            sizes.append(self._own(op, number))
        return affine_sum(sizes)

    def _first_kept(self, op: Op, size: Affine) -> Affine:
        """Bytes that an op is the first to keep: of what it reads, where they are just that, each in its type."""
        fresh = {number: self.block_class.tensor(one) for number, one in enumerate(op.inputs)}
        values = {n: one for n, one in fresh.items() if isinstance(one, Tensor) and n not in op.kept_again}
        captured = affine_sum(elements_of(one).scaled(ITEM_BYTES[one.dtype]) for one in values.values())
        if captured != op.saved_bytes or op.kind == "attention":
            return size
        types = {n: self.numerics.type_of(self.block_class, op.inputs[n]) for n in values}
        return affine_sum(elements_of(one).scaled(ITEM_BYTES[types[n]]) for n, one in values.items())

    def _own(self, op: Op, number: int) -> Affine:
        """Bytes of an input that is kept as it is and counts at no other op."""
        source, value = self._source(op.inputs[number]), self.block_class.tensor(op.inputs[number])
        if not isinstance(value, Tensor) or value.dtype not in FLOATING:
            return Affine()
        first = number not in op.kept_again
        if first and (op_name(op) in OWN_RESULT or not _covers(op.saved_bytes, value)):
            return Affine()
        self._known.add(source)
        self._owned |= _entering(source)
        if source not in self._unkept:
            return Affine()
        self._unkept.remove(source)
        if first:  # among what the op is the first to keep
            return Affine()
        return elements_of(value).scaled(ITEM_BYTES[self.numerics.type_of(self.block_class, op.inputs[number])])

    def _viewed(self, op: Op, index: int) -> None:
        """A cast to another type makes what nobody keeps yet."""
        if op.inputs and self._converts(op, index):
            self._unkept.add(f"o{index}.0")

    def _converts(self, op: Op, index: int) -> bool:
        before, after = (self.numerics.type_of(self.block_class, one) for one in (op.inputs[0], f"o{index}.0"))
        return before != after

    def _source(self, reference: str) -> str:
        """The value that has the storage of another: what views were made of."""
        while reference.startswith("o"):
            index = int(reference[1:].partition(".")[0])
            op = self.block_class.ops[index]
            if op.kind != "view" or not op.inputs or self._converts(op, index):
                return reference
            reference = op.inputs[0]
        return reference


def cached_bytes(block_class: BlockClass, numerics: Numerics) -> int:
    """Bytes of the copies of parameters that stay while a stage runs forward."""
    each = (one for copies in numerics.copies(block_class) for one in copies if one.cached)
    return sum(one.bytes.fixed for one in each)


def weight_gradient_bytes(op: Op, copies: Sequence[Copy], numerics: Numerics) -> int:
    """Bytes of the gradients of an op's parameters beside those of their copies."""
    return sum(one.elements.fixed for one in copies if one.cached) * numerics.weight_bytes if op.backward_flops else 0


def _entering(source: str) -> set[int]:
    return {int(source[1:])} if source.startswith("i") else set()


def _covers(size: Affine, value: Tensor) -> bool:
    """Whether bytes may be those of a value, as traced."""
    own = elements_of(value).scaled(ITEM_BYTES[value.dtype])
    return size.fixed >= own.fixed and size.per_row >= own.per_row
