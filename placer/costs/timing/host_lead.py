"""How long a device waits for its host, which issues the passes of a microbatch in their order and never waits itself.

While the device is busy with what it was given the host goes on, so that it is ahead: by `lead` seconds. A pass that
keeps the device busy for d seconds and takes the host h to issue ends

    max(d, h - lead)  after the one before it;  lead = max(0, lead + d - h)

Only the end of a step, where the loss is read, brings both together. Blocks of a class are priced alike: each waits as
long as they do in the mean, so that all passes of a model together take what this gives.

That is of runs of ours, of devices that hold the whole model. Of the blocks of a stage among others each pass waits by
itself (`BlockPasses.idle`), never less: what a host gains over them is left out. So it is where others run the model,
who wait for the device on the way (Megatron-LM calls torch.cuda.synchronize after what stages send each other,
megatron/core/pipeline_parallel/p2p_communication.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from placer.costs.compute.roofline import BlockPasses, Idle


def idle_seconds(kinds: Sequence[int], passes: Mapping[int, BlockPasses]) -> dict[int, Idle]:
    """Of each class of blocks; `kinds` are those of a model's blocks in order, the prologue first."""
    lead, waits = _waits([(passes[kind].busy.forward, passes[kind].host.forward) for kind in kinds], 0.0)
    back = [kind for kind in reversed(kinds) if passes[kind].busy.backward]
    _, behind = _waits([(passes[kind].busy.backward, passes[kind].host.backward) for kind in back], lead)
    forward, backward = _means(kinds, waits), _means(back, behind)
    return {kind: Idle(forward[kind], backward.get(kind, 0.0)) for kind in passes}


def _waits(passes: Sequence[tuple[float, float]], lead: float) -> tuple[float, list[float]]:
    """How far the host is ahead after passes of so many busy seconds and seconds to issue, and each one's wait."""
    waits = []
    for busy, host in passes:
        waits.append(max(0.0, host - lead - busy))
        lead = max(0.0, lead + busy - host)
    return lead, waits


def _means(kinds: Sequence[int], waits: Sequence[float]) -> dict[int, float]:
    """What blocks of each class wait in the mean."""
    sums: dict[int, float] = {}
    for kind, wait in zip(kinds, waits, strict=True):
        sums[kind] = sums.get(kind, 0.0) + wait
    return {kind: sums[kind] / count for kind, count in Counter(kinds).items()}
