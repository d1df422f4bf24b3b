"""What collectives of sharded state (FSDP2) add to a stage's passes, block by block.

A unit is a block. Its parameters are gathered before its forward, under `parameters` again before its backward; in the
last microbatch's backward its gradients are scattered after it. The next unit's collectives run beside this unit's
computation (settings.overlap), so that a pass shows the first unit's gather, of every other unit what is longer than
the computation beside it, and in the last backward the scatter of the unit that ends it.

What several blocks of a stage read is the root's: gathered before the forward of the first block, kept to the end of
the backward, and scattered after it, so that nothing hides either (torch/distributed/fsdp/_fully_shard: of roots
`reshard_after_forward` is false; _fsdp_state.py, `_root_post_backward_final_callback`).

What was gathered is copied out of the collective's buffer into parameters, and gradients into that of the scatter, by
the stream that computes (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: `foreach_all_gather_copy_out` and
`foreach_reduce_scatter_copy_in` on the current stream): such copies are always seen.

On CPUs nothing runs beside anything: FSDP2 asks for collectives that end before the call returns and leaves it to
streams, which CPUs have not, to run them ahead (`unshard_async_op` is false; `foreach_reduce` has no other). There the
shard that is sent is copied in at the cost of the computation (`all_gather_copy_in`), and so are gloo's own copies.

    pass = root + first + copies + sum over units max(0, collectives of the next unit - computation of this one)
           (+ last scatter + root's)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placer.costs.communication.gloo import Copies, gloo_copies
from placer.costs.exact_sums import exact_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathers:
    """Per block its gather and scatter; prefix sums of what shows of each block's collectives beside its predecessor.

    `root` are the seconds of the root's gather and scatter, copies too. `backward` runs from the last block down;
    `scattering` is `backward` with the scatters of the last microbatch. `copied` are prefix sums over blocks of the
    seconds of copying parameters out, `added` of copying gradients in.
    """

    gather: tuple[float, ...]
    scatter: tuple[float, ...]
    regathers: bool
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    scattering: tuple[float, ...]
    copied: tuple[float, ...]
    added: tuple[float, ...]
    root: tuple[float, float]

    def forward_seconds(self, first: int, last: int) -> float:
        """What a forward of blocks first..last-1 shows."""
        shown = self.root[0] + self.gather[first] + self.forward[last - 1] - self.forward[first]
        return shown + self.copied[last] - self.copied[first]

    def backward_seconds(self, first: int, last: int) -> float:
        """What a backward that scatters nothing shows."""
        copied = self.copied[last] - self.copied[first] if self.regathers else 0.0
        return self._regathered(last) + self.backward[last - 1] - self.backward[first] + copied

    def scatter_seconds(self, first: int, last: int) -> float:
        """What scattering adds to the last backward."""
        shown = self.scattering[last - 1] - self.scattering[first] + self.scatter[first]
        hidden = self.backward[last - 1] - self.backward[first]
        return max(0.0, shown - hidden) + self.added[last] - self.added[first] + self.root[1]

    def _regathered(self, last: int) -> float:
        """The gather that a backward begins with."""
        return self.gather[last - 1] if self.regathers else 0.0


# Seconds of a processor that a unit's hooks take, which find, cast, register and free its parameters: of each gather
# and of the scatter. On a GPU the host takes them beside the computation. Our measurement: units of 9 parameters of 8
# elements under fully_shard over torch's fake process group, less the same without, torch 2.13, processor time, the
# median of 40 passes, 26 November 2026 (of 1 to 16 parameters 0.3 to 0.6 ms ahead, with ZeRO 3 0.4 to 0.9 behind).
GATHER_HOOKS, SCATTER_HOOKS = 0.5e-3, 0.4e-3


def copies(parts: int, *, on_cpus: bool) -> tuple[Copies, Copies]:
    """What a unit's gather and scatter over so many `parts` copy in the stream that computes."""
    whole, shard = Copies(2, 1), Copies(2 / parts, 1)
    if not on_cpus:
        return whole, whole
    own = gloo_copies(parts)
    return whole.plus(shard).plus(own), whole.plus(own)


def gathers(
    gather: Sequence[float], scatter: Sequence[float], forward: Sequence[float], backward: Sequence[float],
    copied: Sequence[float], added: Sequence[float], *, root: tuple[float, float], regathers: bool, overlap: bool,
) -> Gathers:  # fmt: skip
    """From seconds per block: its gather, its scatter, its forward and backward computation, copies out and in.

    root: those of the root's gather and scatter. overlap: whether collectives run beside the computation.
    """
    units, ahead, behind = np.array(gather), float(overlap) * np.array(forward), float(overlap) * np.array(backward)
    again = (units if regathers else 0.0 * units)[:-1]
    return Gathers(
        gather=tuple(gather),
        scatter=tuple(scatter),
        regathers=regathers,
        forward=_shown(units[1:] - ahead[:-1]),
        backward=_shown(again - behind[1:]),
        scattering=_shown(again + np.array(scatter)[1:] - behind[1:]),
        copied=exact_sums(copied),
        added=exact_sums(added),
        root=root,
    )


def _shown(longer: NDArray[np.float64]) -> tuple[float, ...]:
    """Prefix sums of what is longer than the computation beside it."""
    return exact_sums(np.maximum(0.0, longer).tolist())
