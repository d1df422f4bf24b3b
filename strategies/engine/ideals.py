"""Ideals: the sets of a partial order that hold, with each of their elements, all it needs; integers, bit v element v.

In: `needs`, for each element the bits of those that it needs: what comes before it for the classes of a folded problem
(its ideals are what the first devices of a pipeline hold), what comes after it for the nodes of a Piper graph (what the
last stages hold). Stages are differences of two ideals, one inside the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

# What to take next, by (element, ideal so far, how many were in it when the element became ready); the least is taken.
Priority = Callable[[int, int, int], float]


def every_ideal(needs: Sequence[int], limit: int) -> tuple[int, ...] | None:
    """All ideals, neighbours alike; None where there are more than `limit`.

    Each is met once: an element that a branch of the walk has passed by is in none of the ideals further down.
    """
    after = [tuple(members(later)) for later in turned(needs)]
    found = [0]
    stack = [(0, [v for v, mask in enumerate(needs) if mask == 0])]
    while stack:
        ideal, addable = stack.pop()
        for position, v in enumerate(addable):
            larger = ideal | 1 << v
            enabled = [w for w in after[v] if needs[w] & ~larger == 0]
            found.append(larger)
            stack.append((larger, sorted(addable[position + 1 :] + enabled)))
        if len(found) > limit:
            return None
    return tuple(found)


def grown(ideal: int, needs: Sequence[int]) -> list[int]:
    """The ideals with one element more, by that element."""
    return [ideal | 1 << v for v, mask in enumerate(needs) if not ideal >> v & 1 and not mask & ~ideal]


def shrunk(ideal: int, needs: Sequence[int]) -> list[int]:
    """The ideals with one element less, by that element."""
    needed = 0
    for v in members(ideal):
        needed |= needs[v]
    return [ideal & ~(1 << v) for v in members(ideal & ~needed)]


def members(bits: int) -> Iterator[int]:
    """The elements of a set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def prefixes(order: Iterable[int]) -> tuple[int, ...]:
    """The ideals along one order."""
    found = [0]
    for v in order:
        found.append(found[-1] | 1 << v)
    return tuple(found)


def greedy_order(needs: Sequence[int], priority: Priority) -> tuple[int, ...]:
    """The order that takes the ready element of the least priority, of equal ones the first; stops at a cycle."""
    after = turned(needs)
    ideal, order = 0, list[int]()
    ready = {v: 0 for v, mask in enumerate(needs) if mask == 0}
    while ready:
        _, v = min((priority(v, ideal, since), v) for v, since in ready.items())
        del ready[v]
        ideal |= 1 << v
        order.append(v)
        ready.update({w: len(order) for w in members(after[v]) if not needs[w] & ~ideal})
    return tuple(order)


def closure(needs: Sequence[int]) -> tuple[int, ...]:
    """What each element needs, directly or not. There must be no cycle."""
    found = list(needs)
    for v in greedy_order(needs, by_number):
        for needed in members(needs[v]):
            found[v] |= found[needed]
    return tuple(found)


def by_number(element: int, ideal: int, ready: int) -> float:
    """The first of what is ready."""
    return element


def turned(needs: Sequence[int]) -> tuple[int, ...]:
    """The reverse order: for each element the bits of those that need it."""
    found = [0] * len(needs)
    for v, mask in enumerate(needs):
        for needed in members(mask):
            found[needed] |= 1 << v
    return tuple(found)
