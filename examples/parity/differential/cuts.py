"""Random layouts: each op of each block class cut by a random one of its rules, borders whole or cut at random.

A class is drawn in one of three manners: any choice that fits, mostly cutting ones, or those that move little. A choice
fits where its sizes can be cut so and every value can be converted to what it wants; rows in each rank's own order
(experts) therefore stay so until an op puts them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod
from random import Random

from placer.graph import Affine, BlockClass, Graph, Op, Parameter, Tensor
from placer.plans.plan import Layout, Split
from placer.rules import block_choices, call_of, tensor_arguments
from placer.rules.layouts import SAME, Choice, Cut, State, conversion, is_own
from placer.rules.splits import legal
from placer.spmd.layout_conversions import border_state

ROWS = 4
AXES = ("tensor", "height", "width")
# Of how many draws of a class one gives up, where rows in an own order lead nowhere.
DRAWS = 20

#: How the values lie that leave and enter the block classes: (class, "in" or "out", index) -> "whole" or "cut 1".
Borders = Mapping[tuple[int, str, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """What layouts of a graph over `degree` devices have in common."""

    graph: Graph
    degree: int
    borders: Borders


def random_cutting(draw: Random, graph: Graph, degree: int) -> Cutting:
    """The borders, which all layouts of a plan share: values between blocks, each whole or cut on some dim."""
    found: dict[tuple[int, str, int], str] = {}
    share = draw.choice((0.0, 0.3, 0.8))
    for group, tensors in _same_border(graph):
        dims = [dim for dim in range(len(tensors[0].shape)) if all(_can(tensor, dim, degree) for tensor in tensors)]
        text = f"cut {draw.choice(dims)}" if dims and draw.random() < share else "whole"
        found.update(dict.fromkeys(group, text))
    return Cutting(graph=graph, degree=degree, borders=found)


def random_layout(draw: Random, cutting: Cutting) -> Layout:
    """A layout of the graph."""
    splits = tuple(_split(draw, cutting, number) for number in range(len(cutting.graph.classes)))
    return Layout(axis=draw.choice(AXES), degree=cutting.degree, splits=splits)


def _same_border(graph: Graph) -> Iterator[tuple[list[tuple[int, str, int]], list[Tensor]]]:
    """Places whose values must lie alike since some value goes from one to the other, with the values' tensors."""
    group: dict[tuple[int, str, int], set[tuple[int, str, int]]] = {}

    def join(first: tuple[int, str, int], second: tuple[int, str, int]) -> None:
        both = group.setdefault(first, {first}) | group.setdefault(second, {second})
        group.update(dict.fromkeys(both, both))

    for block in graph.blocks:
        for index in range(len(graph.classes[block.kind].outputs)):
            join((block.kind, "out", index), (block.kind, "out", index))
        for index, reference in enumerate(block.inputs):
            maker, _, number = reference[1:].partition(".")
            if reference.startswith("b") and int(maker) >= 0:
                join((graph.blocks[int(maker)].kind, "out", int(number)), (block.kind, "in", index))
    for places in {min(places): sorted(places) for places in group.values()}.values():
        kinds = [graph.classes[kind] for kind, _, _ in places]
        yield (
            places,
            [
                kind.inputs[index] if side == "in" else _plain(kind.tensor(kind.outputs[index]))
                for kind, (_, side, index) in zip(kinds, places, strict=True)
            ],
        )


def _plain(tensor: Tensor | Parameter) -> Tensor:
    if isinstance(tensor, Parameter):
        return Tensor(shape=tuple(Affine(size) for size in tensor.shape), dtype=tensor.dtype)
    return tensor


def _can(tensor: Tensor, dim: int, degree: int) -> bool:
    """Whether each device can have its piece of a dim: those that grow with the rows must grow alike."""
    if dim >= len(tensor.shape):
        return False
    size = tensor.shape[dim]
    return size.fixed >= degree if not size.per_row else size.fixed % degree == size.per_row % degree == 0


def _split(draw: Random, cutting: Cutting, number: int) -> Split | None:
    kind = cutting.graph.classes[number]
    inputs = tuple(cutting.borders.get((number, "in", index), "whole") for index in range(len(kind.inputs)))
    outputs = tuple(cutting.borders.get((number, "out", index), "whole") for index in range(len(kind.outputs)))
    whole = all(text == "whole" for text in (*inputs, *outputs))
    if not any(block.kind == number for block in cutting.graph.blocks) or (whole and draw.random() < 0.15):
        return None
    for _ in range(DRAWS):
        walk = _Walk(draw, kind, cutting.degree, inputs, own=draw.random() < 0.5)
        choices = walk.choices()
        if choices is not None and walk.ends(outputs):
            return Split(choices=choices, inputs=inputs, outputs=outputs)
    walk = _Walk(draw, kind, cutting.degree, inputs, own=False)
    return Split(choices=walk.choices() or (), inputs=inputs, outputs=outputs)


@lru_cache(maxsize=64)
def _known(kind: BlockClass) -> tuple[tuple[Choice, ...], ...]:
    """The choices of each op of a class."""
    return block_choices(kind)


class _Walk:
    """Chooses for one op after the other, knowing how the values lie so far."""

    def __init__(self, draw: Random, kind: BlockClass, degree: int, inputs: tuple[str, ...], *, own: bool) -> None:
        self._draw, self._kind, self._degree, self._own = draw, kind, degree, own
        self._states: dict[str, State] = {f"i{index}": border_state(text) for index, text in enumerate(inputs)}
        self._manner = draw.choice(("any", "cutting", "near"))

    def choices(self) -> tuple[str, ...] | None:
        """The names of the choices; None where an op has none."""
        found = []
        for index, (op, known) in enumerate(zip(self._kind.ops, _known(self._kind), strict=True)):
            usable = [choice for choice in known if self._fits(op, choice)]
            if not usable:
                return None
            choice = self._chosen(op, usable)
            found.append(choice.name)
            self._states |= {f"o{index}.{k}": state for k, state in enumerate(choice.outputs)}
        return tuple(found)

    def ends(self, outputs: tuple[str, ...]) -> bool:
        """Whether what leaves can be made to lie as the border says."""
        pairs = zip(self._kind.outputs, outputs, strict=True)
        return all(self._reaches(reference, border_state(text)) for reference, text in pairs)

    def _chosen(self, op: Op, usable: list[Choice]) -> Choice:
        own = [choice for choice in usable if any(is_own(state.value) for state in choice.outputs)]
        cutting = [choice for choice in usable if choice.name not in ("whole", "deferred")]
        if own:
            return self._draw.choice(own)
        if self._manner == "near" and self._draw.random() < 0.8:
            return min(usable, key=lambda choice: (self._moved(op, choice), self._draw.random()))
        if cutting and (self._manner != "any" or self._draw.random() < 0.5):
            return self._draw.choice(cutting)
        return self._draw.choice(usable)

    def _fits(self, op: Op, choice: Choice) -> bool:
        states = (*choice.inputs, *choice.outputs)
        if not self._own and any(is_own(state.value) for state in states):
            return False
        tensors = (*map(self._kind.tensor, tensor_arguments(op)), *op.outputs)
        for tensor, state in zip(tensors, states, strict=True):
            if isinstance(state.value, Cut) and not is_own(state.value) and not self._even(tensor, state.value):
                return False
        wants = zip(tensor_arguments(op), choice.inputs, strict=True)
        return all(self._reaches(*want) for want in wants) and legal(
            choice, call_of(self._kind, op, ROWS), self._degree
        )

    def _even(self, tensor: Tensor | Parameter, lay: Cut) -> bool:
        size = tensor.shape[lay.dim]
        shares = self._degree * lay.parts
        return isinstance(size, int) or not size.per_row or size.fixed % shares == size.per_row % shares == 0

    def _reaches(self, reference: str, want: State) -> bool:
        have, tensor = self._states.get(reference, SAME), self._kind.tensor(reference)
        back = not isinstance(tensor, Parameter) and tensor.requires_grad
        return conversion(have.value, want.value) != "none" and not (
            back and conversion(want.gradient, have.gradient) == "none"
        )

    def _moved(self, op: Op, choice: Choice) -> float:
        """Elements that a choice makes move; work that every device repeats counts a little."""
        moved = 0.0
        for reference, want in zip(tensor_arguments(op), choice.inputs, strict=True):
            tensor = self._kind.tensor(reference)
            if isinstance(tensor, Parameter):
                continue
            have = self._states.get(reference, SAME)
            words = (conversion(have.value, want.value), conversion(want.gradient, have.gradient))
            moved += inf if "none" in words else sum(1.0 for word in words if word) * prod(tensor.shape_at(ROWS))
        return moved + (0.25 if choice.name in ("whole", "deferred") else 0.0)
