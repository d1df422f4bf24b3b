"""Ops that draw random numbers, as pieces of the batch have them.

A run keys the numbers of `KEYED` by seed, step, op, row and element: where rows lie in dim 0 each piece draws those of
its rows, and what has no rows is drawn alike by all. Other draws depend on what is drawn beside them: a piece has not
what the whole batch has.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.rules.layouts import WHOLE, Cut, Everywhere
from placer.rules.rows.piece_values import Standing, row_dims

KEYED = frozenset(
    f"aten.{name}"
    for name in (
        "rand.default", "rand_like.default", "randn.default", "randn_like.default", "randint.default", "randint.low",
        "randint_like.default", "randint_like.low_dtype", "bernoulli.default", "bernoulli.p", "bernoulli_.float",
        "normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float", "normal_.default",
        "uniform_.default", "exponential_.default", "uniform.default", "exponential.default",
        "normal_functional.default",
    )
)  # fmt: skip


def drawn(target: str, shape: tuple[int, ...], lays: Sequence[Standing]) -> Cut | Everywhere | None:
    """What a piece has of a draw of `shape` (at MARKED_ROWS rows) by `target`, called with tensors that stand as
    `lays`; None where it is not keyed, and where rows lie elsewhere than in dim 0."""
    dims = row_dims(shape)
    if target not in KEYED or dims not in ([], [0]) or any(lay not in (WHOLE, Cut(0)) for lay in lays):
        return None
    return Cut(0) if dims else WHOLE
