"""A model put in training or in evaluation for an export, and what an evaluation would do beside that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from placer.errors import CaptureError
from placer.io.usercode import is_of_users, is_own_module
from placer.tracer.export.state.model_values import values_of
from placer.tracer.lookups.read_numbers import without_read


def as_built(model: nn.Module) -> nn.Module:
    """The model in training; parts that were put in evaluation while it trains (a frozen batch norm) stay so."""
    still = still_parts(model)
    model.train()
    for part in still.values():
        part.training = False
    return model


def still_parts(model: nn.Module) -> dict[str, nn.Module]:
    """The modules in evaluation of a model in training, which is put in training whole where it is in evaluation."""
    return {name: part for name, part in model.named_modules() if model.training and not part.training}


@contextlib.contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[frozenset[int]]:
    """In the body the modules in `model`, the user's own, train (`as_built`), or none does; gives the identities of
    configurations that ask for a cache, which they do not in the body. Raises CaptureError for an evaluation that
    changes more than that."""
    modes = {module: module.training for module in model.modules()}
    # Parts of a model (T5's decoder) have configurations of their own.
    configs = {id(config): config for config in (getattr(m, "config", None) for m in modes) if _caches(config)}
    try:
        if training:
            for part in model.children():
                as_built(part)
        else:
            _evaluate(model)
        for config in configs.values():
            setattr(config, "use_cache", False)  # noqa: B010 - its type is the model's own
        yield frozenset(configs)
    finally:
        for module, mode in modes.items():
            module.training = mode
        for config in configs.values():
            setattr(config, "use_cache", True)  # noqa: B010 - its type is the model's own


@dataclass(slots=True)
class Literals:
    """What forward made tensors of, in the last export in training and in the last in evaluation. known: whether those
    that it makes on meta are made on the CPU and taken there, so that the graph holds their numbers."""

    training: list[str] = field(default_factory=list)
    evaluation: list[str] = field(default_factory=list)
    known: bool = False


_UNHEARD = ContextVar("unheard", default=False)


@contextlib.contextmanager
def literals_unheard() -> Iterator[None]:
    """In the body, which tries a part that is not looked into, nothing is noted: a run has the part make its own."""
    before = _UNHEARD.set(True)
    try:
        yield
    finally:
        _UNHEARD.reset(before)


@contextlib.contextmanager
def literals_noted(literals: Literals, training: bool) -> Iterator[None]:
    """In the body what the model makes tensors of is noted: on meta these do not hold it."""
    noted = literals.training if training else literals.evaluation
    noted.clear()
    with torch.device("meta"):
        torch.empty(0)  # torch lists once, here at the latest, what takes a default device: the functions themselves

    def noting(make: Callable[..., object]) -> Callable[..., object]:
        def made(*given: object, **keywords: object) -> object:
            result = make(*given, **keywords)
            if not _UNHEARD.get() and is_of_users(sys._getframe(1)):
                plain = [one for one in given if not isinstance(one, torch.Tensor)]
                noted.append(", ".join(map(repr, without_read(plain))))
                return _from_numbers(result, plain) if literals.known else result
            return result

        return made

    places = ((torch, "tensor"), (torch, "as_tensor"), (torch.Tensor, "new_tensor"))
    with contextlib.ExitStack() as patched:
        for owner, name in places:
            patched.enter_context(mock.patch.object(owner, name, noting(getattr(owner, name))))
        yield


def _from_numbers(made: object, given: list[object]) -> object:
    """A tensor on meta as one that the CPU makes of the same numbers and that is taken there; others as they are."""
    numbers = given and not any(isinstance(one, torch.Tensor) for one in _pytree.tree_leaves(given[0]))
    if not numbers or not isinstance(made, torch.Tensor) or not made.is_meta or made.requires_grad:
        return made
    return torch.tensor(given[0], dtype=made.dtype, device="cpu").to(made.device)


def _evaluate(model: nn.Module) -> None:
    parts = list(model.modules())
    for part in model.children():
        own = next(kind for kind in type(part).__mro__ if "eval" in vars(kind))
        if is_own_module(own.__module__):
            raise CaptureError(f"{own.__name__} has an eval() of its own")
    if all(type(part).train is nn.Module.train for part in parts):
        model.eval()
        return
    before = values_of(model)
    with _Still():  # type: ignore[no-untyped-call]
        model.eval()
    after = values_of(model)
    moved = [name for name, one in after.tensors.items() if before.tensors.get(name) is not one]
    switched = [name for name in before.changed(after) if name.rpartition(".")[2] != "training"]
    changed = next(iter((*switched, *moved)), None)
    if changed is not None:
        raise CaptureError(f"train(False) changes {changed}, not the mode alone")


class _Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Nothing is computed."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """Refuse."""
        raise CaptureError(f"train(False) computes {func}, and does not change the mode alone")


def _caches(config: object) -> bool:
    """Whether a Hugging Face configuration asks for the cache of generation, which training has no use for."""
    return bool(getattr(config, "use_cache", False))
