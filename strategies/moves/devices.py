"""Moves of devices: positions that change places, replicas that change positions, layouts that regroup them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random

from placer.plans.plan import Plan, Stage
from placer.strategies.moves.neighbourhood import Neighbourhood, Unit, at_positions, devices_of, units


def swap_positions(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Two positions, each on the devices of the other, as they are there."""
    if plan.positions < 2:
        return None
    one, other = rng.sample(range(plan.positions), 2)
    a, b = plan.meshes[one], plan.meshes[other]
    if _looks(around, a) == _looks(around, b):
        return None
    return at_positions(plan, {one: lambda s: _placed(s, b), other: lambda s: _placed(s, a)})


def turn_positions(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A position taken out and put in elsewhere, the ones between move up; or all of them the other way round."""
    count = plan.positions
    if count < 3:
        return None
    order = list(range(count))
    if rng.random() < 0.3:
        order.reverse()
    else:
        order.insert(rng.randrange(count), order.pop(rng.randrange(count)))
    meshes = plan.meshes
    looks = [_looks(around, mesh) for mesh in meshes]
    if [looks[index] for index in order] == looks:
        return None
    stages = (_placed(s, meshes[order[index % count]]) for index, s in enumerate(plan.stages))
    return replace(plan, stages=tuple(stages))


def swap_units(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Two replicas of two positions, or of one, that change places."""
    one, other = rng.randrange(plan.positions), rng.randrange(plan.positions)
    a, b = units(plan.meshes[one]), units(plan.meshes[other])
    if len(a[0]) != len(b[0]):
        return None
    i, j = rng.randrange(len(a)), rng.randrange(len(b))
    kind = around.kinds
    if [kind[device] for device in a[i]] == [kind[device] for device in b[j]]:
        return None
    if one == other:
        a[i], a[j] = a[j], a[i]
        return _with_units(plan, {one: a})
    a[i], b[j] = b[j], a[i]
    return _with_units(plan, {one: a, other: b})


def give_unit(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A replica's devices from one position to another, in groups of its degree."""
    if plan.positions < 2:
        return None
    giver, taker = rng.sample(range(plan.positions), 2)
    own = units(plan.meshes[giver])
    if len(own) < 2:
        return None
    given = own.pop(rng.randrange(len(own)))
    made = around.within(given, plan.meshes[taker].degree)
    if not made:
        return None
    place = rng.choice((0, None))
    before = units(plan.meshes[taker])
    after = [*made, *before] if place == 0 else [*before, *made]
    return _with_units(plan, {giver: own, taker: after})


def change_unit(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """A replica more on devices that nobody uses, one less, or one on others."""
    position = rng.randrange(plan.positions)
    own = units(plan.meshes[position])
    free = around.free(plan, plan.meshes[position].degree)
    kinds = ["less"] * (len(own) > 1) + ["more", "other", "all"] * bool(free)
    if not kinds:
        return None
    kind = rng.choice(kinds)
    if kind == "less":
        del own[rng.randrange(len(own))]
    elif kind == "more":
        own.append(rng.choice(free))
    elif kind == "other":
        own[rng.randrange(len(own))] = rng.choice(free)
    else:
        own += free
    return _with_units(plan, {position: own})


def relay(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Another layout of a position, whose devices make replicas of its degree."""
    return _relaid(around, plan, (rng.randrange(plan.positions),), rng)


def relay_all(around: Neighbourhood, plan: Plan, rng: Random) -> Plan | None:
    """Another layout of every position."""
    return _relaid(around, plan, tuple(range(plan.positions)), rng)


def _relaid(around: Neighbourhood, plan: Plan, positions: tuple[int, ...], rng: Random) -> Plan | None:
    meshes = plan.meshes
    others = [number for number in around.numbers if number != meshes[positions[0]].layout]
    if not others:
        return None
    layout = rng.choice(others)
    placed = {position: _regrouped(around, meshes[position], layout) for position in positions}
    if not all(mesh.devices for mesh in placed.values()):
        return None
    return at_positions(plan, {position: partial(_placed, mesh=mesh) for position, mesh in placed.items()})


def _regrouped(around: Neighbourhood, mesh: Stage, layout: int | None) -> Stage:
    """The mesh with its devices in replicas of another layout; shares are kept where there are as many devices."""
    degree = around.degree(layout)
    if degree == mesh.degree:
        return replace(mesh, layout=layout)
    devices = devices_of(around.within(mesh.devices, degree))
    return replace(mesh, layout=layout, degree=degree, devices=devices, shares=())


def _with_units(plan: Plan, given: Mapping[int, list[Unit]]) -> Plan:
    """The plan whose positions have these replicas; as many as before keep their shares."""

    def change(stage: Stage, *, own: list[Unit]) -> Stage:
        return replace(stage, devices=devices_of(own), shares=stage.shares if len(own) == stage.replicas else ())

    return at_positions(plan, {position: partial(change, own=own) for position, own in given.items()})


def _looks(around: Neighbourhood, mesh: Stage) -> object:
    """What tells positions apart that change places: like ones on like devices take as long the other way round."""
    kinds = around.kinds
    return [kinds[device] for device in mesh.devices], mesh.shares, mesh.degree, mesh.layout


def _placed(stage: Stage, mesh: Stage) -> Stage:
    """The stage where and as `mesh` is."""
    return replace(stage, devices=mesh.devices, shares=mesh.shares, degree=mesh.degree, layout=mesh.layout)
