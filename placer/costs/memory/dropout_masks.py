"""Bytes that keyed dropout masks are made of: of an op that drops, two numbers of 64 bits per element it may drop.

They are there while the op runs forward (`runtime.dropout`), beside all that is kept by then; one byte per element, the
mask, stays. Where chains of ops run as one kernel the numbers are never in memory.
"""

from __future__ import annotations

from placer.cluster.cluster import Backend
from placer.costs.compute.attention import score_bytes
from placer.costs.precision import op_name
from placer.graph import ITEM_BYTES, Affine, BlockClass, Op
from placer.plans.settings import RunSettings
from placer.rules.graph_calls import call_of

NUMBERS_BYTES = 16
# Where each op says with which probability it drops.
DROPPING = {"dropout": 1, "dropout_": 1, "scaled_dot_product_attention": 4}


def mask_bytes(kind: BlockClass, op: Op, settings: RunSettings, backend: Backend) -> Affine:
    """Bytes that the mask of an op of a class is made of; none where it drops nothing."""
    if settings.fusion or not op.outputs or not _drops(kind, op):
        return Affine()
    masked = score_bytes(kind, op, settings, backend) if op.kind == "attention" else op.written_bytes
    each = NUMBERS_BYTES // ITEM_BYTES[op.outputs[0].dtype]
    return Affine(each * masked.fixed, each * masked.per_row)


def _drops(kind: BlockClass, op: Op) -> bool:
    place = DROPPING.get(op_name(op))
    return bool(op.arguments and place and call_of(kind, op, 1).argument(place, "dropout_p", 0.0))
