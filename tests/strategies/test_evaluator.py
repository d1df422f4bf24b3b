"""The evaluator says of every plan what estimate and check say, however it was come by."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from graphs import BlockSpec, branching_graph, gpt_graph
from placer.cluster.cluster import Cluster
from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with, with_reductions
from placer.legality import check
from placer.legality.known_rules import READS, READS_OF_CUT, READS_OF_STAGE, KnownRules
from placer.legality.structure import STRUCTURE
from placer.plans.plan import Plan, Stage
from placer.plans.settings import RunSettings
from placer.search.evaluator import Evaluator, Score
from placer.search.problem import Problem
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.moves.neighbourhood import Neighbourhood, tidied
from placer.strategies.moves.outlined import outlined
from placer.strategies.moves.repair import repaired
from placer.strategies.moves.speed import evaluation_speed
from placer.strategies.moves.table import MOVES, drawn, kinds, moved
from problems import cluster, device, nodes, problem, random_problem, split_problem, tapered_problem, unequal_problem

pytestmark = pytest.mark.in_turns

MAKERS = {"equal": random_problem, "unequal": unequal_problem, "tapered": tapered_problem}


def wandered(given: Problem, count: int) -> Iterator[Plan]:
    """Plans of a walk by moves, repaired or as they are, legal or not."""
    rng = random.Random(given.seed)
    around = Neighbourhood.of(given, layouts(given, given.costs))
    start = next(plan for plan in (outlined(around, rng) for _ in range(1000)) if plan is not None)
    plan = start
    for _ in range(count):
        made = MOVES[rng.choice(list(MOVES))].move(around, plan, rng)
        if made is None or not all(stage.devices and stage.first < stage.last for stage in made.stages):
            continue
        yield made
        plan = repaired(around, made) or start


def agreed(evaluator: Evaluator, plan: Plan) -> None:
    fresh = Costs(plan.graph, plan.cluster, plan.settings)
    score, broken = evaluator.score(plan), check(plan, fresh, lowered=False)
    assert evaluator.violations(plan) == broken
    assert score.legal == (not broken)
    if score.seconds is not None:
        ledger = estimate_with(fresh, with_reductions(fresh, plan))  # searches price the cheapest, then it is written
        assert score.seconds == ledger.step_seconds
        assert tuple(held for _, held in score.held_by) == ledger.memory
        assert score.peak == max(held.total for held in ledger.memory)


@pytest.mark.parametrize("kind", MAKERS)
def test_thousands_of_neighbours_are_scored_as_estimate_and_check_say(kind: str) -> None:
    legal = illegal = 0
    for seed in range(30):
        given = MAKERS[kind](seed)
        evaluator = Evaluator(given.costs)
        for plan in wandered(given, 40):
            agreed(evaluator, plan)
            legal, illegal = legal + evaluator.score(plan).legal, illegal + (not evaluator.score(plan).legal)
    assert legal > 100
    assert illegal > 50


def test_graphs_of_stages_are_scored_so_too() -> None:
    branched = 0
    for seed in range(10):
        rng = random.Random(seed)
        blocks = [BlockSpec(flops=10 ** rng.randint(6, 8), parameters=10 ** rng.randint(2, 5)) for _ in range(6)]
        graph = branching_graph(blocks, ((), (0,), (), (2,), (0, 2), (1, 3, 4)), rows=6)
        given = problem(graph, cluster(device(), device(rate=3e11, name="slower"), device()), rows=6, seed=seed)
        evaluator, around = Evaluator(given.costs), Neighbourhood.of(given, layouts(given, given.costs))
        start = next(plan for plan in (outlined(around, rng) for _ in range(1000)) if plan and plan.positions > 1)
        plan = start
        for _ in range(60):
            made = moved(around, plan, drawn(kinds(around, plan), rng, {}), rng)
            if made is not None:
                agreed(evaluator, made)
                branched += made.schedule == "branched"
                plan = made if made.positions > 1 else start
    assert branched > 100


def test_plans_whose_replicas_are_cut_are_scored_so_too() -> None:
    split = 0
    for seed in range(12):
        given = split_problem(seed)
        evaluator = Evaluator(given.costs)
        for plan in wandered(given, 25):
            agreed(evaluator, plan)
            agreed(evaluator, tidied(plan))  # whose layouts have other numbers
            split += any(stage.degree > 1 for stage in plan.stages)
    assert split > 30


def calls_a_plan(layers: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Python functions called to score a neighbouring plan of a model, in the walk of `placer bench evaluate`."""
    counts, score = Counter[str](), Evaluator.score

    def counted(self: Evaluator, plan: Plan) -> Score:
        counts["plans"] += 1
        sys.setprofile(lambda _frame, event, _what: counts.update([event]))
        found = score(self, plan)
        sys.setprofile(None)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "score", counted)
        evaluation_speed(problem(gpt_graph(layers=layers, rows=64), nodes(device(), per_node=8, count=4), rows=64), 300)
    return counts["call"] / counts["plans"]


def test_what_a_neighbouring_plan_costs_does_not_grow_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = calls_a_plan(8, monkeypatch), calls_a_plan(64, monkeypatch)
    assert large < 1.7 * small  # eight times the layers


@pytest.mark.parametrize("kind", MAKERS)
def test_a_score_is_the_same_whatever_was_scored_before(kind: str) -> None:
    for seed in range(10):
        given = MAKERS[kind](seed)
        plans = list(wandered(given, 30))
        evaluator = Evaluator(given.costs)
        first = [evaluator.score(plan) for plan in plans]
        anew = [replace(plan, stages=tuple(replace(stage) for stage in plan.stages)) for plan in plans]
        for plan, copy, score in reversed(list(zip(plans, anew, first, strict=True))):
            searched = given.costs.after_backward.searched
            alone = Evaluator(Costs(given.graph, given.cluster, given.settings, searched=searched))
            assert evaluator.score(copy) == score == alone.score(plan)


def test_equal_stages_are_one_object_and_others_are_not() -> None:
    given = split_problem(3)
    known = given.costs.known
    for plan in wandered(given, 40):
        copy = replace(plan, stages=tuple(replace(stage) for stage in plan.stages))
        assert all(a is b for a, b in zip(known.of(plan), known.of(copy), strict=True))
        for one, a in zip(plan.stages, known.of(plan), strict=True):
            for other, b in zip(plan.stages, known.of(plan), strict=True):
                assert (a is b) == (one == other)
                assert (a.mesh == b.mesh) == (_mesh(one) == _mesh(other))
                assert (a.shape == b.shape) == (_shape(one) == _shape(other))
        assert known.positions(plan) == plan.stages_at
        sizes = known.microbatches(plan)
        assert (sizes.largest, sizes.last) == (max(plan.microbatches), plan.microbatches[-1])
        assert dict(sizes.sizes) == Counter(plan.microbatches)


def _shape(stage: Stage) -> object:
    return len(stage.devices), stage.degree, stage.layout, stage.shares


def _mesh(stage: Stage) -> object:
    return stage.devices, stage.degree, stage.layout, stage.shares


def test_hosts_that_hold_the_state_are_asked_too() -> None:
    settings = RunSettings(offload="optimizer", precision="bfloat16")
    given = problem(gpt_graph(layers=4, hidden=512), Cluster.load("a100-80gb-sxm4x2"), settings=settings)
    evaluator = Evaluator(given.costs)
    for plan in wandered(given, 30):
        agreed(evaluator, plan)


def test_a_large_model_on_many_devices_is_scored_so_too() -> None:
    graph = gpt_graph(layers=24, hidden=1024, heads=16, sequence=128, vocabulary=1000, rows=256)
    given = problem(graph, Cluster.load("a100-80gb-sxm4x8*16"), settings=RunSettings(precision="bfloat16"))
    evaluator = Evaluator(given.costs)
    for plan in wandered(given, 25):
        agreed(evaluator, plan)


def test_every_rule_says_what_it_reads_of_a_plan() -> None:
    assert set(STRUCTURE) <= set(READS)
    assert {*READS_OF_STAGE, *READS_OF_CUT} <= set(READS)


def test_a_rule_is_asked_again_where_what_it_reads_has_changed() -> None:
    given = problem(gpt_graph(layers=4), nodes(device(), per_node=2, count=2))
    stages = (Stage(first=0, last=3, devices=(0,)), Stage(first=3, last=6, devices=(1,)))
    plan = Plan(
        model=given.model, graph=given.graph, cluster=given.cluster, settings=given.settings, stages=stages,
        schedule="1f1b", microbatches=(given.rows,),
    )  # fmt: skip
    rules = KnownRules(given.costs)
    assert not rules.broken(plan)
    spoilt = (
        replace(plan, stages=(stages[0], replace(stages[1], last=5))),
        replace(plan, stages=(stages[0], replace(stages[1], devices=(9,)))),
        replace(plan, stages=(stages[0], replace(stages[1], sharding="optimizer"))),
        replace(plan, stages=(stages[0], replace(stages[1], shares=(1, 2)))),
        replace(plan, stages=(stages[0], replace(stages[1], degree=2))),
        replace(plan, stages=(stages[0], replace(stages[1], reduction="server"))),
        replace(plan, microbatches=(0, given.rows)),
        replace(plan, schedule="interleaved", stages=(*stages, replace(stages[0], first=6, last=6))),
    )
    for wrong in spoilt:
        assert rules.broken(wrong) == check(wrong, given.costs, lowered=False) != ()
    assert not rules.broken(plan)
