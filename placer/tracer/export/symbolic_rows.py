"""One graph for every number of rows: two exports, the sizes that differ between them written as functions of rows.

Exports are static (dim 0 is 3, then 5). Where an integer differs between them it is affine in rows, `fixed + per_row *
rows`, and becomes a node that computes it from the first batched input. Sizes that are not affine are refused: a batch
cut in two halves, because 3 and 5 rows give different remainders, and `rows * rows`, by a third export. A number that
an op reckons with may follow another law of the rows (`row_laws`): `1.0 / rows`. A last export at the rows of the batch
itself finds what only grows unevenly there: a quarter of the rows, rounded; pieces of seven; a branch on more than 64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import fx, nn
from torch.utils import _pytree

from placer.errors import CaptureError
from placer.tracer.export.cleaning import Plain, target_name
from placer.tracer.export.constants import alike_along, once, same_constant
from placer.tracer.export.row_laws import RowLaw, law_of

ROWS = (3, 5)
# Of a third export where sizes have a fixed part: a square of the rows is 8 * rows - 15 at both of the others.
THIRD = 6


#: An argument of a call: its number, or its name. The laws of an op's.
_Place: TypeAlias = int | str
_Laws: TypeAlias = dict[fx.Node, dict[_Place, RowLaw]]


class OtherRowsError(CaptureError):
    """The model does for some numbers of rows something else than for others."""


def lifted(exported: Callable[[int], Plain], batched_inputs: tuple[str, ...], rows: int) -> Plain:
    """The graph that `exported` gives at some rows, with its row-dependent sizes computed; it is that of a batch of
    `rows` rows.

    Without inputs that have rows both are of one size, and nothing may differ. Raises CaptureError where the graphs
    differ otherwise.
    """
    at_first, at_second = map(exported, ROWS)
    repeated = _repeated_constants(at_first, at_second)
    _require_same_constants(at_first, at_second, repeated)
    lifter = _Lifter(at_first.graph, batched_inputs)
    pairs = list(_paired(at_first.graph, at_second.graph))
    if any(fixed for one, other in pairs for fixed in _fixed_parts(one, other)) or _other_numbers(pairs):
        third = exported(THIRD)
        for (first, second), (_, more) in zip(pairs, _paired(at_first.graph, third.graph), strict=True):
            _require_affine(first, second, more)
            lifter.learn_laws(first, second, more)
    if batched_inputs and rows not in ROWS:
        at_rows = exported(rows)
        _require_same_at(rows, pairs, at_rows, lifter.laws)
        _require_same_constants(at_first, at_rows, repeated, (ROWS[0], rows))
    for first, second in pairs:
        lifter.lift(first, second)
    for name, dim in repeated.items():
        lifter.repeat(name, dim, (at_first.state[name].shape, at_second.state[name].shape))
    return replace(at_first, state={**at_first.state, **{name: _once(at_first, name, repeated) for name in repeated}})


def _repeated_constants(first: Plain, second: Plain) -> dict[str, int]:
    """Tensors that forward makes of as many equal numbers as there are rows (`torch.tensor([length] * rows)`): by
    name, the dim that grows with the rows."""
    found = {name: _repeats(first.state[name], second.state[name], ROWS) for name in _constants(first, second)}
    return {name: dim for name, dim in sorted(found.items()) if dim is not None}


def _repeats(one: torch.Tensor, other: torch.Tensor, rows: tuple[int, int]) -> int | None:
    """The dim along which two constants, for so many rows each, hold the same again and again, as often for each row;
    else None."""
    dim = alike_along(one, other)
    if dim is None:
        return None
    each, more = divmod(one.shape[dim], rows[0])
    return dim if not more and other.shape[dim] == each * rows[1] else None


def _constants(first: Plain, second: Plain) -> set[str]:
    """The tensors beside parameters that the graphs read."""
    read = {str(node.target) for node in first.graph.nodes if node.op == "get_attr" and node.users}
    trained = {name for name, tensor in first.state.items() if isinstance(tensor, nn.Parameter)}
    return (read & first.state.keys() & second.state.keys()) - trained


def _once(plain: Plain, name: str, repeated: Mapping[str, int]) -> torch.Tensor:
    return once(plain.state[name], repeated[name]) if name in repeated else plain.state[name]


def _require_same_constants(
    first: Plain, second: Plain, repeated: Mapping[str, int], rows: tuple[int, int] = ROWS
) -> None:
    """Tensors that forward makes of numbers (`torch.tensor(x.shape[0])`) are the same for any rows."""
    for name in sorted(_constants(first, second)):
        one, other = first.state[name], second.state[name]
        sizes = one.shape == other.shape if one.is_meta or other.is_meta else same_constant(one, other)
        again = name in repeated and one.shape != other.shape and _repeats(one, other, rows) == repeated[name]
        if not (sizes or again):
            nodes = (node for node in first.graph.nodes if node.op == "get_attr" and node.target == name)
            line = next((f" that {_told(user)} reads" for node in nodes for user in node.users), "")
            raise OtherRowsError(
                f"the model makes a constant tensor of the number of rows{line}: it is another one for {rows[0]} rows "
                f"than for {rows[1]}; reckon with the number itself (x / x.shape[0]), not with a tensor made of it"
            )


def _require_same_at(rows: int, pairs: list[tuple[fx.Node, fx.Node]], found: Plain, laws: _Laws) -> None:
    """What the ops of two exports give for `rows` rows is what an export at those has."""
    try:
        at_rows = [other for _, other in _paired(pairs[0][0].graph, found.graph, (ROWS[0], rows))]
    except CaptureError as error:
        raise OtherRowsError(str(error)) from None
    for (first, second), other in zip(pairs, at_rows, strict=True):
        own, numbers = laws.get(first, {}), _numbers(other)
        for place, law in own.items():
            if not law.says(rows, numbers.get(place)):
                raise _otherwise(first, (law.at(ROWS[0]), law.at(ROWS[1]), numbers.get(place)), rows)
        for a, b, c in zip(*(_leaves(node, own) for node in (first, second, other)), strict=False):
            if type(a) is int and type(b) is int:
                same = type(c) is int and (b - a) * (rows - ROWS[0]) == (c - a) * (ROWS[1] - ROWS[0])
            else:
                same = isinstance(a, fx.Node) or a == c or repr(a) == repr(c)
            if not same:
                raise _otherwise(first, (a, b, c), rows)


def _otherwise(node: fx.Node, uses: tuple[object, object, object], rows: int) -> OtherRowsError:
    return OtherRowsError(
        f"{target_name(node)} at {node.meta.get('source', '')} uses {uses[0]} and {uses[1]} for {ROWS[0]} and "
        f"{ROWS[1]} rows and {uses[2]} for {rows}: it does not grow evenly with the rows; make it independent of their "
        "number, of chance and of how often it ran"
    )


def _integers(node: fx.Node) -> list[int]:
    """The integers that an op is called with."""
    leaves = _pytree.tree_leaves((node.args, node.kwargs))
    return [leaf for leaf in leaves if type(leaf) is int]


def _fixed_parts(first: fx.Node, second: fx.Node) -> Iterator[int]:
    """Of integers that differ, what remains without any rows."""
    for a, b in zip(_integers(first), _integers(second), strict=False):
        if a != b:
            yield a - (b - a) * ROWS[0] // (ROWS[1] - ROWS[0])


def _leaves(node: fx.Node, laws: Mapping[_Place, RowLaw]) -> list[object]:
    """What an op is called with, but for the numbers that follow laws."""
    args = [None if place in laws else one for place, one in enumerate(node.args)]
    return _pytree.tree_leaves((args, {name: None if name in laws else one for name, one in node.kwargs.items()}))


def _other_numbers(pairs: list[tuple[fx.Node, fx.Node]]) -> bool:
    """Whether an op reckons with a number that the rows change."""
    leaves = ((_pytree.tree_leaves((node.args, node.kwargs)) for node in pair) for pair in pairs)
    return any(
        type(a) is float and type(b) is float and a != b and repr(a) != repr(b)
        for first, second in leaves
        for a, b in zip(first, second, strict=False)
    )


def _require_affine(first: fx.Node, second: fx.Node, third: fx.Node) -> None:
    for a, b, c in zip(_integers(first), _integers(second), _integers(third), strict=False):
        if (b - a) * (THIRD - ROWS[0]) != (c - a) * (ROWS[1] - ROWS[0]):
            raise OtherRowsError(
                f"{target_name(first)} at {first.meta.get('source', '')} uses {a}, {b} and {c} for {ROWS[0]}, "
                f"{ROWS[1]} and {THIRD} rows: it does not grow evenly with the rows; make it independent of them"
            )


def is_size(node: fx.Node) -> bool:
    """Whether the node computes a size, not a tensor."""
    return bool(node.meta.get("size"))


def counted_sizes(node: fx.Node) -> frozenset[fx.Node]:
    """The sizes that an op reckons with as numbers (`x / x.shape[0]`): for a piece they stay those of the batch."""
    return frozenset(one for one in _numbers(node).values() if isinstance(one, fx.Node) and is_size(one))


def _numbers(node: fx.Node) -> dict[_Place, object]:
    """The arguments that an op reckons with, by number or name."""
    if not isinstance(node.target, torch._ops.OpOverload) or target_name(node) == "aten::arange":
        return {}  # its end says how many numbers there are
    formal = node.target._schema.arguments
    numbers = {one.name for one in formal if _is_number(one.type)}
    placed: dict[_Place, object] = {
        place: one for place, (own, one) in enumerate(zip(formal, node.args, strict=False)) if own.name in numbers
    }
    return {**placed, **{name: one for name, one in node.kwargs.items() if name in numbers}}


def _is_number(kind: torch.JitType) -> bool:
    """Whether an argument of this type is reckoned with; sizes and places are integers (`SymInt`)."""
    return str(kind).removeprefix("Optional[").removesuffix("]") in ("Tensor", "number", "float")


class _Lifter:
    def __init__(self, graph: fx.Graph, batched_inputs: tuple[str, ...]):
        self._graph = graph
        self._batched = batched_inputs
        self._made: dict[tuple[int, int], fx.Node] = {}
        self._rows: fx.Node | None = None
        self._last: fx.Node | None = None
        self._by_law: dict[RowLaw, fx.Node] = {}
        self.laws: _Laws = {}

    def learn_laws(self, first: fx.Node, second: fx.Node, third: fx.Node) -> None:
        """The law of each number that an op reckons with and that differs between three exports."""
        numbers = [_numbers(node) for node in (first, second, third)]
        for place, number in numbers[0].items():
            known = [one.get(place) for one in numbers]
            law = law_of(dict(zip((*ROWS, THIRD), known, strict=True)))
            if law is not None and self._batched and number != known[1]:
                self.laws.setdefault(first, {})[place] = law

    def repeat(self, name: str, dim: int, shapes: tuple[torch.Size, torch.Size]) -> None:
        """Give what reads the constant `name` as many of it along `dim` as there are rows."""
        found = [node for node in self._graph.nodes if node.op == "get_attr" and node.target == name and node.users]
        for node in found:
            readers = list(node.users)
            times: list[object] = [1] * len(shapes[0])
            times[dim] = self._size(shapes[0][dim], shapes[1][dim], node)
            with self._graph.inserting_before(readers[0]):
                made = self._graph.call_function(torch.ops.aten.repeat.default, (node, times))  # type: ignore[arg-type]
            made.meta.update(readers[0].meta)
            for reader in readers:
                reader.replace_input_with(node, made)

    def lift(self, first: fx.Node, second: fx.Node) -> None:
        """Give `first` nodes for what differs in `second`."""
        own = self.laws.get(first, {})
        lawful = {place: self._number(law) for place, law in own.items()}

        def put(node: fx.Node) -> tuple[tuple[object, ...], dict[str, object]]:
            args = tuple(lawful.get(place, one) for place, one in enumerate(node.args))
            return args, {name: lawful.get(name, one) for name, one in node.kwargs.items()}

        (args, kwargs), (others, named) = put(first), put(second)
        first.args = self.merge(args, others, first)  # type: ignore[assignment]
        first.kwargs = self.merge(kwargs, named, first)  # type: ignore[assignment]

    def merge(self, first: object, second: object, node: fx.Node) -> object:
        """`first` with integers that differ from `second` replaced by size nodes."""
        if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)) and len(first) == len(second):
            merged = [self.merge(a, b, node) for a, b in zip(first, second, strict=True)]
            return merged if isinstance(first, list) else tuple(merged)
        if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
            return {key: self.merge(first[key], second[key], node) for key in first}
        if isinstance(first, fx.Node) and isinstance(second, fx.Node):
            return first
        if self._batched and type(first) is int and type(second) is int and first != second:
            return self._size(first, second, node)
        # nan differs from itself.
        if first != second and repr(first) != repr(second):
            raise _not_affine(node, first, second)
        return first

    def _size(self, first: int, second: int, node: fx.Node) -> fx.Node:
        per_row, remainder = divmod(second - first, ROWS[1] - ROWS[0])
        if remainder:
            raise _not_affine(node, first, second)
        key = (first - per_row * ROWS[0], per_row)
        if key not in self._made:
            self._made[key] = self._computed(*key)
        return self._made[key]

    def _number(self, law: RowLaw) -> fx.Node:
        if law not in self._by_law:
            number = self._computed(law.fixed, law.per_row)
            if law.power != 1:
                number = self._insert(operator.pow, (number, law.power))
            number = number if law.sign > 0 else self._insert(operator.neg, (number,))
            number.meta["law"] = law
            self._by_law[law] = number
        return self._by_law[law]

    def _computed(self, fixed: float, per_row: float) -> fx.Node:
        if self._rows is None:
            batched = next(n for n in self._graph.nodes if n.op == "placeholder" and n.target in self._batched)
            self._last = [n for n in self._graph.nodes if n.op == "placeholder"][-1]
            self._rows = self._insert(torch.ops.aten.sym_size.int, (batched, 0))
        size = self._rows
        if per_row != 1:
            size = self._insert(operator.mul, (size, per_row))
        return self._insert(operator.add, (size, fixed)) if fixed else size

    def _insert(self, target: object, arguments: tuple[object, ...]) -> fx.Node:
        assert self._last is not None
        with self._graph.inserting_after(self._last):
            made = self._graph.call_function(target, arguments)  # type: ignore[arg-type]
        made.meta.update(module="", source="", calls={}, size=True)
        self._last = made
        return made


def _told(node: fx.Node) -> str:
    if node.op != "call_function":
        return f"reading {node.target}"
    return f"{target_name(node)} at {node.meta.get('source') or 'an unknown line'}"


def _paired(first: fx.Graph, second: fx.Graph, rows: tuple[int, int] = ROWS) -> Iterator[tuple[fx.Node, fx.Node]]:
    ours, theirs = list(first.nodes), list(second.nodes)
    twin: dict[fx.Node, fx.Node] = {}
    for a, b in zip(ours, theirs, strict=False):
        twin[a] = b
        same = a.op == b.op and a.target == b.target
        if not same or [twin[x] for x in a.all_input_nodes] != list(b.all_input_nodes):
            raise OtherRowsError(
                f"the model runs other operations for {rows[0]} rows than for {rows[1]}: {_told(a)} against "
                f"{_told(b)}; "
                "make forward independent of the number of rows, of chance outside of torch and of how often it ran"
            )
    if len(ours) != len(theirs):
        raise OtherRowsError(
            f"the model runs {len(ours)} operations for {rows[0]} rows and {len(theirs)} for {rows[1]}; "
            "make forward independent of the number of rows"
        )
    return iter(list(zip(ours, theirs, strict=True)))


def _not_affine(node: fx.Node, first: object, second: object) -> OtherRowsError:
    return OtherRowsError(
        f"{target_name(node)} at {node.meta.get('source', '')} uses {first} for {ROWS[0]} rows and {second} for "
        f"{ROWS[1]}: it does not grow evenly with the rows; make it independent of their number, of chance and of how "
        "often it ran"
    )
