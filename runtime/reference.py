"""The reference run: one device doing the same step over the same microbatches in order, which parity is measured
against.

It shares no code with the pipeline: the model's own eager forward, torch's own clipping and optimizer. What parity
means is
put in where the model calls torch: a mean cross entropy becomes sum / count of the global batch, dropout masks are
those of the
rows (`dropout.kept`), batch norm keeps the running statistics of replica 0 only. Replicas' rows run one after the
other. Where stages divide rows differently a microbatch runs whole, and each batch norm takes the rows of the replicas
of its own stage one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from placer.errors import UsageError
from placer.meshes import Mesh
from placer.plans import Plan, replica_rows
from placer.program import position_of, stage_of_block
from placer.runtime.captured import loss_function
from placer.runtime.cut import Cut
from placer.runtime.dropout import attention, dropout, row_keys
from placer.runtime.feed import Batch, checked, sliced, spans
from placer.runtime.losses import counted
from placer.runtime.mode import Mode
from placer.runtime.optimizers import OptimizerFactory, Updater, optimizer_factory
from placer.runtime.summed import Summed

_LABELLED = (functional.cross_entropy, functional.nll_loss)
_UNKEYED = (functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d, functional.dropout2d)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One step: the loss, the gradients before clipping and their norm, parameters and buffers after the update.

    magnitudes: what gradients were summed from, where that is known (`Summed`).
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
    def of(plan: Plan, model: nn.Module, cut: Cut, optimizer: OptimizerFactory | None = None) -> Reference:
        """The reference of a plan whose model was captured and cut."""
        return Reference(plan, model, cut.rewrites.batched, optimizer, norms=norm_positions(plan, cut))

    def step(self, batch: Batch) -> Outcome:
        """One training step on the global batch."""
        batch = checked(batch, self._plan.graph, self._plan.rows)
        pieces = tuple(self._pieces())
        counts = self._counts(batch, pieces)
        summed = Summed(dict(self._model.named_parameters()))
        loss = 0.0
        for replica, rows in pieces:
            with self._buffers_kept(replica != 0):
                share = self._loss(batch, rows, counts)
                if share.requires_grad:
                    summed.watch(share)
                    torch.autograd.backward(share)
                loss += float(share.detach())
        gradients = {n: p.grad.detach().cpu().clone() for n, p in self._model.named_parameters() if p.grad is not None}
        norm = self._clipped()
        self._updater.step(1.0)
        self._steps += 1
        state = {name: tensor.detach().cpu().clone() for name, tensor in self._model.state_dict().items()}
        return Outcome(loss=loss, norm=norm, gradients=gradients, state=state, magnitudes=summed.magnitudes)

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
            yield from ((0, range(end - rows, end)) for rows, end in self._microbatches())
            return
        replicas = self._plan.meshes[0].replicas
        for group in zip(*(spans(self._plan, 0, replica) for replica in range(replicas)), strict=True):
            for replica, rows in enumerate(group):
                if len(rows):
                    yield replica, rows

    def _microbatches(self) -> Iterator[tuple[int, int]]:
        """Rows of each microbatch, and where they end in the batch."""
        yield from zip(self._plan.microbatches, accumulate(self._plan.microbatches), strict=True)

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
            mode = _Counting()
            with self._buffers_kept(True), mode:
                self._forward(batch, rows)
            totals = [a + b for a, b in zip(totals or [0.0] * len(mode.counts), mode.counts, strict=True)]
        return tuple(totals)

    def _loss(self, batch: Batch, rows: range, counts: tuple[float, ...]) -> torch.Tensor:
        keys = row_keys(self._plan.seed, self._steps, rows.start, len(rows), self._device)
        mode = Mode(
            rows=len(rows), global_rows=self._plan.rows, training=self._model.training, counts=counts, keys=keys
        )
        sharing = _Sharing(mode, self._batched, self._divisions(len(rows)))
        with sharing:
            loss = self._forward(batch, rows)
        if sharing.labelled == 0 and self._plan.graph.loss.reduction == "mean":
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

    def _clipped(self) -> float:
        parameters = [p for p in self._model.parameters() if p.grad is not None]
        limit = self._plan.settings.clip_norm
        return float(nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit))

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


@dataclass
class _Counting(TorchFunctionMode):
    """Counts what the labelled means of a forward divide by."""

    counts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Note the count of a labelled mean; everything runs as it is."""
        named = _labelled_arguments(func, args, kwargs or {})
        if named is not None:
            target, weight = cast(torch.Tensor, named["target"]), cast("torch.Tensor | None", named["weight"])
            self.counts.append(counted(target, cast(int, named["ignore_index"]), weight))
        return func(*args, **(kwargs or {}))


class _Sharing(TorchFunctionMode):
    """Replaces labelled means by sum / global count, dropout by the mask of the rows, batch norm by that of parts.

    divisions: for each call of batch norm the rows of which it takes the statistics one after the other.
    """

    def __init__(self, mode: Mode, batched: tuple[bool, ...], divisions: tuple[tuple[int, ...], ...] = ()) -> None:
        super().__init__()
        self._mode, self._batched = mode, batched
        self._divisions = iter(divisions)
        self._tracked: torch.Tensor | None = None
        self.labelled = 0
        self._dropouts = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run `func`, or what stands for it."""
        kwargs = kwargs or {}
        named = _labelled_arguments(func, args, kwargs)
        if named is not None:
            count = self._mode.counts[self.labelled]
            self.labelled += 1
            total = func(**{**named, "reduction": "sum"})
            return cast(torch.Tensor, total) / (count or 1.0)
        if func is functional.dropout:
            return self._dropped(*args, **kwargs)  # type: ignore[arg-type]
        if func is torch.Tensor.add_ and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.int64:
            self._tracked = args[0]  # the batches that the norm which follows has seen
        if func is functional.batch_norm and self._mode.training:
            rows = next(self._divisions, None)
            if rows is not None:
                return self._normed(rows, *args, **kwargs)  # type: ignore[arg-type]
        if func is functional.scaled_dot_product_attention:
            return self._attended(*args, **kwargs)  # type: ignore[arg-type]
        if func in _UNKEYED and self._mode.training:
            raise UsageError(
                f"the model draws random numbers by {func.__name__}, which no layout can repeat; turn it off to verify"
            )
        return func(*args, **kwargs)

    def _normed(
        self,
        rows: tuple[int, ...],
        values: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        *args: object,
        **kwargs: object,
    ) -> torch.Tensor:
        """Batch norm of each replica's rows; the running statistics are those of replica 0, if it has any."""
        made: list[torch.Tensor] = []
        parts = torch.split(values, [values.shape[0] // sum(rows) * count for count in rows])
        for replica, part in enumerate(parts):
            moving = (running_mean, running_var)
            kept = [one if one is None or replica == 0 else one.clone() for one in moving]
            if part.shape[0]:
                made.append(functional.batch_norm(part, *kept, *args, **kwargs))  # type: ignore[arg-type]
        if not rows[0] and self._tracked is not None:
            self._tracked -= 1
        return torch.cat(made)

    def _dropped(
        self, values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0.0:
            return values
        op = self._next()
        return dropout(values, p, op, self._batched[op], self._mode)

    def _attended(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        op = self._next() if dropout_p else 0
        return attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, grouped=enable_gqa, op=op, mode=self._mode
        )

    def _next(self) -> int:
        self._dropouts += 1
        return self._dropouts - 1


def norm_positions(plan: Plan, cut: Cut) -> tuple[int, ...]:
    """The position of each batch norm of the model, in the order of their calls."""
    home, positions = stage_of_block(plan), position_of(plan)
    found = (node for node in cut.module.graph.nodes if node.target is torch.ops.aten.batch_norm.default)
    return tuple(positions[home[cut.home[node]]] for node in found)


def _labelled_arguments(
    func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, object] | None:
    """The arguments of a mean cross entropy or negative log likelihood by name; None for anything else."""
    if func not in _LABELLED:
        return None
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    named: dict[str, object] = {"weight": None, "ignore_index": -100, "reduction": "mean"}
    named.update(zip(names, args, strict=False))
    named.update(kwargs)
    return named if named["reduction"] == "mean" else None
