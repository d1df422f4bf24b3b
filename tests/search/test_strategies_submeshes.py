"""Positions with shapes of their own: proposed where they pay, within every pin, and run as one device would."""

from __future__ import annotations

from dataclasses import replace

import verify_ranks
from examples.parity.cases import Case, captured_graph, plan_of
from examples.parity.processes import processes
from graphs import BlockSpec, chain_graph
from placer.cluster.cluster import Cluster, Link
from placer.legality import check
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import Pins, Problem, Solution
from placer.strategies.inter_op.search import Stages
from placer.strategies.inter_op.submeshes import search as shaped
from placer.strategies.inter_op.submeshes.submesh import MOST_DEVICES, Submesh, submeshes
from pool import on_ranks
from problems import cluster, device, problem

WORK = BlockSpec(flops=10**9, parameters=1000, saved=1000, output=100, traffic=1000)
WEIGHTS = BlockSpec(flops=10**7, parameters=10**6, saved=1000, output=10, traffic=1000)
THIN = Link(name="thin", latency_seconds=1e-5, bandwidth=1e8)


def given(pins: Pins | None = None, devices: int = 3) -> Problem:
    """A block that computes much and one that holds much, on devices far from each other."""
    machines = cluster(*[device(rate=1e12)] * devices, link=THIN)
    settings = RunSettings(clip_norm=None)
    return problem(chain_graph([WORK, WEIGHTS], rows=4), machines, settings=settings, pins=pins or Pins())


def replicas(plan: Plan) -> list[int]:
    return [stage.replicas for stage in plan.stages]


def seconds(found: Solution) -> float:
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


def test_blocks_that_compute_get_replicas_and_those_that_hold_weights_do_not() -> None:
    found = solve_with(given(), "auto")
    assert replicas(found.plan) == [2, 1]
    assert found.bound == seconds(found)
    alike = Stages(shapes=False).solve(given())
    assert isinstance(alike, Solution)
    assert seconds(found) < 0.9 * seconds(alike)


def test_pins_hold_at_every_position() -> None:
    for pins in (Pins(data=1), Pins(data=2), Pins(pipeline=1), Pins(schedule="gpipe"), Pins(microbatches=4)):
        found = solve_with(given(pins), "stages").plan
        assert broken_pins(found, pins) == ()
    assert replicas(solve_with(given(Pins(schedule="gpipe")), "stages").plan) == [2, 1]
    mixed = solve_with(given(), "stages").plan
    assert broken_pins(mixed, Pins(data=2)) == ("pin data=2 is not honoured",)


def test_patience_that_ends_leaves_a_bound_that_holds(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    best = seconds(solve_with(given(), "stages"))
    monkeypatch.setattr(shaped, "PATIENCE", 1)
    found = solve_with(given(), "stages")
    assert found.bound is not None
    assert found.bound <= best <= seconds(found)


def test_only_few_devices_have_any_shape_at_every_position() -> None:
    assert submeshes(given(devices=MOST_DEVICES), (), (-1,))[0] == Submesh(replicas=1)
    assert submeshes(given(devices=MOST_DEVICES + 1), (), (-1,)) == ()


def test_a_found_plan_of_unlike_positions_runs_as_one_device_would() -> None:
    case = Case(model="examples.convnet:small", shapes=(("images", (4, 3, 8, 8)), ("labels", (4,))))
    base = plan_of(replace(case, microbatches=(2, 2)))
    machines = far_apart(processes(3))
    wanted = Problem(
        graph=captured_graph(case.model, case.shapes), cluster=machines, settings=base.settings, model=base.model,
        rows=4, pins=Pins(recompute=False),
    )  # fmt: skip
    plan = solve_with(wanted, "stages").plan
    assert len(set(replicas(plan))) > 1
    assert check(plan) == ()
    reports = on_ranks(plan.world_size, verify_ranks.one, plan)
    assert reports[0].passed, str(reports[0])


def far_apart(machines: Cluster) -> Cluster:
    """The same processes with a thin link."""
    ((node, count),) = machines.groups
    return replace(machines, groups=((replace(node, link=THIN), count),))
