"""The learned policy: its game makes sound plans only, its numbers stay in range, and what it learned shows."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import exp, inf, log
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from clusters import FAST, SLOW, with_host
from examples.measured.learned.gaps import Row, gap_of
from examples.measured.learned.plans import plans_row
from graphs import BlockSpec, chain_graph
from placer.errors import Infeasible, InfeasibleError, PlacerError, UsageError
from placer.legality import check
from placer.legality.structure import STRUCTURE
from placer.plans.settings import RunSettings
from placer.search.asked import parse_pins
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import Pins, Problem, Solution
from placer.strategies.policy.decoding import Limits, Player, ranked, search
from placer.strategies.policy.descent import Descent
from placer.strategies.policy.drawn import LARGER, SEEN, drawn_problem
from placer.strategies.policy.environment import LayoutGame
from placer.strategies.policy.features import OPTION, REACH, SIZE, Features
from placer.strategies.policy.game import MOST_OPTIONS, Game, State
from placer.strategies.policy.greedy import greedy_plans
from placer.strategies.policy.network import SHIPPED, Scorer, fresh_scorer, load_scorer, save_scorer
from placer.strategies.policy.outcomes import outcome, reference_seconds
from placer.strategies.policy.outline_options import thinned
from placer.strategies.policy.strategy import Policy
from placer.strategies.policy.train import train_policy
from problems import cluster, device, nodes, problem, random_problem, tapered_problem, unequal_problem
from split_blocks import chain_of, mlp

MOST_BYTES = 5 * 2**20
BLOCKS = [BlockSpec(flops=10**8 * (i + 1), parameters=1000 * (i + 1)) for i in range(8)]
PINS = (
    Pins(data=2),
    Pins(pipeline=3),
    Pins(pipeline=2, data=2, schedule="zero-bubble"),
    Pins(schedule="interleaved"),
    Pins(schedule="gpipe", microbatches=4),
    Pins(shard="parameters"),
    Pins(shard="optimizer", pipeline=2),
    Pins(recompute=True),
    Pins(bucket=4096, data=2),
    Pins(stage_of=(("blocks.1", 1), ("blocks.6", 3))),
    Pins(stage_of=(("blocks.3", 2),), schedule="interleaved"),
)


def pinned(pins: Pins) -> Problem:
    return problem(chain_graph(BLOCKS, rows=8, tied=[(0, 7)], skips=[(1, 4)]), cluster(*[device()] * 4), pins=pins)


def problems_of_all_kinds() -> Iterator[Problem]:
    yield from map(drawn_problem, range(20))
    yield from (drawn_problem(seed, LARGER) for seed in range(4))
    for seed in range(25):
        yield from (random_problem(seed), unequal_problem(seed), tapered_problem(seed))
    yield from map(pinned, PINS)
    yield from odd_problems()


def odd_problems() -> Iterator[Problem]:
    one, heavy = chain_graph([BlockSpec()], rows=1), chain_graph([BlockSpec(flops=0, saved=0)] * 3, rows=2)
    yield problem(one, cluster(device()))
    yield problem(heavy, cluster(device(), device(rate=1e3, memory=10)))
    yield problem(chain_graph(BLOCKS, rows=8), with_host(cluster(FAST, SLOW, FAST)))
    yield problem(chain_graph(BLOCKS, rows=8), with_host(cluster(FAST, SLOW, SLOW)), pins=Pins(shard="optimizer"))
    yield problem(chain_graph([BLOCKS[0]] * 96, rows=512), nodes(device(), per_node=8, count=128))
    layers = chain_of([mlp(length=4, width=64, inner=inner) for inner in (128, 256)], [0, 1, 0], rows=4)
    yield problem(layers, cluster(*[device(rate=1e10)] * 4), pins=parse_pins(("tensor=2",), layers))


def played_at_random(game: Game, rng: random.Random) -> Iterator[State]:
    """The states on the way to a plan, the finished one last."""
    state = game.start
    assert state is not None
    while not state.finished:
        yield state
        options = game.options(state)
        assert 2 <= len(options) <= MOST_OPTIONS
        state = rng.choice(options)
    yield state


@pytest.mark.in_turns
def test_masked_play_makes_only_plans_of_sound_structure_within_the_pins() -> None:
    made = set()
    for number, given in enumerate(problems_of_all_kinds()):
        game, rng = Game(given), random.Random(number)
        for _ in range(5):
            *_, end = played_at_random(game, rng)
            plan = game.plan(end)
            assert [message for rule in STRUCTURE.values() for message in rule(plan)] == []
            assert {violation.rule for violation in check(plan, given.costs, lowered=False)} <= {"memory"}
            assert broken_pins(plan, given.pins) == ()
            made.add((plan.schedule, plan.stages[0].sharding, plan.positions > 1, bool(plan.layouts)))
    assert {name for name, *_ in made} == {"1f1b", "gpipe", "zero-bubble", "interleaved"}
    assert {kept for _, kept, *_ in made} == {"none", "optimizer", "gradients", "parameters"}
    assert {layout for *_, layout in made} == {False, True}


def test_what_the_network_sees_is_finite_and_within_reach() -> None:
    for given in itertools.chain(odd_problems(), map(drawn_problem, range(8)), map(pinned, PINS)):
        game = Game(given)
        features = Features(game)
        for state in list(played_at_random(game, random.Random(0)))[:-1]:
            seen = features.observation(state, game.options(state))
            assert seen.shape == (SIZE,)
            assert np.isfinite(seen).all()
            assert np.abs(seen).max() <= REACH


def test_options_of_one_decision_are_seen_to_differ() -> None:
    for seed in range(6):
        game = Game(drawn_problem(seed))
        for state in list(played_at_random(game, random.Random(seed)))[:-1]:
            options = game.options(state)
            seen = Features(game).observation(state, options)[-MOST_OPTIONS * OPTION :].reshape(MOST_OPTIONS, OPTION)
            assert len(np.unique(seen[: len(options)], axis=0)) > 1
            assert not seen[len(options) :].any()


@pytest.mark.parametrize(("count", "most"), [(3, 16), (16, 16), (17, 16), (400, 16), (5, 4)])
def test_thinned_options_keep_both_ends_and_their_number(count: int, most: int) -> None:
    kept = thinned(range(count), most)
    assert (kept[0], kept[-1], len(kept)) == (0, count - 1, min(count, most))
    assert list(kept) == sorted(set(kept))


@pytest.mark.in_turns
@pytest.mark.parametrize("pins", PINS, ids=str)
def test_the_plan_honours_every_pin(pins: Pins) -> None:
    found = solve_with(replace(pinned(pins), budget=40), "policy").plan
    assert broken_pins(found, pins) == ()


def test_contradicting_pins_are_refused() -> None:
    with pytest.raises(UsageError, match=r"pipeline=2.*data=4"):
        solve_with(pinned(Pins(pipeline=2, data=4)), "policy")


def test_pins_that_leave_no_plan_bind() -> None:
    given = problem(chain_graph(BLOCKS, rows=8), with_host(cluster(FAST, SLOW)), pins=Pins(shard="optimizer"))
    with pytest.raises(InfeasibleError, match="the pin shard=optimizer leaves no layout"):
        solve_with(given, "policy")


def test_a_model_without_a_loss_has_no_plan() -> None:
    graph = chain_graph(BLOCKS, rows=8)
    lossless = replace(graph, loss=replace(graph.loss, reduction="none"))
    with pytest.raises(InfeasibleError, match="the model chain returns no loss"):
        solve_with(problem(lossless, cluster(device())), "policy")


def test_what_fits_nowhere_names_the_memory_that_binds() -> None:
    given = replace(problem(chain_graph(BLOCKS, rows=8), cluster(*[device(memory=2000)] * 2)), budget=20)
    found = Policy().solve(given)
    assert isinstance(found, Infeasible)
    assert "none of" in found.binding
    assert "MiB too much" in found.binding


@pytest.mark.parametrize("budget", [1, 7, 40])
def test_no_more_plans_are_looked_at_than_the_budget_allows(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def counted(*given: object) -> object:
        looked.append(given)
        return outcome(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("placer.strategies.policy.decoding.outcome", counted)
    found = Policy().solve(replace(drawn_problem(3), budget=budget))
    assert isinstance(found, Solution)
    assert found.evaluations == len(looked) == budget
    assert found.ended == "evaluations"


def test_seconds_that_are_over_leave_the_first_plan() -> None:
    found = Policy().solve(replace(drawn_problem(3), until=time.perf_counter()))
    assert isinstance(found, Solution)
    assert (found.evaluations, found.ended, found.bound) == (1, "seconds", None)


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace(drawn_problem(3), budget=40)
    looked = []

    def interrupted(*asked: object) -> object:
        looked.append(outcome(*asked))  # type: ignore[arg-type]
        if len(looked) == 9:
            raise KeyboardInterrupt
        return looked[-1]

    monkeypatch.setattr("placer.strategies.policy.decoding.outcome", interrupted)
    found = Policy().solve(given)
    assert isinstance(found, Solution)
    assert (found.evaluations, found.ended) == (8, "interrupt")
    assert found.plan.ledger is not None
    assert found.plan.ledger.step_seconds == min(each.verdict.seconds for each in looked[:8] if each.legal)


def test_more_evaluations_never_give_a_slower_plan() -> None:
    given = drawn_problem(5)
    few, many = (solve_with(replace(given, budget=budget), "policy").plan.ledger for budget in (10, 60))
    assert few is not None
    assert many is not None
    assert many.step_seconds <= few.step_seconds


def test_the_same_problem_gives_the_same_plan_and_leaves_the_callers_random_numbers_alone() -> None:
    given = replace(drawn_problem(2), budget=50)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), str(np.random.get_state()), torch.get_num_threads()
    first, second = (solve_with(given, "policy").plan.to_json() for _ in range(2))
    assert first == second
    assert (random.getstate(), str(np.random.get_state()), torch.get_num_threads()) == before
    assert torch.equal(torch.rand(3), expected)


def test_another_seed_may_play_other_plans_but_the_first_is_the_same() -> None:
    plans = []
    for seed in (0, 1):
        player = Player(Game(drawn_problem(4)), load_scorer())
        plans.append([each.episode.end for each in search(player, Limits(evaluations=30, patience=30), seed=seed)])
    assert plans[0][0] == plans[1][0]
    assert plans[0] != plans[1]


def test_the_shipped_weights_are_small_and_hold_numbers_only() -> None:
    assert SHIPPED.stat().st_size < MOST_BYTES
    with safe_open(SHIPPED, framework="pt") as weights:
        assert set(weights.keys()) == set(Scorer().state_dict())
    assert "placer.strategies.policy.train" in SHIPPED.with_name("training.txt").read_text()


def test_weights_are_kept_and_read_back(tmp_path: Path) -> None:
    scorer, seen = fresh_scorer(3), torch.rand(5, SIZE, generator=torch.Generator().manual_seed(0))
    save_scorer(scorer, tmp_path / "new" / "weights.safetensors")
    read = load_scorer(tmp_path / "new" / "weights.safetensors")
    assert torch.equal(scorer.forward_actor(seen), read.forward_actor(seen))


def test_weights_that_are_none_are_refused_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    for content in (pickle.dumps(exit), b"", SHIPPED.read_bytes()[:1000]):
        path.write_bytes(content)
        with pytest.raises(PlacerError, match="make them anew"):
            load_scorer(path)
    with pytest.raises(PlacerError, match="cannot be used"):
        load_scorer(tmp_path / "missing.safetensors")


@cache
def seconds_after(seed: int, plans: int, *, trained: bool) -> float:
    """The fastest legal plan of a problem; of a greedy one, three times its seconds, where none is."""
    game = Game(drawn_problem(seed))
    scorer = load_scorer() if trained else fresh_scorer(seed)
    best = ranked(search(Player(game, scorer), Limits(evaluations=plans, patience=plans), seed=seed))[0].outcome
    return best.verdict.seconds if best.legal else 3 * reference_seconds(game)


def test_what_was_learned_beats_the_same_network_untrained() -> None:
    """After 12 plans each, over 12 problems that were not trained on: by a tenth and more in the mean."""
    seeds = range(40, 52)
    ratios = [log(seconds_after(s, 12, trained=False) / seconds_after(s, 12, trained=True)) for s in seeds]
    assert exp(fmean(ratios)) > 1.1


def test_what_was_learned_beats_greedy_pipelines() -> None:
    """By 12 plans; greedy looks at one for every number of positions."""
    ratios = [
        log(reference_seconds(Game(drawn_problem(s))) / seconds_after(s, 12, trained=True)) for s in range(40, 52)
    ]
    assert exp(fmean(ratios)) > 1.1


def test_greedy_plans_are_contiguous_pipelines_of_one_replica() -> None:
    game = Game(drawn_problem(11))
    plans = list(greedy_plans(game))
    assert {plan.positions for plan in plans} >= {1, 2, game.problem.cluster.size}
    for plan in plans:
        assert {violation.rule for violation in check(plan, lowered=False)} <= {"memory"}
        assert {stage.replicas for stage in plan.stages} == {1}


def test_rewards_rank_fast_above_slow_above_too_large() -> None:
    found = []
    for seed in range(10):
        game = Game(drawn_problem(seed))
        reference, rng = reference_seconds(game), random.Random(seed)
        for _ in range(10):
            *_, end = played_at_random(game, rng)
            each = outcome(game.problem.costs, game.plan(end))
            found.append((each.legal, each.reward(reference), reference / each.verdict.seconds))
    legal = sorted((ratio, reward) for fits, reward, ratio in found if fits)
    assert [reward for _, reward in legal] == sorted(reward for _, reward in legal)
    assert max(reward for fits, reward, _ in found if not fits) < min(reward for fits, reward, _ in found if fits)


def test_imitating_a_plan_makes_it_likelier() -> None:
    player = Player(Game(drawn_problem(8)), fresh_scorer(0))
    assert player.scorer is not None
    (episode,) = player.drawn(1, torch.Generator().manual_seed(2))
    descent = Descent(player.scorer.parameters(), 1e-2)
    for _ in range(60):
        player.imitate([episode], descent)
    assert player.best() == episode


def test_descent_is_adam() -> None:
    mine, other = (nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2))
    adam, descent = torch.optim.Adam([other], lr=0.1), Descent([mine, nn.Parameter(torch.ones(1))], 0.1)
    for _ in range(20):
        descent.step((mine**4).sum())
        adam.zero_grad()
        (other**4).sum().backward()  # type: ignore[no-untyped-call]
        adam.step()
    assert torch.allclose(mine, other, rtol=1e-5)


def test_an_episode_of_the_environment_ends_with_the_reward_of_its_plan() -> None:
    game = LayoutGame(map(drawn_problem, itertools.count(60)), episodes=2)
    rng = random.Random(0)
    for _ in range(5):
        seen, _ = game.reset()
        ended, rewards = False, []
        while not ended:
            assert game.observation_space.contains(seen)
            seen, reward, ended, _, told = game.step(np.int64(rng.randrange(int(game.action_masks().sum()))))
            rewards.append(reward)
        assert set(rewards[:-1]) <= {0.0}
        assert (rewards[-1] >= -2.0) == told["legal"]


def test_a_training_keeps_weights_that_play_and_a_log(tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    train_policy(steps=1, seed=5, out=out, command="test")
    first = fresh_scorer(5).state_dict()
    assert any(not torch.equal(weight, first[name]) for name, weight in load_scorer(out).state_dict().items())
    assert (tmp_path / "training.txt").read_text().startswith("$ test\n")


def test_training_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(UsageError, match=r"sb3_contrib.*pip install 'placer-planner\[rl\]'"):
        train_policy(steps=1, seed=5, out=tmp_path / "policy.safetensors")


def test_settings_fix_recompute_for_every_stage() -> None:
    given = replace(pinned(Pins()), settings=RunSettings(recompute="full"), budget=20)
    assert all(stage.recompute for stage in solve_with(given, "policy").plan.stages)


def test_problems_to_be_judged_on_are_larger_than_any_seen() -> None:
    assert LARGER.blocks[0] > SEEN.blocks[1]
    assert LARGER.devices[0] > SEEN.devices[1]
    for seed in range(30):
        drawn, judged = drawn_problem(seed), drawn_problem(seed, LARGER)
        assert len(judged.graph.blocks) > len(drawn.graph.blocks)
        assert judged.cluster.size > drawn.cluster.size
        assert drawn == drawn_problem(seed)


def held(trained: float, rival: float) -> Row:
    return Row(seed=0, name="", size=1, devices=1, players={"trained": (trained,)}, others={"greedy": rival})


def test_a_gap_is_what_a_rival_takes_longer_and_infinite_where_it_has_no_plan() -> None:
    rows = [held(2.0, 3.0), held(2.0, 2.0), held(4.0, 3.0), held(1.0, inf), held(1.0, inf)]
    found = gap_of(rows, "greedy", 64, 0)
    assert [each.gap("greedy", 0) for each in rows] == [3 / 2 - 1, 0.0, 3 / 4 - 1, inf, inf]
    assert (found.median, found.faster, found.slower) == (3 / 2 - 1, 3, 1)
    assert found.low <= found.median <= found.high
    assert held(inf, 2.0).gap("greedy", 0) == -1.0
    assert held(inf, inf).gap("greedy", 0) == 0.0


def test_a_row_holds_every_rival_on_one_problem() -> None:
    found = plans_row(70_002, SHIPPED, (1, 6))
    assert set(found.players) == {"trained", "untuned", "untrained", "random"}
    for seconds in found.players.values():
        assert seconds[0] >= seconds[1] > 0
    assert found.others["greedy"] > 0
    assert found.players["trained"][0] == found.players["untuned"][0]
