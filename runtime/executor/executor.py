"""Executor: a plan loaded on one rank. `step(batch)` trains on a global batch and returns its loss, the same
everywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import distributed as dist

from placer.errors import UsageError
from placer.plans.ledger import Ledger, Seconds
from placer.plans.plan import Plan
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import Updater, clip_scale
from placer.runtime.data_parallel.relaxed_sync import RelaxedSync
from placer.runtime.data_parallel.replicas import Replica
from placer.runtime.executor.evaluable import require_evaluable
from placer.runtime.executor.interpreter import Interpreter
from placer.runtime.executor.same_batch import require_same_batch
from placer.runtime.executor.surroundings import own_casts, require_gradients, require_planned_casts
from placer.runtime.observer import Relay
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.microbatch import BatchSplit, Microbatch
from placer.runtime.stages.stage import StageModule
from placer.runtime.weights.given_model import GivenModel
from placer.runtime.weights.model_state import ModelState
from placer.runtime.weights.rank_weights import ChunkMap


@dataclass(kw_only=True, eq=False)
class Executor:
    """One rank of a running plan, as `load` puts it together.

    All but `step` may be called in `torch.inference_mode` too: they leave it, as what is made or gathered in it would
    be no good to the steps that follow.

    relay: passes on what happens in steps to its `target`, which may be exchanged. draws: whether a step draws random
    numbers. relaxed: how a step ends where it does not hold all replicas together. steps: those done so far, which key
    the dropout masks; set it when resuming. own_rows: the share of the batch whose loss steps give, where that is the
    replica's own. given: the model that the caller gave, if any, as it was when it was loaded.
    """

    plan: Plan
    rank: int
    device: torch.device
    relay: Relay
    stages: Mapping[int, StageModule]
    replicas: Mapping[int, Replica]
    chunks: ChunkMap
    feeder: BatchSplit
    gradients: Gradients
    updater: Updater
    state: ModelState
    interpreter: Interpreter
    relaxed: RelaxedSync | None
    draws: bool
    own_rows: float = 1.0
    given: GivenModel | None = None
    steps: int = 0
    #: Seconds of each step so far, by the wall clock of this rank.
    timings: list[float] = field(default_factory=list)
    #: Norm of the whole model's gradients in the last step, before clipping; None where nothing is clipped.
    clipped_norm: torch.Tensor | float | None = None
    #: Whether each step keeps the whole model's gradients, before clipping, in `last_gradients` of rank 0 (slow; to be
    #: set on all ranks alike).
    keeps_gradients: bool = False
    #: Whether `load` joined the process group, so that it is left in the end.
    joined: bool = False
    last_gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    _broken: bool = False
    _left: bool = False

    @property
    def ledger(self) -> Ledger | None:
        """The seconds of the last step; None before the first."""
        if not self.timings:
            return None
        plan, seconds = self.plan, self.timings[-1]
        return Ledger(
            step_seconds=seconds,
            seconds=Seconds(other=seconds),
            memory=(),
            rows=plan.rows,
            flops=plan.graph.forward_flops + plan.graph.backward_flops,
            peak_flops=plan.ledger.peak_flops if plan.ledger is not None else 0.0,
        )

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the last step's gradients before they were clipped; None where nothing clips them."""
        return None if self.clipped_norm is None else float(self.clipped_norm)

    @torch.inference_mode(False)
    def held_state(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers of this rank as it holds them, by the model's own names; tied ones once."""
        self.consolidate()
        return self.state.held()

    @torch.inference_mode(False)
    def held_beside(self) -> dict[str, torch.Tensor]:
        """The buffers of this rank that steps write and the model's own state leaves out (`persistent=False`)."""
        self.consolidate()
        return self.state.held_beside()

    def step(self, batch: Batch) -> float:
        """Train one step on the global batch (the same on every rank); its loss.

        Raises UsageError for a wrong batch, at the first step also where ranks were given unlike ones, for a model that
        load was given and that was frozen or written since where the run would not follow, where torch keeps no
        gradients or is told to cast otherwise than the plan says, and, as all that ranks do together, after `close` and
        after a step or an evaluation that failed on its way.
        """
        self._require_together()
        require_gradients()
        require_planned_casts(self.plan.settings.precision, self.device, "step")
        if self.given is not None:
            self.given.require_trained_alike()
        self._require_heard()
        if not self.timings:
            require_same_batch(batch, [entry.name for entry in self.plan.graph.inputs])
        began = time.perf_counter()
        with own_casts(self.device):
            feeds = self._feeds(batch, training=True)
        with self._all_of_it():
            loss = float(self.train(feeds))
        self.timings.append(time.perf_counter() - began)
        self._note_given()
        return loss

    def train(self, feeds: tuple[Microbatch, ...]) -> torch.Tensor:
        """One step on microbatches that are divided already; its loss as a tensor."""
        loss = self.interpreter.train(feeds, self._finish_step) / self.own_rows
        for stage in self.stages.values():
            stage.write_buffers()
        self.steps += 1
        return loss

    def settle(self) -> None:
        """Between the first two steps: what engines put off until they have seen one."""
        for replica in self.replicas.values():
            replica.settle()

    @torch.inference_mode(False)
    def evaluate(self, batch: Batch) -> float:
        """The loss of the global batch without gradients: dropout off, batch norm with its running statistics.

        Raises UsageError where the model computes otherwise in evaluation than what is run, and where the model that
        load was given was written since and the run has values of its own.
        """
        require_evaluable(self.plan)
        require_planned_casts(self.plan.settings.precision, self.device, "evaluate")
        self._require_heard()
        self.consolidate()
        with own_casts(self.device):
            feeds = self._feeds(batch, training=False)
        with self._all_of_it():
            self.state.share_buffers()
            loss = float(self.interpreter.evaluate(feeds))
            for replica in self.replicas.values():
                replica.reshard()
        self._note_given()
        return loss

    @torch.inference_mode(False)
    def state_dict(self) -> dict[str, torch.Tensor]:
        """This rank's parameters and buffers by the model's own names: its stages', sharded ones as DTensors.

        The ranks' parts together are the whole model; `full_state_dict` collects them. torch.distributed.checkpoint
        takes it.
        """
        self.consolidate()
        return self.state.local()

    @torch.inference_mode(False)
    def full_state_dict(self, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
        """The whole model's state on the CPU of every rank, under every name the model has for it (tied ones too).

        rank0_only: on rank 0 alone; the others, which must call it too, get nothing.
        """
        self.consolidate()
        return self.state.full(rank0_only=rank0_only)

    @torch.inference_mode(False)
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's part of `state`: a whole model's or `state_dict()`'s. Raises UsageError for missing and
        unknown names and for other shapes, before anything is taken.

        What the optimizer keeps of earlier steps (AdamW's moments) stays as it is.
        """
        self.consolidate()
        self.state.load(state)
        self.updater.refresh_masters()
        self._note_given()

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on; all ranks call it. Raises UsageError, on all of them, for what is no rate
        and where groups of parameters have rates of their own."""
        self.updater.set_learning_rate(rate)

    @torch.inference_mode(False)
    def consolidate(self) -> None:
        """Bring replicas that are not held together by every step to the same state; all ranks call it."""
        self._require_together()
        if self.relaxed is not None:
            self.relaxed.consolidate()

    def _finish_step(self) -> None:
        """Clip and update: what the program's OptimizerStep does."""
        if self.relaxed is not None:
            self.clipped_norm = self.relaxed.finish_step(self.steps + 1)
            return
        limit = self.plan.settings.clip_norm
        if limit is None:
            self.gradients.finish()
            self.clipped_norm = norm = None
        else:
            self.clipped_norm = norm = self.gradients.norm()
        if self.keeps_gradients:
            self.last_gradients = self.state.full_gradients()
        # A GPU's host goes on while the norm is computed; what the host updates has to wait for it.
        if norm is not None and norm.is_cuda and not self.updater.on_host:
            self.updater.step(clip_scale(norm, limit))
        else:
            self.updater.step(clip_scale(0.0 if norm is None else float(norm), limit))

    @contextmanager
    def _all_of_it(self) -> Iterator[None]:
        """Around what ranks do together: where it fails on its way, some wait for messages that never come."""
        self._broken = True
        with own_casts(self.device):
            yield
        self._broken = False

    def _require_together(self) -> None:
        if self._left:
            raise UsageError(
                "this executor was closed: its rank has left the others and would go on with its own rows alone; call "
                "close at the end, or load the plan anew in new processes"
            )
        if self._broken:
            raise UsageError(
                "an earlier step or evaluation of this executor failed on its way: its ranks hold parts of it; load "
                "the plan anew in new processes, from the last checkpoint"
            )

    def _require_heard(self) -> None:
        if self.given is not None:
            self.given.require_heard(self._held_now, self.updater.overruled)

    def _note_given(self) -> None:
        if self.given is not None:
            self.given.note()

    def _held_now(self) -> dict[str, torch.Tensor]:
        stages = self.stages.values()
        return {name: one for at in stages for name, one in (*at.own_parameters().items(), *at.own_buffers().items())}

    def _feeds(self, batch: Batch, *, training: bool) -> tuple[Microbatch, ...]:
        step = self.steps if self.draws else None
        return self.feeder.microbatches(batch, step=step, training=training)

    def close(self) -> None:
        """Leave the process group if `load` joined one; call it at the end of main()."""
        if self.joined and dist.is_initialized():
            self._left = dist.get_world_size() > 1
            if not self._broken:
                dist.barrier()
            dist.destroy_process_group()
