"""A model whose tensors have shapes and names but no memory, and where their values come from.

Ranks capture and cut such a model, and read of its weights only what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from placer import tracer
from placer.errors import PlacerError, StalePlanError, UsageError
from placer.plans.plan import Plan
from placer.runtime.weights.deferred_init import DeferredInit
from placer.runtime.weights.hf_folder import pretrained
from placer.runtime.weights.rank_weights import Box, ModelInMemory, Replayed, Source
from placer.tracer.export.modes import as_built
from placer.tracer.inputs import casting


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """`model`: in the plan's precision and training mode, each tensor one number seen as many, or, where the caller
    gave the model, the real ones. note: why every rank must build the whole model, "" where none must."""

    model: nn.Module
    source: Source
    note: str = ""


def meta_model(plan: Plan, model: nn.Module | None, device: torch.device, weights: str = "") -> MetaModel:
    """The model of a plan for a rank on `device`, its values those of the seed, or of a Hugging Face folder `weights`.

    Raises UsageError for weights of another model, StalePlanError for another model.
    """
    if model is not None and weights:
        raise UsageError(f"--weights {weights} is given beside a model that has its own; give one of them")
    if model is not None:
        given = _converted(plan, _same(plan, model), device, given=True)
        return MetaModel(model=given, source=ModelInMemory(named_tensors(given)))
    resolved = _rebuildable(plan)
    deferred, note = DeferredInit(draws=not weights), ""
    try:
        with deferred:
            module = resolved.build("cpu", seed=plan.seed)
        source: Source = Replayed(deferred, named_tensors(module))
        _without_memory(module, device, deferred)
    except PlacerError as error:
        note = f"every rank builds the whole model before it keeps its part: {error.__cause__ or error}"
        module = resolved.build("cpu", seed=plan.seed)
        source = ModelInMemory(named_tensors(module))
        _without_memory(module, device, None)
    if weights:
        source, note = pretrained(weights, module, source), ""
    return MetaModel(model=_converted(plan, module, device, given=False), source=source, note=note)


def prepared_model(plan: Plan, model: nn.Module | None, device: torch.device, weights: str = "") -> nn.Module:
    """The model with all its weights on one device, in the plan's precision and training mode: what references run.

    weights: a Hugging Face folder, as for `meta_model`. The seed's numbers are those of the CPU on every device. Raises
    UsageError, StalePlanError for another model.
    """
    if model is not None:
        return _converted(plan, _same(plan, model), device, given=True)
    made = _rebuildable(plan).build("meta" if device.type == "meta" else "cpu", plan.seed)
    if weights:
        source = pretrained(weights, made, ModelInMemory(named_tensors(made)))
        with torch.no_grad():
            for name, tensor in made.state_dict(keep_vars=True).items():
                tensor.copy_(source.read(name, Box(shape=tuple(tensor.shape))))
    return _converted(plan, made, device, given=False)


def _rebuildable(plan: Plan) -> tracer.ResolvedModel:
    if plan.model.kind == "module":
        raise UsageError(
            "the plan was made from a module of another process; give it: placer.runtime.load(plan, model)"
        )
    return tracer.resolve(plan.model)


def _same(plan: Plan, model: nn.Module) -> nn.Module:
    imported = plan.model.reference.partition(":")[0] if plan.model.kind == "factory" else ""
    known = plan.model.fingerprint
    # Cast it is the same model: it becomes the plan's precision, whatever it was in.
    types = (None, torch.float32, *casting.RUN_DTYPES.values())
    if known and all(tracer.fingerprint(model, imported, floating) != known for floating in types):
        raise StalePlanError(
            "the plan was made for another model: its structure, shapes, types or frozen parameters differ; plan again"
        )
    _require_trainable(model)
    return model


def _converted(plan: Plan, model: nn.Module, device: torch.device, *, given: bool) -> nn.Module:
    model = casting.cast(model, device, casting.RUN_DTYPES[plan.settings.precision])
    return as_built(model) if given else model.train()


def _require_trainable(model: nn.Module) -> None:
    """Raise UsageError for weights and buffers that torch lets no step write."""
    made = [name for name, tensor in named_tensors(model).items() if tensor.is_inference()]
    if made:
        raise UsageError(
            f"{made[0]} of the model that was given was made in torch.inference_mode, and torch trains no such tensor; "
            "build the model, or load its weights, outside of it"
        )


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers under every name the model has for them."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter and buffer, under every name the model has for it."""
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}


def replaced_tensors(model: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """`model` with what `make` gives in place of its parameters and buffers, each replaced once, so that ties hold."""
    made: dict[int, torch.Tensor] = {}
    before: list[torch.Tensor] = []  # so that no address is used twice

    def new(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            before.append(tensor)
            found, parameter = make(tensor), isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(found, requires_grad=tensor.requires_grad) if parameter else found
        return made[id(tensor)]

    for module in model.modules():
        for named in (module._parameters, module._buffers):
            for name, tensor in named.items():
                if tensor is not None:
                    named[name] = cast(nn.Parameter, new(tensor))
    return model


def one_number(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """One number on `device`, seen as a tensor like `tensor`: enough to capture a model."""
    return torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)


def _without_memory(model: nn.Module, device: torch.device, deferred: DeferredInit | None) -> None:
    """Put tensors without memory in place of all parameters and buffers, real ones of fake attributes."""
    replaced_tensors(model, partial(one_number, device=device))
    for module in model.modules() if deferred is not None else ():
        for name, value in list(vars(module).items()):
            if isinstance(value, FakeTensor) and deferred is not None:
                setattr(module, name, deferred.made(value))
