"""Training steps as a person writes them with torch, one class per way: `step(batch) -> loss`.

Each does what the plan does: the same rows, microbatches and cut, clipping by the norm of the whole model, AdamW with
the plan's settings. Losses are those that a rank has at hand.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, SplitPoint, pipeline
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.nn.parallel import DistributedDataParallel

from placer.plans.plan import BUCKET_BYTES
from placer.runtime.bench import model as models
from placer.runtime.bench.model import Decoder, Size
from placer.runtime.bench.plans import RANKS, SETTINGS

Batch = dict[str, torch.Tensor]
BUCKET_ELEMENTS = BUCKET_BYTES // 4


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """The optimizer of the plan's settings."""
    return torch.optim.AdamW(
        parameters, lr=SETTINGS.learning_rate, betas=SETTINGS.betas, eps=SETTINGS.epsilon,
        weight_decay=SETTINGS.weight_decay,
    )  # fmt: skip


class _Replica(ABC):
    """A replica's step on its own rows."""

    def __init__(self, model: nn.Module, size: Size) -> None:
        each = size.rows // RANKS
        self._rows = slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)
        self._model, self._optimizer = model, adamw(model.parameters())

    def step(self, batch: Batch) -> float:
        """The loss of this rank's rows."""
        self._optimizer.zero_grad()
        loss = self._model(batch["tokens"][self._rows], batch["labels"][self._rows])
        loss.backward()
        self._gradients_reduced()
        nn.utils.clip_grad_norm_(self._model.parameters(), SETTINGS.clip_norm or 1.0)
        self._optimizer.step()
        return float(loss.detach())

    @abstractmethod
    def _gradients_reduced(self) -> None: ...


class Wrapped(_Replica):
    """DistributedDataParallel in the loop of its tutorial."""

    def __init__(self, model: Decoder, size: Size) -> None:
        super().__init__(DistributedDataParallel(model), size)

    def _gradients_reduced(self) -> None:
        """Backward has done it."""


class Bucketed(_Replica):
    """Data parallel without the wrapper: buckets of gradients are reduced as soon as their last one is there."""

    def __init__(self, model: Decoder, size: Size) -> None:
        super().__init__(model, size)
        self._buckets = _buckets(list(model.parameters())[::-1])
        self._missing = [len(bucket) for bucket in self._buckets]
        self._works: list[tuple[dist.Work, torch.Tensor, list[nn.Parameter]]] = []
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]

    def _gradients_reduced(self) -> None:
        for work, flat, bucket in self._works:
            work.wait()
            _given(flat.div_(RANKS), bucket)
        self._works, self._missing = [], [len(bucket) for bucket in self._buckets]

    def _arrived(self, index: int, parameter: torch.Tensor) -> None:
        self._missing[index] -= 1
        if not self._missing[index]:
            bucket = self._buckets[index]
            flat = torch.cat([_gradient(parameter).view(-1) for parameter in bucket])
            work = dist.all_reduce(flat, async_op=True)
            assert work is not None
            self._works.append((work, flat, bucket))


class _Pipeline:
    """A rank's half of the model under torch's 1F1B."""

    def __init__(self, half: nn.Module, stage: _PipelineStageBase, size: Size) -> None:
        self._parameters = list(half.parameters())
        self._optimizer = adamw(self._parameters)
        # The loss is the mean of the microbatches' means: they are of equal size here.
        self._schedule = Schedule1F1B(stage, size.microbatches, loss_fn=models.loss)

    def step(self, batch: Batch) -> float:
        """The loss on the last rank."""
        self._optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if dist.get_rank() == 0:
            self._schedule.step(batch["tokens"])
        else:
            self._schedule.step(target=batch["labels"], losses=losses)
        clip(self._parameters)
        self._optimizer.step()
        return float(sum(loss.detach() for loss in losses)) / max(len(losses), 1)


class Piped(_Pipeline):
    """torch.distributed.pipelining around two halves of the model, written as modules of their own."""

    def __init__(self, model: Decoder, size: Size) -> None:
        rank = dist.get_rank()
        half = _Half(model, size, rank)
        super().__init__(half, PipelineStage(half, rank, RANKS, torch.device("cpu")), size)


class AutoPiped(_Pipeline):
    """torch's own splitting of the model (`torch.distributed.pipelining.pipeline`)."""

    def __init__(self, model: Decoder, size: Size) -> None:
        rank = dist.get_rank()
        example = models.batch(size, 0)["tokens"][: size.rows // size.microbatches]
        spec = {f"model.layers.{size.layers // 2}": SplitPoint.BEGINNING}
        with warnings.catch_warnings():
            # torch 2.13's pipeline() copies a graph by a class that it has itself deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            whole = pipeline(_Scores(model), (example,), split_spec=spec)
        super().__init__(whole.get_stage_module(rank), whole.build_stage(rank, torch.device("cpu")), size)


class _Half(nn.Module):
    """The embeddings and the first layers, or the rest."""

    def __init__(self, model: Decoder, size: Size, rank: int) -> None:
        super().__init__()
        middle = size.layers // 2
        self.first = rank == 0
        self.layers = model.layers[:middle] if self.first else model.layers[middle:]
        self.start = nn.ModuleList((model.table, model.places) if self.first else ())
        self.end = nn.Sequential(*(() if self.first else (model.norm, model.head)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens to what the second half reads, or that to scores."""
        if self.first:
            table, places = self.start
            x = table(x) + places(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.end(x)
        return made


class _Scores(nn.Module):
    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores of all words."""
        return self.model.scored(self.model.embedded(tokens))


def clip(parameters: Iterable[nn.Parameter], shared: frozenset[int] = frozenset()) -> None:
    """Clip by the norm of a model whose parameters lie on several ranks; those of `shared` (ids) lie on all of them."""
    gradients = [(parameter.grad, id(parameter) in shared) for parameter in parameters if parameter.grad is not None]
    own = torch.nn.utils.get_total_norm([one for one, everywhere in gradients if not everywhere]) ** 2
    dist.all_reduce(own)
    alike = [one for one, everywhere in gradients if everywhere]
    total = (own + (torch.nn.utils.get_total_norm(alike) ** 2 if alike else 0.0)).sqrt()
    scale = torch.clamp((SETTINGS.clip_norm or 1.0) / (total + 1e-6), max=1.0)
    torch._foreach_mul_([one for one, _ in gradients], scale)


def _buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    found: list[list[nn.Parameter]] = [[]]
    for parameter in parameters:
        if found[-1] and sum(one.numel() for one in found[-1]) + parameter.numel() > BUCKET_ELEMENTS:
            found.append([])
        found[-1].append(parameter)
    return found


def _given(flat: torch.Tensor, bucket: list[nn.Parameter]) -> None:
    offset = 0
    for parameter in bucket:
        parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
