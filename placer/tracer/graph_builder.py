"""From a partitioned graph to the immutable `Graph`: global and local references, block classes, parameters, inputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import fx, nn

from placer.graph import Block, BlockClass, Graph, Input, Op, Parameter, Tensor
from placer.tracer.export.cleaning import Plain, target_name, within
from placer.tracer.export.symbolic_rows import is_size
from placer.tracer.measure.call_cache import storage_of
from placer.tracer.measure.indices import indexed
from placer.tracer.measure.losses import found_loss
from placer.tracer.measure.op_facts import Facts, Samples, SavedBytes, kept_storages, measured_op, saved_bytes, tensors
from placer.tracer.partition.blocks import BlockNodes, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """`block_of` every node (-1 the prologue); `reference_of` the values that leave their block."""

    block_of: dict[fx.Node, int]
    reference_of: dict[fx.Node, str]


def references(plain: Plain, parts: Partition) -> References:
    """The block of each node and the global reference of each value that another block or the caller reads."""
    block_of = parts.block_of()
    found: dict[fx.Node, str] = {}
    for index, piece in ((-1, parts.prologue), *enumerate(parts.pieces)):
        leaving = [node for node in piece.nodes if any(_leaves(node, user, block_of) for user in node.users)]
        found.update({node: f"b{index}.{output}" for output, node in enumerate(leaving)})
    for node in plain.graph.nodes:
        if node.op == "placeholder":
            found[node] = f"x:{node.target}"
    return References(block_of=block_of, reference_of=found)


def assembled(name: str, plain: Plain, parts: Partition, samples: Samples, notes: tuple[str, ...]) -> Graph:
    """The Graph."""
    known = references(plain, parts)
    builder = _Builder(plain, known, samples, parts.prologue.nodes)
    prologue = builder.block(parts.prologue)
    blocks = tuple(builder.block(piece) for piece in parts.pieces)
    loss = found_loss(plain.graph, samples.first)
    results = next(node for node in reversed(plain.graph.nodes) if node.op == "output").all_input_nodes
    return Graph(
        name=name,
        rows=samples.rows,
        inputs=_inputs(plain, samples),
        classes=tuple(builder.classes),
        blocks=blocks,
        prologue=prologue,
        outputs=tuple(known.reference_of[result] for result in results),
        loss=loss.loss if loss.node is None else replace(loss.loss, value=known.reference_of[loss.node]),
        notes=notes,
    )


def _leaves(node: fx.Node, user: fx.Node, block_of: dict[fx.Node, int]) -> bool:
    return user.op == "output" or (not is_size(user) and block_of[user] != block_of[node])


def _inputs(plain: Plain, samples: Samples) -> tuple[Input, ...]:
    found = []
    for node in plain.graph.nodes:
        if node.op == "placeholder":
            tensor = tensors(node, samples)[0]
            whole = not samples.first[node].results[0].dtype.is_floating_point
            high, parts = indexed(node, tensor, samples.first) if whole else (None, None)
            found.append(Input(name=str(node.target), tensor=tensor, high=high, parts=parts))
    return tuple(found)


class _Builder:
    """Makes blocks; equal classes are kept once, under the dim names that the first of them was given.

    Names take no part in what makes classes equal: the first layer may read a tensor whose dims are known, the next
    one's input may come from an op that tells no names.
    """

    def __init__(self, plain: Plain, known: References, samples: Samples, prologue: tuple[fx.Node, ...]):
        self.classes: list[BlockClass] = []
        self._kinds: dict[BlockClass, int] = {}
        self._plain = plain
        self._known = known
        self._samples = samples
        self._saved = (
            saved_bytes(plain.graph, samples.first, prologue),
            saved_bytes(plain.graph, samples.second, prologue),
        )

    def block(self, piece: BlockNodes) -> Block:
        """The block of a piece; its class is found or added."""
        local = _BlockBuilder(piece, self._plain, self._known, self._samples, self._saved)
        for node in piece.nodes:
            local.add(node)
        block_class = local.block_class()
        return Block(
            name=piece.name,
            kind=self._kind(block_class),
            inputs=tuple(local.inputs),
            parameters=tuple(local.parameters),
        )

    def _kind(self, found: BlockClass) -> int:
        index = self._kinds.setdefault(_nameless(found), len(self.classes))
        if index == len(self.classes):
            self.classes.append(found)
        return index


def _nameless(block_class: BlockClass) -> BlockClass:
    """`block_class` without the names of dims."""
    ops = (replace(op, outputs=tuple(replace(output, dims=()) for output in op.outputs)) for op in block_class.ops)
    return replace(block_class, inputs=tuple(replace(entry, dims=()) for entry in block_class.inputs), ops=tuple(ops))


@dataclass(slots=True)
class _BlockBuilder:
    """One block being built: its formal inputs and parameters in the order of first use, its ops."""

    piece: BlockNodes
    plain: Plain
    known: References
    samples: Samples
    saved: tuple[SavedBytes, SavedBytes]
    inputs: dict[str, Tensor] = field(default_factory=dict)
    entering: dict[str, fx.Node] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    places: dict[fx.Node, str] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def add(self, node: fx.Node) -> None:
        """Add a call; a getitem only names one result of the call before it."""
        if target_name(node) == "builtin::getitem" and isinstance(node.args[0], fx.Node):
            self.places[node] = f"{self.places[node.args[0]].partition('.')[0]}.{self._output(node)}"
            return
        arguments = [argument for argument in node.all_input_nodes if not is_size(argument)]
        inputs = tuple(self._reference(argument) for argument in arguments)
        short = target_name(node).rpartition("::")[2]
        count = self.names[short] = self.names.get(short, 0) + 1
        self.places[node] = f"o{len(self.ops)}.0"
        self.ops.append(
            replace(
                measured_op(node, self.samples, self.saved),
                name=f"{short}_{count}",
                module=self._module(node),
                source=node.meta["source"],
                inputs=inputs,
            )
        )

    def block_class(self) -> BlockClass:
        """What was built."""
        leaving = [node for node in self.piece.nodes if node in self.known.reference_of]
        facts = self.samples.first
        kept = {storage for node in self.piece.nodes for storage in kept_storages(node, facts)}
        return BlockClass(
            inputs=tuple(self.inputs.values()),
            ops=tuple(self.ops),
            outputs=tuple(self.places[node] for node in leaving),
            parameters=tuple(self.parameters.values()),
            kept_inputs=_held(list(self.entering.values()), facts, kept),
            kept_outputs=_held(leaving, facts, kept),
        )

    def _output(self, node: fx.Node) -> int:
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int)
        whole = self.samples.first[source].value
        assert isinstance(whole, (tuple, list))
        return sum(isinstance(part, torch.Tensor) for part in whole[:index])

    def _reference(self, node: fx.Node) -> str:
        if node in self.places:
            return self.places[node]
        if node.op == "get_attr":
            name = str(node.target)
            self.parameters.setdefault(name, _parameter(self.plain.state[name]))
            return f"p{list(self.parameters).index(name)}"
        reference = self.known.reference_of[node]
        self.inputs.setdefault(reference, tensors(node, self.samples)[0])
        self.entering.setdefault(reference, node)
        return f"i{list(self.inputs).index(reference)}"

    def _module(self, node: fx.Node) -> str:
        """The module's path; relative to the block's own, then with a leading dot, where it lies within."""
        path: str = node.meta["module"]
        root = self.piece.root
        if root and within(path, root):
            return path[len(root) :] or "."
        return path


def _held(nodes: list[fx.Node], facts: Facts, kept: set[int]) -> tuple[int, ...]:
    """The numbers of the nodes whose storage is among those kept."""
    return tuple(i for i, node in enumerate(nodes) if any(storage_of(one) in kept for one in facts[node].results))


def _parameter(tensor: torch.Tensor) -> Parameter:
    is_weight = isinstance(tensor, nn.Parameter)
    return Parameter(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        trainable=is_weight and tensor.requires_grad,
        buffer=not is_weight,
    )
