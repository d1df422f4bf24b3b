"""Precision: which dtype each op of a captured block runs in under a setting, and how its bytes scale.

A graph is captured at one base dtype. `float32`, `float64`, `bfloat16` and `float16` run everything that was captured
at the base dtype in that type; what the model itself casts elsewhere stays. `bfloat16-autocast` runs products in
bfloat16, the ops of torch's float32 list in float32, and the others in the widest type of their inputs (`autocast`);
what products read in another type is copied first (`OpNumerics.copied`). With `settings.tf32` products of float32 run
at the rate of TensorFloat-32.

With `settings.float8` products of 16 bits that read a parameter run in 8 (`float4`: in 4), all but the head's, as
Transformer Engine's do (its Linear and GroupedLinear; Megatron-LM's output layer is none of them:
megatron/core/models/gpt/gpt_model.py, tensor_parallel.ColumnParallelLinear; torchtitan leaves `output` out as well:
docs of its float8 converter, filter_fqns). What they read is cast first (`OpNumerics.cast`), and the cast copy is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from placer.cluster.cluster import Backend, Device
from placer.costs.autocast import (
    AS_FIRST,
    BY_THEMSELVES,
    FLOAT32,
    LOWERED,
    NO_COPIES,
    NOT_LOWERED,
    Copy,
    Copying,
    copy_of,
    copying,
)
from placer.graph import ITEM_BYTES, BlockClass, Graph, Op, Parameter, Tensor
from placer.io.memo import once
from placer.plans.settings import SIXTEEN_BITS, RunSettings

FLOATING = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")

EIGHT_BITS = "float8_e4m3fn"
FOUR_BITS = "float4"
TENSOR_FLOAT = "tfloat32"
PRODUCT_KINDS = ("matmul", "convolution", "attention")
# Bytes of an element of few bits, by definition; scales of blocks of 32 or 16 elements are left out.
FEW_BYTES = {EIGHT_BITS: 1.0, FOUR_BITS: 0.5}
# A cast reads an operand once and writes it along both of its dims, one copy for each of the products that sum over
# them, forward's and that of the weights' gradients (Transformer Engine's documentation, "Performance Considerations",
# rowwise and columnwise usage). Weights are left out: they are cast once a step (its `is_first_microbatch`).
CAST_COPIES = 2
# Stacks that hold gradients of bfloat16 weights in one float32 buffer (`memory.stacks`), in which collectives work.
WIDE_BUFFERS = ("megatron", "megatron-core")
# Stacks that cast gradients of 16 bits to float32 where they are summed: this runtime, and FSDP2 with its reduce_dtype.
WIDE_CASTS = ("torch", "fsdp")
# What sends rows of what an op reads to other devices (`spmd.local_ops.inner_ops`); else it sums or compares.
ROWS_SENT = frozenset({"exchange", "all_to_all"})
# Casts of the model itself, to the type that they were captured with.
CASTING = "aten.to.dtype"
# What hands a value on to its readers as the same storage, or as it is laid out anew.
HANDING = ("view", "communication")


# A block class, what is known of its ops, the types of what they make, and what autocast copies for each.
_Numbered: TypeAlias = "tuple[BlockClass, tuple[OpNumerics, ...], dict[str, str], tuple[tuple[Copy, ...], ...]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNumerics:
    """The dtype an op's products run in and factors on the captured read, written and saved bytes.

    cast: bytes that casting moves per byte of an operand that is no parameter; 0 where products read it as it is.
    entering: the factor of its first input as it comes, before a cast. copied: what autocast moves to make
    `copies` of what it reads, in the type that it has the op read.
    """

    dtype: str
    read: float
    written: float
    saved: float
    cast: float = 0.0
    entering: float = 1.0
    copied: Copying = NO_COPIES
    copied_back: Copying = NO_COPIES
    copies: int = 0


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes of a run: `base` as captured, `weights` as kept on the device, `compute` of products, `compressed` of
    gradients while replicas sum them (empty: as they are). autocast: whose lists of ops it goes by (None: no autocast).
    gathered: FSDP gathers weights in `compute` already. wide_sums: the stack sums 16 bits in float32 (`summed`), and
    casts: that it casts to do so.
    crossing, entering: the types of values that cross blocks where they are not as kept, and of what enters the blocks
    of a class (by its identity)."""

    base: str
    weights: str
    compute: str
    autocast: Backend | None = None
    gathered: bool = False
    few_bits: str = ""
    tf32: bool = False
    compressed: str = ""
    wide_sums: bool = False
    casts: bool = False
    crossing: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    entering: Mapping[int, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(graph: Graph, settings: RunSettings, backend: Backend = "cuda") -> Numerics:
        """The dtypes of `graph` under `settings`, on devices of a `backend`."""
        base = base_dtype(graph)
        few = FOUR_BITS if settings.float4 else EIGHT_BITS if settings.float8 else ""
        compressed = settings.gradient_compression.replace("none", "")
        if settings.precision == "bfloat16-autocast":
            return Numerics(
                base=base, weights="float32", compute="bfloat16", autocast=backend, few_bits=few,
                gathered=settings.stack == "fsdp", compressed=compressed,
            )._through(graph)  # fmt: skip
        casts = settings.precision in SIXTEEN_BITS and settings.stack in WIDE_CASTS
        return Numerics(
            base=base, weights=settings.precision, compute=settings.precision, few_bits=few, tf32=settings.tf32,
            compressed=compressed, casts=casts,
            wide_sums=casts or (settings.precision == "bfloat16" and settings.stack in WIDE_BUFFERS),
        )  # fmt: skip

    @property
    def masters(self) -> bool:
        """Whether the optimizer keeps float32 copies of 16-bit weights."""
        return self.weights in ("bfloat16", "float16")

    @property
    def products(self) -> str:
        """The type that products run in, but for those of fewer bits."""
        return TENSOR_FLOAT if self.tf32 and self.compute == "float32" else self.compute

    def peak(self, graph: Graph, device: Device) -> float:
        """FLOP/s of the fastest products of `graph` on a device at its nominal rates. Attention that leaves out what
        its mask hides has fewer FLOPs than are counted, and may look faster."""
        types = {own.dtype for kind in graph.classes for own in self.ops(kind)}
        return max(device.rate(dtype) for dtype in types | {self.products})

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of one element of a parameter at the base dtype, and of its gradient."""
        return ITEM_BYTES[self.weights]

    def summed(self, size: float) -> float:
        """Bytes in which the stack sums gradients of `size` bytes, over microbatches and over devices."""
        return size * ITEM_BYTES["float32"] / self.weight_bytes if self.wide_sums else size

    def between_replicas(self, size: float) -> float:
        """Bytes that replicas sum of gradients of `size` bytes."""
        return size * ITEM_BYTES[self.compressed] / self.weight_bytes if self.compressed else self.summed(size)

    @property
    def casts_between_replicas(self) -> bool:
        """Whether replicas cast gradients to sum them."""
        return self.casts or bool(self.compressed)

    def kept(self, dtype: str) -> str:
        """The dtype a weight or value captured as `dtype` has outside of autocast ops."""
        return self.weights if dtype == self.base else dtype

    def crosses(self, reference: str, tensor: Tensor) -> str:
        """The type in which a value (`b7.0`) crosses blocks: under autocast as it was made, else as kept."""
        return self.crossing.get(reference) or self.kept(tensor.dtype)

    def bytes_of(self, reference: str, tensor: Tensor, rows: int) -> int:
        """Bytes of a value, or of a part of it, as it crosses blocks."""
        return tensor.bytes_at(rows) // ITEM_BYTES[tensor.dtype] * ITEM_BYTES[self.crosses(reference, tensor)]

    def ops(self, block_class: BlockClass) -> tuple[OpNumerics, ...]:
        """For each op of a block class its numerics, types carried along the edges; remembered by the class itself."""
        return once(self._by_class, id(block_class), self._numbered, block_class)[1]

    def copies(self, block_class: BlockClass) -> tuple[tuple[Copy, ...], ...]:
        """For each op of a block class what autocast copies for it, but for what it has copied by then."""
        return once(self._by_class, id(block_class), self._numbered, block_class)[3]

    def sent_inside(self, numbers: OpNumerics, target: str) -> float:
        """The factor on the bytes that devices sharing an op send inside it: rows as they enter, sums as weights are
        (what torch.autocast leaves of them in float32)."""
        return numbers.entering if ROWS_SENT.intersection(target.split(".")) else self._plain

    def type_of(self, block_class: BlockClass, reference: str) -> str:
        """The dtype in which a value of a block class runs."""
        known = once(self._by_class, id(block_class), self._numbered, block_class)[2]
        return self._type(block_class, reference, known)

    def alike(self, block_class: BlockClass) -> tuple[tuple[Op, OpNumerics, int], ...]:
        """The ops of a block class that do something: one of each whose sizes are the same, and how many there are."""
        return once(self._alike, id(block_class), self._counted, block_class)[1]

    @cached_property
    def _alike(self) -> dict[int, tuple[BlockClass, tuple[tuple[Op, OpNumerics, int], ...]]]:
        return {}

    @cached_property
    def _by_class(self) -> dict[int, _Numbered]:
        return {}

    def _numbered(self, block_class: BlockClass) -> _Numbered:
        known: dict[str, str] = {}
        few = self._few_bits(block_class)
        made: list[OpNumerics] = []
        for index, op in enumerate(block_class.ops):
            own = self._op(block_class, op, index, known)
            if made and op.kind == "communication" and not op.inputs:  # inside the op before it (`spmd.local_ops`)
                sent = self.sent_inside(made[-1], op.target)
                own = replace(own, read=sent, written=sent, entering=made[-1].entering)
            made.append(own)
        copies = self._copies(block_class, known, few)
        numbers = tuple(
            self._copying(own, op, copied) if copied else own
            for op, own, copied in zip(
                block_class.ops,
                (self._in_few_bits(own) if index in few else own for index, own in enumerate(made)),
                copies,
                strict=True,
            )
        )
        return block_class, numbers, known, copies

    def _copying(self, own: OpNumerics, op: Op, copies: tuple[Copy, ...]) -> OpNumerics:
        """The numbers of an op for which autocast makes copies, forward and, of their gradients, back."""
        ahead, back = (
            copying(op, those, reads_them=op.kind in PRODUCT_KINDS)
            for those in (copies, [one for one in copies if one.trains])
        )
        return replace(own, copied=ahead, copied_back=back, copies=len(copies))

    def _copies(
        self, block_class: BlockClass, known: Mapping[str, str], few: frozenset[int]
    ) -> tuple[tuple[Copy, ...], ...]:
        """For each op what it reads that comes in another type than autocast has it read; of what is copied once for
        all the first op's."""
        met: set[str] = set()
        found: list[tuple[Copy, ...]] = []
        for index, op in enumerate(block_class.ops):
            itself = index in few or op_name(op) in BY_THEMSELVES
            to, copies = "" if itself else self._casts_to(op), []
            for number, reference in enumerate(op.inputs if to else ()):
                dtype = self._type(block_class, reference, known)
                if dtype in FLOATING and dtype != to and reference not in met:
                    copies.append(copy_of(block_class.tensor(reference), number, ITEM_BYTES[dtype], ITEM_BYTES[to]))
            found.append(tuple(one for one in copies if not (one.held and self.gathered)))
            met.update(op.inputs[one.number] for one in copies if one.cached)
        return tuple(found)

    def _type(self, block_class: BlockClass, reference: str, known: Mapping[str, str]) -> str:
        if reference.startswith("i") and id(block_class) in self.entering:
            return self.entering[id(block_class)][int(reference[1:])]
        return known.get(reference) or self.kept(block_class.tensor(reference).dtype)

    def _through(self, graph: Graph) -> Numerics:
        """These, with the types of values as they cross the blocks of `graph`: into the blocks of a class the widest
        that comes into one of them."""
        crossing: dict[str, str] = {}
        entering: dict[int, tuple[str, ...]] = {}
        leaving: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}
        widened = True
        while widened:
            widened = False
            for index, block in enumerate((graph.prologue, *graph.blocks), -1):
                kind = graph.classes[block.kind]
                before = entering.get(id(kind))
                types = tuple(self._crossing(graph, reference, crossing) for reference in block.inputs)
                types = types if before is None else tuple(map(_wider, before, types))
                widened |= before not in (None, types)
                entering[id(kind)] = types
                made = once(leaving, (id(kind), types), self._leaving, kind, types)
                crossing.update({f"b{index}.{number}": one for number, one in enumerate(made)})
        return replace(self, crossing=crossing, entering=entering)

    def _crossing(self, graph: Graph, reference: str, crossing: Mapping[str, str]) -> str:
        return crossing.get(reference) or self.kept(graph.value(reference).dtype)

    def _leaving(self, block_class: BlockClass, types: tuple[str, ...]) -> tuple[str, ...]:
        """The types of what a block makes of values of these types."""
        own = replace(self, entering={id(block_class): types})
        return tuple(own.type_of(block_class, reference) for reference in block_class.outputs)

    def _counted(self, block_class: BlockClass) -> tuple[BlockClass, tuple[tuple[Op, OpNumerics, int], ...]]:
        first: dict[object, int] = {}
        numbers, counts = self.ops(block_class), Counter[int]()
        for index, (op, own) in enumerate(zip(block_class.ops, numbers, strict=True)):
            if op.kind not in HANDING:
                counts[first.setdefault(_sizes(op, own, index), index)] += 1
        return block_class, tuple((block_class.ops[index], numbers[index], count) for index, count in counts.items())

    def _op(self, block_class: BlockClass, op: Op, index: int, known: dict[str, str]) -> OpNumerics:
        tensors = [(reference, block_class.tensor(reference)) for reference in op.inputs]
        types = [self._type(block_class, reference, known) for reference in op.inputs]
        lone = [_lone(tensor) for _, tensor in tensors]
        every = all(one for one, dtype in zip(lone, types, strict=True) if dtype in FLOATING)
        floating = [t for t, one in zip(types, lone, strict=True) if t in FLOATING and (every or not one)]
        runs = self._runs_in(op, floating)
        before = after = 0.0
        for (_, tensor), running in zip(tensors, types, strict=True):
            taken = runs if self._casts_to(op) and op.kind in PRODUCT_KINDS and running in FLOATING else running
            before += _weight(tensor) * ITEM_BYTES[tensor.dtype]
            after += _weight(tensor) * ITEM_BYTES[taken]
        read = after / before if before else self._plain
        out_before = out_after = 0.0
        for output, tensor in enumerate(op.outputs):
            made = self._made(tensor, runs)
            known[f"o{index}.{output}"] = made
            out_before += _weight(tensor) * ITEM_BYTES[tensor.dtype]
            out_after += _weight(tensor) * ITEM_BYTES[made]
        written = out_after / out_before if out_before else read
        # torch runs convolutions of float32 so by default (torch.backends.cudnn.allow_tf32), where the device can.
        tensor_float = runs == "float32" and (op.kind == "convolution" or (self.tf32 and op.kind in PRODUCT_KINDS))
        first = tensors[0][1].dtype if tensors else self.base
        entering = ITEM_BYTES[types[0] if types else self.weights] / ITEM_BYTES[first]
        return OpNumerics(
            dtype=TENSOR_FLOAT if tensor_float else runs, read=read, written=written, saved=max(read, written),
            entering=entering,
        )  # fmt: skip

    def _runs_in(self, op: Op, inputs: list[str]) -> str:
        widest = max(inputs, key=lambda t: ITEM_BYTES[t], default=self.weights)
        if self.autocast is None:
            return widest if op.kind not in PRODUCT_KINDS or widest != self.base else self.compute
        if self._casts_to(op):
            return self._casts_to(op)
        if op.target.startswith(CASTING):
            return self.weights
        name = op_name(op)
        if not inputs:
            return widest
        if name == "type_as":
            return inputs[-1]
        first = op.kind == "view" or name in AS_FIRST or (name.endswith("_") and not name.startswith("_"))
        return inputs[0] if first else widest

    def _casts_to(self, op: Op) -> str:
        """The type in which autocast has an op read everything; empty where it does not interfere."""
        if self.autocast is None or not op.target.startswith("aten."):
            return ""
        if op.kind in PRODUCT_KINDS or op_name(op) in LOWERED:
            return "" if op_name(op) in NOT_LOWERED else self.compute
        return "float32" if op_name(op) in FLOAT32[self.autocast] else ""

    def _few_bits(self, block_class: BlockClass) -> frozenset[int]:
        """The products with a parameter that run in fewer than 16 bits: all but those that make what a loss reads."""
        if not self.few_bits:
            return frozenset()
        weights = weight_references(block_class)
        products = [i for i, op in enumerate(block_class.ops) if op.kind in ("matmul", "convolution")]
        mine = (i for i in products if not weights.isdisjoint(block_class.ops[i].inputs))
        return frozenset(i for i in mine if not leads_to(block_class, i, "loss"))

    def _in_few_bits(self, own: OpNumerics) -> OpNumerics:
        """The numbers of a product of 16 bits when it runs in fewer."""
        if own.dtype not in ("bfloat16", "float16"):
            return own
        share = FEW_BYTES[self.few_bits] / ITEM_BYTES[own.dtype]
        return replace(own, dtype=self.few_bits, saved=share * own.saved, cast=own.read * (1 + CAST_COPIES * share))

    def _made(self, tensor: Tensor, runs: str) -> str:
        if tensor.dtype not in FLOATING:
            return tensor.dtype
        if self.autocast:
            return runs if tensor.dtype == self.base else tensor.dtype
        return self.kept(tensor.dtype)

    @property
    def _plain(self) -> float:
        return ITEM_BYTES[self.weights] / ITEM_BYTES[self.base]


def weight_references(block_class: BlockClass) -> set[str]:
    """The parameters of a block, and views of them."""
    found = {f"p{index}" for index in range(len(block_class.parameters))}
    for index, op in enumerate(block_class.ops):
        if op.kind == "view" and not found.isdisjoint(op.inputs):
            found |= {f"o{index}.{output}" for output in range(len(op.outputs))}
    return found


def _lone(value: Tensor | Parameter) -> bool:
    """Whether it is one number without dims, which changes no type (torch's rules of promotion)."""
    return not value.shape


def _wider(one: str, other: str) -> str:
    return max(one, other, key=ITEM_BYTES.__getitem__)


def leads_to(block_class: BlockClass, index: int, word: str) -> bool:
    """Whether nothing but pointwise ops lies between an op's first result and an op with `word` in its name."""
    reached = {f"o{index}.0"}
    for number, op in enumerate(block_class.ops[index + 1 :], index + 1):
        if reached.isdisjoint(op.inputs):
            continue
        if word in op_name(op):
            return True
        if op.kind in (*HANDING, "pointwise", "random"):
            reached.add(f"o{number}.0")
    return False


def op_name(op: Op) -> str:
    """The bare name of an op's target: `softmax` of `aten.softmax.int`."""
    parts = op.target.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def base_dtype(graph: Graph) -> str:
    """The floating dtype most parameter bytes were captured at (float32 without parameters)."""
    held: Counter[str] = Counter()
    for parameter in graph.parameters.values():
        if parameter.dtype in FLOATING:
            held[parameter.dtype] += parameter.bytes
    return held.most_common(1)[0][0] if held else "float32"


def _sizes(op: Op, numbers: OpNumerics, index: int) -> object:
    """Equal for ops that take as long; attention is one by one, as its kernel depends on more."""
    if op.kind == "attention":
        return index
    weights = op.kind in PRODUCT_KINDS and any(reference.startswith("p") for reference in op.inputs)
    return (
        op.kind, op.products, op.backward_products, op.forward_flops, op.backward_flops, op.read_bytes,
        op.written_bytes, op.backward_read_bytes, op.backward_written_bytes, op.seconds, numbers, weights,
    )  # fmt: skip


def _weight(tensor: Tensor | Parameter) -> int:
    """Elements, of one row where they depend on rows."""
    if isinstance(tensor, Parameter):
        return tensor.elements
    return tensor.bytes_at(1) // ITEM_BYTES[tensor.dtype]
