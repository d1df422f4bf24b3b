"""The rules of a plan and their verdict.

Rules are tables: name -> a function from the plan to messages. Those of `STRUCTURE` speak of its shape; what crosses
between stages and memory need a plan of sound shape and are asked only then; communication, for which the whole step is
lowered, is asked last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from placer.errors import IllegalPlanError, Infeasible, InfeasibleError, PlacerError
from placer.legality.communication import disagreements
from placer.legality.memory import over_full
from placer.legality.structure import STRUCTURE
from placer.plans.plan import Plan
from placer.program.unsupported import unequal_meshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule: its name in `RULES`, and what was found and what to do."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def check(plan: Plan, *, lowered: bool = True) -> tuple[Violation, ...]:
    """Every rule `plan` breaks; empty for a legal plan.

    Without `lowered` communication is not asked, for which the whole step must be lowered: enough for a plan that is
    only to be compared.
    """
    tiers = TIERS if lowered else BEFORE_LOWERING
    read = (plan.graph, plan.cluster, plan.settings, plan.stages, plan.schedule, plan.microbatches, plan.layouts)
    parts = (*read, tiers)
    for known, found in _CHECKED:
        if all(a is b for a, b in zip(known, parts, strict=True)):
            return found
    _CHECKED.append((parts, next(filter(None, (_asked(plan, rules) for rules in tiers)), ())))
    return _CHECKED[-1][1]


# The verdicts on what was checked last, by all of a plan that rules read, which never changes: who judges a plan again
# that only got its ledger or its bound since then need not lower it again.
_CHECKED: deque[tuple[tuple[object, ...], tuple[Violation, ...]]] = deque(maxlen=8)


def require(plan: Plan) -> None:
    """Raise InfeasibleError where only memory binds, IllegalPlanError listing every broken rule otherwise."""
    found = check(plan)
    if found:
        raise error_of(found)


def error_of(found: tuple[Violation, ...]) -> PlacerError:
    """What `require` raises for the rules `found` broken, at least one."""
    if all(violation.rule == "memory" for violation in found):
        binding = "; ".join(violation.message for violation in found)
        return InfeasibleError(
            Infeasible(binding=binding, advice="Use more devices, more stages, sharding or recompute")
        )
    listed = "\n".join(f"- {violation}" for violation in found)
    return IllegalPlanError(f"the plan breaks {len(found)} rule(s); plan again or correct it:\n{listed}")


def _asked(plan: Plan, rules: dict[str, Callable[[Plan], Iterator[str]]]) -> tuple[Violation, ...]:
    return tuple(Violation(rule=name, message=message) for name, rule in rules.items() for message in rule(plan))


CROSSING: dict[str, Callable[[Plan], Iterator[str]]] = {"meshes": unequal_meshes}
SUBSTANCE: dict[str, Callable[[Plan], Iterator[str]]] = {"memory": over_full}
AGREEMENT: dict[str, Callable[[Plan], Iterator[str]]] = {"communication": disagreements}
# Asked one after the other, until one is broken.
BEFORE_LOWERING = (STRUCTURE, CROSSING, SUBSTANCE)
TIERS = (*BEFORE_LOWERING, AGREEMENT)
RULES = tuple(name for rules in TIERS for name in rules)
