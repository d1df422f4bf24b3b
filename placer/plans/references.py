"""What one field of a plan.json says of another: references that lead to something, lists that are as long as theirs.

Types, signs and bounds of single fields are those of the dataclasses. What a plan may not do (stages, devices, memory)
is for `placer.legality` to say; this is about files that say nothing at all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Protocol

from placer.graph import ITEM_BYTES, Affine, Block, BlockClass, Graph, Input, Op, Tensor
from placer.io.refusals import short

_TARGET = re.compile(r"\w+(\.\w+)+")
_AFFINE = ("forward_flops", "backward_flops", "read_bytes", "written_bytes", "backward_read_bytes",
           "backward_written_bytes",
           "saved_bytes", "fused_saved_bytes")  # fmt: skip
# More than any model has: a dim, the elements of a parameter or bytes of a tensor, the FLOPs of an op.
MOST_SIZE, MOST_BYTES, MOST_FLOPS = 2**48, 2**62, 10**27


class SplitFields(Protocol):
    """What is asked of a `placer.plans.plan.Split`, which has more."""

    @property
    def choices(self) -> tuple[str, ...]:
        """Of each op the name of one."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """How each input lies."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """How each output lies."""
        ...

    @property
    def experts(self) -> tuple[int, ...]:
        """The experts device after device."""
        ...


class LayoutFields(Protocol):
    """What is asked of a `placer.plans.plan.Layout`."""

    @property
    def degree(self) -> int:
        """The devices of a replica."""
        ...

    @property
    def inner(self) -> int:
        """Those along the second axis."""
        ...

    @property
    def splits(self) -> Sequence[SplitFields | None]:
        """One of each block class."""
        ...


def senseless(graph: Graph, layouts: Iterable[LayoutFields]) -> Iterator[str]:
    """What of a plan's graph and layouts leads nowhere, field by field; nothing for those that placer wrote."""
    yield from (f"graph.{wrong}" for wrong in _graph(graph))
    for index, layout in enumerate(layouts):
        yield from (f"layouts.{index}.{wrong}" for wrong in _layout(layout, graph))


def _graph(graph: Graph) -> Iterator[str]:
    for index, kind in enumerate(graph.classes):
        yield from (f"classes.{index}.{wrong}" for wrong in _class(kind, graph.rows))
    for index, entry in enumerate(graph.inputs):
        yield from (f"inputs.{index}.tensor.{wrong}" for wrong in _tensor(entry.tensor, graph.rows))
        count = prod(entry.tensor.shape_at(graph.rows))
        if entry.values is not None and len(entry.values) != count:
            yield f"inputs.{index}.values are {len(entry.values)} numbers, its tensor has {count}"
        yield from (f"inputs.{index}.parts.{wrong}" for wrong in _parts(entry, entry.tensor.shape_at(graph.rows)))
    names = [entry.name for entry in graph.inputs]
    if len(set(names)) != len(names):
        yield f"inputs names {short(max(names, key=names.count))} twice"
    made = {f"x:{name}" for name in names}
    shapes: dict[str, object] = {}
    for index, block in enumerate((graph.prologue, *graph.blocks), start=-1):
        where = "prologue" if index < 0 else f"blocks.{index}"
        if not 0 <= block.kind < len(graph.classes):
            yield f"{where}.kind is {block.kind}, the graph has {len(graph.classes)} classes"
            return
        kind = graph.classes[block.kind]
        yield from (f"{where}.{wrong}" for wrong in _block(block, kind, made, shapes))
        made |= {f"b{index}.{output}" for output in range(len(kind.outputs))}
    yield from _unmade("outputs", graph.outputs, made)
    yield from _unmade("loss.value", filter(None, (graph.loss.value,)), made)
    yield from _unmade("loss.labels", filter(None, (graph.loss.labels,)), set(names))


def _block(block: Block, kind: BlockClass, made: set[str], shapes: dict[str, object]) -> Iterator[str]:
    yield from _unmade("inputs", block.inputs, made)
    yield from _as_many("inputs", block.inputs, kind.inputs)
    yield from _as_many("parameters", block.parameters, kind.parameters)
    for name, parameter in zip(block.parameters, kind.parameters, strict=False):
        known = shapes.setdefault(name, (parameter.shape, parameter.dtype))
        if known != (parameter.shape, parameter.dtype):
            yield f"parameters has {short(name)} as {parameter.dtype} {parameter.shape}, another block as {known}"


def _parts(entry: Input, shape: tuple[int, ...]) -> Iterator[str]:
    for index, part in enumerate(entry.parts or ()):
        if part.dim is not None and not (part.dim < len(shape) and part.first < part.last <= shape[part.dim]):
            yield f"{index} is {part.first} to {part.last} of dim {part.dim}, its tensor is {shape}"


def _class(kind: BlockClass, rows: int) -> Iterator[str]:
    for index, tensor in enumerate(kind.inputs):
        yield from (f"inputs.{index}.{wrong}" for wrong in _tensor(tensor, rows))
    for index, parameter in enumerate(kind.parameters):
        yield from (f"parameters.{index}.{wrong}" for wrong in _dtype(parameter.dtype))
        if parameter.elements > MOST_BYTES:
            yield f"parameters.{index}.shape is of {parameter.elements:.3g} elements, more than any model has"
    made = {f"i{index}" for index in range(len(kind.inputs))} | {f"p{index}" for index in range(len(kind.parameters))}
    for index, op in enumerate(kind.ops):
        yield from (f"ops.{index}.{wrong}" for wrong in _op(op, made, rows))
        made |= {f"o{index}.{output}" for output in range(len(op.outputs))}
    yield from _unmade("outputs", kind.outputs, made)
    yield from _indices("kept_inputs", kind.kept_inputs, kind.inputs)
    yield from _indices("kept_outputs", kind.kept_outputs, kind.outputs)


def _op(op: Op, made: set[str], rows: int) -> Iterator[str]:
    yield from _unmade("inputs", op.inputs, made)
    yield from _indices("kept_again", op.kept_again, op.inputs)
    if not _TARGET.fullmatch(op.target):
        yield f"target is {short(op.target)!r}, an op has a name such as aten.add.Tensor"
    yield from _arguments(op)
    for index, tensor in enumerate(op.outputs):
        yield from (f"outputs.{index}.{wrong}" for wrong in _tensor(tensor, rows))
    for name in _AFFINE:
        yield from _size(name, getattr(op, name), rows, most=MOST_FLOPS if name.endswith("flops") else MOST_BYTES)
    for products in ("products", "backward_products"):
        for index, product in enumerate(getattr(op, products)):
            for name in ("batch", "m", "n", "k"):
                yield from _size(f"{products}.{index}.{name}", getattr(product, name), rows)


def _arguments(op: Op) -> Iterator[str]:
    names = _called(op.arguments)
    if names is None:
        yield f"arguments are {short(op.arguments)!r}, which is not what an op is called with"
        return
    beyond = [
        name for name in names if name[0] == "t" and name[1:].isdecimal() and not 0 <= int(name[1:]) < len(op.inputs)
    ]
    if beyond:
        yield f"arguments name {beyond[0]}, the op has {len(op.inputs)} inputs"
    unnamed = [number for number in range(len(op.inputs)) if f"t{number}" not in names]
    if op.arguments and unnamed:
        yield f"arguments do not name t{unnamed[0]}, which is one of its inputs"


@lru_cache(maxsize=65536)
def _called(text: str) -> tuple[str, ...] | None:
    """The names in the arguments of a call; None for a text that is none."""
    try:
        tree = ast.parse(f"op({text})", mode="eval").body if len(text) < 100_000 else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        return None
    return tuple(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node is not tree.func)


def _tensor(tensor: Tensor, rows: int) -> Iterator[str]:
    yield from _dtype(tensor.dtype)
    for index, size in enumerate(tensor.shape):
        yield from _size(f"shape.{index}", size, rows)
    if tensor.dims:
        yield from _as_many("dims", tensor.dims, tensor.shape)
    if tensor.dtype in ITEM_BYTES and tensor.bytes_at(rows) > MOST_BYTES:
        yield f"shape is of {tensor.bytes_at(rows):.3g} bytes, more than any model has"


def _dtype(dtype: str) -> Iterator[str]:
    if dtype not in ITEM_BYTES:
        yield f"dtype is {short(dtype)!r}; known: {', '.join(ITEM_BYTES)}"


def _size(name: str, size: Affine, rows: int, most: int = MOST_SIZE) -> Iterator[str]:
    if not 0 <= size.at(rows) <= most or max(abs(size.fixed), abs(size.per_row)) > most:
        yield f"{name} is {short(size.fixed)} and {short(size.per_row)} a row, which is no size for {short(rows)} rows"


def _layout(layout: LayoutFields, graph: Graph) -> Iterator[str]:
    yield from _as_many("splits", layout.splits, graph.classes)
    if layout.degree % layout.inner:
        yield f"inner is {layout.inner}, which does not divide its degree {layout.degree}"
    for index, (split, kind) in enumerate(zip(layout.splits, graph.classes, strict=False)):
        yield from (f"splits.{index}.{wrong}" for wrong in (_split(split, kind) if split is not None else ()))


def _split(split: SplitFields, kind: BlockClass) -> Iterator[str]:
    yield from _as_many("choices", split.choices, kind.ops)
    yield from _as_many("inputs", split.inputs, kind.inputs)
    yield from _as_many("outputs", split.outputs, kind.outputs)
    if sorted(split.experts) != list(range(len(split.experts))):
        yield f"experts are {short(split.experts)}, each expert has one place"


def _as_many(name: str, given: Sequence[object], wanted: Sequence[object]) -> Iterator[str]:
    if len(given) != len(wanted):
        yield f"{name} has {len(given)} entries, {len(wanted)} were expected"


def _indices(name: str, given: Iterable[int], items: Sequence[object]) -> Iterator[str]:
    beyond = [index for index in given if not 0 <= index < len(items)]
    if beyond:
        yield f"{name} has {short(beyond[0])}, which is none of {len(items)}"


def _unmade(name: str, given: Iterable[str], made: set[str]) -> Iterator[str]:
    lost = [reference for reference in given if reference not in made]
    if lost:
        yield f"{name} has {short(lost[0])!r}, which nothing before it makes"
