"""Sizes counted in the rows of one device, where each of the `apart` devices of a replica has rows of its own.

    own_rows(x, apart)     x as a function of a device's own rows: fixed + per_row * apart * own rows

A dim of one per row of the batch has `apart` of them per own row, and its piece one: pieces of rows have whole numbers.
"""

from __future__ import annotations

import ast
from collections import deque
from dataclasses import replace
from functools import lru_cache

from placer.graph import Affine, BlockClass, Graph, Op, Product, Tensor
from placer.rules.graph_calls import ROWS


def own_rows(graph: Graph, apart: int) -> Graph:
    """The graph whose sizes are counted in own rows."""
    if apart == 1:
        return graph
    return replace(
        graph,
        inputs=tuple(replace(entry, tensor=own_rows_tensor(entry.tensor, apart)) for entry in graph.inputs),
        classes=tuple(own_rows_class(block_class, apart) for block_class in graph.classes),
    )


def own_rows_class(block_class: BlockClass, apart: int) -> BlockClass:
    """The block class whose sizes are counted in own rows; the same for the same class."""
    if apart == 1:
        return block_class
    for known, parts, found in _CLASSES:
        if known is block_class and parts == apart:
            return found
    made = replace(
        block_class,
        inputs=tuple(own_rows_tensor(tensor, apart) for tensor in block_class.inputs),
        ops=tuple(_op(op, apart) for op in block_class.ops),
    )
    _CLASSES.append((block_class, apart, made))
    return made


# What was asked for last: prices, costs and every block of a rank ask for the same classes.
_CLASSES: deque[tuple[BlockClass, int, BlockClass]] = deque(maxlen=64)


def own_rows_tensor(tensor: Tensor, apart: int) -> Tensor:
    """The tensor whose shape is counted in own rows."""
    return replace(tensor, shape=tuple(_size(size, apart) for size in tensor.shape))


def _op(op: Op, apart: int) -> Op:
    return replace(
        op,
        arguments=_arguments(op.arguments, apart),
        outputs=tuple(own_rows_tensor(tensor, apart) for tensor in op.outputs),
        forward_flops=_size(op.forward_flops, apart),
        backward_flops=_size(op.backward_flops, apart),
        read_bytes=_size(op.read_bytes, apart),
        written_bytes=_size(op.written_bytes, apart),
        backward_read_bytes=_size(op.backward_read_bytes, apart),
        backward_written_bytes=_size(op.backward_written_bytes, apart),
        saved_bytes=_size(op.saved_bytes, apart),
        fused_saved_bytes=_size(op.fused_saved_bytes, apart),
        products=tuple(_product(one, apart) for one in op.products),
        backward_products=tuple(_product(one, apart) for one in op.backward_products),
    )


def _size(size: Affine, apart: int) -> Affine:
    return Affine(size.fixed, size.per_row * apart)


def _product(product: Product, apart: int) -> Product:
    batch, m, n, k = (_size(one, apart) for one in (product.batch, product.m, product.n, product.k))
    return Product(batch=batch, m=m, n=n, k=k)


@lru_cache(maxsize=4096)
def _arguments(text: str, apart: int) -> str:
    """The arguments of an op, the rows of the batch written as a multiple of own rows."""
    if "rows" not in text:
        return text
    call = _Rows(apart).visit(ast.parse(f"op({text})", mode="eval"))
    return ast.unparse(ast.fix_missing_locations(call)).removeprefix("op(").removesuffix(")")


class _Rows(ast.NodeTransformer):
    """Writes `apart * rows` for `rows`."""

    def __init__(self, apart: int) -> None:
        self._apart = apart

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """One name."""
        return ast.BinOp(ast.Constant(self._apart), ast.Mult(), node) if node.id in ROWS else node
