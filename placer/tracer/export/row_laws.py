"""Numbers that a model reckons from the rows of its batch (`1.0 / n`, `n * 16.0`, `n ** 0.5`), as laws of the rows.

They are known at three numbers of rows. What is `(fixed + per_row * rows) ** power` at all of them is taken for that,
and held to the rows of the batch itself (`symbolic_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

POWERS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
# Of numbers that a model reckons in float64, by some operations each within 2 ** -53.
ROUNDING = 1e-13


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLaw:
    """sign * (fixed + per_row * rows) ** power."""

    fixed: float
    per_row: float
    power: float
    sign: int

    def at(self, rows: int) -> float:
        """The number for so many rows; not a number where it has none."""
        base = self.fixed + self.per_row * rows
        return self.sign * (base if self.power == 1 else base**self.power if base > 0 else math.nan)

    def says(self, rows: int, number: object) -> bool:
        """Whether it gives `number` for so many rows, but for rounding."""
        return isinstance(number, float) and math.isclose(self.at(rows), number, rel_tol=ROUNDING * rows)


def law_of(known: Mapping[int, object]) -> RowLaw | None:
    """The law of the numbers known at three numbers of rows; None where it is none of these."""
    numbers = [number for number in known.values() if isinstance(number, float) and math.isfinite(number) and number]
    signs = {math.copysign(1, number) for number in numbers}
    if len(numbers) != len(known) or len(signs) != 1:
        return None
    sizes, sign = [abs(number) for number in numbers], int(signs.pop())
    laws = (_through(list(known), sizes, power, sign) for power in POWERS)
    return next((law for law in laws if all(law.says(rows, number) for rows, number in known.items())), None)


def _through(rows: list[int], numbers: list[float], power: float, sign: int) -> RowLaw:
    """The law of a power that goes through the first two of the numbers."""
    first, second = (number ** (1 / power) for number in numbers[:2])
    per_row = (second - first) / (rows[1] - rows[0])
    fixed = first - per_row * rows[0]
    fixed = 0.0 if abs(fixed) <= ROUNDING * abs(first) else fixed
    return RowLaw(fixed=fixed, per_row=per_row, power=power, sign=sign)
