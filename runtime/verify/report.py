"""VerifyReport: what was compared, and how far apart it was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity of one step: of its tensors the one that is furthest off, for what is allowed. absolute: its largest
    error; relative: that by the tensor's size; allowed: the largest relative error that rounding explains."""

    step: int
    quantity: str
    absolute: float
    relative: float
    allowed: float
    where: str = ""
    precision: str = ""

    @property
    def equal(self) -> bool:
        """Whether rounding explains the error; one that is not a number is never explained."""
        return self.relative <= self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What verify found. tolerance: what every relative error of the first precision is allowed at least; losses: of
    the plan's steps in it; compared: what was, in words; notes: what was handed to the judge, left out, or is accepted
    as different; excepted: what the verdict leaves out."""

    comparisons: tuple[Comparison, ...]
    tolerance: float
    losses: tuple[float, ...]
    compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    excepted: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains every error."""
        return all(entry.equal for entry in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The comparison that is furthest off for what is allowed."""
        return max(self.comparisons, key=_excess)

    def __str__(self) -> str:
        names = ("precision", "step", "quantity", "absolute", "relative", "allowed", "where")
        lines = ["{:17}  {:>4}  {:12}  {:>10}  {:>10}  {:>8}  {}".format(*names)]
        lines += [
            f"{c.precision:17}  {c.step:>4}  {c.quantity:12}  {c.absolute:10.2e}  {c.relative:10.2e}  "
            f"{c.allowed:8.1e}  {c.where}{'' if c.equal else '  <-- DIFFERENT'}"
            for c in self.comparisons
        ]
        verdict = f"equal to one device{self.excepted}" if self.passed else "DIFFERENT from one device"
        told = [*(f"- compared: {one}" for one in self.compared), *(f"- {note}" for note in self.notes)]
        return "\n".join([*lines, verdict, *told])


def _excess(entry: Comparison) -> float:
    found = entry.relative / entry.allowed if entry.allowed else (float("inf") if entry.relative else 0.0)
    return found if found == found else float("inf")
