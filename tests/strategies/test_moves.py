"""Search by moves: what moves and repairs lead to, what `local` and `genetic` find, and when they end."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from graphs import BlockSpec, branching_graph, chain_graph
from placer.cli import app
from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.legality import check
from placer.plans.plan import Plan
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import Pins, Problem, Solution, strategy
from placer.strategies.genetic.crossover import crossed
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.moves.neighbourhood import Neighbourhood, tidied
from placer.strategies.moves.outlined import outlined
from placer.strategies.moves.repair import repaired
from placer.strategies.moves.speed import evaluation_speed
from placer.strategies.moves.table import MOVES, OF_GRAPHS, drawn, kinds, moved
from placer.strategies.moves.walk import EVALUATIONS, Walk
from problems import cluster, device, nodes, problem, random_problem, split_problem, tapered_problem, unequal_problem

pytestmark = pytest.mark.in_turns

BY_MOVES = ("local", "genetic")
MAKERS: tuple[Callable[[int], Problem], ...] = (random_problem, unequal_problem, tapered_problem)
# Rules that a move and its repair may leave broken: the others hold after every one.
LEFT = {"memory", "meshes", "sharding", "layouts", "rows", "kinds"}


def small(pins: Pins = Pins()) -> Problem:  # noqa: B008 - frozen
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=1000 * (i + 1)) for i in range(5)]
    chips = (device(), device(), device(rate=4e11, name="slower"), device(rate=4e11, name="slower"))
    return problem(chain_graph(blocks, rows=6), cluster(*chips), pins=pins)


def seconds(found: Solution) -> float:
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


def neighbours(given: Problem, count: int) -> Iterator[tuple[str, Plan, Plan]]:
    """Name, plan before and plan after of moves from plans drawn at random."""
    rng = random.Random(given.seed)
    around = Neighbourhood.of(given, layouts(given, given.costs))
    drawn = (outlined(around, rng) for _ in range(200))
    plan = next((found for made in drawn if made is not None and (found := repaired(around, made)) is not None), None)
    if plan is None:
        return
    for _ in range(count):
        name = rng.choice(list(MOVES))
        made = moved(around, plan, name, rng)
        if made is not None:
            yield name, plan, made
            plan = made


def test_what_a_move_leads_to_breaks_no_rule_that_a_repair_mends() -> None:
    met = Counter[str]()
    for seed in range(20):
        for maker in (*MAKERS, split_problem):
            for name, _, plan in neighbours(maker(seed), 30):
                met[name] += 1
                assert {found.rule for found in check(plan, lowered=False)} <= LEFT
    assert sum(met.values()) > 500
    assert set(MOVES) == set(met)


def test_moves_keep_the_batch_and_price_every_microbatch_as_it_is() -> None:
    for seed in range(20):
        for maker in MAKERS:
            for _, before, plan in neighbours(maker(seed), 20):
                assert plan.rows == before.rows
                assert len(set(plan.microbatches[:-1])) <= 1
                assert plan.microbatches[-1] <= plan.microbatches[0]


def test_moves_honour_every_pin() -> None:
    wanted = (Pins(pipeline=2), Pins(data=2), Pins(microbatches=3), Pins(schedule="gpipe"), Pins(recompute=True))
    for pins in (*wanted, Pins(shard="optimizer", data=2), Pins(stage_of=(("blocks.1", 1),))):
        made = [plan for _, _, plan in neighbours(small(pins), 60)]
        assert made
        assert not any(broken_pins(plan, pins) for plan in made)


def branching(seed: int) -> Problem:
    """Two towers and a head on four devices of two kinds."""
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=10 ** (3 + i % 3)) for i in range(7)]
    graph = branching_graph(blocks, ((), (0,), (1,), (), (3,), (4,), (2, 5)), rows=8)
    chips = (device(), device(), device(rate=4e11, name="slower"), device(rate=4e11, name="slower"))
    return problem(graph, cluster(*chips), seed=seed)


def test_moves_of_graphs_of_stages_break_no_rule_that_a_repair_mends() -> None:
    met = Counter[str]()
    for seed in range(12):
        given = branching(seed)
        rng, around = random.Random(seed), Neighbourhood.of(given, layouts(given, given.costs))
        plan = repaired(around, solve_with(given, "even").plan)
        assert plan is not None
        plan = around.adopted(plan)
        for _ in range(80):
            name = drawn(kinds(around, plan), rng, {})
            made = moved(around, plan, name, rng)
            if made is None:
                continue
            met[name] += plan.schedule == "branched" or made.schedule == "branched"
            assert {found.rule for found in check(made, lowered=False)} <= LEFT
            plan = made
    assert set(OF_GRAPHS) - set(MOVES) <= {name for name, count in met.items() if count}


def test_positions_that_change_places_stay_as_many() -> None:
    given = small()
    around, swapped = Neighbourhood.of(given, ()), 0
    plan = around.adopted(solve_with(replace(given, pins=Pins(pipeline=4)), "even").plan)
    for seed in range(20):
        made = moved(around, plan, "swap positions", random.Random(seed))
        if made is not None:
            assert {stage.devices for stage in made.stages} == {stage.devices for stage in plan.stages}
            swapped += 1
    assert swapped > 5


def test_children_have_runs_of_blocks_on_devices_of_their_own() -> None:
    children = 0
    for seed in range(20):
        given = unequal_problem(seed)
        rng, around = random.Random(seed), Neighbourhood.of(given, ())
        people = [plan for _, _, plan in neighbours(given, 12)]
        for _ in range(20 if people else 0):
            child = crossed(around, rng.choice(people), rng.choice(people), rng)
            if child is not None:
                children += 1
                assert {found.rule for found in check(child, lowered=False)} <= LEFT
    assert children > 100


def test_layouts_that_no_stage_has_are_left_out_of_a_result() -> None:
    for maker in MAKERS:
        for _, _, plan in neighbours(maker(3), 10):
            assert len(tidied(plan).layouts) == len({s.layout for s in plan.stages} - {None})


@pytest.mark.parametrize("name", BY_MOVES)
@pytest.mark.parametrize(("maker", "worse"), [(random_problem, 1), (unequal_problem, 0), (tapered_problem, 0)])
def test_small_problems_are_mostly_solved_as_by_enumeration(
    name: str, maker: Callable[[int], Problem], worse: int
) -> None:
    """Of 4 problems of a kind at most `worse` end above the optimum of the enumeration, by at most a tenth."""
    above = 0
    for seed in range(700, 704):
        given = maker(seed)
        try:
            best = seconds(solve_with(given, "exhaustive"))
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                solve_with(given, name)
            continue
        except UsageError:  # too many plans to enumerate
            continue
        found = seconds(solve_with(given, name))
        assert found <= 1.1 * best
        above += found > best * (1 + 1e-9)
    assert above <= worse


@pytest.mark.parametrize("name", BY_MOVES)
def test_layouts_that_cut_ops_are_searched_too(name: str) -> None:
    cut = 0
    for seed in (0, 1, 5, 6, 7):
        given = replace(split_problem(seed), budget=500)
        found = solve_with(given, name)
        cut += any(stage.degree > 1 for stage in found.plan.stages)
        assert seconds(found) <= seconds(solve_with(given, "megatron")) * (1 + 1e-9)
    assert cut > 2


@pytest.mark.parametrize("name", BY_MOVES)
@pytest.mark.parametrize("budget", (1, 7, 150))
def test_no_plan_is_evaluated_beyond_the_budget(name: str, budget: int) -> None:
    found = strategy(name).solve(replace(small(), budget=budget))
    assert isinstance(found, Solution)
    assert found.evaluations == budget
    assert found.ended == "evaluations"


@pytest.mark.parametrize("name", BY_MOVES)
def test_without_a_budget_a_search_ends_by_itself(name: str) -> None:
    found = strategy(name).solve(small())
    assert isinstance(found, Solution)
    assert found.evaluations <= EVALUATIONS
    assert found.ended == ""
    assert found.bound is None


@pytest.mark.parametrize("name", BY_MOVES)
def test_seconds_that_are_over_end_a_search_at_its_first_plan(name: str) -> None:
    found = strategy(name).solve(replace(small(), until=0.0))
    assert isinstance(found, Solution)
    assert found.ended == "seconds"
    assert found.evaluations <= len(small().cluster.devices)


@pytest.mark.parametrize("name", BY_MOVES)
def test_what_fits_nowhere_says_what_binds(name: str) -> None:
    huge = chain_graph([BlockSpec(), BlockSpec(parameters=2**32)], rows=2)
    found = strategy(name).solve(problem(huge, cluster(device(memory=2**30), device(memory=2**30))))
    assert isinstance(found, Infeasible)
    assert "GiB too much" in found.binding


@pytest.mark.parametrize("name", BY_MOVES)
def test_a_larger_budget_is_never_worse(name: str) -> None:
    found = [seconds(solve_with(replace(small(), budget=budget), name)) for budget in (30, 300, 1500)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("name", BY_MOVES)
def test_another_seed_is_another_walk(name: str) -> None:
    plans = {solve_with(replace(small(), seed=seed, budget=400), name).evaluations for seed in range(3)}
    walks = [Walk(replace(small(), seed=seed)).rng.random() for seed in range(3)]
    assert plans == {400}
    assert len(set(walks)) == 3


def test_a_front_takes_less_of_something_the_slower_it_is() -> None:
    found = solve_with(small(), "genetic")
    times = [entry.step_seconds for entry in found.alternatives]
    assert len(times) > 1
    assert all(time is not None and time >= seconds(found) for time in times)
    assert all(" instead of " in entry.reason for entry in found.alternatives)


def test_genetic_says_which_extra_brings_deap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deap", None)  # what Python takes for not there
    with pytest.raises(UsageError, match=r"placer-planner\[genetic\]"):
        strategy("genetic").solve(small())


def test_the_speed_of_the_evaluator_counts_new_plans_only() -> None:
    graph = chain_graph([BlockSpec()] * 12, rows=32)
    found = evaluation_speed(problem(graph, nodes(device(), per_node=4, count=4)), 200)
    assert found.plans == sum(kind.plans for kind in found.kinds) == 200
    assert 0 < found.legal <= found.plans
    assert found.per_second == found.plans / found.seconds


def test_bench_evaluate_prints_plans_a_second_by_kind_of_move() -> None:
    given = (
        "bench",
        "evaluate",
        "examples.models:tiny_gpt2",
        "--batch",
        "32x16",
        "--cluster",
        "a100x8",
        "--plans",
        "40",
    )
    document = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert document["plans"] == sum(kind["plans"] for kind in document["moves"]) == 40
    assert document["plans_per_second"] == pytest.approx(40 / document["processor_time_seconds"])
    assert document["devices"] == 8
    few = CliRunner().invoke(app, [*given[:6], "a100x2", "--batch", "2x16"])
    assert isinstance(few.exception, UsageError)
    assert "too few to measure a speed on" in str(few.exception)
    told = CliRunner().invoke(app, [*given])
    assert told.exit_code == 0
    assert "neighbouring plans a second" in told.stdout
