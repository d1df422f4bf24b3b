"""Repeated layers are exported once: of a run of identical layers three copies compute, and the graph is grown back.

    layers 0 .. n-1 --export of layers 0, 1 and n-1--> three segments --verify, copy the middle one--> n segments

Layers are identical when class tree, parameter shapes and plain attributes agree (indices such as layer_idx aside); a
run may repeat a cycle of up to `LONGEST_CYCLE` layers. Those that are left out give what the second copy gave, so that
what the model does between them is dead and every layer keeps its place; they must be given what the first two copies
both were given, or the whole model is exported; so it is where a layer leaves something behind, or hooks look at it.
`unfolding` makes the n segments.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils import _pytree

from placer.tracer.export.state.left_behind import held
from placer.tracer.lookups.recorders import is_collecting, is_watched
from placer.tracer.selections.selected import is_selected

KEPT = 3  # copies of a run that are exported
LONGEST_CYCLE = 8  # Gemma 3 has a layer of global attention after five of local attention
_INDEX = re.compile(r"idx|index|layer_id|layer_number|block_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """In the list at `path`, `count` copies of `period` children from `start` on are alike."""

    path: str
    start: int
    period: int
    count: int

    @property
    def saved(self) -> int:
        """How many children need no export of their own."""
        return (self.count - KEPT) * self.period

    def children(self, copy: int) -> range:
        """Indices of the children of one copy."""
        first = self.start + copy * self.period
        return range(first, first + self.period)


def repeats(model: nn.Module) -> tuple[Repeat, ...]:
    """The outermost runs of at least four identical copies."""
    shared = _shared_parameters(model)
    return tuple(_repeats_within(model, "", shared))


def _repeats_within(module: nn.Module, path: str, shared: set[int]) -> Iterator[Repeat]:
    children = dict(module.named_children())
    run = _run(path, children, shared) if isinstance(module, (nn.ModuleList, nn.Sequential)) else None
    if run is not None:
        yield run
        return
    for name, child in children.items():
        yield from _repeats_within(child, f"{path}.{name}" if path else name, shared)


def _run(path: str, children: dict[str, nn.Module], shared: set[int]) -> Repeat | None:
    if not path or list(children) != [str(index) for index in range(len(children))]:
        return None
    numbers: dict[Hashable, int] = {}
    keys = [
        None if _holds(child, shared) or is_watched(child) else numbers.setdefault(_structure(child), len(numbers))
        for child in children.values()
    ]
    found = [
        Repeat(path=path, start=start, period=period, count=count)
        for period in range(1, LONGEST_CYCLE + 1)
        for start in range(len(keys) - (KEPT + 1) * period + 1)
        if (count := _copies(keys, start, period)) > KEPT
    ]
    return max(found, key=lambda run: (run.saved, -run.period, -run.start), default=None)


def _copies(keys: list[int | None], start: int, period: int) -> int:
    """How many times the `period` keys from `start` on follow each other."""
    end = start + period
    while end < len(keys) and keys[end] is not None and keys[end] == keys[end - period]:
        end += 1
    return (end - start) // period


def _shared_parameters(model: nn.Module) -> set[int]:
    seen: set[int] = set()
    shared: set[int] = set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def _holds(module: nn.Module, shared: set[int]) -> bool:
    return any(id(parameter) in shared for parameter in module.parameters())


def _structure(module: nn.Module) -> Hashable:
    return tuple(
        (name, type(part), _attributes(part), _tensors(part))
        for name, part in module.named_modules(remove_duplicate=False)
    )


def _tensors(module: nn.Module) -> Hashable:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return tuple((name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in own)


def _attributes(module: nn.Module) -> Hashable:
    plain = (int, float, str, bool, torch.dtype, torch.device, type(None))
    found: list[tuple[str, object]] = []
    for name, value in sorted(vars(module).items()):
        if name == "_modules" or name == "_parameters" or name == "_buffers" or _INDEX.search(name):
            continue
        if isinstance(value, plain):
            found.append((name, value))
        elif isinstance(value, (tuple, list)) and all(isinstance(part, plain) for part in value):
            found.append((name, tuple(value)))
        elif not name.startswith("_") and not isinstance(value, (dict, set)):
            found.append((name, getattr(value, "__qualname__", type(value).__qualname__)))
    return tuple(found)


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
            hooks.callback(layer.register_forward_pre_hook(made.begun).remove)
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
    first_value: object = None
    value: object = None
    held: dict[int, Hashable] = field(default_factory=dict)

    def begun(self, module: nn.Module, _: object) -> None:
        """A hook before the forward of the first two copies: what each of their modules holds."""
        self.held.update({id(part): held(part) for part in module.modules()})

    def note_first(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        """A forward hook of the first copy."""
        self._require_unchanged(module)
        self.first, self.first_value = _pytree.tree_leaves((args, kwargs)), output

    def note_second(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        """A forward hook of the second copy. Raises UnfoldableError where it is told, or tells, something else than the
        first, as the number of the layer, or tensors of other sizes."""
        self._require_unchanged(module)
        self.second, self.value = _pytree.tree_leaves((args, kwargs)), output
        told = [_plain((self.first, self.first_value)), _plain((self.second, self.value))]
        if told[0] != told[1]:
            raise UnfoldableError("a layer is told, or tells, other numbers, or sizes, than the layer before it")

    def _require_unchanged(self, module: nn.Module) -> None:
        if any(held(part) != self.held[id(part)] for part in module.modules()):
            raise UnfoldableError("a layer keeps something that its model may read")

    def again(self, args: object, kwargs: object) -> object:
        """What the second copy made. Raises UnfoldableError where a further copy is given what both were not."""
        given = _pytree.tree_leaves((args, kwargs))
        kept = [_same(a, b) for a, b in zip(self.first, self.second, strict=False)]
        if len(given) != len(self.second) or any(
            stays and not _same(b, c) for stays, b, c in zip(kept, self.second, given, strict=False)
        ):
            raise UnfoldableError("a layer is given something else than the layers before it")
        return self.value


def _plain(values: object) -> list[object]:
    """The leaves, of a tensor its sizes: where those change, what comes behind the layers counts with others."""
    return [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in _pytree.tree_leaves(values)]


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
        if is_collecting():
            raise UnfoldableError("the library collects what each of the layers makes")
        for given in _pytree.tree_leaves((args, kwargs)):
            if is_selected(given):
                raise UnfoldableError("a layer is given what a mask selects")
            if isinstance(given, torch.Tensor):
                # An assertion of nothing, which an export keeps, and with it what made its tensor: `folding_gaps`.
                torch.ops.aten._assert_tensor_metadata.default(given)
        return self._made.again(args, kwargs)

    def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found: torch.Tensor | nn.Module = getattr(self.__dict__["_layer"][0], name)
            return found
