"""Tensors are of torch's classes to a model that asks: `type(x) is torch.Tensor`, of what an export runs it on too.

`isinstance` needs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from placer.errors import UncapturableError
from placer.io.usercode import calling_line
from placer.tracer.export.torchs_own.names_of_python import named, names_of_people, type_that_says
from placer.tracer.lookups.read_numbers import kind_of
from placer.tracer.lookups.readings import is_read
from placer.tracer.selections.selected import is_selected, refused


@contextlib.contextmanager
def own_classes(model: nn.Module, loss_fn: Callable[..., object] | None) -> Iterator[None]:
    """In the body `type(x)` is, to the code of people, what it is where nothing is exported."""
    odd = frozenset(type(one) for one in model.parameters()) - {nn.Parameter}

    def asked(one: object) -> type:
        if is_selected(one):
            refused("type()")
        if is_read(one):
            return kind_of(one)
        return _class_of(one, odd) if isinstance(one, FakeTensor | FunctionalTensor) else type(one)

    with named(names_of_people(model, loss_fn), {"type": type_that_says(asked)}):
        yield


def _class_of(one: torch.Tensor, odd: frozenset[type]) -> type:
    """The class of a tensor of the export. odd: those of the model's parameters that are not torch's own. Raises
    UncapturableError where it may be one that the export does not tell."""
    parameter = isinstance(one, nn.Parameter)
    if parameter and odd:
        kinds = ", ".join(sorted(kind.__name__ for kind in odd))
        raise UncapturableError(
            f"{calling_line()}: forward asks for the class of a parameter, and the model has some of {kinds}, "
            "which an export does not tell apart; ask by isinstance, or for an attribute"
        )
    return nn.Parameter if parameter else torch.Tensor
