"""The measured Ledger of a run: which steps are measured, and how the ranks' measurements become one value.

    steps 0, 1     set up buckets, caches and the allocator: not measured
    step 2         memory and communication are watched, which slows it: its time is not used
    step 3 ...     seconds by category, of at most TIMED_STEPS

Memory counts what `placer.costs.memory.peak` predicts under the same name: `parameters` a rank's own, of sharded ones
its shards, with sharding `gradients` the gathered copies too, which stay; with sharding `parameters` the most that was
gathered at once is `communication` (buffers of collectives are predicted there too, but measured on GPUs only, as
workspace);
`gradients` at the end of the step or, whole ones of sharded parameters included, after a microbatch.

`seconds` are of the rank that computed longest, `memory` of the fullest rank of each position, `sent_bytes` of all
messages, `reduced_bytes` of the gradients of every position, counted once for its replicas.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist

from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.plan import Plan
from placer.program.instructions import Collective, Message
from placer.program.ranks import like_ranks
from placer.runtime.measuring.communication_record import Communication, Recorder, joined_sums
from placer.runtime.measuring.memory import Allocated, Gathered, SavedTensors, local_bytes, peak_memory
from placer.runtime.measuring.seconds import (
    Clock,
    CollectiveKey,
    Events,
    MessageKey,
    Wait,
    apart,
    median_seconds,
    synchronizer,
)
from placer.runtime.observer import Category
from placer.runtime.stages.stage import StageModule

WATCHED_STEP = 2
FEWEST_STEPS = WATCHED_STEP + 2  # the first steps set up, one is watched for bytes, the next are timed
# A GPU's clock stops the device at each boundary; so many steps are enough for a median and cost little.
TIMED_STEPS = 20
SCALAR_BYTES = 8  # norm and loss are reduced as one float64 each
# The dtype whose rate counts for MFU, by precision.
PRODUCT_DTYPE = {"bfloat16-autocast": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTensors:
    """Tensors that an executor holds on this rank, sharded ones as DTensors, and the stages they lie in.

    lasting: what engines hold from step to step, buckets of gradients.
    """

    stages: tuple[StageModule, ...]
    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    optimizer: tuple[torch.Tensor, ...]
    lasting: tuple[torch.UntypedStorage, ...] = ()


class Holder(Protocol):
    """An executor, as far as measuring its memory needs it."""

    @property
    def held(self) -> MeasuredTensors:
        """What it holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRank:
    """What one rank measured."""

    seconds: tuple[Seconds, ...]
    events: tuple[Events, ...]
    memory: MemoryBytes
    communications: tuple[Communication, ...]


class Measurement:
    """Watches the steps of one rank; it is the executor's observer, and `ledger` joins all ranks' findings."""

    def __init__(self, plan: Plan, device: torch.device, rank: int, *, hidden: bool = False) -> None:
        """hidden: code of a compiler takes memory that no op shows, so that what was alive at once is not known."""
        self._plan, self._device, self._rank, self._hidden = plan, device, rank, hidden
        self._clock = Clock(synchronizer(device))
        self._timed: list[Seconds] = []
        self._events: list[Events] = []
        self._now = _Noted()
        self._timing = False
        #: Peak bytes of this rank in the watched step.
        self.memory = MemoryBytes()
        self._gradients = 0
        #: Most bytes that were alive at once in the watched step, of all categories but overhead.
        self.allocated = 0
        self._held: MeasuredTensors | None = None
        self._gathered: Gathered | None = None
        #: What this rank communicated in the watched step.
        self.communications: tuple[Communication, ...] = ()
        self._mixed: list[Collective] = []

    @contextmanager
    def step(self, index: int, holder: Holder) -> Iterator[None]:
        """Around the `index`-th step of the run, counted from 0."""
        self._timing = index > WATCHED_STEP and len(self._timed) < TIMED_STEPS
        if index == WATCHED_STEP:
            with self._watched(holder):
                yield
        elif self._timing:
            with self._clocked():
                yield
        else:
            yield

    @contextmanager
    def _clocked(self) -> Iterator[None]:
        self._now = _Noted()
        self._clock.start()
        yield
        self._timed.append(self._clock.stop())
        self._events.append(self._now.events())

    @contextmanager
    def _watched(self, holder: Holder) -> Iterator[None]:
        self._held = held = holder.held
        saved = SavedTensors((*held.parameters, *held.buffers))
        self._gathered = gathered = Gathered(held.stages, saved)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        everything = (*held.parameters, *held.buffers, *held.optimizer)
        with (
            Recorder() as recorder,
            Allocated(everything, held.lasting) as allocated,
            saved.watching(),
            gathered.watching(),
        ):
            yield
        self.allocated = allocated.peak
        self.communications = recorder.records
        self.memory = peak_memory(
            parameters=held.parameters,
            buffers=held.buffers,
            optimizer=held.optimizer,
            gradients=max(self._gradients, gathered.gradients),
            activations=saved.peak,
            gathered=gathered.parameters,
            keeps_gathered=any(stage.sharding == "gradients" for stage in self._plan.stages),
            device=self._device,
            alive=0 if self._hidden else allocated.peak,
        )
        self._held = self._gathered = None

    @contextmanager
    def during(self, category: Category) -> Iterator[None]:
        """Surrounds work of `category`."""
        if category == "optimizer":
            self._look_at_gradients()
        if not self._timing:
            yield
            if category == "backward":
                self._look_at_gradients()
            return
        self._now.began = time.time()
        with self._clock.during(category):
            yield
        if category == "backward":
            self._now.end_beside()

    def _look_at_gradients(self) -> None:
        """Of a step that is watched: they are most before the update, or while microbatches add up in another type."""
        if self._held is None or self._gathered is None:
            return
        own = local_bytes(p.grad for p in self._held.parameters if p.grad is not None)
        self._gradients = max(self._gradients, own)
        self._gathered.look_at_gradients()

    def message(self, message: Message, sizes: tuple[int, ...]) -> None:
        """A message was posted, or has come."""
        if self._timing:
            self._now.message(self._rank, message)

    def collective(self, collective: Collective) -> None:
        """A collective was issued, and has ended if it does not overlap.

        Of DDP's, which run beside the backward, the backward waits for the last ones after its own last kernel; on a
        GPU that was launched only, and what is exposed stays with the backward.
        """
        if self._held is not None and collective.way is not None:
            self._mixed.append(collective)
        if not self._timing:
            return
        if collective.engine == "placer":
            self._now.collective(collective)
        elif self._device.type == "cpu":
            self._clock.reduces()
            self._now.beside(collective)

    def ledger(self) -> Ledger | None:
        """The run's measured ledger, the same on every rank; None where no step was timed. All ranks call it."""
        own = _OfRank(
            seconds=tuple(self._timed),
            events=tuple(self._events),
            memory=self.memory,
            communications=joined_sums(self.communications, self._mixed, self._rank),
        )
        ranks: list[_OfRank | None] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, own)
        found = [rank for rank in ranks if rank is not None]
        if not self._timed:
            return None
        return _joined(self._plan, found)


@dataclass(slots=True)
class _Noted:
    """The events of the step at hand; `began` is when the last category began."""

    began: float = 0.0
    sent: list[tuple[MessageKey, float]] = field(default_factory=list)
    received: list[tuple[MessageKey, Wait]] = field(default_factory=list)
    collectives: list[tuple[CollectiveKey, Wait]] = field(default_factory=list)
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)
    issued: tuple[Collective, float] | None = None

    def message(self, rank: int, message: Message) -> None:
        now = time.time()
        if message.direction == "send":
            self.sent.append(((rank, message.peer, message.tag), now))
        else:
            self.received.append(((message.peer, rank, message.tag), Wait(began=self.began, ended=now)))

    def beside(self, collective: Collective) -> None:
        """A collective was issued that runs beside the body at hand."""
        self.issued = collective, time.time()

    def end_beside(self) -> None:
        """The body at hand has ended, and with it what ran beside it: the last one was waited for."""
        if self.issued is not None:
            collective, self.began = self.issued
            self.collective(collective)
            self.issued = None

    def collective(self, collective: Collective) -> None:
        count = self.counts.get(collective.ranks, 0)
        self.counts[collective.ranks] = count + 1
        self.collectives.append(((collective.ranks, count), Wait(began=self.began, ended=time.time())))

    def events(self) -> Events:
        return Events(sent=tuple(self.sent), received=tuple(self.received), collectives=tuple(self.collectives))


def _joined(plan: Plan, ranks: list[_OfRank]) -> Ledger:
    seconds = max((_rank_seconds(rank, ranks) for rank in ranks), key=_computed)
    positions = [
        ranks[first : first + len(mesh.devices)] for first, mesh in zip(plan.first_ranks, plan.meshes, strict=True)
    ]
    return Ledger(
        step_seconds=seconds.total,
        seconds=seconds,
        memory=tuple(max((rank.memory for rank in own), key=lambda memory: memory.total) for own in positions),
        rows=plan.rows,
        flops=plan_flops(plan),
        peak_flops=plan_peak_flops(plan),
        sent_bytes=sum(c.bytes for rank in ranks for c in rank.communications if c.kind == "send"),
        reduced_bytes=sum(_reduced_bytes(own[0], like_ranks(plan, at)) for at, own in enumerate(positions)),
    )


def _reduced_bytes(rank: _OfRank, members: tuple[int, ...]) -> int:
    """Bytes of gradients that `members` of one position reduced, as one of them did it; norm and loss left out."""
    done = (c for c in rank.communications if c.kind in ("all_reduce", "reduce_scatter") and c.ranks == members)
    return sum(c.bytes for c in done if c.bytes > SCALAR_BYTES)


def _rank_seconds(rank: _OfRank, ranks: list[_OfRank]) -> Seconds:
    """A rank's seconds, bubble told apart step by step."""
    steps = zip(rank.seconds, range(len(rank.seconds)), strict=True)
    return median_seconds(
        apart(seconds, rank.events[step], [other.events[step] for other in ranks]) for seconds, step in steps
    )


def _computed(seconds: Seconds) -> float:
    return seconds.forward + seconds.backward + seconds.recompute + seconds.optimizer


def plan_flops(plan: Plan) -> int:
    """The model's forward and backward FLOPs of a step."""
    if plan.ledger is not None:
        return plan.ledger.flops
    return sum(op.forward_flops.at(plan.rows) + op.backward_flops.at(plan.rows) for _, op in plan.graph.ops)


def plan_peak_flops(plan: Plan) -> float:
    """The summed rate of the devices in the precision of the run."""
    if plan.ledger is not None:
        return plan.ledger.peak_flops
    dtype = PRODUCT_DTYPE.get(plan.settings.precision, plan.settings.precision)
    return sum(plan.cluster.devices[device].rate(dtype) for device in plan.ranks)


def tokens_per_row(plan: Plan) -> int:
    """Tokens of a row where the model reads text; 0 for others."""
    for entry in plan.graph.inputs:
        shape = entry.tensor.shape
        if entry.high is not None and entry.tensor.dtype in ("int64", "int32") and len(shape) == 2:
            return shape[1].fixed
    return 0
