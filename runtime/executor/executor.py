"""Executor: a plan loaded on one rank. `step(batch)` trains on a global batch and returns its loss, the same
everywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import distributed as dist

from placer.plans.ledger import Ledger, Seconds
from placer.plans.plan import Plan
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import Updater, clip_scale
from placer.runtime.data_parallel.relaxed_sync import RelaxedSync
from placer.runtime.data_parallel.replicas import Replica
from placer.runtime.executor.interpreter import Interpreter
from placer.runtime.observer import Observer, Relay
from placer.runtime.spmd import Pieces
from placer.runtime.stages.batch_split import BatchSplit
from placer.runtime.stages.microbatch import Batch, Microbatch
from placer.runtime.stages.stage import StageModule
from placer.runtime.weights.model_state import ModelState
from placer.runtime.weights.tensor_chunks import ChunkMap


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What `load` puts together for one rank. draws: whether a step draws random numbers. ending: how a step ends where
    it does not hold all replicas together."""

    plan: Plan
    rank: int
    feeder: BatchSplit
    relay: Relay
    stages: Mapping[int, StageModule]
    gradients: Gradients
    updater: Updater
    state: ModelState
    pieces: Pieces
    chunks: ChunkMap
    draws: bool
    ending: RelaxedSync | None = None


class Executor:
    """One rank of a running plan. `steps` done so far key the dropout masks; set it when resuming."""

    def __init__(self, parts: Parts, replicas: Mapping[int, Replica], interpreter: Interpreter) -> None:
        self._parts, self._replicas, self._interpreter = parts, replicas, interpreter
        self.steps = 0
        #: Seconds of each step so far, by the wall clock of this rank.
        self.timings: list[float] = []
        #: Norm of the whole model's gradients in the last step, before clipping; None where nothing is clipped.
        self.gradient_norm: float | None = None
        self.ledger: Ledger | None = None
        #: Whether each step keeps the whole model's gradients, before clipping, in `last_gradients` of rank 0 (slow; to
        #: be set on all ranks alike).
        self.keeps_gradients = False
        self.last_gradients: dict[str, torch.Tensor] = {}
        self._flops = parts.plan.graph.forward_flops + parts.plan.graph.backward_flops

    @property
    def plan(self) -> Plan:
        """The plan it runs."""
        return self._parts.plan

    @property
    def rank(self) -> int:
        """This rank."""
        return self._parts.rank

    @property
    def replica(self) -> int:
        """The replica this rank belongs to."""
        return self._parts.feeder.replica

    @property
    def counted(self) -> int:
        """How many losses of the model are divided by a count of labels."""
        return len(self._parts.feeder.counts)

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._parts.feeder.device

    @property
    def stages(self) -> Mapping[int, StageModule]:
        """The stages this rank holds."""
        return self._parts.stages

    @property
    def lasting(self) -> tuple[torch.UntypedStorage, ...]:
        """What engines hold from step to step beside the stages' state."""
        return tuple(storage for replica in self._replicas.values() for storage in replica.lasting)

    @property
    def chunks(self) -> ChunkMap:
        """Which part of each tensor this rank holds."""
        return self._parts.chunks

    def held_state(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers of this rank as it holds them, by the model's own names; tied ones once."""
        self.consolidate()
        return self._parts.state.held()

    @property
    def updater(self) -> Updater:
        """The optimizer with what it updates."""
        return self._parts.updater

    @property
    def recorder(self) -> Observer:
        """What watches the steps."""
        return self._parts.relay.target

    @recorder.setter
    def recorder(self, observer: Observer) -> None:
        self._parts.relay.target = observer

    def step(self, batch: Batch) -> float:
        """Train one step on the global batch (the same on every rank); its loss. Raises UsageError for a wrong
        batch."""
        began = time.perf_counter()
        loss = float(self.train(self._feeds(batch, training=True)))
        self.timings.append(time.perf_counter() - began)
        self.ledger = self._measured(self.timings[-1])
        return loss

    def train(self, feeds: tuple[Microbatch, ...]) -> torch.Tensor:
        """One step on microbatches that are divided already; its loss as a tensor."""
        loss = self._interpreter.train(feeds)
        self.steps += 1
        return loss

    def settle(self) -> None:
        """Between the first two steps: what engines put off until they have seen one."""
        for replica in self._replicas.values():
            replica.settle()

    def evaluate(self, batch: Batch) -> float:
        """The loss of the global batch without gradients: dropout off, batch norm with its running statistics."""
        self.consolidate()
        self._parts.state.share_buffers()
        return float(self._interpreter.evaluate(self._feeds(batch, training=False)))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """This rank's parameters and buffers by the model's own names: its stages', sharded ones as DTensors.

        The ranks' parts together are the whole model; `full_state_dict` collects them. torch.distributed.checkpoint
        takes it.
        """
        self.consolidate()
        return self._parts.state.local()

    def full_state_dict(self, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
        """The whole model's state on the CPU of every rank, under every name the model has for it (tied ones too).

        rank0_only: on rank 0 alone; the others, which must call it too, get nothing.
        """
        self.consolidate()
        return self._parts.state.full(rank0_only=rank0_only)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's part of `state`: a whole model's or `state_dict()`'s. Raises UsageError for missing
        names."""
        self.consolidate()
        self._parts.state.load(state)
        self.updater.refresh_masters()

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        self.updater.set_learning_rate(rate)

    def consolidate(self) -> None:
        """Bring replicas that are not held together by every step to the same state; all ranks call it."""
        if self._parts.ending is not None:
            self._parts.ending.consolidate()

    def finish_step(self) -> None:
        """Clip and update: what the program's OptimizerStep does."""
        if self._parts.ending is not None:
            self.gradient_norm = self._parts.ending.finish_step(self.steps + 1)
            return
        limit = self.plan.settings.clip_norm
        if limit is None:
            self._parts.gradients.finish()
            self.gradient_norm = None
        else:
            self.gradient_norm = self._parts.gradients.norm()
        if self.keeps_gradients:
            self.last_gradients = self._parts.state.full_gradients()
        self.updater.step(clip_scale(self.gradient_norm or 0.0, limit))

    def _feeds(self, batch: Batch, *, training: bool) -> tuple[Microbatch, ...]:
        step = self.steps if self._parts.draws else None
        return self._parts.feeder.microbatches(batch, step=step, training=training)

    def _measured(self, seconds: float) -> Ledger:
        plan = self.plan
        return Ledger(
            step_seconds=seconds,
            seconds=Seconds(other=seconds),
            memory=(),
            rows=plan.rows,
            flops=self._flops,
            peak_flops=plan.ledger.peak_flops if plan.ledger is not None else 0.0,
        )

    def close(self) -> None:
        """Leave the process group if `load` joined one; call it at the end of main()."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
