"""A rank's form of the ops of one block: values converted to what each op wants of them, local sizes, named local ops.

Sizes may depend on the rows of the microbatch: a local call is made at two numbers of rows, and what differs between
them is written as a line in `mode.rows`. A dim that grows with the rows is cut only where every row's share can be.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.fx.node import Argument

from placer.errors import StalePlanError, UsageError
from placer.graph import Affine, Block, BlockClass, Op, Parameter, Tensor
from placer.plans import Plan
from placer.rules import tensor_arguments
from placer.rules.layouts import SAME, WHOLE, Choice, Cut, Lay, State, piece, wanted
from placer.runtime.cut import Cut as Model
from placer.runtime.cut import Local, Writer
from placer.runtime.lowering.arguments import Line, LocalCall, local_call
from placer.runtime.lowering.axis import Axis
from placer.runtime.lowering.conversions import CONVERSIONS, Way, way
from placer.runtime.lowering.forms import COUNTED, REWRITTEN, SHARES, TALKING, local_op, weighted
from placer.runtime.lowering.halo import exchange
from placer.runtime.rewrite import Rewrite, batch_norm, is_size, mutates
from placer.splitting import Edges, block_edges, border_state, parameter_states, value_state

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class LocalBlocks:
    """The local forms of the blocks of a plan on the rank that stands at `axis`."""

    plan: Plan
    axis: Axis
    states: Mapping[str, State]

    @staticmethod
    def of(plan: Plan, axis: Axis) -> LocalBlocks:
        """Of a plan with layouts."""
        return LocalBlocks(plan=plan, axis=axis, states=parameter_states(plan))

    def block(self, model: Model, index: int) -> Local | None:
        """The local form of block `index`; None where every device runs all of it."""
        graph = self.plan.graph
        stage = next(s for s, stage in enumerate(self.plan.stages) if stage.first <= index < stage.last)
        block, kind = graph.blocks[index], graph.block_class(index)
        found = block_edges(self.plan, stage, block.kind)
        if found is None:
            self._require_whole(block)
            return None
        places = dict(zip(_op_nodes(model, index), range(len(kind.ops)), strict=False))
        _require_same(block, kind, places)
        layout = self.plan.stages[stage].layout
        split = None if layout is None else self.plan.layouts[layout].splits[block.kind]
        assert split is not None
        return LocalBlock(
            plan=self.plan,
            model=model,
            block=block,
            kind=kind,
            edges=found,
            places=places,
            inputs=tuple(map(border_state, split.inputs)),
            outputs=tuple(map(border_state, split.outputs)),
            states=self.states,
            axis=self.axis,
        )

    def _require_whole(self, block: Block) -> None:
        cut = [name for name in block.parameters if isinstance(self.states.get(name, SAME).value, Cut)]
        assert not cut, f"{cut} are read whole by {block.name}, hence kept whole"


@dataclass(kw_only=True)
class LocalBlock:
    """Writes the ops of one block as a rank runs them."""

    plan: Plan
    model: Model
    block: Block
    kind: BlockClass
    edges: Edges
    places: Mapping[fx.Node, int]
    inputs: tuple[State, ...]
    outputs: tuple[State, ...]
    states: Mapping[str, State]
    axis: Axis
    _converted: dict[tuple[fx.Node, State], fx.Node] = field(default_factory=dict)
    _parameters: dict[str, fx.Node] = field(default_factory=dict)

    def op(self, node: fx.Node, into: Writer) -> fx.Node | None:
        """The rank's form of `node`; None where it is written as it is."""
        place = self.places.get(node)
        if place is None:
            self._require_whole(node)
            return None
        op, choice = self.kind.ops[place], self.edges.choices[place]
        with self._naming(op):
            self._require_even_rows(op, choice)
            given = self._arguments(node, place, into)
            change = self.model.rewrites.by_node.get(node)
            called = local_call(self.kind, op, choice, self.axis.degree, self.axis.rank)
            made = self._plain(node, called, given, into) if change is None else self._changed(
                node, change, called, given, into
            )  # fmt: skip
        made.meta = dict(node.meta)
        return made

    def output(self, node: fx.Node, into: Writer) -> fx.Node:
        """A value that leaves the block, in the layout of the border."""
        with self._naming(None):
            return self._wanted(node, self._border(node), into)

    # -- arguments

    def _arguments(self, node: fx.Node, place: int, into: Writer) -> list[fx.Node]:
        """The tensor arguments as the op wants them, in order."""
        found = []
        for number, source in enumerate(_tensor_nodes(node)):
            value = self._wanted(source, self.edges.choices[place].inputs[number], into)
            found.append(self._window(value, place, number, into))
        return found

    def _wanted(self, source: fx.Node, want: State, into: Writer) -> fx.Node:
        """A value in the state `want`; all who want the same share one conversion.

        What an op reads is taken from the traced graph, not from the plan's: a cast that does nothing in the precision
        of the capture hands on its argument, so that there its users read one or the other.
        """
        if (source, want) not in self._converted:
            value, reference = self._value(source, into), self._reference(source)
            made = self._conversion(value, self._tensor(reference), self._have(reference), want, into)
            self._converted[source, want] = made
        return self._converted[source, want]

    def _reference(self, source: fx.Node) -> str:
        """What the block class calls a value, or its global name where the class does not read it."""
        if source in self.places:
            return f"o{self.places[source]}.0"
        if source.target is operator.getitem:
            whole, index = source.args
            assert isinstance(whole, fx.Node) and isinstance(index, int)
            if whole in self.places:
                return f"o{self.places[whole]}.{index}"
        if source.op == "get_attr" and str(source.target) in self.block.parameters:
            return f"p{self.block.parameters.index(str(source.target))}"
        name = self.model.name(source)
        return f"i{self.block.inputs.index(name)}" if name in self.block.inputs else name

    def _have(self, reference: str) -> State:
        """The state of a value as its maker left it."""
        if reference[0] == "o":
            op, number = reference[1:].split(".")
            return self.edges.choices[int(op)].outputs[int(number)]
        if reference[0] == "p":
            return self.edges.parameters[int(reference[1:])]
        if reference[0] == "i":
            return self.inputs[int(reference[1:])]
        return value_state(self.plan, reference) if reference[0] == "b" else SAME

    def _tensor(self, reference: str) -> Tensor | Parameter:
        return self.kind.tensor(reference) if reference[0] in "oip" else self.plan.graph.value(reference)

    def _value(self, source: fx.Node, into: Writer) -> fx.Node:
        """A value as its maker left it; a parameter in the state in which this block keeps it."""
        name = str(source.target)
        if source.op != "get_attr" or name not in self.block.parameters:
            return into.value(source)
        if name not in self._parameters:
            index = self.block.parameters.index(name)
            # A constant of the graph is the graph's own, whole on every rank.
            known = self.model.state(name) is not None
            held, kept = self.states.get(name, SAME) if known else SAME, self.edges.parameters[index]
            parameter = self.kind.parameters[index]
            self._parameters[name] = self._conversion(into.value(source), parameter, held, kept, into)
        return self._parameters[name]

    def _conversion(
        self, value: fx.Node, tensor: Tensor | Parameter, have: State, want: State, into: Writer
    ) -> fx.Node:
        """A value in another state, and its gradient in that of the value."""
        if have == want:
            return value
        trains = tensor.trainable and not tensor.buffer if isinstance(tensor, Parameter) else tensor.requires_grad
        forward = way(have.value, want.value, self._uneven(tensor, have.value))
        returned = way(want.gradient, have.gradient, self._uneven(tensor, want.gradient)) if trains else Way("same")
        if forward.name == returned.name == "same":
            return value
        function = CONVERSIONS[forward.name]
        return into.graph.call_function(
            function, (value, into.attached("axis", self.axis), forward), {"gradient": returned}
        )

    def _uneven(self, tensor: Tensor | Parameter, lay: Lay) -> int | None:
        """The size of the dim that `lay` cuts, where its pieces differ."""
        if not isinstance(lay, Cut):
            return None
        size = _size(tensor, lay.dim)
        return None if size.fixed % self.axis.degree == 0 else size.fixed

    def _window(self, value: fx.Node, place: int, number: int, into: Writer) -> fx.Node:
        """The rows that a sliding window reads, its neighbours' among them."""
        op, choice = self.kind.ops[place], self.edges.choices[place]
        halo = choice.halo[number] if choice.halo else None
        lay = choice.outputs[0].value
        if halo is None or not isinstance(lay, Cut):
            return value
        degree = self.axis.degree
        size = _size(self.kind.tensor(tensor_arguments(op)[number]), halo.dim).fixed
        made = op.outputs[0].shape[lay.dim].fixed
        rows = [wanted(halo, size, *piece(made, degree, rank)) for rank in range(degree)]
        windows = tuple((one.start, one.end) for one in rows)
        owned = self.axis.bounds(size)
        if windows == owned:
            return value
        if all(start >= low and end <= high for (start, end), (low, high) in zip(windows, owned, strict=True)):
            (start, end), first = windows[self.axis.rank], owned[self.axis.rank][0]
            return into.graph.call_function(aten.slice.Tensor, (value, halo.dim, start - first, end - first))
        axis = into.attached("axis", self.axis)
        return into.graph.call_function(exchange, (value, axis, halo.dim, size, windows))

    # -- ops

    def _plain(self, node: fx.Node, called: LocalCall, given: list[fx.Node], into: Writer) -> fx.Node:
        args, kwargs = called.filled(node, given, lambda one: _number(one, into), into.value)
        function = self._out_of_place(node)
        if not called.name:
            return into.graph.call_function(function, args, kwargs)
        numbers = {name: _number(one, into) for name, one in called.numbers.items()}
        axis = into.attached("axis", self.axis)
        return into.graph.call_function(local_op(called.name), (function, args, kwargs, axis, called.target), numbers)

    def _changed(
        self, node: fx.Node, change: Rewrite, called: LocalCall, given: list[fx.Node], into: Writer
    ) -> fx.Node:
        """An op that the runtime rewrites in every layout: the same function on pieces, or what stands for it."""
        sources = list(_tensor_nodes(node))
        pieces: dict[fx.Node, fx.Node] = {}
        for source, one in zip(sources, given, strict=True):
            if pieces.setdefault(source, one) is not one:
                raise UsageError(f"it takes {source.name} in two layouts at once, which {change.function} cannot")
        self._require_buffers_as_held(change, pieces, into)
        arguments = fx.map_arg(change.arguments, lambda one: pieces[one] if one in pieces else into.value(one))
        keywords: dict[str, Argument] = {"mode": into.mode}
        function, form = change.function, called.name
        if form == "mean_share" and function in SHARES:
            share = into.graph.call_function(function, arguments, keywords)
            part, of = called.ratio("part", "of")
            return into.graph.call_function(weighted, (share, part, of))
        if form and not (form == "mean_loss" and function in COUNTED):
            function = self._form(change, form)
            keywords |= {name: _number(one, into) for name, one in called.numbers.items()}
            if function in TALKING:
                keywords["axis"] = into.attached("axis", self.axis)
        return into.graph.call_function(function, arguments, keywords)

    def _form(self, change: Rewrite, form: str) -> Callable[..., object]:
        found = REWRITTEN.get((change.function, form))
        if found is None:
            name = getattr(change.function, "__name__", str(change.function))
            raise UsageError(f"no rank can run {name} cut as {form!r}")
        return found

    def _require_buffers_as_held(self, change: Rewrite, pieces: dict[fx.Node, fx.Node], into: Writer) -> None:
        """Running statistics are written in place: they must be the buffers themselves."""
        if change.function is batch_norm:
            for source in change.arguments[3:5]:
                if isinstance(source, fx.Node) and pieces[source] is not into.value(source):
                    raise UsageError(f"it writes {source.target}, which is kept in another layout than it wants")

    def _out_of_place(self, node: fx.Node) -> Callable[..., object]:
        """The op that leaves its argument as it is: converted values may be views of others."""
        target = node.target
        assert callable(target)
        if target in (aten.view.default, aten._unsafe_view.default):
            # A piece may lie in memory otherwise than the whole.
            return aten.reshape.default
        if not mutates(node):
            return target
        base = node.args[0]
        assert isinstance(base, fx.Node)
        if base.op == "get_attr" or any(node < user for user in base.users if user is not node):
            raise UsageError("it writes a value that is read later; use the out-of-place form in the model")
        packet = getattr(aten, target._schema.name.partition("::")[2].rstrip("_"), None)  # type: ignore[attr-defined]
        found = getattr(packet, target._overloadname, None)  # type: ignore[attr-defined]
        if found is None:
            raise UsageError("it writes in place and has no other form; use one in the model")
        return found  # type: ignore[no-any-return]

    # -- what cannot be run

    def _require_even_rows(self, op: Op, choice: Choice) -> None:
        """A dim that grows with the rows is cut only where its pieces grow alike."""
        pairs = [
            *zip(map(self.kind.tensor, tensor_arguments(op)), choice.inputs, strict=True),
            *zip(op.outputs, choice.outputs, strict=True),
        ]
        for tensor, state in pairs:
            if isinstance(state.value, Cut) and not state.value.own:
                size = _size(tensor, state.value.dim)
                if size.per_row and (size.fixed % self.axis.degree or size.per_row % self.axis.degree):
                    raise UsageError(
                        f"it is cut as {choice.name!r} on a dim of {size.per_row} per row of the batch, which "
                        f"{self.axis.degree} devices cannot share evenly; use replicas, or another choice"
                    )

    def _require_whole(self, node: fx.Node) -> None:
        """What is not an op of the block (a write to a buffer) may read only what every device has whole."""
        if node.target is operator.getitem or is_size(node):
            return
        for source in _tensor_nodes(node):
            place = self.places.get(source)
            lays = [state.value for state in self.edges.choices[place].outputs] if place is not None else []
            if source.op == "get_attr":
                lays = [self.states.get(str(source.target), SAME).value]
            if any(lay is not WHOLE for lay in lays):
                raise UsageError(f"block {self.block.name}: {node.name} reads {source.name}, which is cut; plan again")

    def _border(self, node: fx.Node) -> State:
        """The state in which a value leaves the block."""
        reference = self.model.name(node)
        prefix, _, number = reference.partition(".")
        if not prefix.startswith("b") or not number.isdigit():
            raise UsageError(
                f"block {self.block.name} gives {node.name}, which the plan's graph does not know; plan again"
            )
        return self.outputs[int(number)]

    @contextmanager
    def _naming(self, op: Op | None) -> Iterator[None]:
        """Errors say which op they are about."""
        try:
            yield
        except UsageError as error:
            what = "its outputs" if op is None else f"op {op.name} ({op.target}, {op.source or op.module})"
            raise UsageError(f"block {self.block.name}, {what}: {error}; plan again with another split") from None


def _size(tensor: Tensor | Parameter, dim: int) -> Affine:
    size = tensor.shape[dim]
    return size if isinstance(size, Affine) else Affine(size)


def _op_nodes(model: Model, index: int) -> list[fx.Node]:
    """The nodes of a block that are ops of its class, in order; `getitem` only names a result."""
    return [
        node
        for node in model.module.graph.nodes
        if node.op == "call_function" and model.block_of.get(node.name) == index
        and node.target is not operator.getitem and not is_size(node)
    ]  # fmt: skip


def _require_same(block: Block, kind: BlockClass, places: Mapping[fx.Node, int]) -> None:
    """The traced block has the ops that the plan knows, one by one."""
    found = [_target(node) for node in places]
    planned = [op.target for op in kind.ops]
    if found != planned:
        pairs = zip((*found, *[""] * len(planned)), planned, strict=False)
        other = next((f"{a or 'nothing'} where the plan has {b}" for a, b in pairs if a != b), "more ops than planned")
        raise StalePlanError(f"block {block.name} has {other}: code or versions changed; plan again")


def _target(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return f"{node.target._schema.name.replace('::', '.')}.{node.target._overloadname}"
    return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', '')}"


def _tensor_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors an op takes, in the order of a choice's states; one given twice comes twice."""

    def visit(argument: object) -> Iterator[fx.Node]:
        if isinstance(argument, fx.Node) and not is_size(argument):
            yield argument
        elif isinstance(argument, list | tuple):
            for part in argument:
                yield from visit(part)

    for argument in (*node.args, *node.kwargs.values()):
        yield from visit(argument)


def _number(line: Line, into: Writer) -> Argument:
    """A number, or its line in the rows of the microbatch."""
    if not line.per_row:
        return line.fixed
    made: fx.Node = into.rows
    if line.per_row != 1:
        made = into.graph.call_function(operator.mul, (made, line.per_row))
    return made if not line.fixed else into.graph.call_function(operator.add, (made, line.fixed))
