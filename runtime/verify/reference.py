"""The reference run: one device doing the same step over the same microbatches in order; parity is measured against it.

It shares no code with the pipeline: the model's own eager forward, torch's own clipping and optimizer. What parity
means is put in where the model calls torch (`reference_overrides`); batch norm keeps the running statistics of replica
0 only. Replicas' rows run one after the other. Where stages divide rows differently a microbatch runs whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import nn

from placer.errors import UsageError
from placer.plans.plan import Plan, replica_rows
from placer.program.ranks import position_of, stage_of_block
from placer.rules.rows import row_split
from placer.runtime.data_parallel.optimizer import OptimizerFactory, Updater, optimizer_factory
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.captured_model import loss_function
from placer.runtime.stages.dropout import row_keys
from placer.runtime.stages.microbatch import checked, microbatch_rows, sliced
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.verify.gradient_magnitudes import TermMagnitudes
from placer.runtime.verify.reference_overrides import Counting, Sharing
from placer.spmd.cross_mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step: the loss, the gradients before clipping and their norm, parameters and buffers after the update.

    magnitudes: what gradients were summed from, where that is known (`TermMagnitudes`).
    """

    loss: float
    norm: float
    gradients: Mapping[str, torch.Tensor]
    state: Mapping[str, torch.Tensor]
    magnitudes: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Reference:
    """Steps of `model` (real weights, in the plan's precision) on one device.

    batched: per dropout op, whether dim 0 has rows. norms: the position of each batch norm, in the order of its calls.
    """

    def __init__(
        self, plan: Plan, model: nn.Module, batched: Sequence[bool], optimizer: OptimizerFactory | None = None,
        *, norms: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._plan, self._model, self._batched, self._norms = plan, model, tuple(batched), tuple(norms)
        meshes = [Mesh.of(plan, mesh) for mesh in plan.meshes]
        self._alike = all(mesh.division.ratios == meshes[0].division.ratios for mesh in meshes)
        self._device = next(model.parameters()).device
        named = dict(model.named_parameters())
        self._updater = Updater(named, optimizer or optimizer_factory(plan.settings))
        self._loss_fn = loss_function(plan)
        self._steps = 0

    @staticmethod
    def of(plan: Plan, model: nn.Module, cut: CutModel, optimizer: OptimizerFactory | None = None) -> Reference:
        """The reference of a plan whose model was captured and cut."""
        stages, positions = stage_of_block(plan), position_of(plan)
        nodes = (node for node in cut.module.graph.nodes if node.target is torch.ops.aten.batch_norm.default)
        norms = tuple(positions[stages[cut.home[node]]] for node in nodes)
        return Reference(plan, model, cut.rewrites.batched, optimizer, norms=norms)

    def step(self, batch: Batch) -> StepResult:
        """One training step on the global batch."""
        batch = checked(batch, self._plan.graph, self._plan.rows)
        pieces = tuple(self._pieces())
        counts = self._counts(batch, pieces)
        summed = TermMagnitudes(dict(self._model.named_parameters()))
        loss = 0.0
        seen = {name: b + 1 for name, b in self._model.named_buffers() if name.endswith("num_batches_tracked")}
        for replica, rows in pieces:
            with self._buffers_kept(replica != 0):
                share = self._loss(batch, rows, counts)
                if share.requires_grad:
                    summed.watch(share)
                    torch.autograd.backward(share)
                loss += float(share.detach())
        with torch.no_grad():
            for name, count in seen.items():  # batches, not pieces of them
                self._model.get_buffer(name).copy_(count)
        gradients = {n: p.grad.detach().cpu().clone() for n, p in self._model.named_parameters() if p.grad is not None}
        limit = self._plan.settings.clip_norm
        parameters = [p for p in self._model.parameters() if p.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit))
        self._updater.step(1.0)
        self._steps += 1
        state = {name: tensor.detach().cpu().clone() for name, tensor in self._model.state_dict().items()}
        return StepResult(loss=loss, norm=norm, gradients=gradients, state=state, magnitudes=summed.magnitudes)

    @torch.no_grad()
    def adopt(self, state: Mapping[str, torch.Tensor], kept: Mapping[str, torch.Tensor]) -> None:
        """Take the elements of `state` at which `kept` is False. Weights of 16 bits are left: their masters decide."""
        for name, parameter in self._model.named_parameters():
            if name in kept and name not in self._updater.masters and not kept[name].all():
                mask = kept[name].to(parameter.device)
                parameter.copy_(torch.where(mask, parameter, state[name].to(parameter.device)))

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        self._updater.set_learning_rate(rate)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        """The loss of the global batch in evaluation mode."""
        self._model.eval()
        try:
            pieces = tuple(self._pieces())
            counts = self._counts(batch, pieces)
            return sum(float(self._loss(batch, rows, counts)) for _, rows in pieces)
        finally:
            self._model.train()

    def _pieces(self) -> Iterator[tuple[int, range]]:
        """(replica, rows) of every piece of the batch that has rows, microbatch by microbatch."""
        if not self._alike:
            for rows, end in zip(self._plan.microbatches, accumulate(self._plan.microbatches), strict=True):
                yield 0, range(end - rows, end)
            return
        replicas = self._plan.meshes[0].replicas
        for group in zip(*(microbatch_rows(self._plan, 0, replica) for replica in range(replicas)), strict=True):
            for replica, rows in enumerate(group):
                if len(rows):
                    yield replica, rows

    def _divisions(self, rows: int) -> tuple[tuple[int, ...], ...]:
        """For each batch norm the rows of every replica of its stage, where stages divide rows differently."""
        if self._alike:
            return ()
        meshes = [self._plan.meshes[position] for position in self._norms]
        return tuple(replica_rows(rows, mesh.shares, mesh.replicas) for mesh in meshes)

    @torch.no_grad()
    def _counts(self, batch: Batch, pieces: Iterable[tuple[int, range]]) -> tuple[float, ...]:
        """What each labelled mean of the model divides by, over the whole batch."""
        totals: list[float] = []
        for _, rows in pieces:
            mode = Counting()
            with self._buffers_kept(True), mode:
                self._forward(batch, rows)
            totals = [a + b for a, b in zip(totals or [0.0] * len(mode.counts), mode.counts, strict=True)]
        return tuple(totals)

    def _loss(self, batch: Batch, rows: range, counts: tuple[float, ...]) -> torch.Tensor:
        keys = row_keys(self._plan.seed, self._steps, rows.start, len(rows), self._device)
        mode = PassContext(
            rows=len(rows), global_rows=self._plan.rows, training=self._model.training, counts=counts, keys=keys
        )
        sharing = Sharing(mode, self._batched, self._divisions(len(rows)))
        with sharing:
            loss = self._forward(batch, rows)
        if sharing.labelled == 0 and any(op.mean == "rows" for op in row_split(self._plan.graph).ops.values()):
            loss = loss * (len(rows) / self._plan.rows)
        return loss

    def _forward(self, batch: Batch, rows: range) -> torch.Tensor:
        part = {name: tensor.to(self._device) for name, tensor in sliced(batch, self._plan.graph, rows).items()}
        enabled = self._plan.settings.precision == "bfloat16-autocast"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=enabled):
            output = self._model(**part)
            loss = getattr(output, "loss", output) if self._loss_fn is None else self._loss_fn(output, part)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"{type(self._model).__name__} gives no loss for this batch; give it labels")
        return loss

    @contextmanager
    def _buffers_kept(self, keep: bool) -> Iterator[None]:
        before = {name: b.clone() for name, b in self._model.named_buffers()} if keep else {}
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    if name in before:
                        buffer.copy_(before[name])
