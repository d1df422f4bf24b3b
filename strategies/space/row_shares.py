"""Shares: how many rows of a microbatch each replica takes, where replicas are on unlike devices.

In: an outline with its device order, the Costs. Out: the shares that are searched, equal ones (empty) first. Two
replicas are alike where at every position their devices are of one kind.

    few ways    comb(R - 1, d - 1) <= `FEW_WAYS` for R rows and d replicas: every way to give each replica a row or
                more, of alike replicas no fewer to the first ones
                (of those where a replica's rows go to several devices all of which have equally many)
    many ways   the rows that finish first together (`_level`: the smallest T with  sum over i rows_i(T) >= R, rows_i(T)
                the most rows replica i computes in T seconds), and rows in proportion to memory
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations, pairwise
from math import comb, gcd

from placer.costs.costs import Costs
from placer.plans.plan import replica_rows
from placer.search.problem import Problem
from placer.strategies.space.device_orders import device_orders
from placer.strategies.space.outline import Outline

FEW_WAYS = 16
# Halvings of the seconds in which all replicas finish.
HALVINGS = 50

Shares = tuple[int, ...]
# What a replica's devices are, position by position.
Signature = tuple[int, ...]


def with_devices(problem: Problem, outline: Outline, costs: Costs) -> Iterator[Outline]:
    """The outline with every device order that is searched, each with all its shares."""
    for device_order in device_orders(problem.cluster, outline.positions, outline.replicas, outline.degree):
        lined = replace(outline, device_order=device_order)
        if not _sharded_over_kinds(problem, lined):
            for own in row_shares(lined, costs):
                yield replace(lined, shares=own)


def _sharded_over_kinds(problem: Problem, outline: Outline) -> bool:
    """Whether state would be divided over GPUs and CPUs, which no plan may (`legality`)."""
    every = range(outline.positions) if outline.sharding != "none" else ()
    return any(problem.cluster.unlike(outline.devices(position)) for position in every)


def row_shares(outline: Outline, costs: Costs) -> tuple[Shares, ...]:
    """The shares that are searched for an outline; no two divide its microbatches alike."""
    if outline.replicas == 1 or costs.block_times.uniform:
        return ((),)
    signatures = replica_kinds(outline, costs)
    if len(set(signatures)) < 2:
        return ((),)
    rows, found = outline.microbatch, dict[tuple[tuple[int, ...], ...], Shares]()
    for own in ((), *_offered(outline, costs, signatures)):
        divided = tuple(replica_rows(each, own, outline.replicas) for each in {rows, outline.last_rows})
        if not any(each % costs.apart for microbatch in divided for each in microbatch):
            found.setdefault(divided, own)
    return tuple(found.values()) or ((),)


def level_shares(outline: Outline, costs: Costs) -> Shares:
    """The shares by which all replicas finish a full microbatch together as nearly as whole rows can."""
    return _smallest(_level(outline.microbatch, replica_kinds(outline, costs), costs))


def replica_kinds(outline: Outline, costs: Costs) -> tuple[Signature, ...]:
    """Of each replica the kinds of the units it has, by position."""
    kind, degree = costs.block_times.device_class, outline.degree
    lines = [[kind[device] for device in outline.devices(p)[::degree]] for p in range(outline.positions)]
    return tuple(zip(*lines, strict=True))


def _offered(outline: Outline, costs: Costs, signatures: tuple[Signature, ...]) -> Iterator[Shares]:
    rows, count = outline.microbatch, outline.replicas
    if comb(rows - 1, count - 1) <= FEW_WAYS:
        alike = list(pairwise_alike(signatures))
        for cuts in combinations(range(1, rows), count - 1):
            each = tuple(b - a for a, b in pairwise((0, *cuts, rows)))
            if all(each[i] >= each[j] for i, j in alike):
                yield _smallest(each)
        return
    yield level_shares(outline, costs)
    chips = [[costs.cluster.devices[device] for device in own] for own in signatures]
    room = [min(chip.memory_bytes - chip.overhead_bytes for chip in own) for own in chips]
    by_memory = replica_rows(rows, tuple(max(1, size >> 20) for size in room), count)
    if min(by_memory) > 0:
        yield _smallest(by_memory)


def pairwise_alike(signatures: Sequence[Signature]) -> Iterator[tuple[int, int]]:
    """Each replica and the next one like it."""
    latest: dict[Signature, int] = {}
    for index, own in enumerate(signatures):
        if own in latest:
            yield latest[own], index
        latest[own] = index


def _smallest(each: Sequence[int]) -> Shares:
    """The same shares in the smallest numbers."""
    divisor = reduce(gcd, each)
    return tuple(rows // divisor for rows in each)


def _level(rows: int, signatures: tuple[Signature, ...], costs: Costs) -> tuple[int, ...]:
    """Rows of each replica, at least one, that finish together as nearly as whole rows can."""
    tables = {own: _table(rows, own, costs) for own in set(signatures)}
    low, high = 0.0, max(table[-1][1] for table in tables.values())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        most = {own: _rows_in(middle, table) for own, table in tables.items()}
        low, high = (middle, high) if sum(most[own] for own in signatures) <= rows else (low, middle)
    each = [_rows_in(low, tables[own]) for own in signatures]
    following = sorted(range(len(each)), key=lambda i: (_seconds(each[i] + 1, tables[signatures[i]]), i))
    for index in following[: rows - sum(each)]:
        each[index] += 1
    while sum(each) > rows:  # each has one at least
        each[each.index(max(each))] -= 1
    return tuple(each)


def _table(rows: int, signature: Signature, costs: Costs) -> list[tuple[int, float]]:
    """Seconds of the whole model for 1, 2, 4, ... rows on the slowest device of a replica."""
    sizes = [1 << e for e in range(rows.bit_length() + 1)]
    found = []
    for size in sizes:
        profiles = [costs.block_times.of(device, size) for device in set(signature)]
        found.append((size, max(each.forward[-1] + each.backward[-1] for each in profiles)))
    return found


def _rows_in(seconds: float, table: list[tuple[int, float]]) -> int:
    """The most rows computed in so many seconds, at least one; between known numbers of rows seconds grow evenly."""
    place = bisect_right([each for _, each in table], seconds)
    if place in (0, len(table)):
        return 1 if place == 0 else table[-1][0]
    (few, least), (many, most) = table[place - 1 : place + 1]
    return few + int((many - few) * (seconds - least) / (most - least))


def _seconds(rows: int, table: list[tuple[int, float]]) -> float:
    place = next((i for i, (size, _) in enumerate(table) if size >= rows), len(table) - 1)
    size, seconds = table[place]
    if place == 0:
        return seconds
    before, least = table[place - 1]
    return least + (seconds - least) * (rows - before) / (size - before)
