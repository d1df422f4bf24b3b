"""A block's graph in parts: runs of ops that a compiler may have, between what must run as it is.

    mode, values -> [segment] -> talk to other ranks -> [segment] -> ... -> outputs

What talks to other ranks stays out of compiled code, so that every rank does it in the order of its program; so do
opaque parts, whose Python may decide by values, and what counts beside the ops. Ops keep their order. A segment takes
all that it reads as arguments and is known by what it does: those of like blocks are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from placer.rules.opaque import TARGET
from placer.runtime.spmd import talks, varying


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of ops. graph: takes the mode and values, gives a tuple; key: equal where two do the same; varies: whether
    sizes depend on values, so that they differ from run to run with as many rows."""

    graph: fx.Graph
    key: Hashable
    varies: bool = False


def divided(module: fx.GraphModule, runs: Callable[[Segment], nn.Module]) -> fx.GraphModule:
    """The same function as `module`, each of its segments run by what `runs` gives for it."""
    outer, root = fx.Graph(), nn.Module()
    root._modules.update(module._modules)
    root._buffers.update(module._buffers)
    known: dict[fx.Node, fx.Node] = {}
    unsized = varying(module.graph)
    for number, part in enumerate(_parts(module.graph)):
        if isinstance(part, fx.Node):
            known[part] = outer.node_copy(part, known.__getitem__)
            continue
        cut = _Cut(module, part, varies=not unsized.isdisjoint(part))
        root.add_module(f"segment{number}", runs(cut.segment()))
        made = outer.call_module(f"segment{number}", tuple(known[node] for node in (cut.mode, *cut.reads)))
        for index, node in enumerate(cut.makes):
            known[node] = outer.call_function(_item, (made, index))
    outer.lint()
    return fx.GraphModule(root, outer, type(module).__name__)


def _item(made: tuple[object, ...], index: int) -> object:
    return made[index]


def _parts(graph: fx.Graph) -> Iterator[fx.Node | list[fx.Node]]:
    """The nodes that stay as they are, and the runs between them; what is only named comes before its run."""
    run: list[fx.Node] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            yield node
        elif node.op == "call_function" and not talks(node) and not _is_opaque(node):
            run.append(node)
        else:
            yield from _whole(run)
            run = []
            yield node


def _whole(run: list[fx.Node]) -> Iterable[fx.Node | list[fx.Node]]:
    """A run as one where it has several ops: nothing is gained by compiling one."""
    return [run] if sum(map(_computes, run)) > 1 else run


def _computes(node: fx.Node) -> bool:
    """Whether it is more than a size, or a name for a part of a result."""
    ours = str(getattr(node.target, "__module__", "")).startswith("placer.")
    return ours or isinstance(node.target, torch._ops.OpOverload)


def _is_opaque(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name == TARGET


@dataclass(slots=True)
class _Cut:
    """A run of the graph of `module`: what it reads from before it, and what of it is read behind it."""

    module: fx.GraphModule
    nodes: list[fx.Node]
    varies: bool
    reads: list[fx.Node] = field(default_factory=list)

    @property
    def mode(self) -> fx.Node:
        """The graph's first argument."""
        first: fx.Node = next(iter(self.module.graph.nodes))
        return first

    @property
    def makes(self) -> list[fx.Node]:
        """The nodes that are read behind it."""
        inside = set(self.nodes)
        return [node for node in self.nodes if any(user not in inside for user in node.users)]

    def segment(self) -> Segment:
        """As a graph of its own."""
        graph = fx.Graph()
        own: dict[fx.Node, fx.Node | None] = {self.mode: graph.placeholder("mode")}
        inside = set(self.nodes)
        for source in (source for node in self.nodes for source in node.all_input_nodes):
            if source not in own and source not in inside:
                own[source] = self._given(source, graph)
        told = []
        for number, node in enumerate(self.nodes):
            args = fx.map_arg(node.args, own.__getitem__)
            kwargs = fx.map_arg(node.kwargs, own.__getitem__)
            own[node] = graph.create_node("call_function", node.target, args, kwargs, name=f"made{number}")
            told.append((node.target, str(args), str(kwargs)))
        outputs = tuple(own[node] for node in self.makes)
        graph.output(outputs)
        return Segment(graph=graph, key=(tuple(told), str(outputs), self.varies), varies=self.varies)

    def _given(self, source: fx.Node, graph: fx.Graph) -> fx.Node | None:
        """What stands for a node before the run: nothing for an axis, as what needs it stays outside."""
        if source.op == "get_attr" and str(source.target) in self.module._modules:
            return None
        self.reads.append(source)
        return graph.placeholder(f"given{len(self.reads)}")
