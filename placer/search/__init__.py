"""Problem, Strategy, Solution: what every strategy is given and what it may return; who judges what it returned."""

from placer.search.judge import ROUNDING, broken_pins, judged, require_sound, solve_with
from placer.search.problem import Ended, Pins, Problem, Solution
from placer.search.registry import BUILT_IN, Strategy, strategy

__all__ = [
    "BUILT_IN",
    "ROUNDING",
    "Ended",
    "Pins",
    "Problem",
    "Solution",
    "Strategy",
    "broken_pins",
    "judged",
    "require_sound",
    "solve_with",
    "strategy",
]
