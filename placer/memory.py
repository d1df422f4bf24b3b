"""Peak bytes of one device, by category and at once.

    parameters     elements * bytes of the kept dtype; sharded over the replicas with `parameters`; whole plus the shard
                   with `gradients` (FSDP2 without resharding keeps both)
    gradients      the same elements at the same dtype; sharded with these two, but whole where several microbatches add
                   up (only the last backward scatters, unit by unit, giving up the whole ones as it goes)
    optimizer      adamw: two float32 moments (float64 at float64), sgd: one if it has momentum; plus float32 masters of
                   16-bit weights; sharded with any sharding; none with settings.offload (see `offload`)
    activations    sum over a device's stages of alive microbatches * kept bytes: what autograd saves, or with recompute
                   the blocks' inputs, plus what the block that runs again saves (with a backward in two parts what all
                   of them do, of every microbatch between the parts); what a stage sends stays with it
    workspace      the most that the backward of one op has beside that; with a backward in two parts, what arrived at
                   the weights of microbatches between the parts
    communication  a message received while another is used; buckets or gathered blocks in flight
    overhead       the device's context

Categories are each at their own peak, which do not come together. At once there are state (parameters, optimizer,
buffers, buckets that stay) and the most of

    first     alive - 1 microbatches, and of the one that goes backward first what `turning` says: the blocks that it
              has passed have gradients and no activations any more, the others the reverse
    later     all gradients, and the microbatches alive then
    closing   all gradients, and what their reduction and the update make beside them

of which the first two have the temporaries of a backward (`inner`) besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from placer.alive import Alive
from placer.bucketing import SIZES
from placer.cluster import Device
from placer.ledger import MemoryBytes
from placer.numerics import Numerics
from placer.plans import BY_FSDP, Sharding
from placer.settings import RunSettings
from placer.spans import Span
from placer.updates import state_count

MASTER_BYTES = 4
# Temporaries, which one stage has at a time.
ONCE = ("remade", "workspace", "communication", "closing")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One stage on one device: state that is always there, bytes kept per alive microbatch, the rest once.

    lasting: buckets that are there always. turning: most of kept bytes of blocks and gradients of the blocks after
    them. closing, updating: beside gradients as they are reduced after the last backward, bucket by bucket, and in the
    update. Of a backward in two parts: between them arrived gradients, and again, what blocks that ran again saved;
    working: the workspace in place of `remade` and `workspace`.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    kept: int
    remade: int
    workspace: int
    communication: int
    lasting: int = 0
    arrived: int = 0
    again: int = 0
    working: int = 0
    turning: int = 0
    closing: int = 0
    updating: int = 0

    @property
    def state(self) -> int:
        """Bytes that are always there; gradients come and go."""
        return self.parameters + self.optimizer + self.buffers + self.lasting

    def first(self, alive: int) -> int:
        """The most beside state and temporaries before a first backward ends, of `alive` microbatches."""
        return (alive - 1) * self.kept + self.turning if alive else 0


class State(NamedTuple):
    """Bytes of what a stage holds whatever it computes."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int


def stage_state(
    span: Span, numerics: Numerics, settings: RunSettings, *, sharding: Sharding, replicas: int, accumulates: bool
) -> State:
    """Bytes of one stage on each of its replicas; `accumulates`: over several microbatches."""
    parts = replicas if sharding in BY_FSDP else 1
    held = span.held
    own, whole = _share(held.parameters, parts), held.trainable * numerics.weight_bytes
    return State(
        parameters=own if sharding != "gradients" or parts == 1 else own + held.parameters,
        gradients=whole if accumulates else _share(whole, parts),
        optimizer=_share(held.trainable * state_bytes(numerics, settings), replicas if sharding != "none" else 1),
        buffers=held.buffers,
    )


def stage_memory(
    span: Span, numerics: Numerics, settings: RunSettings, *, rows: int, recompute: bool, sharding: Sharding,
    replicas: int, accumulates: bool = False,
) -> StageMemory:  # fmt: skip
    """Bytes of one stage for microbatches of `rows` rows on each replica; `accumulates`: over several of them."""
    state = stage_state(span, numerics, settings, sharding=sharding, replicas=replicas, accumulates=accumulates)
    trainable, parts = span.held.trainable, replicas if sharding != "none" else 1
    whole = trainable * numerics.weight_bytes
    kept, sent = (span.inputs if recompute else span.saved).at(rows), span.sent.at(rows)
    remade, inner = span.backward.temporaries(recompute, rows)
    lasting, moving, closing = _reduced(span, settings, whole, sharding, replicas)
    share = state.gradients / whole if whole else 1.0
    # A gather of updated weights has them packed once more, and this replica's rows, when gradients have gone.
    gathering = _share(whole, parts) if sharding == "optimizer" and parts > 1 else 0
    return StageMemory(
        **state._asdict(),
        kept=kept + sent,
        remade=remade,
        workspace=inner - remade,
        communication=sent + span.returned.at(rows) + moving,
        lasting=lasting,
        arrived=span.arrived.at(rows),
        again=span.again.at(rows) if recompute else 0,
        working=span.backward.temporaries(False, rows)[1] if recompute else inner,
        turning=span.backward.turning(recompute, rows, share) + sent,
        closing=closing,
        updating=max(gathering, _updating(trainable, numerics, settings, parts)),
    )


def position_memory(stages: tuple[StageMemory, ...], lives: Alive, device: Device | None = None) -> MemoryBytes:
    """Bytes of one device with its stages (None: without its overhead) and the microbatches that are alive there."""
    gradients, updating = (sum(getattr(stage, name) for stage in stages) for name in ("gradients", "updating"))
    remade, workspace, inner, closing = (max(getattr(stage, name) for stage in stages) for name in ONCE)
    later = max(sum(n * stage.kept for n, stage in zip(peak, stages, strict=True)) for peak in lives.later)
    if lives.parted:  # a lone stage
        remade, workspace = lives.parted * stages[0].again, lives.parted * stages[0].arrived + stages[0].working
    temporary = remade + workspace + inner
    at_once = max(
        stages[0].first(lives.first) + temporary, gradients + later + temporary, gradients + max(closing, updating)
    )
    overhead = 0 if device is None else device.overhead_bytes
    return MemoryBytes(
        parameters=sum(stage.parameters for stage in stages),
        gradients=gradients,
        optimizer=sum(stage.optimizer for stage in stages),
        activations=max(lives.first * stages[0].kept, later) + remade,
        buffers=sum(stage.buffers for stage in stages),
        workspace=workspace,
        communication=sum(stage.lasting for stage in stages) + max(inner, closing, updating),
        overhead=overhead,
        at_once=sum(stage.state for stage in stages) + at_once + overhead,
    )


def state_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes of optimizer state per element on the device that updates it."""
    if settings.offload == "optimizer":
        return 0
    item = 8 if numerics.weights == "float64" else 4
    return item * (state_count(settings) + numerics.masters)


def _share(size: int, parts: int) -> int:
    return -(-size // parts)


def _reduced(
    span: Span, settings: RunSettings, gradients: int, sharding: Sharding, replicas: int
) -> tuple[int, int, int]:
    """Bytes that reducing `gradients` takes: always, beside a backward, and after the last one.

    DDP, which runs a stage that is the whole model if reduction may overlap, keeps its buckets; of others one at a time
    is made after the last backward (`runtime.replicas.reduce_bucket`), at most of the largest size that a search
    takes. FSDP2 gathers the next block beside the one in use, and copies a block's gradients to scatter them.
    """
    if replicas == 1:
        return 0, 0, 0
    if sharding == "parameters":
        return 0, min(2 * span.unit, span.held.parameters) + min(span.unit, gradients), 0
    if sharding == "gradients":
        return 0, min(span.unit, gradients), 0
    if span.whole and settings.overlap:
        return gradients, 0, 0
    return 0, 0, min(gradients, max(SIZES) + span.unit)


def _updating(trainable: int, numerics: Numerics, settings: RunSettings, parts: int) -> int:
    """Bytes that an update on the device makes beside gradients: float32 ones of masters, each in place of one that
    goes; where SGD decays weights, on GPUs a list of new ones (torch/optim/sgd.py, `_foreach_add(grads, params,
    alpha=weight_decay)`).
    """
    if settings.offload == "optimizer":
        return 0
    if numerics.masters:
        return _share(trainable * (MASTER_BYTES - numerics.weight_bytes), parts)
    decays = settings.optimizer == "sgd" and settings.weight_decay != 0
    return _share(trainable * numerics.weight_bytes, parts) if decays else 0
