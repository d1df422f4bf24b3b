"""Branches on devices of their own against the enumeration of every stage graph of small random branching models.

The enumeration shares nothing with the search: a stage graph is a way to cut the model's order of blocks into stages
and a device for every stage, and all of them are tried, with microbatches of every size; what may run and what it takes
say `check` and `estimate_with` alone. Devices differ, memory binds, and some problems fit nowhere.

Each run looks at 16 problems; `PLACER_GRAPHS=1000:1200 pytest -s` of this file at those of these seeds, and prints how
near the searches came.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, product

import pytest

from graphs import BlockSpec, branching_graph
from placer.costs.step_estimate import estimate_with
from placer.errors import InfeasibleError
from placer.graph import Graph
from placer.legality import check
from placer.plans.plan import Plan, Stage
from placer.plans.settings import RunSettings
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.strategies.space.block_graph import BlockGraph
from problems import cluster, device, problem

pytestmark = pytest.mark.in_turns

SEEDS = range(*map(int, os.environ.get("PLACER_GRAPHS", "0:16").split(":")))
ROUNDING = 1 + 1e-9
# Every stage on a device, no replicas: what is enumerated. Microbatches of the search are powers of two, as rows are.
PINS = Pins(data=1, schedule="branched")


def branching_problem(seed: int) -> Problem:
    """Three to five blocks, not all in a row, on two or three devices that differ, with memory about what is needed."""
    rng = random.Random(f"stage graphs {seed}")
    graph = drawn_graph(rng)
    while not BlockGraph.of(graph).branches:
        graph = drawn_graph(rng)
    needed = 4 * graph.parameter_bytes + graph.saved_bytes // 4
    count = 3 if len(graph.blocks) < 5 and rng.random() < 0.4 else 2
    memory = needed * 10 ** rng.uniform(-0.5, 0.4)
    chips = [
        device(memory=int(memory * rng.uniform(0.6, 1.6)), rate=10 ** rng.uniform(11.3, 12.7), name=f"kind{kind}")
        for kind in range(rng.choice((1, 2, 2, 3)))
    ]
    settings = RunSettings(recompute=rng.choice(("none", "full")), optimizer=rng.choice(("adamw", "sgd")))
    machines = cluster(*(rng.choice(chips) for _ in range(count)))
    return problem(graph, machines, settings=settings, rows=rng.choice((1, 2, 4)), pins=PINS, seed=seed)


def drawn_graph(rng: random.Random) -> Graph:
    """Blocks that read of any earlier ones; the last reads all that nobody read."""
    count = rng.randint(3, 5)
    blocks = [
        BlockSpec(
            flops=int(10 ** rng.uniform(6, 8.5)), parameters=int(10 ** rng.uniform(2, 5)),
            saved=int(10 ** rng.uniform(3, 5)), output=int(10 ** rng.uniform(0, 4)),
        )
        for _ in range(count)
    ]  # fmt: skip
    reads = [sorted(rng.sample(range(block), rng.randint(0, min(2, block)))) for block in range(count - 1)]
    read = {maker for makers in reads for maker in makers}
    return branching_graph(blocks, [*reads, [block for block in range(count - 1) if block not in read]], rows=4)


def stage_graphs(given: Problem) -> Iterator[Plan]:
    """Every plan of the enumeration, legal or not."""
    blocks, devices = len(given.graph.blocks), range(given.cluster.size)
    again = given.settings.recompute == "full"
    for size in range(1, given.rows + 1):
        full, rest = divmod(given.rows, size)
        microbatches = (size,) * full + ((rest,) if rest else ())
        for count in range(1, blocks + 1):
            for cuts in combinations(range(1, blocks), count - 1):
                ranges = tuple(pairwise((0, *cuts, blocks)))
                for homes in product(devices, repeat=count):
                    stages = tuple(
                        Stage(first=first, last=last, devices=(home,), recompute=again)
                        for (first, last), home in zip(ranges, homes, strict=True)
                    )
                    yield Plan(
                        model=given.model, graph=given.graph, cluster=given.cluster, settings=given.settings,
                        stages=stages, schedule="branched", microbatches=microbatches, seed=given.seed,
                    )  # fmt: skip


@dataclass(frozen=True)
class Enumerated:
    """The best stage graph and its seconds, how many there were, and how many were legal."""

    best: Plan | None
    seconds: float | None
    count: int
    legal: int


@cache
def enumerated(seed: int) -> Enumerated:
    given = branching_problem(seed)
    best, seconds, count, legal = None, None, 0, 0
    for plan in stage_graphs(given):
        count += 1
        if check(plan, given.costs, lowered=False):
            continue
        legal += 1
        own = estimate_with(given.costs, plan).step_seconds
        if seconds is None or own < seconds:
            best, seconds = plan, own
    return Enumerated(best, seconds, count, legal)


def found(given: Problem, name: str) -> float | None:
    try:
        ledger = solve_with(given, name).plan.ledger
    except InfeasibleError:
        return None
    assert ledger is not None
    return ledger.step_seconds


@pytest.mark.timeout(7200)
def test_horizontal_finds_the_best_stage_graph_of_small_models() -> None:
    equal = infeasible = 0
    worse: list[str] = []
    for seed in SEEDS:
        wanted, own = enumerated(seed), found(branching_problem(seed), "horizontal")
        if wanted.seconds is None or own is None:
            infeasible += wanted.seconds is None
            equal += wanted.seconds is own
            worse += [] if wanted.seconds is own else [f"seed {seed}: {own} instead of {wanted.seconds}"]
        elif own <= wanted.seconds * ROUNDING:
            assert own >= wanted.seconds / ROUNDING, f"seed {seed}: {own} is not among those enumerated"
            equal += 1
        else:
            worse.append(f"seed {seed}: {own / wanted.seconds - 1:.2%} slower than {wanted.best}")
    plans = sum(enumerated(seed).count for seed in SEEDS)
    print(f"{len(SEEDS)} problems ({infeasible} fit nowhere), {plans} stage graphs: {equal} equal, {len(worse)} not")
    assert not worse, "\n".join(worse)


def test_the_problems_are_the_hard_kind() -> None:
    answers = [enumerated(seed) for seed in SEEDS]
    assert any(answer.seconds is None for answer in answers)
    assert sum(answer.best is not None and answer.best.positions > 1 for answer in answers) >= len(answers) / 4
    assert any(0 < answer.legal < answer.count for answer in answers)
    assert any(len(set(branching_problem(seed).cluster.devices)) > 1 for seed in SEEDS)


def test_a_search_that_takes_longer_is_told_from_the_best() -> None:
    """What the comparison is worth: the plan of one device is worse on many."""
    one = [found(replace(branching_problem(seed), pins=Pins()), "single") for seed in SEEDS]
    both = [(own, enumerated(seed).seconds) for seed, own in zip(SEEDS, one, strict=True)]
    assert sum(own is None or own > best * ROUNDING for own, best in both if best is not None) >= len(SEEDS) / 4
