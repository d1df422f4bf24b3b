"""Orders played by a scorer, several at once, and the scorer bent towards those with the best cuts: see `decoding`,
which does so for plans. The first order is the one of the best options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from placer.strategies.placement.orders.cuts import Cut, Cuts
from placer.strategies.policy.decoding import ELITE, ENTROPY, HOTTEST, RATE, ROUND, STEPS, WARMER
from placer.strategies.policy.descent import Descent
from placer.strategies.policy.network import Scorer
from placer.strategies.policy.orders.graph_game import ClassGraph, Counts, OrdersMade
from placer.strategies.policy.orders.numbers_seen import options_of, seen, there

Choose = Callable[[Tensor], Tensor]
Over = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderPlayed:
    """An order's cut; what was seen before each decision with several options, and which of them was taken."""

    cut: Cut
    seen: Tensor
    taken: Tensor


@dataclass(frozen=True, eq=False)
class OrderPlayer:
    """Plays orders of one graph by a scorer (None: every option is as likely)."""

    graph: ClassGraph
    cuts: Cuts
    scorer: Scorer | None

    def best(self) -> Iterator[OrderPlayed]:
        """The order of the best options."""
        return self._play(1, lambda scores: scores.argmax(1), lambda: False)

    def drawn(
        self, count: int, generator: torch.Generator, temperature: float = 1.0, over: Over = lambda: False
    ) -> Iterator[OrderPlayed]:
        """Orders drawn by the probabilities of their options; none any more where it is `over`."""

        def draw(scores: Tensor) -> Tensor:
            chances = torch.softmax(scores / temperature, dim=1)
            return torch.multinomial(chances, 1, generator=generator).squeeze(1)

        return self._play(count, draw, over)

    def imitate(self, elite: list[OrderPlayed], descent: Descent) -> None:
        """One step towards these orders."""
        numbers = torch.cat([one.seen for one in elite])
        taken = torch.cat([one.taken for one in elite])
        chances = torch.log_softmax(self._scores(numbers), dim=1)
        chosen = chances.gather(1, taken.unsqueeze(1)).mean()
        spread = -(chances.exp() * chances.clamp(min=-30)).sum(1).mean()
        descent.step(-chosen - ENTROPY * spread)

    def _play(self, count: int, choose: Choose, over: Over) -> Iterator[OrderPlayed]:
        made = OrdersMade(self.graph, count)
        numbers: list[Tensor] = []
        taken: list[Tensor] = []
        while not made.finished:
            if over():
                return
            options = options_of(made)
            if (options[:, 1] >= 0).any():
                numbers.append(torch.from_numpy(seen(made, options)))
                with torch.no_grad():
                    taken.append(choose(self._scores(numbers[-1])))
                made.take(_chosen(options, taken[-1]))
            else:
                made.take(options[:, 0])
        for one in range(count):
            if over():
                return
            yield self._played(made.orders[one], one, numbers, taken)

    def _played(self, order: list[int], one: int, numbers: list[Tensor], taken: list[Tensor]) -> OrderPlayed:
        empty = torch.zeros((0, 1))
        return OrderPlayed(
            cut=self.cuts.best(tuple(order)),
            seen=torch.stack([each[one] for each in numbers]) if numbers else empty,
            taken=torch.stack([each[one] for each in taken]) if taken else empty,
        )

    def _scores(self, numbers: Tensor) -> Tensor:
        """Of every option; without end where there is none."""
        is_there = there(numbers)
        scores = torch.zeros(is_there.shape) if self.scorer is None else self.scorer.forward_actor(numbers)
        return scores.masked_fill(~is_there, -torch.inf)


def search_orders(player: OrderPlayer, over: Over, *, seed: int, learns: bool = True) -> list[Cut]:
    """The cuts of the orders played until it is `over`, at least one, as they came; a scorer that `learns` changes."""
    generator = torch.Generator().manual_seed(seed)
    descent = Descent(player.scorer.parameters(), RATE) if player.scorer and learns else None
    elite = list(player.best() if player.scorer else player.drawn(1, generator))
    cuts, temperature = [one.cut for one in elite], 1.0
    while not over() and len(elite[0].taken):
        known = {one.cut.order for one in elite}
        played = list(player.drawn(ROUND, generator, temperature, over))
        cuts += [one.cut for one in played]
        fresh = list({one.cut.order: one for one in played if one.cut.order not in known}.values())
        if len(fresh) < ROUND // 2:
            temperature = min(HOTTEST, temperature * WARMER)
        elite = sorted((*elite, *fresh), key=lambda one: one.cut.value)[:ELITE]
        if descent:
            _learn(player, elite, descent, over)
    return cuts


def _learn(player: OrderPlayer, elite: list[OrderPlayed], descent: Descent, over: Over) -> None:
    for _ in range(STEPS):
        if not over():
            player.imitate(elite, descent)


def _chosen(options: Counts, taken: Tensor) -> Counts:
    found: Counts = np.take_along_axis(options, taken.numpy()[:, None], axis=1)[:, 0]
    return found
