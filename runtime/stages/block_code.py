"""The captured graph cut into one module per block; a stage is a range of them.

A block's module is a function: it takes the values it reads by global reference (`x:input_ids`, `b-1.0`, `b3.0`),
parameters and buffers by the model's own names (`p:lm_head.weight`), and returns the values that others read. Sizes
(integers, symbolic or not) are never values between blocks: each block computes those it needs from the tensors at
hand. Ops that neither the loss nor a buffer needs are left out. A block that writes a buffer returns the value that the
buffer is to have at the end of the step (`w:norm.mean`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import attrgetter
from typing import Protocol, cast

import torch
from torch import fx, nn

from placer.errors import UsageError
from placer.runtime.stages.kept_results import keep_result
from placer.runtime.stages.losses import batch_total, times_share
from placer.runtime.stages.piece_nodes import PieceNodes
from placer.runtime.stages.rewrite import Rewrites, first_argument, mutates, rewrites, writes_buffer
from placer.runtime.stages.shapes import TensorMeta
from placer.tracer.export.cleaning import writes_statistics
from placer.tracer.export.symbolic_rows import counted_sizes, is_size

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCode:
    """The module of one block: `module(mode, *inputs)` returns the values `outputs`, both by global references."""

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: fx.GraphModule


class Local(Protocol):
    """How the ops of a block are written where they are cut over the devices of a replica."""

    def op(self, node: fx.Node) -> fx.Node | None:
        """The rank's form of `node`; None where it is written as it is."""
        ...

    def output(self, node: fx.Node) -> fx.Node:
        """A value as it leaves the block."""
        ...


class Lowering(Protocol):
    """Which blocks are cut over the devices of a replica."""

    def block(self, model: CutModel, index: int, into: BlockWriter) -> Local | None:
        """How block `index` is written `into` its graph; None where every device runs all of it."""
        ...


@dataclass(frozen=True, kw_only=True)
class CutModel:
    """A captured model ready to be cut: `model` holds the parameters, `module` the graph and its constants.

    shapes: of every tensor of the graph, at `MARKED_ROWS` rows. shape_at: of one of them at any number of rows, without
    autocast. reached: the nodes, of weights and values, that a gradient of the loss comes back to, as autograd on one
    device has it. pieces: what rows of the batch do otherwise than all of it.
    lowering: where replicas have several devices. kept: the products that keep their results where the rest of their
    block runs again.
    """

    model: nn.Module
    module: fx.GraphModule
    block_of: Mapping[str, int]
    reference_of: Mapping[str, str]
    loss: str
    shapes: Mapping[fx.Node, tuple[int, ...]]
    shape_at: Callable[[fx.Node, int], TensorMeta]
    reached: frozenset[fx.Node]
    pieces: PieceNodes
    lowering: Lowering | None = None
    kept: frozenset[fx.Node] = frozenset()

    @cached_property
    def rewrites(self) -> Rewrites:
        """What is called instead of the captured op, by node."""
        return rewrites(self.module.graph, self.pieces, self.shapes)

    @cached_property
    def loss_node(self) -> fx.Node | None:
        """The node of the loss."""
        names = (name for name, reference in self.reference_of.items() if self.loss and reference == self.loss)
        name = next(names, None)
        return next((node for node in self.module.graph.nodes if node.name == name), None)

    @cached_property
    def trained(self) -> frozenset[str]:
        """The weights that get a gradient."""
        return frozenset(str(node.target) for node in self.reached if node.op == "get_attr")

    @cached_property
    def reached_values(self) -> frozenset[str]:
        """The values between blocks that get a gradient, by their references."""
        return frozenset(map(self.name, self.reached))

    @cached_property
    def written(self) -> frozenset[str]:
        """The buffers that forward writes."""
        return frozenset(str(first_argument(node).target) for node in self.module.graph.nodes if writes_buffer(node))

    @cached_property
    def home(self) -> dict[fx.Node, int]:
        """The block of every node that computes; writes to a buffer belong to the block that reads the buffer."""
        found: dict[fx.Node, int] = {}
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                before = max((found.get(a, -1) for a in node.all_input_nodes), default=-1)
                found[node] = self.block_of.get(node.name, before)
        for node, home in found.items():
            if home < 0 and writes_buffer(node):
                found[node] = self._owner_block(str(first_argument(node).target), found)
        return found

    @cached_property
    def wanted(self) -> frozenset[fx.Node]:
        """The nodes that the loss or a buffer needs."""
        order = list(self.module.graph.nodes)
        goal = self.module.graph.output_node() if self.loss_node is None else self.loss_node
        keep = {goal, *filter(writes_buffer, order), *filter(writes_statistics, order)}
        size = 0
        while size != len(keep):
            size = len(keep)
            for node in reversed(order):
                if node in keep:
                    keep.update(node.all_input_nodes)
                elif mutates(node) and node.args[0] in keep:
                    keep.add(node)
        return frozenset(keep)

    @cached_property
    def nodes_of(self) -> dict[int, tuple[fx.Node, ...]]:
        """The wanted nodes of each block that are not sizes, in order."""
        lists: dict[int, list[fx.Node]] = {}
        for node in self.module.graph.nodes:
            if node in self.home and node in self.wanted and not is_size(node):
                lists.setdefault(self.home[node], []).append(node)
        return {block: tuple(nodes) for block, nodes in lists.items()}

    @cached_property
    def outputs_of(self) -> dict[int, tuple[fx.Node, ...]]:
        """The nodes of each block that other blocks read, the loss, and what its buffers are to be."""
        leaving: dict[fx.Node, None] = {}
        for block, nodes in self.nodes_of.items():
            for node in nodes:
                if writes_buffer(node):
                    leaving[node] = None
                for source in _tensors(node):
                    if source in self.home and self.home[source] != block:
                        leaving[source] = None
        if self.loss_node is not None:
            leaving[self.loss_node] = None
        found: dict[int, list[fx.Node]] = {}
        for node in leaving:
            if node in self.home:
                found.setdefault(self.home[node], []).append(node)
        return {block: tuple(nodes) for block, nodes in found.items()}

    def name(self, node: fx.Node) -> str:
        """The global reference of a value that crosses blocks."""
        if node.op == "placeholder":
            return f"x:{node.target}"
        if writes_buffer(node):
            return f"w:{first_argument(node).target}"
        return self.reference_of.get(node.name, f"n:{node.name}")

    def block(self, index: int) -> BlockCode:
        """The module of block `index` with all its outputs."""
        return self._code(index, self.nodes_of.get(index, ()), self.outputs_of.get(index, ()))

    def prologue(self, references: Iterable[str]) -> BlockCode:
        """A module that computes those of `references` that belong to the prologue, from the model's inputs."""
        asked = set(references)
        outputs = tuple(node for node in self.outputs_of.get(-1, ()) if self.name(node) in asked)
        keep = set(outputs)
        for node in reversed(self.nodes_of.get(-1, ())):
            if node in keep:
                keep.update(_tensors(node))
        return self._code(-1, tuple(n for n in self.nodes_of.get(-1, ()) if n in keep), outputs)

    def state(self, target: str) -> torch.Tensor | None:
        """The model's own parameter or buffer that a `get_attr` target stands for; None for a constant of the graph."""
        found = _attribute(self.model, target)
        return found if isinstance(found, torch.Tensor) else None

    def _owner_block(self, target: str, home: dict[fx.Node, int]) -> int:
        prefix = target.rpartition(".")[0]
        for node, block in home.items():
            for source in node.all_input_nodes:
                if block >= 0 and source.op == "get_attr" and str(source.target).rpartition(".")[0] == prefix:
                    return block
        return 0

    def _code(self, index: int, nodes: tuple[fx.Node, ...], outputs: tuple[fx.Node, ...]) -> BlockCode:
        writer = BlockWriter(self, index)
        for node in nodes:
            writer.copy(node)
        return writer.code(outputs)


class BlockWriter:
    """Writes the graph of one block; where it is cut over the devices of a replica, as the rank runs it."""

    def __init__(self, cut: CutModel, index: int) -> None:
        self._cut, self._index = cut, index
        self.graph = fx.Graph()
        self._root = nn.Module()
        self._written: dict[fx.Node, fx.Node] = {}
        self._inputs: dict[str, None] = {}
        self.mode = self.graph.placeholder("mode")
        self._after_inputs = self.mode
        self._attached: dict[str, fx.Node] = {}
        lowering = cut.lowering if index >= 0 else None
        self._local = None if lowering is None else lowering.block(cut, index, self)

    def copy(self, node: fx.Node) -> None:
        """Write `node` with what it reads."""
        found = None if self._local is None else self._local.op(node)
        if found is not None:
            self._written[node] = found
        else:
            self._copy(node)
        if node in self._cut.kept:
            keep_result(self._written[node])

    def _copy(self, node: fx.Node) -> None:
        change = self._cut.rewrites.by_node.get(node)
        if mutates(node) and not writes_buffer(node):
            self._own(node)
        if change is None:
            read = {source: self.read(node, source) for source in node.all_input_nodes}
            self._written[node] = self.counted(node, self.graph.node_copy(node, read.__getitem__))
            return
        arguments = fx.map_arg(change.arguments, lambda source: self.sized(node, source))
        new = self.graph.call_function(change.function, arguments, {"mode": self.mode})
        new.meta = dict(node.meta)
        self._written[node] = new

    def read(self, node: fx.Node, source: fx.Node) -> fx.Node:
        """What stands for `source` where `node` reads it."""
        return self.entering(node, source, lambda: self.sized(node, source))

    def sized(self, node: fx.Node, source: fx.Node) -> fx.Node:
        """What stands for `source` in a call in place of `node`: a size that it reckons with is that of the batch."""
        return self._of_batch(source) if source in counted_sizes(node) else self.value(source)

    def entering(self, node: fx.Node, source: fx.Node, value: Callable[[], fx.Node]) -> fx.Node:
        """The `value` that `node` reads of `source`, or its sum over the batch, or what these rows count of it."""
        pieces = self._cut.pieces
        if source in pieces.totalled(node):
            return self.graph.call_function(batch_total, (pieces.totals.index(source),), {"mode": self.mode})
        if source in pieces.shared(node):
            return self.graph.call_function(times_share, (value(),), {"mode": self.mode})
        return value()

    def counted(self, node: fx.Node, made: fx.Node) -> fx.Node:
        """The result of `node`; a mean over these rows, and a number added to it, count by their share of the batch."""
        if self._cut.pieces.adds_number(node):
            if not (isinstance(made.args[1], int | float) or node.args[1] in counted_sizes(node)):
                raise UsageError(f"the number that {node.name} adds to a part of a sum is not at hand where it is cut")
            with self.graph.inserting_before(made):
                made.update_arg(1, self.graph.call_function(times_share, (made.args[1],), {"mode": self.mode}))
        if self._cut.pieces.averages(node) != "rows":
            return made
        shared = self.graph.call_function(times_share, (made,), {"mode": self.mode})
        shared.meta = dict(node.meta)
        return shared

    def code(self, outputs: tuple[fx.Node, ...]) -> BlockCode:
        """The finished block."""
        self.graph.output(tuple(map(self._leaving, outputs)))
        self.graph.lint()
        return BlockCode(
            index=self._index,
            inputs=tuple(self._inputs),
            outputs=tuple(self._cut.name(node) for node in outputs),
            module=fx.GraphModule(self._root, self.graph, f"Block{self._index}"),
        )

    def _leaving(self, node: fx.Node) -> fx.Node:
        """A value as it leaves the block; of a buffer the part that this rank has."""
        return self.value(node) if self._local is None or writes_buffer(node) else self._local.output(node)

    def attached(self, name: str, module: nn.Module) -> fx.Node:
        """A module that the graph holds under `name`."""
        if name not in self._attached:
            put(self._root, name, module)
            with self.graph.inserting_after(self._after_inputs):
                self._attached[name] = self.graph.get_attr(name)
        return self._attached[name]

    @property
    def rows(self) -> fx.Node:
        """The rows of the microbatch."""
        if "rows" not in self._attached:
            with self.graph.inserting_after(self._after_inputs):
                self._attached["rows"] = self.graph.create_node(
                    "call_function", getattr, (self.mode, "rows"), name="rows"
                )
        return self._attached["rows"]

    def value(self, node: fx.Node) -> fx.Node:
        """What stands for a node of the model's graph here."""
        if node not in self._written:
            self._written[node] = self._make(node)
        return self._written[node]

    def _make(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr":
            return self._constant(node)
        if is_size(node):
            return self._size(node)
        return self._input(node, self._cut.name(node))

    def _constant(self, node: fx.Node) -> fx.Node:
        target = str(node.target)
        if self._cut.state(target) is not None:
            return self._input(node, f"p:{target}")
        put(self._root, target, _attribute(self._cut.module, target))
        return self.graph.get_attr(target)

    def _size(self, node: fx.Node) -> fx.Node:
        """A size, computed again from the model input it comes from."""
        for source in node.all_input_nodes:
            self.value(source)
        return self.graph.node_copy(node, self.value)

    def _of_batch(self, node: fx.Node) -> fx.Node:
        """A size, computed from the rows of the whole batch."""
        if node.target is aten.sym_size.int:
            return self.graph.call_function(getattr, (self.mode, "global_rows"))
        return self.graph.node_copy(node, self._of_batch)

    def _input(self, node: fx.Node, name: str) -> fx.Node:
        self._inputs[name] = None
        with self.graph.inserting_after(self._after_inputs):
            new = self.graph.placeholder(f"v{len(self._inputs)}_{node.name}")
        self._after_inputs = new
        new.meta = dict(node.meta)
        return new

    def _own(self, node: fx.Node) -> None:
        """An op that writes a value of another block writes a copy: the received value must stay as it was."""
        base = first_argument(node)
        if self.value(base).op != "placeholder":
            return
        later = [u for u in base.users if self._cut.home.get(u, self._index) != self._index and node < u]
        if later:
            raise UsageError(
                f"{node.name} ({node.meta.get('source', '')}) writes a value in place that another block reads later; "
                "use the out-of-place form"
            )
        self._written[base] = self.graph.call_function(aten.clone.default, (self.value(base),))


def _tensors(node: fx.Node) -> Iterable[fx.Node]:
    """The tensors a node reads, those its sizes are computed from included."""
    for source in node.all_input_nodes:
        if is_size(source):
            yield from _tensors(source)
        else:
            yield source


def attribute(owner: nn.Module, name: str) -> torch.Tensor:
    """The tensor under a dotted name."""
    return cast(torch.Tensor, attrgetter(name)(owner))


def _attribute(owner: object, target: str) -> object | None:
    return reduce(lambda found, part: getattr(found, part, None), target.split("."), owner)


def put(root: nn.Module, target: str, value: object) -> None:
    """Attach `value` to `root` under the dotted name `target`."""
    *path, leaf = target.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    elif isinstance(value, torch.Tensor):
        root.register_buffer(leaf, value)
    else:
        setattr(root, leaf, value)
