"""Bytes that a chain of memory-bound ops keeps for backward where it runs as one kernel.

Op by op each keeps what its own backward reads. One kernel can make that again from what enters it (torch.compile's
partitioner does, by a minimum cut; kernels fused by hand do, as of a bias and GELU or of a gated product): a chain
keeps what its ops keep, or what enters it and was computed, whichever is less. In backward it has no gradients of what
is made and read inside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.costs.compute.fusion import FusedChain
from placer.costs.precision import FLOATING, OpNumerics
from placer.graph import Affine, BlockClass, Parameter, affine_sum


def chain_saved(
    block_class: BlockClass, chain: FusedChain, numbers: Sequence[OpNumerics], kept: Sequence[Affine]
) -> Affine:
    """Of a chain, given what each op of the block keeps by itself."""
    alone = affine_sum(kept[index] for index in chain.ops)
    if len(chain.ops) < 2:
        return alone
    entering = affine_sum(_bytes(block_class, reference) for reference in chain.entering)
    entering = entering.scaled(numbers[chain.ops[0]].read)
    return entering if entering.at(1) < alone.at(1) else alone


def chain_at_work(
    block_class: BlockClass, chain: FusedChain, numbers: Sequence[OpNumerics], alone: Sequence[Affine]
) -> tuple[Affine, ...]:
    """Bytes that a chain has in backward, given what its ops have by themselves: as one kernel it has gradients of what
    leaves and of what enters, where that is less."""
    if len(chain.ops) < 2:
        return tuple(alone)
    ends = ((chain.leaving, numbers[chain.ops[-1]].written), (chain.entering, numbers[chain.ops[0]].read))
    both = affine_sum(_bytes(block_class, one).scaled(factor) for references, factor in ends for one in references)
    return (both,) if any(size.at(1) > both.at(1) for size in alone) else tuple(alone)


def _bytes(block_class: BlockClass, reference: str) -> Affine:
    """Bytes of a value that was computed; parameters and numbers of labels are there anyway."""
    tensor = block_class.tensor(reference)
    if isinstance(tensor, Parameter) or tensor.dtype not in FLOATING:
        return Affine()
    size = tensor.bytes_at(1)
    return Affine(0, size) if tensor.batched else Affine(size, 0)
