"""Moves of rows: how many a microbatch has, and how many of them each replica takes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from placer.plans.plan import Plan, Stage, replica_rows
from placer.strategies.moves.neighbourhood import Neighbourhood, at_position, everywhere
from placer.strategies.moves.repair import cut_rows, smallest_shares


def resize_microbatches(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Microbatches of a row more or less, of twice or half as many, one microbatch more or less, or of any size."""
    rows, size, count = plan.rows, plan.microbatches[0], len(plan.microbatches)
    most = max(stage.replicas for stage in plan.stages)
    fewer = -(-rows // (count - 1)) if count > 1 else rows
    sizes = {
        size + 1, size - 1, size * 2, size // 2, size + most, size - most, -(-rows // (count + 1)), fewer,
        rng.randint(1, rows),
    }  # fmt: skip
    allowed = sorted(own for own in sizes if most <= own <= rows and own != size)
    return replace(plan, microbatches=cut_rows(rows, rng.choice(allowed))) if allowed else None


def move_rows(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Some rows of a microbatch from one replica of a position to another."""
    position = rng.randrange(plan.positions)
    shares = _moved(plan, plan.meshes[position], rng)
    return None if shares is None else at_position(plan, position, lambda s: replace(s, shares=shares))


def move_rows_everywhere(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """The same at every position that has as many replicas."""
    mesh = plan.meshes[rng.randrange(plan.positions)]
    shares = _moved(plan, mesh, rng)
    if shares is None:
        return None
    return everywhere(plan, lambda s: replace(s, shares=shares) if s.replicas == mesh.replicas else s)


def level_rows(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Shares of a position, or of all, by which its replicas take about equally long; or equal ones again."""
    if all(stage.shares for stage in plan.stages) and rng.random() < 0.3:
        return everywhere(plan, lambda s: replace(s, shares=()))
    if around.costs.block_times.uniform:
        return None
    if rng.random() < 0.5:
        return everywhere(plan, lambda s: replace(s, shares=_level(around, plan, s)))
    position = rng.randrange(plan.positions)
    shares = _level(around, plan, plan.meshes[position])
    return at_position(plan, position, lambda s: replace(s, shares=shares))


def _moved(plan: Plan, mesh: Stage, rng: Random) -> tuple[int, ...] | None:
    rows = plan.microbatches[0]
    each = list(replica_rows(rows, mesh.shares, mesh.replicas))
    givers = [index for index, own in enumerate(each) if own > 1]
    if mesh.replicas < 2 or not givers:
        return None
    giver = rng.choice(givers)
    taker = rng.choice([index for index in range(mesh.replicas) if index != giver])
    count = 1 if rng.random() < 0.6 else rng.randint(1, each[giver] - 1)
    each[giver] -= count
    each[taker] += count
    return smallest_shares(tuple(each))


def _level(around: Neighbourhood, plan: Plan, mesh: Stage) -> tuple[int, ...]:
    """Rows of each replica in proportion to the speed of its first device."""
    if mesh.replicas < 2:
        return ()
    rows = plan.microbatches[0]
    times = around.costs.of_stage(plan, mesh).block_times
    own = max(1, rows // mesh.replicas)
    seconds = [profile.forward[-1] + profile.backward[-1] for profile in (times.of(d, own) for d in mesh.leaders)]
    weights = tuple(max(1, round(1000 * min(seconds) / each)) for each in seconds)
    each = [max(1, got) for got in replica_rows(rows, weights, mesh.replicas)]
    while sum(each) > rows and max(each) > 1:
        each[each.index(max(each))] -= 1
    return smallest_shares(tuple(each))
