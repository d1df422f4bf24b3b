"""EagerRun: the steps of a model on one device.

    zero_grad -> forward -> loss -> backward -> clip_grad_norm_ -> optimizer.step

16-bit weights are updated as mixed precision trains them: the optimizer holds them in float32, and they are what it
holds, rounded. Their gradients have 16 bits, also once they are clipped, by their norm in float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree

from placer.errors import UsageError
from placer.plans.settings import RunSettings
from placer.runtime.verify.eager.alone import alone
from placer.runtime.verify.eager.draws import DrawSource, HandedDraws
from placer.runtime.verify.eager.masks import MaskedDropout, MaskSource
from placer.runtime.verify.eager.norms import NormRows, PiecewiseNorms
from placer.runtime.verify.eager.once import nothing_run_again

Tensors = Mapping[str, torch.Tensor]
Batch = Mapping[str, torch.Tensor]
LossFunction = Callable[[object, dict[str, torch.Tensor]], torch.Tensor]
Factory = Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step: the loss, the gradients before clipping (of those that have one) and their norm, parameters and buffers
    after the update."""

    loss: float
    norm: float
    gradients: Tensors
    state: Tensors


class EagerRun:
    """Steps of `model`, which has its weights and its type.

    masks: of the dropout of a step; None where nothing is dropped; draws: likewise, of other random numbers. norms: for
    each batch norm in the order of their calls the rows it takes statistics of; empty: all of them, as torch does.
    """

    def __init__(
        self, model: nn.Module, settings: RunSettings, *, loss_fn: LossFunction | None = None,
        optimizer: Factory | None = None, masks: MaskSource | None = None, draws: DrawSource | None = None,
        norms: NormRows = (),
    ) -> None:  # fmt: skip
        self.model, self.settings = model, settings
        self.device = next(model.parameters()).device
        self.steps = 0
        self._loss_fn, self._masks, self._draws, self._norms = loss_fn, masks, draws, norms
        self.learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
        #: What the optimizer updates: the parameters, or what stands for those of 16 bits.
        self._updated = {name: _held(parameter) for name, parameter in self.learnt.items()}
        make = optimizer or _optimizer(settings)
        self._optimizer = make(self._updated) if self._updated else None

    @property
    def dropping(self) -> bool:
        """Whether masks or other random numbers were handed in."""
        return self._masks is not None or self._draws is not None

    @property
    def keyed(self) -> bool:
        """Whether what a row gets depends on its place in the batch."""
        return self.dropping or bool(self._norms)

    def step(self, batch: Batch) -> StepResult:
        """One training step on the whole batch."""
        loss = self.backward(batch)
        gradients = self.gradients()
        return StepResult(loss=loss, norm=self.update(), gradients=gradients, state=self.state())

    def backward(self, batch: Batch) -> float:
        """The loss of the batch; its gradients lie in the parameters, buffers have moved."""
        self.model.zero_grad(set_to_none=True)
        with self._modes():
            loss = self._loss(batch)
        if loss.requires_grad:
            torch.autograd.backward(loss)
        return float(loss.detach())

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that there are."""
        return {name: p.grad.detach().cpu().clone() for name, p in self.learnt.items() if p.grad is not None}

    def update(self, gradients: Tensors | None = None) -> float:
        """Clip and update, by `gradients` if given instead of the parameters' own; the norm before clipping."""
        for name, held in self._updated.items():
            own = self.learnt[name].grad
            found = own if gradients is None or own is None else gradients[name]
            held.grad = None if found is None else found.to(held.device, held.dtype)
        limit = self.settings.clip_norm
        given = [held for held in self._updated.values() if held.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(given, float("inf") if limit is None else limit))
        if self._optimizer is not None:
            self._optimizer.step()
        with torch.no_grad():
            for name, held in self._updated.items():
                if held is not self.learnt[name]:
                    self.learnt[name].copy_(held)
        self.steps += 1
        return norm

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        """The loss of the batch in evaluation mode."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        draws = None if self._draws is None else HandedDraws(self._draws, self.steps)
        try:
            with draws or nullcontext():
                return float(self._loss(batch))
        finally:
            for module, mode in modes.items():
                module.training = mode

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, under every name they have."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    @torch.no_grad()
    def take(self, state: Tensors) -> None:
        """Compute with `state` from now on."""
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            tensor.copy_(state[name])

    @contextmanager
    def undone(self) -> Iterator[None]:
        """What happens to weights and buffers within is undone, also where a forward assigns a buffer anew."""
        places = [(module._buffers, dict(module._buffers)) for module in self.model.modules()]
        every = [*self.model.parameters(), *self.model.buffers()]
        kept = [tensor.detach().clone() for tensor in every]
        try:
            yield
        finally:
            for buffers, found in places:
                buffers.update(found)
            with torch.no_grad():
                for tensor, before in zip(every, kept, strict=True):
                    tensor.copy_(before)

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        for group in self._optimizer.param_groups if self._optimizer is not None else ():
            group["lr"] = rate

    @contextmanager
    def _modes(self) -> Iterator[None]:
        """torch as it is, where nothing was handed in."""
        dropout = None if self._masks is None else MaskedDropout(self._masks, self.steps)
        draws = None if self._draws is None else HandedDraws(self._draws, self.steps)
        norms: AbstractContextManager[object] = PiecewiseNorms(self._norms) if self._norms else nullcontext()
        once = nothing_run_again() if self.dropping else nullcontext()
        with once, norms, draws or nullcontext(), dropout or nullcontext():
            yield
        for handed in (dropout, draws):
            if handed is not None:
                handed.require_all_used()

    def _loss(self, batch: Batch) -> torch.Tensor:
        # A copy: where forward writes into its inputs, the next step has those of a loader again.
        given = {name: tensor.to(self.device, copy=True) for name, tensor in batch.items()}
        enabled = self.settings.precision == "bfloat16-autocast"
        with alone(), torch.autocast(self.device.type, torch.bfloat16, enabled=enabled):
            if self._loss_fn is not None:
                return _number(self._loss_fn(self.model(**_taken(self.model, given)), given))
            return _number(_own_loss(self.model(**given)))


def _held(parameter: nn.Parameter) -> nn.Parameter:
    return parameter if parameter.element_size() > 2 else nn.Parameter(parameter.detach().float())


def _taken(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What of the batch forward takes; the rest is for the loss."""
    formal = inspect.signature(model.forward).parameters.values()
    named = {one.name for one in formal if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    takes_any = not named and any(one.kind is one.VAR_KEYWORD for one in formal)
    return batch if takes_any else {name: tensor for name, tensor in batch.items() if name in named}


def _own_loss(output: object) -> object:
    """The loss in what a model gives: `.loss`, `["loss"]`, the only tensor, or the first of several if that is a number
    and no other is."""
    found = output["loss"] if isinstance(output, Mapping) and "loss" in output else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    leaves = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    others = any(leaf.numel() == 1 and leaf.is_floating_point() for leaf in leaves[1:])
    return leaves[0] if len(leaves) == 1 or (leaves and not others) else None


def _number(loss: object) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError("the model gives no loss of one number for this batch; give it labels, or plan with --loss")
    return loss


def _optimizer(settings: RunSettings) -> Factory:
    """torch's own, from the numbers of the settings."""

    def make(named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        parameters = named.values()
        rate, decay = settings.learning_rate, settings.weight_decay
        if settings.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay)
        return torch.optim.AdamW(
            parameters, lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=decay
        )  # fmt: skip

    return make
