"""Plans played by a scorer, many at a time, and the scorer bent towards those that turned out best.

One round: plans are drawn option by option with probabilities softmax(scores / temperature); those not known yet get
their outcome. Then the scorer imitates the best plans of all rounds,

    loss = - mean over decisions of the elite of log softmax(scores)[what was chosen] - ENTROPY * entropy

The first plan is the one of the best options. Where rounds bring nothing new the temperature rises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from placer.strategies.policy.descent import Descent
from placer.strategies.policy.features import Features, Numbers, mask
from placer.strategies.policy.game import Game, State
from placer.strategies.policy.network import Scorer
from placer.strategies.policy.outcomes import Outcome, outcome

# Plans of a round, those imitated, steps of gradient descent after a round and their size.
ROUND, ELITE, STEPS, RATE = 16, 8, 3, 1e-3
# Plans that are looked at for a legal one even where the seconds are over.
SOME = 64
ENTROPY = 0.003
# By how much the temperature rises where a round is mostly plans known already; how many rounds may bring nothing.
WARMER, HOTTEST, STALLED = 1.25, 4.0, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A finished state, and the number of the option taken at each state on the way."""

    end: State
    taken: tuple[tuple[State, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A plan that was played, with its outcome."""

    episode: Episode
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many plans may be looked at, in all and while none is legal; when it is over once one is, or after some."""

    evaluations: int
    patience: int
    over: Callable[[], bool] = lambda: False

    def reached(self, known: Iterable[Played]) -> bool:
        """Whether to end with these."""
        played = tuple(known)
        if len(played) >= self.evaluations:
            return True
        legal = any(each.outcome.legal for each in played)
        return (not legal and len(played) >= self.patience) or ((legal or len(played) >= SOME) and self.over())


@dataclass(frozen=True, eq=False)
class Player:
    """Plays one game by a scorer (None: every option is as likely); remembers what it saw and `played`, in order."""

    game: Game
    scorer: Scorer | None
    played: dict[State, Played] = field(default_factory=dict)
    _seen: dict[State, tuple[tuple[State, ...], Numbers]] = field(default_factory=dict)

    def best(self) -> Episode:
        """The plan of the best options."""
        return self._play(1, lambda scores: scores.argmax(1))[0]

    def drawn(self, count: int, generator: torch.Generator, temperature: float = 1.0) -> list[Episode]:
        """Plans drawn by their probabilities."""

        def draw(scores: Tensor) -> Tensor:
            chances = torch.softmax(scores / temperature, dim=1)
            return torch.multinomial(chances, 1, generator=generator).squeeze(1)

        return self._play(count, draw)

    def imitate(self, episodes: Sequence[Episode], descent: Descent) -> None:
        """One step towards these plans."""
        states, actions = zip(*(taken for episode in episodes for taken in episode.taken), strict=True)
        chances = torch.log_softmax(self._scores(states), dim=1)
        chosen = chances.gather(1, torch.tensor(actions).unsqueeze(1)).mean()
        spread = -(chances.exp() * chances.clamp(min=-30)).sum(1).mean()
        descent.step(-chosen - ENTROPY * spread)

    def _play(self, count: int, choose: Callable[[Tensor], Tensor]) -> list[Episode]:
        assert self.game.start is not None
        states = [self.game.start] * count
        taken: list[list[tuple[State, int]]] = [[] for _ in states]
        while going := [number for number, state in enumerate(states) if not state.finished]:
            with torch.no_grad():
                actions = choose(self._scores([states[number] for number in going])).tolist()
            for number, action in zip(going, actions, strict=True):
                taken[number].append((states[number], action))
                states[number] = self._look(states[number])[0][action]
        return [Episode(end=end, taken=tuple(way)) for end, way in zip(states, taken, strict=True)]

    def _scores(self, states: Sequence[State]) -> Tensor:
        """Of every option; without end where there is none."""
        seen = [self._look(state) for state in states]
        there = torch.stack([torch.from_numpy(mask(len(options))) for options, _ in seen])
        if self.scorer is None:
            scores = torch.zeros(there.shape)
        else:
            scores = self.scorer.forward_actor(torch.stack([torch.from_numpy(numbers) for _, numbers in seen]))
        return scores.masked_fill(~there, -torch.inf)

    def _look(self, state: State) -> tuple[tuple[State, ...], Numbers]:
        if state not in self._seen:
            options = self.game.options(state)
            self._seen[state] = options, self._features.observation(state, options)
        return self._seen[state]

    @cached_property
    def _features(self) -> Features:
        return Features(self.game)


def search(player: Player, limits: Limits, *, seed: int, learns: bool = True) -> list[Played]:
    """The plans played within the limits, in order, none twice; the scorer is changed if it `learns`."""
    generator = torch.Generator().manual_seed(seed)
    descent = Descent(player.scorer.parameters(), RATE) if player.scorer and learns else None
    known, temperature, stalled = player.played, 1.0, 0
    _look_at(player, [player.best()] if player.scorer else [], limits)
    while not limits.reached(known.values()) and stalled < STALLED:
        before = len(known)
        _look_at(player, player.drawn(ROUND, generator, temperature), limits)
        stalled = 0 if len(known) > before else stalled + 1
        if len(known) - before < ROUND // 2:
            temperature = min(HOTTEST, temperature * WARMER)
        if descent:
            elite = ranked(known.values())[:ELITE]
            ways = [played.episode for played in elite if played.episode.taken]
            for _ in range(STEPS if ways else 0):
                player.imitate(ways, descent)
    return list(known.values())


def ranked(played: Iterable[Played]) -> list[Played]:
    """The legal ones first, the fastest of them before all; of like ones what was played first."""
    return sorted(played, key=lambda each: each.outcome.order)


def _look_at(player: Player, episodes: Sequence[Episode], limits: Limits) -> None:
    """Add the outcomes of plans not known yet."""
    known = player.played
    for episode in episodes:
        if episode.end not in known and not limits.reached(known.values()):
            found = outcome(player.game.problem.costs, player.game.plan(episode.end))
            known[episode.end] = Played(episode=episode, outcome=found)
            if found.legal:
                player.game.problem.found(found.verdict.seconds)
