"""What an optimizer is made of: parameters that know their names, so that groups of them can go by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import nn

from placer.errors import UsageError


class GivenParameters(Collection[nn.Parameter]):
    """The parameters that an optimizer is made for, those of one rank; `named` has them with the model's names, as
    `Module.named_parameters` does.

    copies: the model's names of those that two stages of the rank have: each updates one of its own.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], copies: Mapping[str, str] | None = None) -> None:
        self._named, self._copies = dict(named), dict(copies or {})

    def __iter__(self) -> Iterator[nn.Parameter]:
        return iter(self._named.values())

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, one: object) -> bool:
        return any(one is parameter for parameter in self)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Each with its name; a parameter that two stages of the rank share comes as often, under the same name."""
        return [(self._copies.get(name, name), parameter) for name, parameter in self._named.items()]

    def left_behind(self, optimizer: torch.optim.Optimizer) -> str | None:
        """The name of a parameter of which the optimizer has one copy and not another; None where there is none."""
        groups = getattr(optimizer, "param_groups", ())
        held = {id(one) for group in groups for one in group["params"]}
        moved = {name for name, parameter in self.named() if id(parameter) in held}
        return next((name for name, one in self.named() if name in moved and id(one) not in held), None)


def name_beside(held: Collection[str], name: str, stage: int, copies: dict[str, str]) -> str:
    """The name of a stage's parameter among those of its rank: the model's; of a second copy of a tied one another, of
    which `copies` notes the model's."""
    if name not in held:
        return name
    numbered = f"{name}.@{stage}"  # no parameter of a model has a name that begins with another's and a dot
    copies[numbered] = name
    return numbered


#: Makes an optimizer of the parameters that it is given.
OptimizerFactory = Callable[[GivenParameters], torch.optim.Optimizer]


def require_all_copies(given: GivenParameters, optimizer: torch.optim.Optimizer) -> None:
    """Raise UsageError where the optimizer would move a parameter in one stage of the rank and not in another."""
    name = given.left_behind(optimizer)
    if name is not None:
        raise UsageError(
            f"the optimizer holds {name} as one stage of a rank has it, and not as another one of the same rank, which "
            "would stay as it is; make it of all that parameters.named() gives, where such a name comes twice (a dict "
            "by name keeps one), or plan with --pin pipeline=1"
        )


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
    require_all_copies(given, optimizer)
    return optimizer
