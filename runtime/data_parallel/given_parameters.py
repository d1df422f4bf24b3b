"""What an optimizer is made of: parameters that know their names, so that groups of them can go by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import nn

from placer.errors import UsageError


class GivenParameters(Collection[nn.Parameter]):
    """The parameters that an optimizer is made for, those of one rank; `named` has them with the model's names, as
    `Module.named_parameters` does."""

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        self._named = dict(named)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return iter(self._named.values())

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, one: object) -> bool:
        return any(one is parameter for parameter in self)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Each with its name."""
        return list(self._named.items())


#: Makes an optimizer of the parameters that it is given.
OptimizerFactory = Callable[[GivenParameters], torch.optim.Optimizer]


def require_maker(make: object) -> None:
    """Raise UsageError for what makes no optimizer, such as an optimizer."""
    if not callable(make):
        raise UsageError(
            f"the optimizer is a {type(make).__name__}; give a function that makes one of the parameters it is given: "
            "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )


def made_of(given: GivenParameters, make: OptimizerFactory) -> torch.optim.Optimizer:
    """The optimizer that `make` makes of these parameters, or of some of them. Raises UsageError where it makes none,
    one that holds others, which have no gradients, or one whose step computes the loss again (LBFGS)."""
    optimizer = make(given)
    if not callable(getattr(optimizer, "step", None)):
        raise UsageError(f"the optimizer's function gives a {type(optimizer).__name__}; have it return an optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UsageError(
            f"{type(optimizer).__name__} wants to compute the loss again inside its step, which a run does not: a step "
            "is one forward and one backward; give an optimizer whose step needs no closure"
        )
    held = [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]
    known = {id(one) for one in given}
    others = [one for one in held if id(one) not in known]
    if others:
        raise UsageError(
            f"the optimizer holds {len(others)} tensors, the first of shape {tuple(others[0].shape)}, that are none of "
            "those its function was given: a run would never move these; make it of those alone, as in "
            "lambda parameters: torch.optim.AdamW(parameters)"
        )
    return optimizer
