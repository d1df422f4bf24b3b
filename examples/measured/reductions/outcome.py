"""Outcome: the ways of one case with predicted and measured seconds, the one chosen and the fastest, as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

from examples.measured.reductions.cases import KIB, Summed
from placer.plans.plan import Reduction

# Less than what differs between repetitions of the same sum.
NEAR = 1.03
ENOUGH = 0.9
WAYS: tuple[Reduction, ...] = get_args(Reduction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Seconds of each way that the case has."""

    case: Summed
    predicted: Mapping[Reduction, float]
    measured: Mapping[Reduction, float]

    @staticmethod
    def of(
        case: Summed, predicted: Mapping[Reduction, float], every: Sequence[Mapping[Reduction, Sequence[float]]]
    ) -> Outcome:
        """From the seconds of each rank in each round: the slowest rank's, in the median of the rounds."""
        measured = {
            way: median(max(one) for one in zip(*(rank[way] for rank in every), strict=True)) for way in predicted
        }
        return Outcome(case=case, predicted=predicted, measured=measured)

    @property
    def chosen(self) -> Reduction:
        """The way predicted to be the fastest."""
        return min(self.predicted, key=self.predicted.__getitem__)

    @property
    def fastest(self) -> Reduction:
        """The fastest one measured."""
        return min(self.measured, key=self.measured.__getitem__)

    @property
    def right(self) -> bool:
        """Whether the choice is as fast as any, within what differs between repetitions."""
        return self.measured[self.chosen] <= NEAR * self.measured[self.fastest]

    @property
    def name(self) -> str:
        """Devices of each node at the rate of its link, and the bytes."""
        nodes = " + ".join(f"{node.devices} at {node.megabits:g}" for node in self.case.machines.nodes)
        return f"{nodes}, {self.case.size // KIB} KiB"

    @staticmethod
    def header() -> str:
        """Above the lines."""
        ways = "".join(f"{way:>24}" for way in WAYS)
        return f"{'devices at Mbit/s, bytes':42}{ways}   predicted / measured ms\n"

    def __str__(self) -> str:
        numbers = "".join(f"{self._pair(way):>24}" for way in WAYS)
        verdict = "" if self.right else f", MEASURED FASTEST {self.fastest}"
        return f"{self.name:42}{numbers}   {self.chosen}{verdict}"

    def _pair(self, way: Reduction) -> str:
        if way not in self.predicted:
            return "-"
        return f"{self.predicted[way] * 1e3:.1f} / {self.measured[way] * 1e3:.1f}"
