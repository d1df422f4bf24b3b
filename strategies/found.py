"""What a solver of placement files returns: a placement and a bound, both still to be judged."""

from __future__ import annotations

from dataclasses import dataclass

from placer.placement.problem import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`placement` is None where none was found; `bound` is then infinite if that was proved. `notes` for people."""

    placement: Placement | None
    bound: float
    notes: tuple[str, ...] = ()
