"""Chains of memory-bound ops that run as one kernel under fusion.

A chain is a run of consecutive pointwise, random and reduction ops of a block (views in between do not break it). Its
kernel reads what enters the chain once and writes what leaves it or is kept for backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placer.costs.precision import OpNumerics
from placer.graph import BlockClass, Tensor

FUSED_KINDS = ("pointwise", "reduction", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedChain:
    """Indices of the ops of one kernel, with the references that enter and leave it."""

    ops: tuple[int, ...]
    entering: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()

    def forward_bytes(self, block_class: BlockClass, numbers: Sequence[OpNumerics], rows: int) -> float:
        """Bytes the fused forward moves: what enters, what leaves, what is kept on the way."""
        kept = sum(numbers[i].saved * block_class.ops[i].saved_bytes.at(rows) for i in self.ops)
        return self._crossing(block_class, numbers, rows) + kept

    def backward_bytes(self, block_class: BlockClass, numbers: Sequence[OpNumerics], rows: int) -> float:
        """Bytes the fused backward moves: gradients of what left and entered, and what was kept."""
        return self.forward_bytes(block_class, numbers, rows)

    def _crossing(self, block_class: BlockClass, numbers: Sequence[OpNumerics], rows: int) -> float:
        read = numbers[self.ops[0]].read
        written = numbers[self.ops[-1]].written
        entering = sum(_bytes(block_class, reference, rows) for reference in self.entering)
        return read * entering + written * sum(_bytes(block_class, reference, rows) for reference in self.leaving)


def chains(block_class: BlockClass) -> Iterator[FusedChain]:
    """Every op that is no view in exactly one chain, in order; ops that do not fuse are chains of one."""
    run: list[int] = []
    for index, op in enumerate(block_class.ops):
        if op.kind == "view":
            continue
        if op.kind in FUSED_KINDS:
            run.append(index)
            continue
        if run:
            yield _chain(block_class, run)
            run = []
        yield FusedChain(ops=(index,))
    if run:
        yield _chain(block_class, run)


def _chain(block_class: BlockClass, run: list[int]) -> FusedChain:
    inside = _made_by(block_class, set(run))
    entering = {reference for i in run for reference in block_class.ops[i].inputs if reference not in inside}
    outside = [r for i, op in enumerate(block_class.ops) if i not in run and op.kind != "view" for r in op.inputs]
    leaving = {reference for reference in (*outside, *block_class.outputs) if reference in inside}
    return FusedChain(ops=tuple(run), entering=tuple(sorted(entering)), leaving=tuple(sorted(leaving)))


def _made_by(block_class: BlockClass, members: set[int]) -> set[str]:
    """References made in the chain, views of them included."""
    inside: set[str] = set()
    for index, op in enumerate(block_class.ops):
        if index in members or (op.kind == "view" and any(reference in inside for reference in op.inputs)):
            inside.update(f"o{index}.{output}" for output in range(len(op.outputs)))
    return inside


def _bytes(block_class: BlockClass, reference: str, rows: int) -> int:
    tensor = block_class.tensor(reference)
    return tensor.bytes_at(rows) if isinstance(tensor, Tensor) else tensor.bytes
