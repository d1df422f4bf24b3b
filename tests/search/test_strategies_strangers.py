"""Plans of a stranger, which no search made, are never below a bound of their outline, nor below a finished search.

Problems are random: chains and small GPTs on devices whose launch costs, rates, bandwidths, memories and nodes differ.
Plans are random too, of any outline that a `Plan` may express: devices in any order, any shares, any cuts. They are
judged by `check` and `estimate_with` alone. What is below the bound of a finished search must be of a kind that
`left_out` names. Each run looks at 150 problems; `PLACER_STRANGERS=0:5000 pytest -s` of this file at those of these seeds.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest

from graphs import BlockSpec, chain_graph, gpt_graph
from placer.cluster.cluster import Cluster, Device, Host, Level, Link, Node
from placer.cluster.topology import replica_groups
from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with
from placer.errors import InfeasibleError
from placer.graph import Graph
from placer.legality import check
from placer.plans.plan import Layout, Plan, Stage
from placer.plans.settings import RunSettings
from placer.search.judge import solve_with
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.refined import RefinedBounds
from placer.strategies.inter_op.bounds.schedule import ScheduleTerms
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.inter_op.partition.chain_dp import best_cuts
from placer.strategies.inter_op.partition.stage_costs import OutlineCosts
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.space.outline import Outline, position_counts, recomputes, schedules, shardings
from problems import device, problem

FIRST, LAST = map(int, os.environ.get("PLACER_STRANGERS", "0:150").split(":"))
PLANS = 12
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Stranger:
    """A plan and the outline it is of."""

    outline: Outline
    plan: Plan


def strange_problem(seed: int) -> Problem:
    """Two to four devices that differ in all that costs see, in one node or in several."""
    rng = random.Random(f"stranger {seed}")
    graph = strange_graph(rng)
    settings = RunSettings(
        recompute=rng.choice(("auto", "auto", "none", "full")), optimizer=rng.choice(("adamw", "sgd")),
        overlap=rng.random() < 0.7, fusion=rng.random() < 0.5, clip_norm=rng.choice((None, 1.0)),
        precision=rng.choice(("float32", "bfloat16")),
    )  # fmt: skip
    machines = strange_cluster(rng, graph)
    if rng.random() < 0.2:
        settings = replace(settings, offload="optimizer")
    return problem(graph, machines, settings=settings, rows=rng.randint(1, 6), seed=seed)


def strange_graph(rng: random.Random) -> Graph:
    """A chain whose blocks hold from few parameters to many, or a GPT."""
    if rng.random() < 0.25:
        return gpt_graph(layers=rng.randint(1, 3), hidden=rng.choice((16, 64)), sequence=16, tied=rng.random() < 0.5)
    size = rng.uniform(4, 6.5)
    pool = [strange_block(rng, size) for _ in range(rng.randint(1, 3))]
    blocks = [rng.choice(pool) for _ in range(rng.randint(1, 6))]
    alike = [(a, b) for b in range(len(blocks)) for a in range(b) if blocks[a].parameters == blocks[b].parameters]
    return chain_graph(blocks, rows=4, tied=[rng.choice(alike)] if alike and rng.random() < 0.3 else [])


def strange_block(rng: random.Random, size: float) -> BlockSpec:
    """From many parameters that compute little to the contrary."""
    return BlockSpec(
        flops=int(10 ** rng.uniform(4, 8.5)), parameters=int(10 ** rng.uniform(1, size)),
        saved=int(10 ** rng.uniform(2, 5.5)), output=int(10 ** rng.uniform(0, 4)),
        traffic=int(10 ** rng.uniform(2, 6)),
    )  # fmt: skip


def strange_cluster(rng: random.Random, graph: Graph) -> Cluster:
    """Nodes of one or two devices each, of up to three kinds, or one node of them all."""
    backends = rng.choice((("cpu",), ("cuda",), ("cuda",), ("cpu", "cuda")))
    needed = 4 * graph.parameter_bytes + graph.saved_bytes // graph.rows
    chips = [strange_device(rng, rng.choice(backends), needed, f"kind{kind}") for kind in range(rng.randint(1, 3))]
    own = [rng.choice(chips) for _ in range(rng.randint(1, 4))]
    host = Host(link=link(rng), memory_bandwidth=10 ** rng.uniform(9, 11))
    if rng.random() < 0.6:
        return Cluster(name="strange", groups=((Node(name="n", devices=ones(own), link=link(rng), host=host), 1),))
    parts = (own[: len(own) // 2], own[len(own) // 2 :])
    nodes = [
        Node(name=f"n{number}", devices=ones(part), link=link(rng), nic=link(rng), host=host)
        for number, part in enumerate(parts)
        if part
    ]
    return Cluster(
        name="strange", groups=tuple((node, 1) for node in nodes), levels=(Level(name="fabric", link=link(rng)),)
    )


def ones(chips: list[Device]) -> tuple[tuple[Device, int], ...]:
    return tuple((chip, 1) for chip in chips)


def strange_device(rng: random.Random, backend: str, needed: int, name: str) -> Device:
    """A chip whose launches cost from nothing to as much as a block; rates and bandwidths are drawn apart."""
    made = device(
        memory=max(1, int(needed * 10 ** rng.uniform(-0.5, 1.5))), rate=10 ** rng.uniform(10.5, 13),
        bandwidth=10 ** rng.uniform(9, 12), name=name,
    )  # fmt: skip
    launch = rng.choice((0.0, 10 ** rng.uniform(-7, -3)))
    return replace(made, launch_seconds=launch, backend="cpu" if backend == "cpu" else "cuda")


def link(rng: random.Random) -> Link:
    return Link(name="link", latency_seconds=10 ** rng.uniform(-7, -4), bandwidth=10 ** rng.uniform(8, 11.5))




@dataclass(frozen=True)
class Views:
    """A problem under each layout: number, layout (None: whole), bounds."""

    problem: Problem
    layouts: tuple[Layout, ...]
    bounds: dict[int, OutlineBounds]

    @classmethod
    def of(cls, given: Problem) -> Views:
        found = layouts(given, given.costs)
        views = {-1: given.costs} | {number: given.costs.under(each) for number, each in enumerate(found)}
        return cls(given, found, {n: OutlineBounds(given, RangeClasses(given, view)) for n, view in views.items()})

    def layout(self, number: int) -> Layout | None:
        return self.layouts[number] if number >= 0 else None


def strange_outline(rng: random.Random, views: Views) -> Outline | None:
    """Any: devices in any order, any rows of a microbatch, any shares."""
    given, number = views.problem, rng.choice(tuple(views.bounds))
    layout = views.layout(number)
    degree = 1 if layout is None else layout.degree
    units = list(replica_groups(given.cluster, degree))
    counts = position_counts(given, degree)
    if not units or not counts:
        return None
    positions = rng.choice(counts)
    replicas = rng.randint(1, max(1, min(len(units) // positions, given.rows)))
    schedule, virtual = rng.choice(schedules(given, positions))
    rng.shuffle(units)
    order = tuple(chip for unit in units[: positions * replicas] for chip in unit)
    shares = tuple(rng.randint(1, 4) for _ in range(replicas)) if replicas > 1 and rng.random() < 0.6 else ()
    return Outline(
        positions=positions, replicas=replicas, virtual=virtual, rows=given.rows,
        microbatch=rng.randint(replicas, given.rows), schedule=schedule,
        sharding=rng.choice(shardings(given.pins, replicas, schedule)), layout=number, degree=degree,
        device_order=() if order == tuple(range(len(order))) else order, shares=shares,
    )  # fmt: skip


def strange_plan(rng: random.Random, views: Views, outline: Outline) -> Plan:
    """A plan of the outline with cuts, recompute and buckets as they come."""
    given, layout = views.problem, views.layout(outline.layout)
    edges = (0, *accumulate(strange_lengths(rng, outline, len(given.graph.blocks))))
    stages = tuple(
        Stage(
            first=edges[index], last=edges[index + 1], devices=outline.devices(index % outline.positions),
            shares=outline.shares, sharding=outline.sharding, recompute=rng.choice(recomputes(given)),
            layout=None if layout is None else 0, degree=outline.degree,
        )
        for index in range(outline.stages)
    )  # fmt: skip
    return Plan(
        model=given.model, graph=given.graph, cluster=given.cluster, settings=given.settings, stages=stages,
        schedule=outline.schedule, microbatches=outline.microbatches, seed=given.seed,
        layouts=() if layout is None else (layout,), bucket_bytes=rng.choice(SIZES),
    )  # fmt: skip


def strange_lengths(rng: random.Random, outline: Outline, blocks: int) -> list[int]:
    """Blocks of each stage: any, but as even as the outline wants them where stages share a position."""
    stages, lengths = outline.stages, outline.lengths(blocks)
    if outline.virtual > 1:
        found = [lengths.start] * stages
        for index in rng.sample(range(stages), blocks - sum(found)):
            found[index] += 1
        return found
    cuts = sorted(rng.sample(range(1, blocks), stages - 1))
    return [b - a for a, b in zip((0, *cuts), (*cuts, blocks), strict=True)]


def strangers(rng: random.Random, views: Views, count: int) -> Iterator[Stranger]:
    """Legal plans among so many."""
    for _ in range(count):
        outline = strange_outline(rng, views)
        if outline is None:
            continue
        plan = strange_plan(rng, views, outline)
        if not check(plan, views.problem.costs, lowered=False):
            yield Stranger(outline, plan)


def lower_bounds(views: Views, outline: Outline) -> dict[str, float]:
    """Every lower bound of an outline, by name."""
    bounds = views.bounds[outline.layout]
    places = PositionClasses(views.problem, bounds.ranges.costs, outline)
    refined, terms = RefinedBounds(bounds), ScheduleTerms.of(outline)
    quick = refined.quick(outline, places)
    found = {
        "steps": float(bounds.steps(np.array([outline.positions]), outline.replicas, terms)[0]),
        "quick": quick,
        "step": refined.step(outline, places),
        "step below a ceiling": refined.step(outline, places, 2 * quick + 1e-9),
    }
    if outline.virtual == 1:
        found["cuts"] = cut_best(OutlineCosts(bounds, places, outline))
    return found


def cut_best(costs: OutlineCosts) -> float:
    """The value of the best cuts of an outline."""
    found = best_cuts(stages=costs.outline.stages, options=costs.options, rests=costs.rests, ceiling=math.inf)
    return math.inf if found is None or costs.rests.reached[0] > 0 else found.value + costs.places.fixed


def broken_bounds(seed: int) -> tuple[int, list[str]]:
    """How many legal plans of a problem were looked at, and what was above one of them."""
    views, rng = Views.of(strange_problem(seed)), random.Random(seed)
    looked, found = 0, []
    for each in strangers(rng, views, PLANS):
        looked += 1
        seconds = estimate_with(views.problem.costs, each.plan).step_seconds
        for name, bound in lower_bounds(views, each.outline).items():
            if bound > seconds * ROUNDING:
                found.append(f"seed {seed}: {name} {bound!r} above {seconds!r} of {each.outline}")
    return looked, found


def test_no_plan_of_a_stranger_is_below_a_bound_of_its_outline() -> None:
    looked, broken = 0, list[str]()
    for seed in range(FIRST, LAST):
        count, found = broken_bounds(seed)
        looked += count
        broken += found
    print(f"{LAST - FIRST} problems, {looked} legal plans, {len(broken)} bounds broken")
    assert not broken, "\n".join(broken[:20])
    assert looked > LAST - FIRST
