"""How the attention kernel of a run changes an attention op: eager keeps the scores in memory, flash does not.

An op of kind `attention` carries its two products: scores (b, s, s', d) and values (b, s, d, s'). Its captured bytes
are of its inputs and results; what it reads and keeps in backward (`saved_bytes`) includes the scores. Eager moves them

    forward    written by the product, read and written by the softmax, read by the second product      4 passes
               with dropout read and written once more, and a mask of bytes written                     + 2 and the mask
               scaled and masked by kernels of their own where chains do not fuse                       + 2
    backward   read by the gradient of v; their gradient written; softmax: both read, result written;
               read by the gradients of q and k                                                         7 passes
               with dropout the gradient and the mask read, the gradient written                        + 2 and the mask

Attention that a model writes out op by op is counted op by op.

The fused kernel of a CPU (`_scaled_dot_product_flash_attention_for_cpu`) runs a call only where nothing is dropped, no
gradient flows to the mask, and all tensors have four dims, the mask two or four, and query, key and value the same
width (torch/csrc: aten/src/ATen/native/transformers/sdp_utils_cpp.cpp); any other call keeps its scores there.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.cluster.cluster import Backend, Device
from placer.graph import ITEM_BYTES, Affine, BlockClass, Op
from placer.plans.settings import RunSettings
from placer.rules.calls import Call, Value
from placer.rules.graph_calls import call_of

# FlashAttention-2 (arXiv:2307.08691, section 4.1): up to 73% of an A100's peak forward, 63% backward.
FLASH_FORWARD = 0.73
FLASH_BACKWARD = 0.63
# Its backward makes the scores again: five products, where the plain one (and many a captured op) has four.
PLAIN_PRODUCTS = 4
FLASH_REMAKES = 5 / 4

FORWARD_PASSES, BACKWARD_PASSES, DROPOUT_PASSES, SCALING_PASSES = 4, 7, 2, 2
RANK = 4  # rows, heads, positions, width
# Kernels of each pass: two products, softmax, dropout; four products, softmax, dropout.
FORWARD_KERNELS, BACKWARD_KERNELS = 4, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes an op moves besides its captured ones (less, where negative), and its kernels."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int


def attention_traffic(op: Op, settings: RunSettings, rows: int, kept: float) -> Traffic:
    """What the run's kernel adds to the captured bytes of an op; `kept` scales saved bytes to the run's precision."""
    forward, backward = max(1, len(op.products)), max(1, len(op.backward_products))
    if op.kind != "attention":
        return Traffic(forward=0.0, backward=0.0, forward_kernels=forward, backward_kernels=backward)
    extra = scores_kept(op, rows)
    if settings.attention == "flash":
        return Traffic(forward=0.0, backward=-kept * extra, forward_kernels=1, backward_kernels=1)
    elements = score_elements(op, rows)
    item = ITEM_BYTES["bfloat16" if settings.precision == "bfloat16-autocast" else settings.precision]
    captured = ITEM_BYTES[op.outputs[0].dtype] if op.outputs else item
    # Without dropout the softmax's result is kept, with it also what dropout makes and its mask.
    dropout = extra > 1.5 * elements * captured
    passes = DROPOUT_PASSES * item + 1 if dropout else 0
    scaling = 0 if settings.fusion else SCALING_PASSES
    return Traffic(
        forward=elements * ((FORWARD_PASSES + scaling) * item + passes),
        backward=elements * (BACKWARD_PASSES * item + passes) - kept * extra,
        forward_kernels=FORWARD_KERNELS,
        backward_kernels=BACKWARD_KERNELS,
    )


def saved_bytes(kind: BlockClass, op: Op, settings: RunSettings, backend: Backend) -> Affine:
    """Bytes, at the captured dtypes, that an op of a class keeps for backward under the attention kernel that runs."""
    return op.fused_saved_bytes if _fuses(kind, op, settings, backend) else op.saved_bytes


def score_bytes(kind: BlockClass, op: Op, settings: RunSettings, backend: Backend) -> Affine:
    """Captured bytes of the scores that a plain attention op of a class makes; of others none."""
    if op.kind != "attention" or not op.outputs or _fuses(kind, op, settings, backend):
        return Affine()
    one, two = (score_elements(op, rows) * ITEM_BYTES[op.outputs[0].dtype] for rows in (1, 2))
    return Affine(2 * one - two, two - one)


def _fuses(kind: BlockClass, op: Op, settings: RunSettings, backend: Backend) -> bool:
    """Whether a fused kernel runs an attention op."""
    if op.kind != "attention" or settings.attention != "flash" or not any(op.fused_saved_bytes):
        return False
    # Other calls name their kernel themselves; of one whose arguments were not kept nothing is known.
    chosen = op.target.startswith("aten.scaled_dot_product_attention") and op.arguments
    return backend != "cpu" or not chosen or fuses_on_cpu(call_of(kind, op, 1))


def fuses_on_cpu(call: Call) -> bool:
    """Whether the fused kernel of a CPU runs a `scaled_dot_product_attention`."""
    shapes = [call.tensor(position).shape for position in range(3)]
    mask = call.argument(3, "attn_mask")
    if call.argument(4, "dropout_p", 0.0) or any(len(shape) != RANK for shape in shapes):
        return False
    if isinstance(mask, Value) and (mask.requires_grad or len(mask.shape) not in (2, RANK)):
        return False
    return len({shape[-1] for shape in shapes}) == 1


def scores_kept(op: Op, rows: int) -> int:
    """Captured bytes kept, and read in backward, for plain attention only."""
    return op.saved_bytes.at(rows) - op.fused_saved_bytes.at(rows) if any(op.fused_saved_bytes) else 0


def flash_share(op: Op, settings: RunSettings, device: Device, *, backward: bool) -> float:
    """The most of the peak rate an op's products reach: flash kernels have their own ceiling."""
    if op.kind != "attention" or settings.attention != "flash" or device.backend != "cuda":
        return 1.0
    if not backward:
        return FLASH_FORWARD
    return FLASH_BACKWARD / (FLASH_REMAKES if len(op.backward_products) <= PLAIN_PRODUCTS else 1.0)


def score_elements(op: Op, rows: int) -> int:
    """Elements of the score matrices."""
    if not op.products:
        return 0
    first = op.products[0]
    return first.batch.at(rows) * first.m.at(rows) * first.n.at(rows)
