"""Peak bytes of one device by category.

    parameters     elements * bytes of the kept dtype; sharded over the replicas with `parameters`; whole plus the shard
                   with `gradients` (FSDP2 without resharding keeps both)
    gradients      the same elements at the same dtype; sharded with these two, but whole where several microbatches add
                   up (only the last backward scatters, unit by unit, giving up the whole ones as it goes)
    optimizer      adamw: two float32 moments (float64 at float64), sgd: one if it has momentum; plus float32 masters of
                   16-bit weights; sharded with any sharding; none with settings.offload (see `offload`)
    activations    sum over a device's stages of alive microbatches * kept bytes: what autograd saves, or with recompute
                   the blocks' inputs, plus once the most that one block saves (the model's last block, which never
                   recomputes, is done by then and what it kept is given up); what a stage sends stays with it
    workspace      the most that one op writes
    communication  a message received while another is used; buckets or gathered blocks in flight
    overhead       the device's context

`alive(schedule, positions, turns, microbatches)` counts the microbatches alive per stage at each peak of each position,
as the schedule's own action lists have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from placer.cluster import Device
from placer.ledger import MemoryBytes
from placer.numerics import Numerics
from placer.plans import BY_FSDP, Sharding
from placer.schedule import looped, looped_warmup
from placer.settings import RunSettings
from placer.spans import Span
from placer.updates import state_count


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One stage on one device: state that is always there, bytes kept per alive microbatch, the rest once."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    kept: int
    remade: int
    workspace: int
    communication: int


def stage_memory(
    span: Span, numerics: Numerics, settings: RunSettings, *, rows: int, recompute: bool, sharding: Sharding,
    replicas: int, accumulates: bool = False,
) -> StageMemory:  # fmt: skip
    """Bytes of one stage for microbatches of `rows` rows on each replica; `accumulates`: over several of them."""
    parts = replicas if sharding in BY_FSDP else 1
    held = span.held
    own = _share(held.parameters, parts)
    gradients = held.trainable * numerics.weight_bytes
    kept = span.inputs.at(rows) if recompute else span.saved.at(rows)
    return StageMemory(
        parameters=own if sharding != "gradients" or parts == 1 else own + held.parameters,
        gradients=gradients if accumulates else _share(gradients, parts),
        optimizer=_share(held.trainable * state_bytes(numerics, settings), replicas if sharding != "none" else 1),
        buffers=held.buffers,
        kept=kept + span.sent.at(rows),
        remade=max(0, span.largest.at(rows) - span.final.at(rows)) if recompute else 0,
        workspace=span.workspace.at(rows),
        communication=span.sent.at(rows)
        + span.returned.at(rows)
        + _in_flight(span, settings, gradients, sharding, replicas),
    )


def position_memory(
    stages: tuple[StageMemory, ...], peaks: tuple[tuple[int, ...], ...], device: Device | None = None
) -> MemoryBytes:
    """Bytes of one device with its stages (None: without its overhead); `peaks` as `alive` counts them there."""
    alive = max(sum(n * stage.kept for n, stage in zip(peak, stages, strict=True)) for peak in peaks)
    return MemoryBytes(
        parameters=sum(stage.parameters for stage in stages),
        gradients=sum(stage.gradients for stage in stages),
        optimizer=sum(stage.optimizer for stage in stages),
        activations=alive + max(stage.remade for stage in stages),
        buffers=sum(stage.buffers for stage in stages),
        workspace=max(stage.workspace for stage in stages),
        communication=max(stage.communication for stage in stages),
        overhead=0 if device is None else device.overhead_bytes,
    )


def state_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes of optimizer state per element on the device that updates it."""
    if settings.offload == "optimizer":
        return 0
    item = 8 if numerics.weights == "float64" else 4
    return item * (state_count(settings) + numerics.masters)


@lru_cache(maxsize=4096)
def alive(schedule: str, positions: int, stages: int, microbatches: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Per position the peaks of alive microbatches per local stage (without those that another exceeds)."""
    if schedule == "gpipe":
        return tuple(((microbatches,),) for _ in range(positions))
    if schedule == "1f1b":
        return tuple(((min(microbatches, positions - p),),) for p in range(positions))
    if schedule == "zero-bubble":
        # Position p runs positions - 1 - p forwards ahead, and frees nothing until the backward of microbatch p.
        return tuple(((min(microbatches, positions),),) for _ in range(positions))
    return _looped_peaks(positions, stages // positions, _enough(positions, microbatches))


def _enough(positions: int, microbatches: int) -> int:
    """The fewest microbatches with the same peaks: they repeat once the pipeline is full (a test compares the two)."""
    return min(microbatches, 2 * positions) if microbatches % positions == 0 else microbatches


def _looped_peaks(positions: int, turns: int, microbatches: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Per interleaved position the alive microbatches per turn after each forward, without those another exceeds.

    After forward i of a position with a warmup of w, so many of each turn have gone forward less those of i - w
    backwards; one turn is one digit of a number, so that equal counts are found at once.
    """
    ahead, back = (_counted([turn for turn, _ in order], turns) for order in looped(positions, turns, microbatches))
    done, places = np.arange(len(ahead) - 1), []
    for position in range(positions):
        freed = np.maximum(0, done - looped_warmup(position, positions, turns, microbatches))
        alive = ahead[1:] - back[freed]
        base = alive.max() + 1
        digits = base ** np.arange(turns - 1, -1, -1)
        places.append(_largest(np.unique(alive @ digits)[:, None] // digits % base))
    return tuple(places)


def _counted(turns: list[int], count: int) -> NDArray[np.int64]:
    """How many of each turn are among the first 0, 1, ... entries."""
    each = np.zeros((len(turns) + 1, count), dtype=np.int64)
    each[np.arange(1, len(turns) + 1), turns] = 1
    return each.cumsum(axis=0)


def _largest(found: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Those of different rows in ascending order that no other one exceeds; only a later one can."""
    kept: list[tuple[int, ...]] = []
    while len(found):
        kept.append(tuple(map(int, found[-1])))
        found = found[(found > found[-1]).any(axis=1)]
    return tuple(reversed(kept))


def _share(size: int, parts: int) -> int:
    return -(-size // parts)


def _in_flight(span: Span, settings: RunSettings, gradients: int, sharding: Sharding, replicas: int) -> int:
    """Bytes of buckets or of gathered blocks: the one in use and the next."""
    if replicas == 1:
        return 0
    if sharding == "parameters":
        return min(2 * span.unit, span.held.parameters) + min(span.unit, gradients)
    if sharding == "gradients":
        return min(span.unit, gradients)
    return gradients
