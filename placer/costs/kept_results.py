"""Which ops of a block keep their results where the others run again in backward (recompute `selective`).

Products do (matrix products, convolutions, fused attention): they take most of the seconds and few of the bytes. All
else runs again: norms, activations, dropout, casts, and of attention that no fused kernel runs the scores, the product
that makes them, and their softmax (Korthikanti et al., arXiv:2205.05198, section 5). So does a product whose result
another op writes in place, for what is kept must stay as it is.

Other stacks choose otherwise: Megatron's layers keep all but scores, where there are any (its `selective`, Korthikanti
et al., section 5; its Core can make more again: --recompute-modules), torchtitan's attention and every second matrix
product (its torchtitan/distributed/activation_checkpoint.py, `selective_ac_option = "op"`: `mm_count % 2`).

The fused kernel of a CPU (`_scaled_dot_product_flash_attention_for_cpu`) runs an attention only where nothing is
dropped, no gradient flows to the mask, and all tensors have four dims, the mask two or four, and query, key and value
the same width (torch/csrc: aten/src/ATen/native/transformers/sdp_utils_cpp.cpp); any other call keeps its scores there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from placer.cluster.cluster import Backend
from placer.costs.precision import HANDING, PRODUCT_KINDS, leads_to, op_name, weight_references
from placer.graph import BlockClass, Op
from placer.plans.settings import MEGATRON, RunSettings
from placer.rules.calls import Call, Value
from placer.rules.graph_calls import call_of

# Ops that save what they made, not what they read.
OWN_RESULT = frozenset({
    "relu", "sigmoid", "tanh", "softmax", "_softmax", "_safe_softmax", "log_softmax", "exp", "sqrt", "rsqrt", "elu",
    "cross_entropy_loss", "max_pool2d",
})  # fmt: skip
# The argument of `scaled_dot_product_attention` behind the mask, in order or by name, that is above zero.
DROPPING = re.compile(r"t0, t1, t2, (?:None|t\d+), (?:0?\.0*[1-9]|1|\de-)|.*\bdropout_p=(?:0?\.0*[1-9]|1)")
# The same of dropout itself.
DROPPED = re.compile(r"t0, (?:0?\.0*[1-9]|1|\de-)")
RANK = 4  # by definition: rows, heads, positions, width


class Readers(NamedTuple):
    """The ops that read a result, as it is or as a view, and whether it leaves the block."""

    ops: tuple[int, ...]
    leaves: bool


def kept_results(block_class: BlockClass, settings: RunSettings, backend: Backend) -> tuple[int, ...]:
    """The numbers of the ops that keep their results, in order."""
    if scores_alone(settings):
        return tuple(index for index, op in enumerate(block_class.ops) if op.kind != "attention")
    found = _products(block_class, settings, backend)
    return _every_second(block_class, found) if settings.stack == "fsdp" else found


def scores_alone(settings: RunSettings) -> bool:
    """Whether `selective` makes scores again and nothing else."""
    return settings.stack in MEGATRON and settings.attention == "eager"


def _every_second(block_class: BlockClass, found: tuple[int, ...]) -> tuple[int, ...]:
    """Of products with weights the first, the third, and so on; attention all."""
    matrix = [index for index in found if block_class.ops[index].kind == "matmul"]
    return tuple(index for index in found if index not in matrix[1::2])


def _products(block_class: BlockClass, settings: RunSettings, backend: Backend) -> tuple[int, ...]:
    """Those of products."""
    weights = weight_references(block_class)
    return tuple(
        index
        for index, op in enumerate(block_class.ops)
        if op.kind in PRODUCT_KINDS
        and op.outputs
        and _fit(block_class, index, settings, backend)
        and (op.kind == "attention" or not weights.isdisjoint(op.inputs) or not leads_to(block_class, index, "softmax"))
        and not any(op_name(block_class.ops[one]).endswith("_") for one in readers(block_class, index).ops)
    )


def readers(block_class: BlockClass, index: int) -> Readers:
    """Who reads the results of an op."""
    names = {f"o{index}.{output}" for output in range(len(block_class.ops[index].outputs))}
    found = []
    for number, op in enumerate(block_class.ops[index + 1 :], index + 1):
        if names.isdisjoint(op.inputs):
            continue
        if op.kind in HANDING:
            names |= {f"o{number}.{output}" for output in range(len(op.outputs))}
        else:
            found.append(number)
    return Readers(tuple(found), not names.isdisjoint(block_class.outputs))


def fuses(op: Op, call: Call | None, settings: RunSettings, backend: Backend) -> bool:
    """Whether a fused kernel runs an op. On a CPU torch chooses that of attention; other calls name their kernel. RMS
    norms have one on accelerators alone. A run of ours keys its masks, which no fused kernel of attention draws."""
    if op_name(op) == "rms_norm":
        return backend != "cpu" and any(op.fused_saved_bytes)
    if op.kind != "attention" or makes_scores(op, settings, backend) or not any(op.fused_saved_bytes):
        return False
    return backend != "cpu" or call is None or fuses_on_cpu(call)


def makes_scores(op: Op, settings: RunSettings, backend: Backend) -> bool:
    """Whether attention makes its scores whatever kernels there are: where that is asked for, and on a GPU where a run
    of ours drops some."""
    return settings.attention == "eager" or keyed_scores(op, settings, backend)


def keyed_scores(op: Op, settings: RunSettings, backend: Backend) -> bool:
    """Whether a run of ours on a GPU drops scores of attention, which one kernel weighs and drops. Op by op (`eager`)
    others do."""
    ours = backend != "cpu" and settings.stack == "torch" and settings.attention != "eager"
    return ours and op.kind == "attention" and drops(op)


def drops(op: Op) -> bool:
    """Whether an op of training drops elements."""
    if op_name(op) == "scaled_dot_product_attention":
        return DROPPING.match(op.arguments) is not None
    return op_name(op) in ("dropout", "dropout_") and DROPPED.match(op.arguments) is not None


def fuses_on_cpu(call: Call) -> bool:
    """Whether the fused kernel of a CPU runs a `scaled_dot_product_attention`."""
    shapes = [call.tensor(position).shape for position in range(3)]
    mask = call.argument(3, "attn_mask")
    if call.argument(4, "dropout_p", 0.0) or any(len(shape) != RANK for shape in shapes):
        return False
    if isinstance(mask, Value) and (mask.requires_grad or len(mask.shape) not in (2, RANK)):
        return False
    return len({shape[-1] for shape in shapes}) == 1


def _fit(block_class: BlockClass, index: int, settings: RunSettings, backend: Backend) -> bool:
    """Whether the result is all that the op has to keep: of attention, that a fused kernel runs it."""
    op = block_class.ops[index]
    if op.kind != "attention":
        return True
    scaled = op_name(op) == "scaled_dot_product_attention" and op.arguments
    return fuses(op, call_of(block_class, op, 1) if scaled else None, settings, backend)
