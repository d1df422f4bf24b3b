"""The learned policy on graphs with given costs: its orders are orders, its numbers are what they say, what it learned
shows."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from examples.measured.learned.orders import orders_row
from placer.errors import InfeasibleError
from placer.placement.formats import PlaceRequest
from placer.placement.problem import PlacementNode, PlacementProblem
from placer.placement.solvers import place
from placer.strategies.placement.contraction import Folded, fold
from placer.strategies.placement.orders.cuts import Cuts
from placer.strategies.policy.descent import Descent
from placer.strategies.policy.features import REACH
from placer.strategies.policy.network import Scorer, fresh_scorer, load_scorer
from placer.strategies.policy.orders.drawn_graphs import LARGER, SEEN, drawn_graph
from placer.strategies.policy.orders.environment import OrderGame
from placer.strategies.policy.orders.graph_game import ClassGraph, OrdersMade
from placer.strategies.policy.orders.numbers_seen import (
    MOST,
    ORDERS,
    SHIPPED,
    SIZE,
    load_orders_scorer,
    options_of,
    seen,
    there,
)
from placer.strategies.policy.orders.playing import OrderPlayer, search_orders
from placer.strategies.policy.train import train_policy

MOST_BYTES = 5 * 2**20


def player(seed: int, scorer: Scorer | None, *, large: bool = False) -> OrderPlayer:
    problem = drawn_graph(seed, LARGER if large else SEEN)
    folded = fold(problem)
    return OrderPlayer(ClassGraph.of(problem, folded), Cuts(problem, folded), scorer)


def after(cuts: Cuts, count: int) -> bool:
    return cuts.made >= count


def is_order(folded: Folded, order: tuple[int, ...]) -> bool:
    taken = 0
    for index in order:
        if folded.needs[index] & ~taken:
            return False
        taken |= 1 << index
    return taken == (1 << folded.count) - 1


@pytest.mark.parametrize("seed", range(12))
def test_every_order_that_is_played_is_one(seed: int) -> None:
    folded = fold(drawn_graph(seed))
    one = player(seed, fresh_scorer(seed, ORDERS))
    for played in [*one.best(), *one.drawn(7, torch.Generator().manual_seed(seed), 2.0)]:
        assert is_order(folded, played.cut.order)


def by_hand(folded: Folded, devices: int, order: list[int], option: int) -> dict[str, float]:
    """Some of what is seen of an option, from the sets themselves."""
    taken, fair = set(order), sum(folded.accelerator) / devices
    with_pins = [(set(pins), weight / fair) for pins, weight in folded.hyperedges]
    needs = [{other for other in range(folded.count) if bits >> other & 1} for bits in folded.needs]
    return {
        "opens": sum(w for pins, w in with_pins if option in pins and not pins & taken),
        "closes": sum(w for pins, w in with_pins if option in pins and pins - taken == {option}),
        "open": sum(w for pins, w in with_pins if pins & taken and pins - taken),
        "wakes": sum(1 for index in range(folded.count) if needs[index] - taken == {option} and index not in taken),
        "far": len(order) - max((order.index(other) + 1 for other in needs[option]), default=0),
        "age": len(order) - max((order.index(other) + 1 for other in needs[option]), default=0),
    }


@pytest.mark.parametrize("seed", range(8))
def test_what_is_seen_is_what_the_sets_say(seed: int) -> None:
    problem, rng = drawn_graph(seed), random.Random(seed)
    folded = fold(problem)
    made = OrdersMade(ClassGraph.of(problem, folded), 2)
    while not made.finished:
        options = options_of(made)
        numbers = seen(made, options)
        for row in range(2):
            several = numbers[row, ORDERS.context :].reshape(MOST, ORDERS.option)
            for place_of, option in enumerate(options[row]):
                if option < 0:
                    assert not several[place_of].any()
                    continue
                told = by_hand(folded, problem.accelerators, made.orders[row], int(option))
                _, _, _, opens, closes, _, age, far, _, wakes, *_ = several[place_of].tolist()
                expected = [math.log1p(told[name]) for name in ("opens", "closes", "wakes")]
                assert [opens, closes, wakes] == pytest.approx([min(value, REACH) for value in expected], abs=1e-4)
                assert [age, far] == pytest.approx([math.log1p(told[n]) / 4 for n in ("age", "far")], abs=1e-5)
                assert numbers[row, 5] == pytest.approx(min(REACH, math.log1p(told["open"])), abs=1e-4)
        made.take(np.array([rng.choice([one for one in options[row] if one >= 0]) for row in range(2)]))


def test_options_that_are_there_are_told_by_what_is_seen() -> None:
    problem = drawn_graph(3)
    made = OrdersMade(ClassGraph.of(problem, fold(problem)), 3)
    options = options_of(made)
    assert np.array_equal(there(torch.from_numpy(seen(made, options))).numpy(), options >= 0)


def test_of_more_ready_classes_than_options_the_newest_are_offered() -> None:
    nodes = tuple(PlacementNode(name=str(n), accelerator=1.0, host=9.0, send=0.1) for n in range(MOST + 10))
    edges = ((0, MOST + 8), (0, MOST + 9))
    problem = PlacementProblem(nodes=nodes, edges=edges, accelerators=2, cpus=0, memory=math.inf)
    folded = fold(problem)
    later, made = set(folded.labels[-2:]), OrdersMade(ClassGraph.of(problem, folded), 1)
    assert list(options_of(made)[0]) == [index for index in range(folded.count) if index not in later][:MOST]
    made.take(np.array([folded.labels[0]]))
    assert set(options_of(made)[0][:2]) == later
    placed = place(problem, PlaceRequest(strategy="policy", budget=20))
    assert placed.objective == pytest.approx(place(problem, PlaceRequest()).objective)


def test_an_environment_plays_and_rewards_at_the_end() -> None:
    game, rng = OrderGame(map(drawn_graph, range(10, 1000)), 2), random.Random(0)
    for _ in range(5):
        numbers, _ = game.reset()
        ended, rewards = False, []
        while not ended:
            assert game.observation_space.contains(numbers)
            (options,) = game.action_masks().nonzero()
            assert len(options) > 1
            numbers, reward, ended, _, told = game.step(np.int64(rng.choice(options)))
            rewards.append(reward)
        assert set(rewards[:-1]) <= {0.0}
        assert told["legal"] or rewards[-1] == -2.0


def test_a_scorer_that_imitates_makes_what_it_imitates_likelier() -> None:
    one = player(6, fresh_scorer(0, ORDERS))
    assert one.scorer is not None
    (played,) = one.drawn(1, torch.Generator().manual_seed(1))

    @torch.no_grad()
    def likely() -> float:
        assert one.scorer is not None
        scores = one.scorer.forward_actor(played.seen).masked_fill(~there(played.seen), -torch.inf)
        return float(torch.log_softmax(scores, dim=1).gather(1, played.taken.unsqueeze(1)).sum())

    before, descent = likely(), Descent(one.scorer.parameters(), 1e-3)
    for _ in range(5):
        one.imitate([played], descent)
    assert likely() > before


def test_the_same_seed_plays_the_same_orders_and_another_others() -> None:
    found = []
    for seed in (0, 0, 1):
        one = player(8, load_orders_scorer())
        found.append([cut.order for cut in search_orders(one, lambda one=one: after(one.cuts, 40), seed=seed)])  # type: ignore[misc]
    assert found[0] == found[1] != found[2]
    assert found[0][0] == found[2][0]
    assert len(found[0]) == 40  # no order more than asked for


def test_the_shipped_weights_are_small_and_hold_numbers_only() -> None:
    assert SHIPPED.stat().st_size < MOST_BYTES
    with safe_open(SHIPPED, framework="pt") as weights:
        assert set(weights.keys()) == set(Scorer(ORDERS).state_dict())
    assert "placer.strategies.policy.train --game orders" in SHIPPED.with_name("orders-training.txt").read_text()


def test_trained_orders_are_better_than_untrained_and_random_ones() -> None:
    first: dict[str, list[float]] = {"trained": [], "untrained": [], "random": []}
    for seed in range(500, 524):
        scorers = {"trained": load_orders_scorer(), "untrained": fresh_scorer(seed, ORDERS), "random": None}
        for name, scorer in scorers.items():
            one, generator = player(seed, scorer, large=True), torch.Generator().manual_seed(seed)
            (played,) = one.best() if scorer else one.drawn(1, generator)
            first[name].append(played.cut.value)
    best = [min(values) for values in zip(*first.values(), strict=True)]
    above = {
        name: np.mean([value / least for value, least in zip(values, best, strict=True)])
        for name, values in first.items()
    }
    assert above["trained"] < above["untrained"] and above["trained"] < above["random"]


def test_rivals_are_held_against_it_with_as_many_orders() -> None:
    found = orders_row(70_001, SHIPPED, (1, 6))
    assert set(found.players) == {"trained", "untuned", "untrained", "random"}
    assert set(found.others) == {"greedy", "heft", "sorted"}
    for first, best in found.players.values():
        assert first >= best


def test_what_fits_nowhere_is_told() -> None:
    nodes = tuple(PlacementNode(name=str(n), accelerator=1.0, host=9.0, size=5.0) for n in range(3))
    problem = PlacementProblem(nodes=nodes, edges=((0, 1), (1, 2)), accelerators=2, cpus=0, memory=4.0)
    with pytest.raises(InfeasibleError, match=r"none of \d+ orders has cuts that fit"):
        place(problem, PlaceRequest(strategy="policy", budget=10))


def test_a_training_of_orders_keeps_weights_and_a_log(tmp_path: Path) -> None:
    out = tmp_path / "orders.safetensors"
    train_policy(steps=1, seed=5, out=out, game="orders", command="test")
    first = fresh_scorer(5, ORDERS).state_dict()
    kept = load_scorer(out, ORDERS).state_dict()
    assert any(not torch.equal(weight, first[name]) for name, weight in kept.items())
    assert (tmp_path / "orders-training.txt").read_text().startswith("$ test\n")
    assert kept["actor.option.weight"].shape[1] == (SIZE - ORDERS.context) // MOST
