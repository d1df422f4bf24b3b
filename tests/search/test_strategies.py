"""One list of all strategies faces one set of claims; what pins, budgets, interrupts and tight memory do."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from graphs import BlockSpec, chain_graph, gpt_graph
from placer import simulator
from placer.cluster.cluster import Cluster, Link
from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.legality import check
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search import played
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import BUILT_IN, Pins, Problem, Solution, strategy
from placer.simulator import Timeline
from placer.strategies.inter_op import search as stages
from placer.strategies.space.outline import outlines
from problems import cluster, device, nodes, problem, random_problem

ALL = tuple(BUILT_IN)
BASELINES = ("single", "data", "sharded", "even", "megatron")
EXACT = ("exhaustive", "stages", "auto")
BY_MOVES = ("local", "genetic")
SEEDS = range(300, 308)


def small() -> Problem:
    blocks = [BlockSpec(flops=10**8 * (i + 1), parameters=1000 * (i + 1)) for i in range(4)]
    return problem(chain_graph(blocks, rows=4), cluster(*[device()] * 3))


def solved(given: Problem, name: str) -> Solution | None:
    try:
        return solve_with(given, name)
    except InfeasibleError:
        return None


def seconds(found: Solution) -> float:
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


@pytest.mark.parametrize("name", ALL)
def test_every_plan_is_legal_within_the_pins_and_no_faster_than_its_bound(name: str) -> None:
    for seed in SEEDS:
        given = random_problem(seed)
        found = solved(given, name)
        if found is not None:
            assert not check(found.plan)
            assert not broken_pins(found.plan, given.pins)
            assert found.plan.strategy
            assert found.bound is None or found.bound <= seconds(found) * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in ALL if name != "horizontal"])  # of a model that does not branch
def test_the_same_problem_gives_the_same_plan_byte_for_byte(name: str) -> None:
    first, second = (solve_with(small(), name).plan.to_json() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", (*EXACT, *BY_MOVES))
def test_no_search_loses_to_a_baseline(name: str) -> None:
    for seed in SEEDS:
        given = random_problem(seed)
        best = solved(given, name)
        for baseline in BASELINES:
            found = solved(given, baseline)
            if found is not None:
                assert best is not None
                assert seconds(best) <= seconds(found) * (1 + 1e-9)


def test_auto_says_why_each_runner_up_lost() -> None:
    found = solve_with(small(), "auto")
    assert {entry.name for entry in found.alternatives} >= set(BASELINES) - {found.plan.strategy}
    for entry in found.alternatives:
        assert entry.reason
        assert entry.step_seconds is None or entry.step_seconds >= seconds(found)


def test_auto_proves_its_plan_optimal_on_a_small_problem() -> None:
    plan = solve_with(small(), "auto").plan
    assert plan.gap == pytest.approx(0, abs=1e-9)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "pins",
    [
        Pins(data=3),
        Pins(pipeline=2),
        Pins(pipeline=2, data=1, schedule="zero-bubble"),
        Pins(microbatches=2),
        Pins(shard="parameters"),
        Pins(shard="optimizer"),
        Pins(recompute=True),
        Pins(schedule="interleaved"),
        Pins(stage_of=(("blocks.1", 1),)),
    ],
    ids=str,
)
def test_auto_honours_every_pin_and_equals_the_enumeration(pins: Pins) -> None:
    given = replace(small(), pins=pins)
    found = solve_with(given, "auto")
    assert not broken_pins(found.plan, pins)
    assert seconds(found) == pytest.approx(seconds(solve_with(given, "exhaustive")), rel=1e-9)


@pytest.mark.parametrize(("microbatches", "kept"), [(1, "gradients"), (4, "optimizer")])
def test_what_is_gathered_for_every_microbatch_is_not_divided_where_there_are_many(
    microbatches: int, kept: str
) -> None:
    """Of accelerators: on CPUs FSDP2 waits for its collectives, and one microbatch is too many."""
    slow, tight = Link(name="slow", latency_seconds=1e-6, bandwidth=2e9), device(memory=380 * 10**6)
    tight = replace(tight, backend="cuda")
    pins = Pins(data=2, pipeline=1, microbatches=microbatches)
    given = problem(chain_graph([BlockSpec(parameters=5 * 10**6)] * 4), cluster(tight, tight, link=slow), pins=pins)
    assert {stage.sharding for stage in solve_with(given, "auto").plan.stages} == {kept}


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        (Pins(pipeline=5), ("pipeline=5", "4 blocks")),
        (Pins(data=4), ("data=4", "3 devices")),
        (Pins(pipeline=2, data=2), ("pipeline=2", "data=2")),
        (Pins(microbatches=3), ("microbatches=3", "4 rows")),
        (Pins(shard="parameters", data=1), ("shard=parameters", "data=1")),
        (Pins(shard="gradients", schedule="zero-bubble"), ("shard=gradients", "schedule=zero-bubble")),
        (Pins(schedule="interleaved", pipeline=1), ("schedule=interleaved", "pipeline=1")),
        (Pins(stage_of=(("blocks.0", 1),)), ("blocks.0@stage=1", "0 blocks")),
        (Pins(stage_of=(("blocks.1", 1), ("blocks.2", 0))), ("blocks.1@stage=1", "blocks.2@stage=0")),
        (Pins(stage_of=(("nothing", 0),)), ("nothing", "no block")),
    ],
    ids=str,
)
def test_contradicting_pins_are_refused_naming_both(pins: Pins, named: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as raised:
        solve_with(replace(small(), pins=pins), "auto")
    assert all(part in str(raised.value) for part in named)


def test_a_pin_against_the_settings_is_refused_naming_both() -> None:
    given = replace(small(), pins=Pins(recompute=True), settings=RunSettings(recompute="none"))
    with pytest.raises(UsageError, match=r"recompute=true.*recompute=none"):
        solve_with(given, "stages")


def test_settings_fix_recompute_for_every_stage() -> None:
    plan = solve_with(replace(small(), settings=RunSettings(recompute="full")), "auto").plan
    assert all(stage.recompute for stage in plan.stages)


@pytest.mark.parametrize("name", ("stages", "auto"))
def test_what_fits_nowhere_names_the_block_and_the_gib(name: str) -> None:
    huge = chain_graph([BlockSpec(), BlockSpec(parameters=2**32)], rows=2)
    with pytest.raises(InfeasibleError, match=r"memory: block blocks\.1 needs .* GiB of .* even alone .* GiB too much"):
        solve_with(problem(huge, cluster(device(memory=2**30), device(memory=2**30))), name)


def test_many_blocks_that_fit_alone_but_not_together_name_the_excess() -> None:
    graph = chain_graph([BlockSpec(parameters=2**24)] * 6, rows=2)
    with pytest.raises(InfeasibleError, match=r"GiB too much"):
        solve_with(problem(graph, cluster(device(memory=2**29), device(memory=2**29))), "auto")


def test_exhaustive_refuses_what_it_cannot_finish() -> None:
    given = problem(gpt_graph(layers=12), cluster(*[device()] * 6))
    with pytest.raises(UsageError, match="use the strategy stages"):
        solve_with(given, "exhaustive")


@pytest.mark.parametrize("budget", (1, 3, 6))
def test_a_budget_keeps_the_best_so_far_and_a_true_bound(budget: int) -> None:
    best = solve_with(small(), "auto")
    found = solve_with(replace(small(), budget=budget), "auto")
    assert seconds(found) >= seconds(best)
    assert found.bound is None or found.bound <= seconds(best) * (1 + 1e-9)


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "_run", interrupted)
    found = solve_with(small(), "auto")
    assert found.plan.strategy in BASELINES


def test_an_interrupted_baseline_counts_as_nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve_with(small(), "stages")


def test_the_space_of_a_large_cluster_stays_small() -> None:
    given = problem(gpt_graph(layers=30, rows=256), nodes(device(), per_node=8, count=8))
    assert 0 < sum(1 for _ in outlines(given)) < 20_000


def test_32_layers_on_64_devices_are_planned_in_seconds() -> None:
    graph = gpt_graph(layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=32_000)
    given = problem(graph, Cluster.load("h100x8*8"), settings=RunSettings(precision="bfloat16"), rows=1024)
    started = time.process_time()
    found = solve_with(given, "auto")
    assert time.process_time() - started < 30
    assert found.bound == pytest.approx(seconds(found), rel=1e-9)


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="stages"):
        strategy("nothing")


def test_infeasible_reads_as_a_sentence() -> None:
    assert str(Infeasible(binding="memory", advice="More devices")) == "memory. More devices"


def slowed(monkeypatch: pytest.MonkeyPatch, plan: Plan, factor: float) -> None:
    """Let a step of `plan` take so much longer when it is played event by event."""
    simulated = simulator.simulate

    def slower(given: Plan) -> Timeline:
        found, times = simulated(given), factor if given.stages == plan.stages else 1.0
        return replace(found, ledger=replace(found.ledger, step_seconds=times * found.ledger.step_seconds))

    monkeypatch.setattr(played, "simulate", slower)


def test_auto_takes_the_next_best_where_the_best_is_slower_when_played(monkeypatch: pytest.MonkeyPatch) -> None:
    first = solve_with(small(), "auto")
    slowed(monkeypatch, first.plan, 10.0)
    found = solve_with(small(), "auto")
    assert found.plan.stages != first.plan.stages
    lost = {entry.name: entry for entry in found.alternatives}[first.plan.strategy]
    assert "played event by event" in lost.reason
    assert lost.step_seconds == pytest.approx(10 * seconds(first), rel=played.APART)


def test_a_plan_tells_where_it_is_not_as_fast_as_predicted_when_played(monkeypatch: pytest.MonkeyPatch) -> None:
    given = small()
    best = solve_with(given, "stages").plan
    assert not played.apart(given, best)
    slowed(monkeypatch, best, 2.0)
    (told,) = played.apart(small(), best)
    assert "longer than predicted" in told
