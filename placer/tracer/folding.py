"""Repeated layers are exported once: of a run of identical layers three copies compute, and the graph is grown back.

    layers 0 .. n-1 --export of layers 0, 1 and n-1--> three segments --verify, copy the middle one--> n segments

Layers are identical when class tree, parameter shapes and plain attributes agree (indices such as layer_idx aside); a
run may repeat a cycle of up to `LONGEST_CYCLE` layers. Those that are left out give what the second copy gave, so that
what the model does between them is dead and every layer keeps its place; they must be given what the first two copies
both were given. The segments of the three copies must then be the same calls, each reading the copy before it as the
others do; anything else is no fold, and the whole model is exported.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.utils import _pytree

from placer.tracer.cleaning import Plain
from placer.tracer.lifting import is_size

KEPT = 3
LONGEST_CYCLE = 8  # Gemma 3 has a layer of global attention after five of local attention
_INDEX = re.compile(r"idx|index|layer_id|layer_number|block_id")


class UnfoldableError(Exception):
    """The copies are not alike after all."""


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


def grown(plain: Plain, found: tuple[Repeat, ...], state: dict[str, torch.Tensor]) -> Plain:
    """The graph of the whole model from that of the folded one. Raises UnfoldableError where copies differ."""
    for repeat in found:
        _Grower(plain, repeat, state).grow()
    return plain


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
        None if _holds(child, shared) else numbers.setdefault(_structure(child), len(numbers))
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


class _Grower:
    """Grows one run of one graph."""

    def __init__(self, plain: Plain, repeat: Repeat, state: dict[str, torch.Tensor]):
        self._graph = plain.graph
        self._state = plain.state
        self._whole = state
        self._repeat = repeat
        self._last = repeat.count - 1
        self._attributes = {str(node.target): node for node in plain.graph.nodes if node.op == "get_attr"}

    def grow(self) -> None:
        """Verify the three segments, copy the middle one for every layer that was left out."""
        segments = self._segments()
        places = [{node: offset for offset, node in enumerate(segment)} for segment in segments]
        for first, second in ((0, 1), (1, 2)):
            for a, b in zip(segments[first], segments[second], strict=True):
                if a.target != b.target:
                    raise UnfoldableError(f"{a.target} against {b.target}")
                self._compare((a.args, a.kwargs), (b.args, b.kwargs), first, places)
        inside = {node for segment in segments[:2] for node in segment}
        known = inside | set(segments[2])
        if any(user not in known for node in inside for user in node.users):
            raise UnfoldableError("a value of an inner layer is read after the last one")
        self._copy_middle(segments, places)

    def _segments(self) -> list[list[fx.Node]]:
        calls = [node for node in self._graph.nodes if node.op == "call_function" and not is_size(node)]
        copies = (0, 1, self._last)
        starts = []
        for copy in copies:
            paths = tuple(f"{self._repeat.path}.{child}" for child in self._repeat.children(copy))
            inside = (
                index
                for index, node in enumerate(calls)
                if any(node.meta["module"] == path or node.meta["module"].startswith(path + ".") for path in paths)
            )
            starts.append(next(inside, -1))
        length = starts[1] - starts[0]
        if starts[0] < 0 or length < 1 or starts[2] - starts[1] != length or starts[2] + length > len(calls):
            raise UnfoldableError("the copies do not follow each other evenly")
        return [calls[start : start + length] for start in starts]

    def _compare(self, a: object, b: object, segment: int, places: list[dict[fx.Node, int]]) -> None:
        """Require that `b` of the next segment is to its surroundings what `a` is in `segment`."""
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b):
            for left, right in zip(a, b, strict=True):
                self._compare(left, right, segment, places)
        elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            for key in a:
                self._compare(a[key], b[key], segment, places)
        elif isinstance(a, fx.Node) and isinstance(b, fx.Node):
            self._compare_nodes(a, b, segment, places)
        elif a != b and repr(a) != repr(b):
            raise UnfoldableError(f"{a!r} against {b!r}")

    def _compare_nodes(self, a: fx.Node, b: fx.Node, segment: int, places: list[dict[fx.Node, int]]) -> None:
        here, there = places[segment], places[segment + 1]
        if a in here:
            alike = there.get(b) == here[a]
        elif segment == 0:
            # What the first copy reads from before the run, the second reads from there too or from the first copy.
            alike = a is b or b in here or self._renamed(a, 0, 1) == b.target
        elif a in places[0]:
            alike = here.get(b) == places[0][a]
        else:
            alike = a is b or self._renamed(a, 1, self._last) == b.target
        if not alike:
            raise UnfoldableError(f"{a} against {b}")

    def _renamed(self, node: fx.Node, old: int, new: int) -> str:
        """The name of the parameter in copy `new` that `node` names in copy `old`, "" for other nodes."""
        if node.op != "get_attr":
            return ""
        for before, after in zip(self._repeat.children(old), self._repeat.children(new), strict=True):
            prefix = f"{self._repeat.path}.{before}."
            if str(node.target).startswith(prefix):
                return f"{self._repeat.path}.{after}.{str(node.target)[len(prefix) :]}"
        return ""

    def _copy_middle(self, segments: list[list[fx.Node]], places: list[dict[fx.Node, int]]) -> None:
        middle, last = segments[1], segments[2]
        before = middle
        with self._graph.inserting_before(last[0]):
            for copy in range(2, self._last):
                made: list[fx.Node] = []
                for node in middle:
                    made.append(self._graph.node_copy(node, self._reader(copy, places, before, made)))
                    self._place(made[-1], copy)
                before = made
        offsets = places[1]
        for node in last:
            node.args = fx.map_arg(node.args, lambda n: before[offsets[n]] if n in offsets else n)
            node.kwargs = fx.map_arg(node.kwargs, lambda n: before[offsets[n]] if n in offsets else n)

    def _reader(self, copy: int, places: list[dict[fx.Node, int]], before: list[fx.Node], made: list[fx.Node]):  # type: ignore[no-untyped-def]
        def read(node: fx.Node) -> fx.Node:
            if node in places[1]:
                return made[places[1][node]]
            if node in places[0]:
                return before[places[0][node]]
            name = self._renamed(node, 1, copy)
            return self._attribute(name) if name else node

        return read

    def _attribute(self, name: str) -> fx.Node:
        if name not in self._attributes:
            if name not in self._whole:
                raise UnfoldableError(f"the model has no {name}")
            first = next(iter(self._graph.nodes))
            with self._graph.inserting_before(first):
                self._attributes[name] = self._graph.create_node("get_attr", name)
            self._state[name] = self._whole[name]
        found: fx.Node = self._attributes[name]
        return found

    def _place(self, node: fx.Node, copy: int) -> None:
        """Give a copied node the module of its own layer."""
        node.meta = dict(node.meta)
        for old, new in zip(self._repeat.children(1), self._repeat.children(copy), strict=True):
            own, other = f"{self._repeat.path}.{old}", f"{self._repeat.path}.{new}"
            path = node.meta["module"]
            if path == own or path.startswith(own + "."):
                node.meta["module"] = other + path[len(own) :]
                node.meta["calls"] = {
                    other + key[len(own) :] if key.startswith(own) else key: call
                    for key, call in node.meta["calls"].items()
                }
                return
