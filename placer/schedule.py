"""Schedules: for each pipeline position the order of its actions, written `2F0` (stage 2, forward, microbatch 0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# F forward, B whole backward, I backward for the inputs only, W backward for the weights only (zero-bubble).
Kind = Literal["F", "B", "I", "W"]


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One unit of computation of a stage on a microbatch."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"
