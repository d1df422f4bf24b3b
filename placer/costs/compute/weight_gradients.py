"""Which part of a backward makes the gradients of weights: of an op's seconds, and of what the host issues.

In: ops as captured. Out: shares of their seconds, and numbers of ops. A product that has a weight makes two gradients
by a product each; where the weight is frozen one of them is not made, and its host does not issue it.
"""

from __future__ import annotations

from placer.costs.precision import PRODUCT_KINDS
from placer.graph import BlockClass, Op, Product

# Of a product's backward, as the host issues it, one of two products: that which makes the weight's gradient (counted
# from torch's formulas of linear and mm, tools/autograd/derivatives.yaml).
WEIGHT_PART = 0.5


def product_flops(product: Product, rows: int) -> int:
    """FLOPs of a matrix product."""
    return 2 * product.batch.at(rows) * product.m.at(rows) * product.n.at(rows) * product.k.at(rows)


def has_backward(op: Op) -> bool:
    """Whether anything is done backward."""
    return any((*op.backward_flops, *op.backward_read_bytes, *op.backward_written_bytes))


def weight_share(op: Op, rows: int) -> float:
    """The part of an op's backward that makes weight gradients: products that sum over rows, of fixed size."""
    if op.kind not in PRODUCT_KINDS:
        return 0.0
    if not op.backward_products:
        return 0.5 if _weighs(op) else 0.0
    flops = [product_flops(product, rows) for product in op.backward_products]
    fixed = [
        own
        for own, product in zip(flops, op.backward_products, strict=True)
        if not (product.m.per_row or product.n.per_row or product.batch.per_row)
    ]
    return sum(fixed) / sum(flops) if sum(flops) else 0.0


def weight_ops(block_class: BlockClass, rows: int) -> float:
    """Of a block's ops, as the host issues their backward, what makes the gradients of weights."""
    shares = [weight_share(op, rows) for op in block_class.ops]
    return sum(1.0 if share == 1.0 else WEIGHT_PART for share in shares if share)


def unmade_ops(block_class: BlockClass) -> float:
    """Of a block's ops, as the host issues their backward, what is not: gradients of frozen weights."""
    frozen = [op for op in block_class.ops if _weighs(op) and has_backward(op) and not weight_share(op, 1)]
    return WEIGHT_PART * len(frozen)


def _weighs(op: Op) -> bool:
    """Whether it is a product with a parameter."""
    return op.kind in PRODUCT_KINDS and any(reference.startswith("p") for reference in op.inputs)
