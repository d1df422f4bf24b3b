"""The graph of a whole model from that of three copies of its repeated layers (`folding`).

The segments of the three copies must be the same calls, each reading the copy before it as the others do; anything else
is no fold. The middle one is copied for every layer that was left out.
"""

from __future__ import annotations

import torch
from torch import fx

from placer.tracer.export.cleaning import Plain, within
from placer.tracer.export.folding import Repeat, UnfoldableError
from placer.tracer.export.symbolic_rows import is_size


def grown(plain: Plain, found: tuple[Repeat, ...], state: dict[str, torch.Tensor]) -> Plain:
    """The graph of the whole model from that of the folded one. Raises UnfoldableError where copies differ."""
    for repeat in found:
        _Grower(plain, repeat, state).grow()
    return plain


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
                index for index, node in enumerate(calls) if any(within(node.meta["module"], path) for path in paths)
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
            if within(path, own):
                node.meta["module"] = other + path[len(own) :]
                node.meta["calls"] = {
                    other + key[len(own) :] if key.startswith(own) else key: call
                    for key, call in node.meta["calls"].items()
                }
                return
