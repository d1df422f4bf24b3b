"""Repeated layers are exported once: of a run of identical layers three copies compute, and the graph is grown back.

    layers 0 .. n-1 --export of layers 0, 1 and n-1--> three segments --verify, copy the middle one--> n segments

Layers that are left out give what the second copy gave, so that what the model does between them is dead and every
layer keeps its place; they must be given what the first two copies both were given, or the whole model is exported.
Which layers are alike says `repeated`; `growing` makes the n segments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils import _pytree

from placer.tracer.export.repeated_layers import Repeat


class UnfoldableError(Exception):
    """The copies are not alike after all."""


@contextlib.contextmanager
def folded(model: nn.Module, found: tuple[Repeat, ...]) -> Iterator[None]:
    """Within, only three copies of every repeated run of `model` compute; the others pass on what the second gave."""
    whole = [(module, dict(module._modules)) for module in (model.get_submodule(repeat.path) for repeat in found)]
    with contextlib.ExitStack() as hooks:
        try:
            for (module, children), repeat in zip(whole, found, strict=True):
                module._modules = {**children, **_passing(children, repeat, hooks)}
            yield
        finally:
            for module, children in whole:
                module._modules = children


def _passing(
    children: dict[str, nn.Module | None], repeat: Repeat, hooks: contextlib.ExitStack
) -> dict[str, nn.Module | None]:
    """What stands for the layers of all copies but three."""
    found: dict[str, nn.Module | None] = {}
    for offset, second in enumerate(repeat.children(1)):
        made = _Made()
        for number, note in ((repeat.children(0)[offset], made.note_first), (second, made.note_second)):
            layer = children[str(number)]
            assert layer is not None
            hooks.callback(layer.register_forward_hook(note, with_kwargs=True).remove)
        for copy in range(2, repeat.count - 1):
            own = children[str(repeat.children(copy)[offset])]
            assert own is not None
            found[str(repeat.children(copy)[offset])] = _Passing(made, own)
    return found


@dataclass(slots=True)
class _Made:
    """What the layer of the first two copies was given, and what the second one made of it.

    Opaque to torch.export, which forbids modules to keep tensors.
    """

    first: list[object] = field(default_factory=list)
    second: list[object] = field(default_factory=list)
    value: object = None

    def note_first(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        """A forward hook of the first copy."""
        self.first = _pytree.tree_leaves((args, kwargs))

    def note_second(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        """A forward hook of the second copy."""
        self.second, self.value = _pytree.tree_leaves((args, kwargs)), output

    def again(self, args: object, kwargs: object) -> object:
        """What the second copy made. Raises UnfoldableError where a further copy is given what both were not."""
        given = _pytree.tree_leaves((args, kwargs))
        kept = [_same(a, b) for a, b in zip(self.first, self.second, strict=False)]
        if len(given) != len(self.second) or any(
            stays and not _same(b, c) for stays, b, c in zip(kept, self.second, given, strict=False)
        ):
            raise UnfoldableError("a layer is given something else than the layers before it")
        return self.value


def _same(a: object, b: object) -> bool:
    return a is b or (isinstance(a, int | float | str) and a == b)


class _Passing(nn.Module):
    """Stands for a layer that is not exported and gives what the same layer of the second copy gave.

    The place stays taken, as models look things up by it (the attention mask of layer i); so do its plain attributes.
    """

    def __init__(self, made: _Made, layer: nn.Module) -> None:
        super().__init__()
        self._made = made
        self._layer = (layer,)  # not a child: its parameters are not exported

    def forward(self, *args: object, **kwargs: object) -> object:
        """What the second copy gave."""
        return self._made.again(args, kwargs)

    def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found: torch.Tensor | nn.Module = getattr(self.__dict__["_layer"][0], name)
            return found
