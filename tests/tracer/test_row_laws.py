"""Numbers that follow a law of the rows are told from those that do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from placer.tracer.export.row_laws import law_of

KNOWN = (3, 5, 6)

LAWS: dict[str, Callable[[int], float]] = {
    "share": lambda n: 1.0 / n,
    "product": lambda n: n * 16.0,
    "root": lambda n: n**0.5,
    "over the root": lambda n: -0.1 / math.sqrt(n),
    "one fewer": lambda n: float(n) - 1.0,
    "over one fewer": lambda n: 1.0 / (n - 1.0),
    "falling": lambda n: 1000.0 - 7.25 * n,
    "square": lambda n: n * n / 7.0,
    "pairs": lambda n: 2.0 / (3.0 * n) ** 2,
}
OTHERS: dict[str, Callable[[int], float]] = {
    "wave": lambda n: math.sin(n),
    "logarithm": lambda n: math.log(n),
    "rounded": lambda n: float(int(0.25 * n)) + 1.0,
    "capped": lambda n: min(n / 4.0, 1.4),
    "nothing": lambda n: 0.0 if n == 3 else 1.0,
    "both signs": lambda n: n - 4.0,
    "no number": lambda n: math.inf if n > 4 else 1.0,
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("rows", [2, 7, 8, 100])
def test_a_law_gives_the_number_of_other_rows(name: str, rows: int) -> None:
    number = LAWS[name]
    law = law_of({at: number(at) for at in KNOWN})
    assert law is not None
    assert law.at(rows) == pytest.approx(number(rows), rel=1e-12) and law.says(rows, number(rows))
    assert not law.says(rows, number(rows) * (1 + 1e-6))


@pytest.mark.parametrize("name", OTHERS)
def test_what_follows_no_law_has_none(name: str) -> None:
    assert law_of({at: OTHERS[name](at) for at in KNOWN}) is None
