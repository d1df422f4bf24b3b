"""The states of groups that cost least together: seconds of tables over some groups each, summed, minimised exactly.

best(factors, states)       groups are eliminated one by one, then read off backwards
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Seconds of all blocks of a class by the states of its groups; absent where there is no split."""

    groups: tuple[int, ...]
    seconds: dict[tuple[str, ...], float]


def best_states(factors: list[Factor], states: Sequence[tuple[str, ...]]) -> dict[int, str] | None:
    """The states of all groups of the smallest sum: groups are eliminated one by one, then read off backwards."""
    eliminated: list[tuple[int, tuple[int, ...], dict[tuple[str, ...], str]]] = []
    left = factors
    for group in range(len(states)):
        touching = [factor for factor in left if group in factor.groups]
        others = tuple(sorted({g for factor in touching for g in factor.groups} - {group}))
        made, choice = _eliminated(group, others, touching, states)
        eliminated.append((group, others, choice))
        left = [factor for factor in left if group not in factor.groups] + [Factor(groups=others, seconds=made)]
    if any(not factor.seconds for factor in left):
        return None
    found: dict[int, str] = {}
    for group, others, choice in reversed(eliminated):
        found[group] = choice[tuple(found[g] for g in others)]
    return found


def _eliminated(
    group: int, others: tuple[int, ...], factors: list[Factor], states: Sequence[tuple[str, ...]]
) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], str]]:
    """The smallest sum over the states of `group` for all states of `others`, and the state that has it."""
    seconds: dict[tuple[str, ...], float] = {}
    choice: dict[tuple[str, ...], str] = {}
    for chosen in product(*(states[g] for g in others)):
        known = dict(zip(others, chosen, strict=True))
        for state in states[group]:
            known[group] = state
            keys = [(factor, tuple(known[g] for g in factor.groups)) for factor in factors]
            if all(key in factor.seconds for factor, key in keys):
                total = sum(factor.seconds[key] for factor, key in keys)
                if total < seconds.get(chosen, float("inf")):
                    seconds[chosen], choice[chosen] = total, state
    return seconds, choice
