"""How values between blocks may lie: borders that must lie alike form a group, with the states that an axis allows it.

Borders meet where some class takes a value from several makers, and in all blocks of a class. What the model gets and
returns is whole.

`best_states`: the states of groups that cost least together, a sum of tables over some groups each minimised exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import networkx

from placer.graph import Graph, Tensor
from placer.plans.plan import Layout
from placer.rules.two_axis_layouts import AND
from placer.search.problem import Problem
from placer.strategies.intra_op.block_ilp import Border, BorderStates
from placer.strategies.space.axes import WHOLE, ReplicaAxis, rows_alone

# Each takes an integer program: of a block that many values enter, some tenths of a second.
MOST_COMBINATIONS = 32


@dataclass(frozen=True, slots=True)
class BorderValue:
    """A border of a block class: its number-th input or output."""

    kind: int
    output: bool
    number: int


class Borders:
    """The groups of borders that lie alike."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.groups = _groups(problem)
        self.of_class = {
            kind: tuple(sorted({group for border, group in self.groups.items() if border.kind == kind}))
            for kind in {block.kind for block in problem.graph.blocks}
        }

    def border(self, kind: int, known: dict[int, str], inner: int = 1) -> Border:
        """The border of a class whose groups lie as `known` says; `inner` as of a `Split`."""
        shape = self.problem.graph.classes[kind]
        texts = [
            tuple(known.get(self.groups.get(BorderValue(kind, output, number), -1), WHOLE) for number in range(count))
            for output, count in ((False, len(shape.inputs)), (True, len(shape.outputs)))
        ]
        return Border(inputs=texts[0], outputs=texts[1], inner=inner)

    def border_states(self, kind: int, states: Sequence[tuple[str, ...]]) -> BorderStates:
        """How the border of a class may lie, by how its groups may."""
        shape = self.problem.graph.classes[kind]
        return BorderStates(
            *(
                tuple(self._states_of(BorderValue(kind, output, number), states) for number in range(count))
                for output, count in ((False, len(shape.inputs)), (True, len(shape.outputs)))
            )
        )

    def _states_of(self, place: BorderValue, states: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return states[self.groups[place]] if place in self.groups else (WHOLE,)

    @property
    def images(self) -> bool:
        """Whether images pass between blocks."""
        return any(len(tensor.shape) == 4 for tensors in self._members().values() for tensor in tensors)

    def axis(self, name: str) -> ReplicaAxis:
        """The axis of that name."""
        alone = rows_alone(self.problem.graph) if name == "rows" else 0
        return ReplicaAxis(name=name, images=self.images, alone=alone)

    def states(self, degree: int, axis: str) -> list[tuple[str, ...]]:
        """The states of each group: whole, and cut where all of it can be. What the model gets and returns is whole."""
        allowed: list[tuple[str, ...]] = [(WHOLE,)] * len(set(self.groups.values()))
        for group, tensors in self._members().items():
            allowed[group] = self.axis(axis).states(tensors, degree)
        return allowed

    def bytes_of(self, group: int) -> int:
        """Bytes of the largest tensor of a group, for the whole batch."""
        return max((tensor.bytes_at(self.problem.rows) for tensor in self._members().get(group, ())), default=0)

    def states_within(self, first: Layout, fast: int, axis: str) -> list[tuple[str, ...]]:
        """The states of each group along two axes: along the outer one as in `first`, along `axis` what is left."""
        outer = {}
        for place, group in self.groups.items():
            split = first.splits[place.kind]
            assert split is not None
            outer[group] = (split.outputs if place.output else split.inputs)[place.number]
        return [
            tuple(dict.fromkeys(_both(outer[group], state) for state in states))
            for group, states in enumerate(self.states(fast, axis))
        ]

    def _members(self) -> dict[int, list[Tensor]]:
        graph = self.problem.graph
        whole = {_maker(graph, reference) for reference in graph.outputs if _is_made(reference)}
        whole |= {
            BorderValue(block.kind, False, number)
            for block in graph.blocks
            for number, reference in enumerate(block.inputs)
            if not _is_made(reference)
        }
        fixed = {self.groups[place] for place in whole if place in self.groups}
        found: dict[int, list[Tensor]] = {}
        for place, group in self.groups.items():
            kind = graph.classes[place.kind]
            tensor = kind.tensor(kind.outputs[place.number]) if place.output else kind.inputs[place.number]
            if group not in fixed and isinstance(tensor, Tensor):
                found.setdefault(group, []).append(tensor)
        return found


def _both(outer: str, inner: str) -> str:
    """How a value lies along both axes; whole along the inner one where the outer one cuts that dim."""
    if outer == inner == WHOLE:
        return WHOLE
    return f"{outer}{AND}{WHOLE if outer == inner else inner}"


def _groups(problem: Problem) -> dict[BorderValue, int]:
    """The group of every border between blocks; borders that meet in some block lie alike."""
    graph = problem.graph
    linked: networkx.Graph[BorderValue] = networkx.Graph()
    for block in graph.blocks:
        for number, reference in enumerate(block.inputs):
            if _is_made(reference):
                linked.add_edge(_maker(graph, reference), BorderValue(block.kind, False, number))
    numbers = {border: number for number, part in enumerate(networkx.connected_components(linked)) for border in part}
    return {border: numbers[border] for border in linked}


def _is_made(reference: str) -> bool:
    """Whether a block makes the value, not the prologue or the batch."""
    return reference.startswith("b") and not reference.startswith("b-1.")


def _maker(graph: Graph, reference: str) -> BorderValue:
    block, output = (int(part) for part in reference[1:].split("."))
    return BorderValue(graph.blocks[block].kind, True, output)


def combinations(borders: Borders, kind: int, states: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The states of a class's groups, in their order, for which it has a split each.

    Those are all, where they are few. Of more, as where the skips of a U-Net enter one block, groups of large tensors
    lie each as it likes, and those of small ones all alike: whole, or all cut.
    """
    groups = borders.of_class[kind]
    several = [group for group in groups if len(states[group]) > 1]
    free = several
    if prod(len(states[group]) for group in several) > MOST_COMBINATIONS:
        free = _largest(borders, several, states)
    alike = [group for group in several if group not in free]
    ways = range(max((len(states[group]) for group in alike), default=1))
    for way, chosen in product(ways, product(*(states[group] for group in free))):
        known = dict(zip(free, chosen, strict=True))
        known |= {group: states[group][min(way, len(states[group]) - 1)] for group in alike}
        yield tuple(known.get(group, states[group][0]) for group in groups)


def _largest(borders: Borders, groups: list[int], states: Sequence[tuple[str, ...]]) -> list[int]:
    """As many groups as may lie as they like beside others that lie alike, those of the largest tensors."""
    found: list[int] = []
    ways = max(len(states[group]) for group in groups)
    for group in sorted(groups, key=borders.bytes_of, reverse=True):
        ways *= len(states[group])
        if ways > MOST_COMBINATIONS:
            break
        found.append(group)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Seconds of all blocks of a class by the states of its groups; absent where there is no split."""

    groups: tuple[int, ...]
    seconds: dict[tuple[str, ...], float]


def best_states(factors: list[Factor], states: Sequence[tuple[str, ...]]) -> dict[int, str] | None:
    """The states of all groups of the smallest sum: groups are eliminated one by one, then read off backwards."""
    eliminated: list[tuple[int, tuple[int, ...], dict[tuple[str, ...], str]]] = []
    left = factors
    for group in range(len(states)):
        touching = [factor for factor in left if group in factor.groups]
        others = tuple(sorted({g for factor in touching for g in factor.groups} - {group}))
        made, choice = _eliminated(group, others, touching, states)
        eliminated.append((group, others, choice))
        left = [factor for factor in left if group not in factor.groups] + [Factor(groups=others, seconds=made)]
    if any(not factor.seconds for factor in left):
        return None
    found: dict[int, str] = {}
    for group, others, choice in reversed(eliminated):
        found[group] = choice[tuple(found[g] for g in others)]
    return found


def _eliminated(
    group: int, others: tuple[int, ...], factors: list[Factor], states: Sequence[tuple[str, ...]]
) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], str]]:
    """The smallest sum over the states of `group` for all states of `others`, and the state that has it."""
    seconds: dict[tuple[str, ...], float] = {}
    choice: dict[tuple[str, ...], str] = {}
    for chosen in product(*(states[g] for g in others)):
        known = dict(zip(others, chosen, strict=True))
        for state in states[group]:
            known[group] = state
            keys = [(factor, tuple(known[g] for g in factor.groups)) for factor in factors]
            if all(key in factor.seconds for factor, key in keys):
                total = sum(factor.seconds[key] for factor, key in keys)
                if total < seconds.get(chosen, float("inf")):
                    seconds[chosen], choice[chosen] = total, state
    return seconds, choice
