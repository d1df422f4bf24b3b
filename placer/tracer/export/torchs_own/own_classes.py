"""Tensors are of torch's classes to a model that asks: `type(x) is torch.Tensor`, of what an export runs it on too.

`isinstance` needs nothing. `type` is a name of Python's that nobody can answer for; so the modules of people have one
of their own while their model is exported.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, resolve_bases
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from placer.errors import UncapturableError
from placer.io.usercode import calling_line, name_of_users
from placer.tracer.selections.selected import is_selected, refused

_NAME = "type"


@contextlib.contextmanager
def own_classes(model: nn.Module, loss_fn: Callable[..., object] | None) -> Iterator[None]:
    """In the body `type(x)` is, to the code of people, what it is where nothing is exported."""
    classes = _Classes(frozenset(type(one) for one in model.parameters()) - {nn.Parameter})
    names = [one for one in _names_of_people(model, loss_fn) if _NAME not in one]
    with contextlib.ExitStack() as patched:
        for one in names:
            one[_NAME] = classes
            patched.callback(one.pop, _NAME)
        yield


def _names_of_people(model: nn.Module, loss_fn: Callable[..., object] | None) -> list[dict[str, Any]]:
    """The names of their modules, and of those of their functions that are in no module that Python knows."""
    modules = [vars(one) for one in [*sys.modules.values()] if isinstance(one, ModuleType)]
    forwards = [getattr(type(one).forward, "__globals__", {}) for one in model.modules()]
    found = [*modules, *forwards, getattr(loss_fn, "__globals__", {})]
    return [*{id(one): one for one in found if name_of_users(str(one.get("__name__", "")))}.values()]


class _Classes:
    """In place of `type`. odd: the classes of the model's parameters that are not torch's own."""

    def __init__(self, odd: frozenset[type]) -> None:
        self.odd = odd

    def __call__(self, *given: Any, **keywords: Any) -> Any:
        """The class of what is given, or a new one."""
        if len(given) == 1 and is_selected(given[0]):
            refused("type()")
        if len(given) == 1 and isinstance(given[0], FakeTensor | FunctionalTensor):
            return self.known(given[0])
        if len(given) > 1:
            name, bases, *names = given
            return type(name, resolve_bases(bases), *names, **keywords)
        return type(*given)

    def known(self, one: torch.Tensor) -> type:
        """The class of a tensor of the export. Raises UncapturableError where it may be one that it does not tell."""
        parameter = isinstance(one, nn.Parameter)
        if parameter and self.odd:
            kinds = ", ".join(sorted(kind.__name__ for kind in self.odd))
            raise UncapturableError(
                f"{calling_line()}: forward asks for the class of a parameter, and the model has some of {kinds}, "
                "which an export does not tell apart; ask by isinstance, or for an attribute"
            )
        return nn.Parameter if parameter else torch.Tensor

    def __instancecheck__(self, one: object) -> bool:
        """`isinstance(one, type)`."""
        return isinstance(one, type)

    def __subclasscheck__(self, one: type) -> bool:
        """`issubclass(one, type)`."""
        return issubclass(one, type)

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        """`class Meta(type):`."""
        return (type,)

    def __getattr__(self, name: str) -> Any:
        """`type.mro`."""
        return getattr(type, name)

    def __getitem__(self, of: Any) -> Any:
        """`type[Model]`."""
        return type[of]
