"""Peak bytes of one device, by category and at once.

    parameters     elements * bytes of the kept dtype; sharded over the replicas with `parameters`; whole plus the shard
                   with `gradients` (FSDP2 without resharding keeps both)
    gradients      the same elements at the same dtype (those of 16 bits at float32 where microbatches add up); sharded
                   with these two, but whole where several microbatches add up (only the last backward scatters, unit by
                   unit, giving up the whole ones as it goes); of other stacks as `stacks.py` has it
    optimizer      adamw: two float32 moments (float64 at float64), sgd: one if it has momentum; plus float32 masters of
                   16-bit weights; sharded with any sharding; none with settings.offload (on the host)
    activations    sum over a device's stages of microbatches in flight * kept bytes: what autograd saves, or with
                   recompute the blocks' inputs (selective: and what their products made), plus what the block that
                   runs again saves (with a backward in two parts what all of them do, of every microbatch between the
                   parts)
    workspace      the most that the backward of one op has beside that; with a backward in two parts, what arrived at
                   the weights of microbatches between the parts
    communication  what a stage got and sends of microbatches in flight, where it is not among their activations: it
                   stays until the backward; gradients it got and gave back; buckets or gathered blocks in flight
    overhead       the device's context

Categories are each at their own peak, which do not come together. At once there are state (parameters, optimizer,
buffers, buckets that stay) and the most of

    first     those in flight but one, and of the one that goes backward first what `turning` says: the blocks
              that it has passed have gradients and no activations any more, the others the reverse
    later     all gradients, those in flight then, and the temporaries of a backward, block by block
    closing   all gradients, and what their reduction and the update make beside them
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

from placer.cluster.cluster import Device
from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.memory.block_ranges import BlockRange, Moved
from placer.costs.memory.in_flight import InFlight
from placer.costs.memory.stacks import gradient_holding
from placer.costs.precision import Numerics
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import BY_FSDP, Again, Sharding
from placer.plans.settings import RunSettings, state_count

# Of what several stages of a position have all the time, and one of them at a time.
ALWAYS = ("parameters", "gradients", "standing", "optimizer", "buffers", "lasting", "updating")
ONCE = ("remade", "workspace", "communication", "closing", "temporary")


class StageMemory(NamedTuple):
    """One stage on one device: state that is always there, bytes kept per microbatch in flight, the rest once.

    standing: those of the gradients that do not. staying: messages, beside `kept`, per microbatch in flight. lasting:
    buckets always there. turning: the most
    of kept bytes of blocks and gradients of blocks after them, with temporaries. temporary: the most at once of what is
    remade, workspace and communication. closing, updating: beside gradients as they are reduced after the last
    backward, bucket by bucket, and in the update. Of a backward in two parts: between them arrived gradients, and
    again, what blocks that ran again saved; working: `temporary` but for that.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    kept: int
    remade: int
    workspace: int
    communication: int
    standing: int = 0
    staying: int = 0
    lasting: int = 0
    arrived: int = 0
    again: int = 0
    working: int = 0
    turning: int = 0
    temporary: int = 0
    closing: int = 0
    updating: int = 0

    @property
    def state(self) -> int:
        """Bytes that are always there."""
        return self.parameters + self.optimizer + self.buffers + self.lasting + self.standing

    @property
    def coming(self) -> int:
        """Bytes of gradients that come with the first backward and go with the update."""
        return self.gradients - self.standing

    @property
    def living(self) -> int:
        """Bytes of a microbatch in flight."""
        return self.kept + self.staying

    def first(self, in_flight: int) -> int:
        """The most beside state before a first backward ends, of so many microbatches in flight."""
        return (in_flight - 1) * self.living + self.turning if in_flight else 0


class StateBytes(NamedTuple):
    """Bytes of what a stage holds whatever it computes."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int


def stage_state(
    span: BlockRange, numerics: Numerics, settings: RunSettings, *, sharding: Sharding, replicas: int, accumulates: bool
) -> StateBytes:
    """Bytes of one stage on each of its replicas; `accumulates`: over several microbatches."""
    parts = replicas if sharding in BY_FSDP else 1
    held, holding = span.counts, gradient_holding(numerics, settings)
    # Elements that are divided: of a device, or, where all that hold the same divide it, its part of a replica's.
    spread = held.trainable if sharding == "none" or not holding.spreads else min(span.apart, held.trainable)
    sharded = spread if sharding in BY_FSDP else held.trainable
    kept = held.parameters if sharded == held.trainable else -(-held.parameters * sharded // held.trainable)
    own = _share(kept, parts)
    whole = held.trainable * ((accumulates and holding.added) or holding.each)
    divided = state_bytes(numerics, settings) - holding.whole_masters
    scattered = _share(sharded * holding.each, parts)
    scatters = not accumulates or (holding.scatters and sharding == "parameters")
    return StateBytes(
        parameters=own if sharding != "gradients" or parts == 1 else own + held.parameters,
        gradients=(scattered if scatters else whole) + _share(sharded * holding.standing, parts),
        optimizer=_share(spread * divided, replicas if sharding != "none" else 1)
        + held.trainable * holding.whole_masters,
        buffers=held.buffers,
    )


def stage_memory(
    span: BlockRange, numerics: Numerics, settings: RunSettings, *, rows: int, recompute: Again, sharding: Sharding,
    replicas: int, accumulates: bool = False,
) -> StageMemory:  # fmt: skip
    """Bytes of one stage for microbatches of `rows` rows on each replica; `accumulates`: over several of them."""
    state = stage_state(span, numerics, settings, sharding=sharding, replicas=replicas, accumulates=accumulates)
    trainable, parts = span.counts.trainable, replicas if sharding != "none" else 1
    whole, holding = trainable * numerics.weight_bytes, gradient_holding(numerics, settings)
    standing = state.gradients if holding.standing and not holding.each else trainable * holding.standing
    kept, staying = span.kept(recompute).at(rows), span.beside(recompute).at(rows)
    if holding.bucket is None or sharding in BY_FSDP:
        adds = accumulates and not (holding.scatters and sharding == "parameters")
        lasting, moved, closing = _reduced(span, settings, whole, sharding, replicas, accumulates=adds)
    else:
        copied = min(trainable, holding.bucket) * (holding.standing or holding.each)
        lasting, moved, closing = 0, Moved(), copied if replicas > 1 else 0
    if replicas > 1 and numerics.casts_between_replicas and sharding not in BY_FSDP:
        closing = _cast(numerics, whole, lasting, closing, accumulates=accumulates)
    # A gather of updated weights has them packed once more, and this replica's rows, when gradients have gone.
    gathers = sharding == "optimizer" and parts > 1 and holding.bucket is None
    updating = _updating(trainable, numerics, settings, parts, accumulates=accumulates)
    messages = _messages(span, rows)
    beside = span.backward.temporary(recompute, rows, moved)
    share = (state.gradients - standing) / whole if whole else 1.0
    return StageMemory(
        **state._asdict(),
        kept=kept,
        remade=beside.remade,
        workspace=beside.workspace,
        communication=messages + beside.moved,
        standing=standing,
        staying=staying,
        lasting=lasting,
        arrived=span.arrived.at(rows),
        again=span.saved_again(recompute).at(rows),
        working=(span.backward.temporary(False, rows, moved) if recompute else beside).at_once + messages,
        turning=span.backward.first(recompute, rows, share, moved) + staying + messages,
        temporary=beside.at_once + messages,
        closing=closing,
        updating=max(_share(whole, parts) if gathers else 0, updating),
    )


def position_memory(stages: tuple[StageMemory, ...], in_flight: InFlight, device: Device | None = None) -> MemoryBytes:
    """Bytes of one device with its stages (None: without its overhead) and those in flight there."""
    first, every = stages[0], stages[0] if len(stages) == 1 else _together(stages)
    remade, temporary = every.remade, every.temporary
    later, kept, staying = _most_later(stages, in_flight)
    if in_flight.parted:  # a lone stage
        remade, temporary = in_flight.parted * first.again, first.working
    arrived = in_flight.parted * first.arrived
    parted = arrived + in_flight.parted * first.again
    at_once = max(
        first.first(in_flight.first) + parted,
        every.coming + later + temporary + parted,
        every.coming + max(every.closing, every.updating),
    )
    overhead = 0 if device is None else device.overhead_bytes
    return MemoryBytes(
        parameters=every.parameters,
        gradients=every.gradients,
        optimizer=every.optimizer,
        activations=max(in_flight.first * first.kept, kept) + remade,
        buffers=every.buffers,
        workspace=every.workspace + arrived,
        communication=every.lasting
        + max(in_flight.first * first.staying, staying)
        + max(every.communication, every.closing, every.updating),
        overhead=overhead,
        at_once=every.state + at_once + overhead,
    )


def _together(stages: tuple[StageMemory, ...]) -> StageMemory:
    """What is always there of all stages, and the most of what each has at a time."""
    always = {name: sum([getattr(stage, name) for stage in stages]) for name in ALWAYS}
    once = {name: max([getattr(stage, name) for stage in stages]) for name in ONCE}
    return StageMemory(kept=0, **always, **once)


def _most_later(stages: tuple[StageMemory, ...], in_flight: InFlight) -> tuple[int, int, int]:
    """The most that microbatches in flight at a later peak take of each: all they are living on, what is kept, and what
    stays beside it."""
    if len(stages) == len(in_flight.later) == 1:
        (count,), stage = in_flight.later[0], stages[0]
        return count * stage.living, count * stage.kept, count * stage.staying
    living, kept, staying = (
        max([sum(map(mul, peak, sizes)) for peak in in_flight.later])
        for sizes in zip(*[(stage.living, stage.kept, stage.staying) for stage in stages], strict=True)
    )
    return living, kept, staying


def state_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes of optimizer state per element on the device that updates it."""
    if settings.offload == "optimizer":
        return 0
    item = 8 if numerics.weights == "float64" else 4
    return item * (state_count(settings) + numerics.masters)


def _share(size: int, parts: int) -> int:
    return -(-size // parts)


def _messages(span: BlockRange, rows: int) -> int:
    """Bytes of messages beside those that stay: the gradients a stage got, and those it gave back before, which the
    stage before it may not have read yet."""
    return span.returned.at(rows) + span.received.at(rows)


def _reduced(
    span: BlockRange, settings: RunSettings, gradients: int, sharding: Sharding, replicas: int, *, accumulates: bool
) -> tuple[int, Moved, int]:
    """What reducing `gradients` takes: bytes that are always there, what moves beside a backward, bytes after the last.

    DDP, which runs a stage that is the whole model if reduction may overlap, keeps its buckets; of others one at a time
    is made after the last backward (`runtime.replicas.reduce_bucket`), at most of the largest size that a search
    takes. FSDP2 gathers the next block beside the one in use, and makes whole gradients of a block, which it scatters;
    where microbatches add up there are whole ones of all blocks, and their copies come when the block was given up.
    """
    if replicas == 1:
        return 0, Moved(), 0
    if sharding in BY_FSDP:
        return 0, Moved(parameters=sharding == "parameters", gradients=not accumulates), 0
    if span.whole and settings.overlap:
        return gradients, Moved(), 0
    return 0, Moved(), min(gradients, max(SIZES) + span.unit)


def _cast(numerics: Numerics, gradients: int, lasting: int, closing: int, *, accumulates: bool) -> int:
    """`closing` of gradients that are cast to be summed: with a copy of each bucket that is under way. What has added
    up is wide by then, but under DDP, whose last backward makes as many in the type of the weights."""
    copies = -int(-numerics.between_replicas(lasting or closing) // 1)
    if numerics.casts and accumulates:
        return gradients + copies if lasting else copies
    return closing + copies


def _updating(
    trainable: int, numerics: Numerics, settings: RunSettings, parts: int, *, accumulates: bool
) -> int:  # fmt: skip
    """Bytes that an update on the device makes beside gradients: float32 ones of masters, but where they added up in
    float32; where SGD decays weights, on GPUs a list of new ones (torch/optim/sgd.py, `_foreach_add(grads, params,
    alpha=weight_decay)`).
    """
    if settings.offload == "optimizer":
        return 0
    if numerics.masters:
        holding = gradient_holding(numerics, settings)
        return 0 if accumulates and holding.added > holding.each else _share(trainable * holding.update, parts)
    decays = settings.optimizer == "sgd" and settings.weight_decay != 0
    return _share(trainable * numerics.weight_bytes, parts) if decays else 0
