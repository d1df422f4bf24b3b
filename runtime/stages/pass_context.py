"""PassContext: what one forward pass of some rows needs to know besides its values.

Given to every block as an argument (`mode`), so that a block run again in backward (recompute) or for another
microbatch never reads what belongs to a different pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """One pass over `rows` of the `global_rows` rows of the batch.

    counts: per loss op of the graph, the number (or weight) of elements of the global batch that count (for
    compiled code, which would keep numbers as they were first, as tensors). totals: sums over the whole batch that ops
    take instead of those over their rows. keys: one 64-bit key per row, from seed, step and the row's index in the
    global batch. batch_key: one for what has no rows, alike for all pieces of the batch. seed: a number of this pass
    for generators of torch's own. updates: whether running statistics are to be updated (not when a block is run
    again, not in evaluation). found: the buffers of opaque parts as a block that will run again found them, by part and
    call; in evaluation as the last call left them; None in training for a block that will not run again.
    """

    rows: int
    global_rows: int
    training: bool
    counts: tuple[float | torch.Tensor, ...] = ()
    totals: tuple[torch.Tensor, ...] = ()
    keys: torch.Tensor | None = None
    batch_key: torch.Tensor | None = None
    seed: int | None = None
    updates: bool = True
    found: dict[tuple[str, int], list[torch.Tensor]] | None = None

    def first(self) -> PassContext:
        """The mode of the first of two runs of a pass."""
        return replace(self, found={})

    def again(self) -> PassContext:
        """The mode of a second run of the same pass, for recompute, after that of the first."""
        return replace(self, updates=False)

    def keys_of(self, batched: bool) -> torch.Tensor:
        """Those of the rows, or of what has none. Only where random numbers are keyed."""
        keys = self.keys if batched else self.batch_key
        if keys is None:
            raise ValueError("this pass has no keys for random numbers")
        return keys

    @property
    def updating(self) -> bool:
        """Whether buffers such as running means are written."""
        return self.training and self.updates
