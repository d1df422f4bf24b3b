"""A rank's form of the ops of one block: values converted to what each op wants of them, local sizes, named local ops.

Sizes may depend on the rows of the microbatch: a local call is made at two numbers of rows, and what differs between
them is written as affine in `mode.rows`. A dim that grows with the rows is cut only where every row's share can be, or
where each device has rows of its own: then sizes are affine in the number of these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from placer.errors import UsageError
from placer.graph import Affine, Op
from placer.plans.plan import Plan
from placer.rules.graph_calls import tensor_arguments
from placer.rules.layouts import SAME, WHOLE, Choice, Cut, State, piece, wanted
from placer.rules.two_axis_layouts import strands
from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.collectives import exchange
from placer.runtime.spmd.graph_ops import COUNTED, REWRITTEN, STATISTICS, TALKING, local_op, with_written
from placer.runtime.spmd.local_arguments import LocalCall, LocalForm, local_call
from placer.runtime.spmd.traced_nodes import out_of_place, require_same
from placer.runtime.spmd.values import CutBlock, Values, dim_size
from placer.runtime.stages.block_code import BlockWriter, CutModel, Local
from placer.runtime.stages.piece_nodes import op_nodes, tensor_nodes
from placer.runtime.stages.rewrite import Rewrite, next_value, put_number
from placer.spmd.device_rows import own_rows_class
from placer.spmd.parameter_layouts import block_edges, block_split, parameter_states
from placer.tracer.export.symbolic_rows import is_size

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class LocalBlocks:
    """The local forms of the blocks of a plan on the rank that stands at `axis`; `states` as parameters are held."""

    plan: Plan
    axis: Axis
    states: Mapping[str, State]

    @staticmethod
    def of(plan: Plan, axis: Axis) -> LocalBlocks:
        """Of a plan whose replicas may be several devices."""
        return LocalBlocks(plan=plan, axis=axis, states=parameter_states(plan))

    def block(self, model: CutModel, index: int, into: BlockWriter) -> Local | None:
        """The local form of block `index`; None where every device runs all of it."""
        graph = self.plan.graph
        stage = next(s for s, stage in enumerate(self.plan.stages) if stage.first <= index < stage.last)
        block, layout = graph.blocks[index], self.plan.stages[stage].layout
        apart = 1 if layout is None else self.plan.layouts[layout].apart
        block_class = own_rows_class(graph.block_class(index), apart)
        found, split = block_edges(self.plan, stage, block.kind), block_split(self.plan, stage, block.kind)
        if found is None or split is None:
            return None
        nodes = op_nodes(model.module.graph, model.block_of, index)
        require_same(block, block_class, nodes)
        cut = CutBlock(
            plan=self.plan,
            model=model,
            block=block,
            block_class=block_class,
            split=split,
            edges=found,
            places={node: place for place, node in enumerate(nodes)},
            states=self.states,
            axis=self.axis,
            apart=apart,
        )
        return LocalBlock(cut, into)


class LocalBlock:
    """Writes the ops of `cut` as a rank runs them."""

    def __init__(self, cut: CutBlock, into: BlockWriter) -> None:
        self._cut, self._into = cut, into
        self._values = Values(cut=cut, into=into)

    def op(self, node: fx.Node) -> fx.Node | None:
        """The rank's form of `node`; None where it is written as it is."""
        cut = self._cut
        place = cut.places.get(node)
        if place is None:
            self._require_whole(node)
            return None
        op, choice = cut.block_class.ops[place], cut.edges.choices[place]
        with self._naming(op):
            self._require_even(op, choice)
            called = local_call(cut.block_class, op, choice, cut.axis.degree, cut.axis.rank)
            given = [self._given(node, op, choice, number, source) for number, source in enumerate(tensor_nodes(node))]
            change = cut.model.rewrites.by_node.get(node)
            if change is not None and change.function in STATISTICS:
                given = self._own_statistics(node, change, given)
            made = self._plain(node, called, given) if change is None else self._changed(node, change, called, given)
            if change is not None and change.function in STATISTICS:
                made = self._with_statistics(node, change, choice, given, made)
        made.meta = dict(node.meta)
        return self._into.counted(node, made)

    def output(self, node: fx.Node) -> fx.Node:
        """A value that leaves the block, in the layout of the border."""
        with self._naming(None):
            return self._values.wanted(node, self._cut.border(node))

    def _given(self, node: fx.Node, op: Op, choice: Choice, number: int, source: fx.Node) -> fx.Node:
        """Tensor argument `number` as the op wants it, with the rows that its window reads."""
        if source in self._cut.model.pieces.totalled(node) and choice.inputs[number].value is not WHOLE:
            raise UsageError(f"it takes the sum of {source.name} over the batch, which is cut here")
        value = self._into.entering(node, source, lambda: self._values.wanted(source, choice.inputs[number]))
        for axis, one in strands(choice):
            value = self._windowed(value, op, one, number, axis)
        return value

    def _windowed(self, value: fx.Node, op: Op, choice: Choice, number: int, along: int | None) -> fx.Node:
        """The rows of tensor argument `number` that the op's window reads along an axis."""
        halo = choice.halo[number] if choice.halo else None
        lay, axis = choice.outputs[0].value, self._cut.line(along)
        if halo is None or not isinstance(lay, Cut):
            return value
        size, per_row = dim_size(self._cut.block_class.tensor(tensor_arguments(op)[number]), halo.dim)
        if per_row:
            raise UsageError("a window slides over the rows of the batch, which are cut here; plan again")
        made = op.outputs[0].shape[lay.dim].fixed
        rows = [wanted(halo, size, *piece(made, axis.degree, rank)) for rank in range(axis.degree)]
        windows, owned = tuple((one.start, one.end) for one in rows), axis.bounds(size)
        if windows == owned:
            return value
        if all(start >= low and end <= high for (start, end), (low, high) in zip(windows, owned, strict=True)):
            (start, end), first = windows[axis.rank], owned[axis.rank][0]
            return self._into.graph.call_function(aten.slice.Tensor, (value, halo.dim, start - first, end - first))
        return self._into.graph.call_function(exchange, (value, self._values.axis(along), halo.dim, size, windows))

    def _plain(self, node: fx.Node, called: LocalCall, given: list[fx.Node]) -> fx.Node:
        args, kwargs = called.filled(node, given, self._number, lambda one: self._into.read(node, one))
        function = out_of_place(node)
        if not called.forms:
            return self._into.graph.call_function(function, args, kwargs)
        # A loss of cut classes calls no op, so that the one that counts labels along the other axis calls it.
        outer, *inner = sorted(called.forms, key=lambda form: form.name == "vocabulary_loss")
        numbers = self._numbers(outer)
        if inner:
            numbers["inner"] = (inner[0].name, self._values.axis(inner[0].axis), self._numbers(inner[0]))
        # A graph takes operators, and what can be called is one, for arguments.
        packed: tuple[object, ...] = (function, args, kwargs, self._values.axis(outer.axis), called.target)
        return self._into.graph.call_function(local_op(outer.name), packed, numbers)  # type: ignore[arg-type]

    def _numbers(self, form: LocalForm) -> dict[str, Argument]:
        """What a local op is told."""
        numbers = {name: self._number(one) for name, one in form.numbers.items()}
        return {**numbers, "order": form.order} if form.order else numbers

    def _changed(self, node: fx.Node, change: Rewrite, called: LocalCall, given: list[fx.Node]) -> fx.Node:
        """An op that the runtime rewrites in every layout: the same function on pieces, or what stands for it."""
        graph, function = self._into.graph, change.function
        pieces = self._pieces(node, change, given)
        told = change.arguments
        if function is put_number:  # it calls the op, which may write no converted value: a view of another's
            told = (cast("Argument", out_of_place(node)), *told[1:])
        arguments = fx.map_arg(told, lambda one: pieces[one] if one in pieces else self._into.sized(node, one))
        keywords: dict[str, Argument] = {"mode": self._into.mode}
        counted = function in COUNTED
        forms = [form for form in called.forms if not (counted and form.name == "mean_loss")]
        if forms:
            function = _cut_form(change, forms[0].name)
            keywords |= self._numbers(forms[0])
            if len(forms) > 1:
                keywords["other"] = self._numbers(forms[1])
            if function in TALKING:
                keywords["axis"] = self._values.axis(forms[0].axis)
        return graph.call_function(function, arguments, keywords)

    def _pieces(self, node: fx.Node, change: Rewrite, given: list[fx.Node]) -> dict[fx.Node, fx.Node]:
        """The op's tensors as it wants them, by the nodes that its rewritten form names."""
        pieces: dict[fx.Node, fx.Node] = {}
        for source, one in zip(tensor_nodes(node), given, strict=True):
            if pieces.setdefault(source, one) is not one:
                raise UsageError(f"it takes {source.name} in two layouts at once")
        if change.function is next_value:
            for written in change.arguments[1:2]:
                if isinstance(written, fx.Node) and pieces[written] is not self._into.value(written):
                    raise UsageError(f"it writes {written.target}, which is kept in another layout than it wants")
        return pieces

    def _own_statistics(self, node: fx.Node, change: Rewrite, given: list[fx.Node]) -> list[fx.Node]:
        """The tensors of a norm, running statistics that it wants otherwise than the rank holds them in memory of its
        own: it keeps them for its backward, which refuses to run where another norm has written their memory."""
        return [
            self._into.graph.call_function(aten.clone.default, (value,))
            if source in change.arguments[3:5] and value is not self._into.value(source)
            else value
            for source, value in zip(tensor_nodes(node), given, strict=True)
        ]

    def _with_statistics(
        self, node: fx.Node, change: Rewrite, choice: Choice, given: list[fx.Node], made: fx.Node
    ) -> fx.Node:
        """A norm whose running statistics reach the buffers of the rank also where these lie otherwise than it wants.

        They do where others read them otherwise, as a norm that is called twice and cut two ways: what it has written
        are pieces that were made for it.
        """
        for source, value, state in zip(tensor_nodes(node), given, choice.inputs, strict=True):
            if source in change.arguments[3:5] and value is not self._into.value(source):
                held = self._values.written(source, value, state)
                made = self._into.graph.call_function(with_written, (made, self._into.value(source), held))
        return made

    def _number(self, size: Affine) -> Argument:
        """A number, or how it is made of the rows of the microbatch."""
        if not size.per_row:
            return size.fixed
        made = self._values.rows
        if size.per_row != 1:
            made = self._into.graph.call_function(operator.mul, (made, size.per_row))
        return made if not size.fixed else self._into.graph.call_function(operator.add, (made, size.fixed))

    def _require_even(self, op: Op, choice: Choice) -> None:
        tensors = (*map(self._cut.block_class.tensor, tensor_arguments(op)), *op.outputs)
        for tensor, state in zip(tensors, (*choice.inputs, *choice.outputs), strict=True):
            self._cut.require_even(tensor, state.value)

    def _require_whole(self, node: fx.Node) -> None:
        """What is no op of the block may read only what every device has whole."""
        cut = self._cut
        if node.target is operator.getitem or is_size(node):
            return
        for source in tensor_nodes(node):
            held = cut.states.get(str(source.target), SAME) if source.op == "get_attr" else None
            state = held or cut.state(cut.reference(source))
            if state.value is not WHOLE:
                raise UsageError(f"block {cut.block.name}: {node.name} reads {source.name}, which is cut; plan again")

    @contextmanager
    def _naming(self, op: Op | None) -> Iterator[None]:
        """Errors say which op they are about."""
        try:
            yield
        except UsageError as error:
            what = "its outputs" if op is None else f"op {op.name} ({op.target}, {op.source or op.module})"
            raise UsageError(f"block {self._cut.block.name}, {what}: {error}; plan again with another split") from None


def _cut_form(change: Rewrite, form: str) -> Callable[..., object]:
    """What stands for a rewritten op that is cut."""
    found = REWRITTEN.get((change.function, form))
    if found is None:
        name = getattr(change.function, "__name__", str(change.function))
        raise UsageError(f"no rank can run {name} cut as {form!r}")
    return found
