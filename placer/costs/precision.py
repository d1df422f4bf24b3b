"""Precision: which dtype each op of a captured block runs in under a setting, and how its bytes scale.

A graph is captured at one base dtype. `float32`, `float64`, `bfloat16` and `float16` run everything that was captured
at the base dtype in that type; what the model itself casts elsewhere stays. `bfloat16-autocast` runs products in
bfloat16, the ops of torch's float32 list in float32, and the others in the widest type of their inputs. With
`settings.float8` products of 16 bits that read a parameter run in 8 (`float4`: in 4), while what they read and write
stays as it is; with `settings.tf32` products of float32 run at the rate of TensorFloat-32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from placer.graph import ITEM_BYTES, Affine, BlockClass, Graph, Op, Parameter, Tensor
from placer.io.memo import once
from placer.plans.plan import Layout
from placer.plans.settings import RunSettings

FLOATING = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")

# Ops torch.autocast runs in float32 (torch docs, "Autocast Op Reference", CUDA ops that autocast to float32).
FLOAT32_OPS = frozenset({
    "softmax", "_softmax", "log_softmax", "_log_softmax", "layer_norm", "native_layer_norm", "group_norm", "rms_norm",
    "cross_entropy_loss", "nll_loss", "nll_loss_forward", "nll_loss2d", "mse_loss", "smooth_l1_loss", "l1_loss",
    "binary_cross_entropy_with_logits", "kl_div", "exp", "log", "pow", "rsqrt", "sum", "prod", "norm", "cumsum",
    "softplus", "cosh", "sinh", "tan", "acos", "asin", "reciprocal",
})  # fmt: skip
EIGHT_BITS = "float8_e4m3fn"
FOUR_BITS = "float4"
TENSOR_FLOAT = "tfloat32"
PRODUCT_KINDS = ("matmul", "convolution", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNumerics:
    """The dtype an op's products run in and factors on the captured read, written and saved bytes."""

    dtype: str
    read: float
    written: float
    saved: float


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes of a run: `base` as captured, `weights` as kept on the device, `compute` of products."""

    base: str
    weights: str
    compute: str
    autocast: bool
    few_bits: str = ""
    tf32: bool = False

    @staticmethod
    def of(graph: Graph, settings: RunSettings) -> Numerics:
        """The dtypes of `graph` under `settings`."""
        base = base_dtype(graph)
        few = FOUR_BITS if settings.float4 else EIGHT_BITS if settings.float8 else ""
        if settings.precision == "bfloat16-autocast":
            return Numerics(base=base, weights="float32", compute="bfloat16", autocast=True, few_bits=few)
        return Numerics(
            base=base, weights=settings.precision, compute=settings.precision, autocast=False, few_bits=few,
            tf32=settings.tf32,
        )  # fmt: skip

    @property
    def masters(self) -> bool:
        """Whether the optimizer keeps float32 copies of 16-bit weights."""
        return self.weights in ("bfloat16", "float16")

    @property
    def products(self) -> str:
        """The type that products run in, but for those of fewer bits."""
        return TENSOR_FLOAT if self.tf32 and self.compute == "float32" else self.compute

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of one element of a parameter at the base dtype, and of its gradient."""
        return ITEM_BYTES[self.weights]

    def kept(self, dtype: str) -> str:
        """The dtype a weight or value captured as `dtype` has outside of autocast ops."""
        return self.weights if dtype == self.base else dtype

    def bytes_of(self, tensor: Tensor, rows: int) -> int:
        """Bytes of a value that crosses blocks: bfloat16 under autocast only where the graph says so, else as kept."""
        return tensor.bytes_at(rows) // ITEM_BYTES[tensor.dtype] * ITEM_BYTES[self.kept(tensor.dtype)]

    def ops(self, block_class: BlockClass) -> tuple[OpNumerics, ...]:
        """For each op of a block class its numerics, types carried along the edges; remembered by the class itself."""
        return once(self._by_class, id(block_class), self._numbered, block_class)[1]

    def alike(self, block_class: BlockClass) -> tuple[tuple[Op, OpNumerics, int], ...]:
        """The ops of a block class that do something: one of each whose sizes are the same, and how many there are."""
        return once(self._alike, id(block_class), self._counted, block_class)[1]

    @cached_property
    def _alike(self) -> dict[int, tuple[BlockClass, tuple[tuple[Op, OpNumerics, int], ...]]]:
        return {}

    @cached_property
    def _by_class(self) -> dict[int, tuple[BlockClass, tuple[OpNumerics, ...]]]:
        return {}

    def _numbered(self, block_class: BlockClass) -> tuple[BlockClass, tuple[OpNumerics, ...]]:
        known: dict[str, str] = {}
        return block_class, tuple(self._op(block_class, index, op, known) for index, op in enumerate(block_class.ops))

    def _counted(self, block_class: BlockClass) -> tuple[BlockClass, tuple[tuple[Op, OpNumerics, int], ...]]:
        first: dict[object, int] = {}
        numbers, counts = self.ops(block_class), Counter[int]()
        for index, (op, own) in enumerate(zip(block_class.ops, numbers, strict=True)):
            if op.kind not in ("view", "communication"):
                counts[first.setdefault(_sizes(op, own, index), index)] += 1
        return block_class, tuple((block_class.ops[index], numbers[index], count) for index, count in counts.items())

    def _op(self, block_class: BlockClass, index: int, op: Op, known: dict[str, str]) -> OpNumerics:
        tensors = [(reference, block_class.tensor(reference)) for reference in op.inputs]
        types = [known.get(reference) or self.kept(tensor.dtype) for reference, tensor in tensors]
        runs = self._runs_in(op, [t for t in types if t in FLOATING])
        before = after = 0.0
        for (_, tensor), running in zip(tensors, types, strict=True):
            taken = runs if self.autocast and op.kind in PRODUCT_KINDS and running in FLOATING else running
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
        dtype = self.few_bits if self._in_few_bits(op, runs) else runs
        if self.tf32 and op.kind in PRODUCT_KINDS and runs == "float32":
            dtype = TENSOR_FLOAT
        return OpNumerics(dtype=dtype, read=read, written=written, saved=max(read, written))

    def _runs_in(self, op: Op, inputs: list[str]) -> str:
        widest = max(inputs, key=lambda t: ITEM_BYTES[t], default=self.weights)
        if not self.autocast:
            return widest if op.kind not in PRODUCT_KINDS or widest != self.base else self.compute
        if op.kind in PRODUCT_KINDS:
            return self.compute
        return "float32" if op_name(op) in FLOAT32_OPS else widest

    def _in_few_bits(self, op: Op, runs: str) -> bool:
        """Whether a product of 16 bits with a parameter is done in fewer."""
        if not self.few_bits or op.kind not in ("matmul", "convolution") or runs not in ("bfloat16", "float16"):
            return False
        return any(reference.startswith("p") for reference in op.inputs)

    def _made(self, tensor: Tensor, runs: str) -> str:
        if tensor.dtype not in FLOATING:
            return tensor.dtype
        if self.autocast:
            return runs if tensor.dtype == self.base else tensor.dtype
        return self.kept(tensor.dtype)

    @property
    def _plain(self) -> float:
        return ITEM_BYTES[self.weights] / ITEM_BYTES[self.base]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """What prices depend on beside devices: the graph of one of the `degree` devices of a replica, and the settings.

    Sizes of the graph count rows of which a replica has `apart` times as many. `whole` is the graph of all devices of a
    replica, `layout` how it is cut; replicas begin at devices whose numbers leave the remainder `offset` when they are
    divided by the degree. Of the parameters in `kept_whole` every device of a replica holds that, whatever its blocks
    read. `inner` devices are along the second axis of a replica, where there are two.
    """

    graph: Graph
    whole: Graph
    numerics: Numerics
    settings: RunSettings
    layout: Layout | None = None
    offset: int = 0
    degree: int = 1
    inner: int = 1
    apart: int = 1
    kept_whole: Mapping[str, Parameter] = field(default_factory=dict)

    def per_row(self, size: Affine) -> Affine:
        """A size in the graph's rows as one in rows of a replica, rounded up."""
        return Affine(size.fixed, -(-size.per_row // self.apart))


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
