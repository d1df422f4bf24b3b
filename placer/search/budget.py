"""How long a search may go on, as people write it: `200` evaluated plans, `30s`, or both, `200,30s`."""

from __future__ import annotations

from dataclasses import dataclass

from placer.errors import UsageError
from placer.io.units import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """At most so many evaluated plans, and so many seconds of search; None is without end."""

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.evaluations is not None and self.evaluations < 1:
            raise UsageError(f"the budget is {self.evaluations} evaluations; give at least 1")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the budget is {self.seconds} seconds; give more than 0")


def budget_of(given: Budget | str | int | None) -> Budget:
    """A budget from itself, a number of evaluations or a text. Raises UsageError for what is none."""
    if isinstance(given, Budget):
        return given
    if given is None:
        return Budget()
    if isinstance(given, int) and not isinstance(given, bool):
        return Budget(evaluations=given)
    if not isinstance(given, str):
        raise UsageError(f"the budget is {given!r}; give a number of evaluations, or a text such as 30s or 200,30s")
    parts = [part.strip() for part in given.split(",")]
    counts = [part for part in parts if part.isdecimal()]
    times = [part for part in parts if not part.isdecimal()]
    if len(counts) > 1 or len(times) > 1:
        raise UsageError(f"the budget {given!r} says a thing twice; give evaluations, seconds, or both, as in 200,30s")
    return Budget(evaluations=int(counts[0]) if counts else None, seconds=_seconds(given, times[0]) if times else None)


def _seconds(given: str, text: str) -> float:
    """`30s`, `500 ms`, `2min`."""
    minutes = text.removesuffix("min").strip()
    try:
        return 60 * quantity(f"{minutes} s", "seconds") if minutes != text else quantity(text, "seconds")
    except UsageError:
        raise UsageError(
            f"the budget {given!r} is neither a number of evaluations nor a time; write 200, 30s, 2min or 200,30s"
        ) from None
