"""The values of one block on a rank: how each lies, and the conversions that make it lie as a user wants it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from placer.errors import UsageError
from placer.graph import Affine, Block, BlockClass, Parameter, Tensor
from placer.plans.plan import Plan, Split
from placer.rules.layouts import SAME, Cut, Lay, State
from placer.rules.two_axis_layouts import AxisStep, pieces, steps
from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.conversions import CONVERSIONS, Way, way
from placer.runtime.stages.block_code import BlockWriter, CutModel
from placer.spmd.device_rows import own_rows_tensor
from placer.spmd.layout_conversions import Edges, border_state
from placer.spmd.parameter_layouts import value_state


@dataclass(frozen=True, kw_only=True)
class CutBlock:
    """A block of a plan, how its class is cut, and the nodes of its ops in the traced graph of `model`.

    states: how each parameter is held that is not held whole. apart: sizes of the class count rows of which the replica
    has so many times as many.
    """

    plan: Plan
    model: CutModel
    block: Block
    block_class: BlockClass
    split: Split
    edges: Edges
    places: Mapping[fx.Node, int]
    states: Mapping[str, State]
    axis: Axis
    apart: int = 1

    def reference(self, source: fx.Node) -> str:
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

    def state(self, reference: str) -> State:
        """How a value lies as its maker left it; a parameter as this block keeps it."""
        if reference[0] == "o":
            op, number = reference[1:].split(".")
            return self.edges.choices[int(op)].outputs[int(number)]
        if reference[0] == "p":
            return self.edges.parameters[int(reference[1:])]
        if reference[0] == "i":
            return border_state(self.split.inputs[int(reference[1:])], self.split.inner)
        return value_state(self.plan, reference) if reference[0] == "b" else SAME

    def held(self, name: str) -> State:
        """How the rank holds a parameter; a constant of the graph is the graph's own, whole on every rank."""
        return self.states.get(name, SAME) if self.model.state(name) is not None else SAME

    def tensor(self, reference: str) -> Tensor | Parameter:
        """The whole tensor of a value."""
        if reference.startswith("n:"):
            raise UsageError(f"it reads {reference[2:]}, which the plan's graph does not know, otherwise than whole")
        if reference[0] in "oip":
            return self.block_class.tensor(reference)
        return own_rows_tensor(self.plan.graph.value(reference), self.apart)

    def border(self, node: fx.Node) -> State:
        """How a value lies that leaves the block."""
        prefix, _, number = self.model.name(node).partition(".")
        if not prefix.startswith("b") or not number.isdigit():
            raise UsageError(f"{node.name} leaves it, which the plan's graph does not know")
        return border_state(self.split.outputs[int(number)], self.split.inner)

    def line(self, axis: int | None) -> Axis:
        """The devices along one of two axes, or all."""
        return self.axis if axis is None else self.axis.lines(self.split.inner)[axis]

    def require_even(self, tensor: Tensor | Parameter, lay: Lay) -> None:
        """A dim that grows with the rows is cut only where its pieces grow alike. Raises UsageError."""
        for cut, degree, _, _ in pieces(lay, self.axis.degree, self.axis.rank):
            size, shares = dim_size(tensor, cut.dim), degree * cut.parts
            if not cut.own and size.per_row and (size.fixed % shares or size.per_row % shares):
                raise UsageError(
                    f"dim {cut.dim} of {size.per_row} per row of the batch is cut, which {degree} devices "
                    "cannot share evenly; divide rows among replicas"
                )


@dataclass(kw_only=True)
class Values:
    """The values of `cut` in the graph that `into` writes, each converted once for all who want it alike.

    What an op reads is taken from the traced graph, not from the plan's: a cast that does nothing in the precision of
    the capture hands on its argument, so that there its users read one or the other.
    """

    cut: CutBlock
    into: BlockWriter
    _converted: dict[tuple[fx.Node, State], fx.Node] = field(default_factory=dict)
    _steps: dict[tuple[fx.Node, State], fx.Node] = field(default_factory=dict)
    _parameters: dict[str, fx.Node] = field(default_factory=dict)
    _rows: fx.Node | None = None

    def axis(self, along: int | None = None) -> fx.Node:
        """The devices along one of two axes, or all, in the graph."""
        name = "axis" if along is None else f"{('outer', 'inner')[along]}{self.cut.split.inner}"
        return self.into.attached(name, self.cut.line(along))

    @property
    def rows(self) -> fx.Node:
        """The rows of the microbatch that sizes are counted in."""
        if self.cut.apart == 1:
            return self.into.rows
        if self._rows is None:
            self._rows = self.into.graph.call_function(operator.floordiv, (self.into.rows, self.cut.apart))
        return self._rows

    def wanted(self, source: fx.Node, want: State) -> fx.Node:
        """A value in the state `want`."""
        if (source, want) not in self._converted:
            value, reference = self._found(source), self.cut.reference(source)
            have = self.cut.state(reference)
            made = value if have == want else self._conversion(value, self.cut.tensor(reference), have, want)
            self._converted[source, want] = made
        return self._converted[source, want]

    def written(self, source: fx.Node, value: fx.Node, have: State) -> fx.Node:
        """What an op has written of a buffer, `value` in the state `have`, as the rank holds the buffer: later readers
        convert that anew."""
        cut, reference = self.cut, self.cut.reference(source)
        tensor, kept = cut.tensor(reference), cut.state(reference)
        self._converted = {known: node for known, node in self._converted.items() if known[0] is not source}
        self._parameters.pop(str(source.target), None)
        self._steps.clear()
        return self._conversion(self._conversion(value, tensor, have, kept), tensor, kept, cut.held(str(source.target)))

    def _found(self, source: fx.Node) -> fx.Node:
        """A value as its maker left it; a parameter in the state in which this block keeps it."""
        cut, name = self.cut, str(source.target)
        if source.op != "get_attr" or name not in cut.block.parameters:
            return self.into.value(source)
        if name not in self._parameters:
            index = cut.block.parameters.index(name)
            self._parameters[name] = self._conversion(
                self.into.value(source), cut.block_class.parameters[index], cut.held(name), cut.edges.parameters[index]
            )
        return self._parameters[name]

    def _conversion(self, value: fx.Node, tensor: Tensor | Parameter, have: State, want: State) -> fx.Node:
        """A value in another state, and its gradient in that of the value; steps that users share are taken once."""
        if have == want:
            return value
        for lay in (have.value, want.value):
            self.cut.require_even(tensor, lay)
        for step in steps(have, want):
            key = (value, step.after)
            if key not in self._steps:
                self._steps[key] = self._stepped(value, tensor, step)
            value = self._steps[key]
        return value

    def _stepped(self, value: fx.Node, tensor: Tensor | Parameter, step: AxisStep) -> fx.Node:
        """A value one step on."""
        trains = tensor.trainable and not tensor.buffer if isinstance(tensor, Parameter) else tensor.requires_grad
        have, want, axis = step.have, step.want, step.axis
        forward = way(have.value, want.value, self._uneven(tensor, have.value, axis))
        back = way(want.gradient, have.gradient, self._uneven(tensor, want.gradient, axis)) if trains else Way("same")
        if forward.name == back.name == "same":
            return value
        arguments = (value, self.axis(axis), forward)
        return self.into.graph.call_function(CONVERSIONS[forward.name], arguments, {"gradient": back})

    def _uneven(self, tensor: Tensor | Parameter, lay: Lay, axis: int | None) -> int | None:
        """The size of the dim that `lay` cuts along an axis, where its pieces differ."""
        if not isinstance(lay, Cut):
            return None
        size = dim_size(tensor, lay.dim)
        return None if size.fixed % (self.cut.line(axis).degree * lay.parts) == 0 else size.fixed


def dim_size(tensor: Tensor | Parameter, dim: int) -> Affine:
    """The size of a dim."""
    size = tensor.shape[dim]
    return size if isinstance(size, Affine) else Affine(size)
