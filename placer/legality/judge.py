"""The rules of a plan and their verdict.

Rules are tables: name -> a function from the plan to messages. Those of `STRUCTURE` speak of its shape; what crosses
between stages and memory need a plan of sound shape and are asked only then; communication, for which the whole step is
lowered, is asked last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from placer.costs.costs import Costs
from placer.costs.step_estimate import costs_of, hosted, tightest
from placer.errors import IllegalPlanError, Infeasible, InfeasibleError, PlacerError
from placer.io.units import room_text
from placer.legality.communication import disagreements
from placer.legality.structure import STRUCTURE
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Plan
from placer.program.unsupported import unequal_meshes

Rule: TypeAlias = Callable[[Plan], Iterator[str]]
Rules: TypeAlias = dict[str, Rule]
# Of each position the device with least bytes to spare, and what it holds.
Tightest: TypeAlias = tuple[tuple[int, MemoryBytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule: its name in `RULES`, and what was found and what to do."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def check(plan: Plan, costs: Costs | None = None, *, lowered: bool = True) -> tuple[Violation, ...]:
    """Every rule `plan` breaks; empty for a legal plan. Costs of its graph, cluster and settings are made if not given.

    Without `lowered` communication is not asked, for which the whole step must be lowered: enough for a plan that is
    only to be compared.
    """
    read = (plan.graph, plan.cluster, plan.settings, plan.stages, plan.schedule, plan.microbatches, plan.layouts)
    for known, asked, found in _CHECKED:
        if asked == lowered and all(a is b for a, b in zip(known, read, strict=True)):
            return found
    memory: Rules = {"memory": lambda plan: over_full(plan, costs or costs_of(plan))}
    tiers = (STRUCTURE, CROSSING, memory, AGREEMENT if lowered else {})
    broken = next(filter(None, (_broken(plan, rules) for rules in tiers)), ())
    _CHECKED.append((read, lowered, broken))
    return broken


# The verdicts on what was checked last, by all of a plan that rules read, which never changes: who judges a plan again
# that only got its ledger or its bound since then need not lower it again.
_CHECKED: deque[tuple[tuple[object, ...], bool, tuple[Violation, ...]]] = deque(maxlen=8)


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


def but_memory(found: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Those of the rules `found` broken without which a plan says nothing that could be predicted."""
    return tuple(violation for violation in found if violation.rule != "memory")


def _broken(plan: Plan, rules: Rules) -> tuple[Violation, ...]:
    return tuple(Violation(rule=name, message=message) for name, rule in rules.items() for message in rule(plan))


def over_full(plan: Plan, costs: Costs, held_by: Tightest | None = None) -> Iterator[str]:
    """What the estimate says a device holds at its fullest, and the host of its node, is no more than it has.

    held_by: `tightest(costs, plan)`, where it is known.
    """
    over: dict[str, list[int]] = {}
    for device, held in tightest(costs, plan) if held_by is None else held_by:
        available = plan.cluster.devices[device].memory_bytes
        if held.total > available:
            category, size = _largest(held)
            figures = (
                f"{room_text(held.total)} of {room_text(available)}, {room_text(held.total - available)} too much, "
                f"mostly {category} ({room_text(size)})"
            )
            over.setdefault(figures, []).append(device)
    for figures, (first, *others) in over.items():
        yield f"memory on device {first}{f' and {len(others)} like it' if others else ''}: {figures}"
    for node, size in sorted(hosted(costs, plan).items()):
        available = plan.cluster.nodes[node].memory_bytes
        if size > available > 0:
            yield (
                f"memory of the host of node {node}: {room_text(size)} of {room_text(available)}, all of it the "
                "optimizer's state of its devices"
            )


def _largest(held: MemoryBytes) -> tuple[str, int]:
    return max(held.categories.items(), key=lambda entry: entry[1])


# Asked one after the other, memory before agreement, until one is broken.
CROSSING: Rules = {"meshes": unequal_meshes}
AGREEMENT: Rules = {"communication": disagreements}
RULES = (*STRUCTURE, *CROSSING, "memory", *AGREEMENT)
