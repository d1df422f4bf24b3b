"""How the attention kernel of a run changes an attention op: eager keeps the scores in memory, flash does not.

An op of kind `attention` carries its two products: scores (b, s, s', d) and values (b, s, d, s'). Eager moves the
scores four times forward (written by the first product, read and written by the softmax, read by the second) and twice
that backward, and keeps the softmax's output for backward. Attention written out op by op is counted op by op.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.cluster import Device
from placer.graph import ITEM_BYTES, Affine, Op
from placer.settings import RunSettings

# FlashAttention-2 (arXiv:2307.08691, section 4.1): up to 73% of an A100's peak forward, 63% backward.
FLASH_FORWARD = 0.73
FLASH_BACKWARD = 0.63
# Its backward makes the scores again: five products for the two forward, not four.
FLASH_REMAKES = 5 / 4
REMADE = 4

FORWARD_PASSES = 4
BACKWARD_PASSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes an op moves besides its inputs and outputs."""

    forward: float = 0.0
    backward: float = 0.0


def attention_traffic(op: Op, settings: RunSettings, rows: int) -> Traffic:
    """Bytes of scores moved through memory under eager attention; nothing for other ops and kernels."""
    if op.kind != "attention" or settings.attention != "eager":
        return Traffic()
    scores = score_elements(op, rows) * score_item(op, settings)
    return Traffic(forward=FORWARD_PASSES * scores, backward=BACKWARD_PASSES * scores)


def saved_bytes(op: Op, settings: RunSettings) -> Affine:
    """Bytes, at the captured dtypes, that an op keeps for backward under the run's attention kernel."""
    fused = op.kind == "attention" and settings.attention == "flash" and any(op.fused_saved_bytes)
    return op.fused_saved_bytes if fused else op.saved_bytes


def flash_share(op: Op, settings: RunSettings, device: Device, *, backward: bool) -> float:
    """The most of the peak rate an op's products reach: flash kernels have their own ceiling."""
    if op.kind != "attention" or settings.attention != "flash" or device.backend != "cuda":
        return 1.0
    if not backward:
        return FLASH_FORWARD
    return FLASH_BACKWARD / (1.0 if len(op.backward_products) > REMADE else FLASH_REMAKES)


def score_elements(op: Op, rows: int) -> int:
    """Elements of the score matrices."""
    if not op.products:
        return 0
    first = op.products[0]
    return first.batch.at(rows) * first.m.at(rows) * first.n.at(rows)


def score_item(op: Op, settings: RunSettings) -> int:
    """Bytes of one score."""
    return ITEM_BYTES["bfloat16" if settings.precision == "bfloat16-autocast" else settings.precision]
