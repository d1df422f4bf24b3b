"""legality.check(plan): the one judge. Every rule a plan breaks, by name and with what was found and what to do."""

from placer.legality.communication import FULL_TURNS
from placer.legality.judge import RULES, Violation, but_memory, check, error_of, require

__all__ = ["FULL_TURNS", "RULES", "Violation", "but_memory", "check", "error_of", "require"]
