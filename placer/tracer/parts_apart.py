"""What to write where opaque parts may mix rows of the batch and do not: of all of them at once, as
whoever is told of one at a time makes a plan for each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A number between dots, as lists of modules have them in the paths of what they hold.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def said_of_rows(names: Sequence[str]) -> str:
    """Why parts of these names keep the batch whole, and what to write in Python where none of them mixes rows."""
    more = len(names) - 1
    they_are = f", and {more} more part{'s' * (more > 1)}, are" if more else " is"
    return (
        f"{names[0]}{they_are} opaque and may mix rows of the batch; if {'they do' if more else 'it does'} not, say so "
        f"in Python: placer.plan(..., opaque={_costs(names)}), which placer.rules has"
    )


def _costs(names: Sequence[str]) -> str:
    """The costs of parts by name: with their numbers as a range where they are alike otherwise."""
    cost = "OpaqueCost(rows_apart=True)"
    if len(names) == 1:
        return f"{{{names[0]!r}: {cost}}}"
    return f"dict.fromkeys({_range(names) or list(names)}, {cost})"


def _range(names: Sequence[str]) -> str:
    """The names as `[f"layers.{i}.router" for i in range(4)]`; empty where they are not alike but for one number."""
    for found in _NUMBER.finditer(names[0]):
        before, after, first = names[0][: found.start()], names[0][found.end() :], int(found[0])
        if list(names) == [f"{before}{first + place}{after}" for place in range(len(names))]:
            start = f"{first}, " if first else ""
            return f'[f"{before}{{i}}{after}" for i in range({start}{first + len(names)})]'
    return ""
