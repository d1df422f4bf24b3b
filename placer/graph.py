"""The captured model: ops grouped into blocks, identical blocks sharing one class, all sizes affine in batch rows.

A `Graph` is a value: immutable, in topological order, with a JSON form. Every size is `Affine`: a fixed part and a part
per row of the batch (row: one index of dim 0 of the batched inputs), so that one capture serves every microbatch size.

    graph --blocks--> Block (a name, its arguments, its parameters) --kind--> BlockClass (its ops) --ops--> Op

References inside a `BlockClass` are local: `"i2"` is its third input, `"o5.0"` the first output of its sixth op,
`"p1"` its second parameter. References between blocks are global: `"x:input_ids"` a model input, `"b7.0"` the first
output of block 7. The prologue (block -1, values `"b-1.k"`) holds the ops that read no parameter (masks, positions,
rotary tables, shifted labels): they are cheap, and each stage recomputes those it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

import networkx
from pydantic import TypeAdapter

from placer.io.bounds import Amount, Count, CountFromOne, Finite, Label, Whole
from placer.io.memo import remembered

ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8,
    "complex128": 16, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

Granularity = Literal["block", "op"]
Values = tuple[Label, ...] | tuple[Finite, ...]

OpKind = Literal[
    "matmul",
    "convolution",
    "attention",
    "pointwise",
    "reduction",
    "view",
    "gather",
    "random",
    "communication",
    "opaque",
]


class Affine(NamedTuple):
    """`fixed + per_row * rows`."""

    fixed: Whole = 0
    per_row: Whole = 0

    @staticmethod
    def through(rows: int, value: int, more_rows: int, more: int) -> Affine:
        """The line through the values at two numbers of rows."""
        per_row = (more - value) // (more_rows - rows)
        return Affine(value - per_row * rows, per_row)

    def at(self, rows: int) -> int:
        """The value for a batch of `rows` rows."""
        return self.fixed + self.per_row * rows

    def scaled(self, factor: float) -> Affine:
        """So many times as much, rounded."""
        return Affine(round(self.fixed * factor), round(self.per_row * factor))


def affine_sum(terms: Iterable[Affine]) -> Affine:
    """The sum of affine sizes."""
    fixed = per_row = 0
    for term in terms:
        fixed += term.fixed
        per_row += term.per_row
    return Affine(fixed, per_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A value on an edge. `dims` names each dim where known (`batch`, `sequence`, `hidden`, `height`, ...)."""

    shape: tuple[Affine, ...]
    dtype: str
    requires_grad: bool = False
    dims: tuple[str | None, ...] = ()

    def shape_at(self, rows: int) -> tuple[int, ...]:
        """The concrete shape for a batch of `rows` rows."""
        return tuple(size.at(rows) for size in self.shape)

    def bytes_at(self, rows: int) -> int:
        """Bytes of the whole tensor for a batch of `rows` rows."""
        count = ITEM_BYTES[self.dtype]
        for size in self.shape:
            count *= size.at(rows)
        return count

    @property
    def batched(self) -> bool:
        """Whether some dim grows with the batch."""
        return any(size.per_row for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products of an m x k by a k x n matrix: 2 * batch * m * n * k FLOPs."""

    batch: Affine = Affine(1)
    m: Affine
    n: Affine
    k: Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A node of the captured graph. FLOPs and bytes are of the whole op on one device, at the captured dtypes.

    `backward_*` is zero for an op that needs no gradient. `saved_bytes` are the bytes this op is the first to keep for
    backward (each storage counted once in a graph, parameters and buffers not counted; values of
    the prologue count at the prologue op that made them), `kept_again` the numbers of the `inputs` that it keeps
    beside: parameters, and what an earlier op was the first to keep. `products` are the matrix products it is made of
    (empty for others); `covered` is false where no FLOP rule is known for the op. `fused_saved_bytes` is what an
    `attention` op or an RMS norm keeps instead of `saved_bytes` when a fused kernel runs it (no scores: query, key,
    value and result where nobody else keeps them, and one float32 per query and head; of a norm what it reads).
    `arguments` is what the op was called with, as
    Python writes it: `t0` is the tensor of the first entry of `inputs`, `rows` the rows at hand, `global_rows` those of
    the whole batch where the model reckons with them, None also stands for types and devices
    ("t0, [rows, 12, -1], dim=1"); `placer.rules.call_of` reads it. `seconds` of an opaque part
    are those of its forward where somebody said or measured them: fixed, and per row; backward takes twice as long.
    `channels_last`: whether a convolution's result lies so, as its input or its weight does.
    """

    name: str
    target: str
    kind: OpKind
    module: str = ""
    source: str = ""
    inputs: tuple[str, ...] = ()
    arguments: str = ""
    outputs: tuple[Tensor, ...] = ()
    forward_flops: Affine = Affine()
    backward_flops: Affine = Affine()
    read_bytes: Affine = Affine()
    written_bytes: Affine = Affine()
    backward_read_bytes: Affine = Affine()
    backward_written_bytes: Affine = Affine()
    saved_bytes: Affine = Affine()
    fused_saved_bytes: Affine = Affine()
    kept_again: tuple[Count, ...] = ()
    products: tuple[Product, ...] = ()
    backward_products: tuple[Product, ...] = ()
    covered: bool = True
    seconds: tuple[Amount, Amount] | None = None
    channels_last: bool = False


class Summed(IntEnum):
    """Over which devices of a replica a gradient is summed: none, all, or those along an axis of two."""

    NOT = 0
    REPLICA = 1
    OUTER = 2
    INNER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter or buffer of a block class; its model-wide name stands in the block.

    summed: in the graph of one device of a replica, the gradient is a part, to be summed over devices of the replica.
    """

    shape: tuple[Count, ...]
    dtype: str
    trainable: bool = True
    buffer: bool = False
    summed: Summed = Summed.NOT

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes at the captured dtype."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockClass:
    """What identical blocks share: formal inputs, ops in order, outputs as local references, parameters.

    kept_inputs, kept_outputs: numbers of those whose storage the block keeps for backward, first or not.
    """

    inputs: tuple[Tensor, ...] = ()
    ops: tuple[Op, ...] = ()
    outputs: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    kept_inputs: tuple[Count, ...] = ()
    kept_outputs: tuple[Count, ...] = ()

    def tensor(self, reference: str) -> Tensor | Parameter:
        """What a local reference (`i2`, `o5.0`, `p1`) stands for."""
        kind, rest = reference[0], reference[1:]
        if kind == "i":
            return self.inputs[int(rest)]
        if kind == "p":
            return self.parameters[int(rest)]
        op, output = rest.split(".")
        return self.ops[int(op)].outputs[int(output)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One placed unit: `name` is its module path, `inputs` and `parameters` bind the class's formal ones, in order."""

    name: str
    kind: Count
    inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPart:
    """Entries `first` to `last` (left out) of dim `dim` of an integer input, all where it is None: they count `high`.

    ignored: the number outside of 0 to `high` that a loss over classes leaves out.
    """

    dim: Count | None = None
    first: Count = 0
    last: Count = 0
    high: CountFromOne
    ignored: Whole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A named input of the model; batched ones have the batch in dim 0. `high` bounds integer inputs (vocabulary).

    values: those of an input that is the same in every step, one after another; its rows, where it has any, are alike.
    parts: what of it must be below which bound, where that is not all of it below `high`.
    """

    name: str
    tensor: Tensor
    high: CountFromOne | None = None
    values: Values | None = None
    parts: tuple[IndexedPart, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Where the loss is, and what of it the ops do not say.

    reduction: `none` where there is no loss; `other` where the batch must stay whole for a reason that ops do not show
    (`why`: an opaque part); else `sum`, and `placer.rules.rows` tells from the ops whether it adds up over rows. `mean`
    of a value that still has rows (in graphs made by hand) is that over its rows. `ignore_index` marks labels that do
    not count, in input `labels`.
    """

    reduction: Literal["mean", "sum", "other", "none"]
    value: str = ""
    labels: str = ""
    ignore_index: Label | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A captured model. `rows` is the batch it was captured for; `skeleton` identifies code and shapes. granularity:
    whether a block is a layer, or a single op. evaluation: why its ops do not give the model's loss there, if so.
    """

    name: str
    rows: CountFromOne
    inputs: tuple[Input, ...]
    classes: tuple[BlockClass, ...]
    blocks: tuple[Block, ...]
    prologue: Block
    outputs: tuple[str, ...]
    loss: Loss
    notes: tuple[str, ...] = ()
    granularity: Granularity = "block"
    evaluation: str = ""

    def block_class(self, index: int) -> BlockClass:
        """The class of block `index`; -1 is the prologue."""
        return self.classes[(self.prologue if index < 0 else self.blocks[index]).kind]

    @property
    def ops(self) -> Iterator[tuple[Block, Op]]:
        """Every op with its block, prologue first, in topological order."""
        for block in (self.prologue, *self.blocks):
            for op in self.classes[block.kind].ops:
                yield block, op

    @remembered
    def value(self, reference: str) -> Tensor:
        """The tensor of a global reference (`x:input_ids`, `b7.0`)."""
        if reference.startswith("x:"):
            return self._input_tensors[reference[2:]]
        block, output = reference[1:].split(".")
        kind = self.block_class(int(block))
        tensor = kind.tensor(kind.outputs[int(output)])
        if not isinstance(tensor, Tensor):
            raise KeyError(f"{reference} is a parameter, not a value")
        return tensor

    @cached_property
    def class_flops(self) -> tuple[Affine, ...]:
        """Forward FLOPs of a block of each class."""
        return tuple(affine_sum(op.forward_flops for op in kind.ops) for kind in self.classes)

    @cached_property
    def flops_before(self) -> tuple[Affine, ...]:
        """Forward FLOPs of the blocks before each block; at the end those of all."""
        own = [self.class_flops[block.kind] for block in self.blocks]
        return tuple(accumulate(own, lambda *both: affine_sum(both), initial=Affine()))

    @cached_property
    def follows(self) -> tuple[bool, ...]:
        """Of each block whether it reads a value of the block before it whose gradient goes back."""
        return tuple(
            any(self.value(one).requires_grad for one in block.inputs if index and one.startswith(f"b{index - 1}."))
            for index, block in enumerate(self.blocks)
        )

    @cached_property
    def reads(self) -> tuple[tuple[str, int, int], ...]:
        """(value, block that makes it, block that reads it) of the values that go from block to block."""
        return tuple(
            (one, int(one[1:].split(".")[0]), index)
            for index, block in enumerate(self.blocks)
            for one in block.inputs
            if one.startswith("b") and not one.startswith("b-")
        )

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """Those of `reads` whose gradients go back."""
        return frozenset(one for one, _, _ in self.reads if self.value(one).requires_grad)

    @cached_property
    def skips(self) -> bool:
        """Whether a block reads a value of one that is not the block before it."""
        return any(reader > maker + 1 for _, maker, reader in self.reads)

    @cached_property
    def _input_tensors(self) -> dict[str, Tensor]:
        return {entry.name: entry.tensor for entry in self.inputs}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter and buffer by the model's own name, tied ones once."""
        found: dict[str, Parameter] = {}
        for block in (self.prologue, *self.blocks):
            for name, parameter in zip(block.parameters, self.classes[block.kind].parameters, strict=True):
                found.setdefault(name, parameter)
        return found

    @cached_property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """Trainable parameters used by several blocks, with the indices of those blocks."""
        users: dict[str, list[int]] = {}
        for index, block in enumerate(self.blocks):
            for name in block.parameters:
                if self.parameters[name].trainable:
                    users.setdefault(name, []).append(index)
        return {name: tuple(where) for name, where in users.items() if len(where) > 1}

    @cached_property
    def trained_types(self) -> frozenset[str]:
        """The types of what is trained, as captured."""
        return frozenset(one.dtype for one in self.parameters.values() if one.trainable and not one.buffer)

    def _total(self, field: str) -> int:
        counts = Counter(block.kind for block in (self.prologue, *self.blocks))
        sizes = {kind: affine_sum(getattr(op, field) for op in self.classes[kind].ops) for kind in counts}
        return sum(count * sizes[kind].at(self.rows) for kind, count in counts.items())

    @property
    def forward_flops(self) -> int:
        """Forward FLOPs of the batch the graph was captured for."""
        return self._total("forward_flops")

    @property
    def backward_flops(self) -> int:
        """Backward FLOPs of the batch the graph was captured for."""
        return self._total("backward_flops")

    @property
    def saved_bytes(self) -> int:
        """Bytes kept for backward for the batch the graph was captured for."""
        return self._total("saved_bytes")

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters (buffers not counted), tied ones once."""
        return sum(p.bytes for p in self.parameters.values() if not p.buffer)

    @cached_property
    def last_use(self) -> dict[str, int]:
        """The last block that reads each block output; the index of the last block for outputs of the model."""
        last = {reference: index for index, block in enumerate(self.blocks) for reference in block.inputs}
        return last | dict.fromkeys(self.outputs, len(self.blocks) - 1)

    def crossing(self, cut: int) -> tuple[str, ...]:
        """Block outputs made before block `cut` and read at or after it: what a cut there must move."""
        made = ((reference, last) for reference, last in self.last_use.items() if reference.startswith("b"))
        return tuple(reference for reference, last in made if 0 <= making_block(reference) < cut <= last)

    def networkx(self) -> networkx.DiGraph[int]:
        """Blocks as nodes 0..n-1 (attribute `block`), an edge where one reads another's output (attribute `values`)."""
        view: networkx.DiGraph[int] = networkx.DiGraph(name=self.name)
        for index, block in enumerate(self.blocks):
            view.add_node(index, block=block.name)
            for reference in block.inputs:
                if reference.startswith("b") and (source := making_block(reference)) >= 0:
                    values = view.get_edge_data(source, index, {"values": ()})["values"]
                    view.add_edge(source, index, values=(*values, reference))
        return view

    def to_json(self) -> str:
        """The graph as JSON; `from_json` reads it back equal."""
        return GRAPH.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> Graph:
        """The graph of `to_json`."""
        return GRAPH.validate_json(text)


def making_block(reference: str) -> int:
    """The block that makes `b7.0`."""
    return int(reference[1:].split(".")[0])


GRAPH: TypeAdapter[Graph] = TypeAdapter(Graph)
