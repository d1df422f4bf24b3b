"""Graphs with given costs drawn by seed, to learn orders from and to be judged on.

    layers    every node reads one to three of the layer before, now and then of an earlier one
    branches  rows of nodes beside each other that begin and end in common ones, one such group after the other
    scattered every node reads up to three of the dozen before it

Costs are drawn from log-normals; half of the graphs are of training: a backward node for each node, of the same colour,
with the edges turned. Memory is drawn around what an equal share needs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from placer.placement.problem import PlacementNode, PlacementProblem

Edges = list[tuple[int, int]]
# Nodes of the graphs that the shipped policy has seen, and of those it is judged on.
SEEN, LARGER = (10, 40), (60, 150)


def drawn_graph(seed: int, nodes: tuple[int, int] = SEEN) -> PlacementProblem:
    """The problem of a seed, with `nodes` from the least to the most forward nodes."""
    rng = random.Random(f"orders {seed}")
    count, accelerators = rng.randint(*nodes), rng.randint(2, 8)
    edges = rng.choice((_layers, _branches, _scattered))(rng, count)
    spread, said = rng.uniform(0.3, 1.5), rng.choice((0.1, 0.3, 1.0, 3.0))
    forward = tuple(_node(rng, f"{index}", spread, said) for index in range(count))
    if rng.random() < 0.5:
        forward, edges = _trained(forward, edges, rng.uniform(1.0, 2.5))
    share = sum(node.size for node in forward) / accelerators
    return PlacementProblem(
        nodes=forward, edges=tuple(edges), accelerators=accelerators, cpus=rng.randint(0, 1),
        memory=share * rng.choice((1.5, 3.0, 10.0)),
    )  # fmt: skip


def _node(rng: random.Random, name: str, spread: float, said: float) -> PlacementNode:
    seconds = rng.lognormvariate(0.0, spread)
    return PlacementNode(
        name=name, accelerator=seconds, host=10 * seconds, size=rng.lognormvariate(0.0, spread),
        send=said * rng.lognormvariate(0.0, spread),
    )  # fmt: skip


def _trained(nodes: tuple[PlacementNode, ...], edges: Edges, factor: float) -> tuple[tuple[PlacementNode, ...], Edges]:
    """With the backward of each node, `factor` times as long, on the device of its forward."""
    count = len(nodes)
    both = [
        replace(
            node, name=f"{node.name}{'b' * back}", accelerator=node.accelerator * times, host=node.host * times,
            size=node.size / 2, backward=back, colour=number,
        )
        for back, times in ((False, 1.0), (True, factor))
        for number, node in enumerate(nodes)
    ]  # fmt: skip
    turned = [(target + count, source + count) for source, target in edges]
    last = [node for node in range(count) if all(source != node for source, _ in edges)]
    return tuple(both), [*edges, *turned, *((node, node + count) for node in last)]


def _layers(rng: random.Random, count: int) -> Edges:
    layers: list[list[int]] = []
    at = 0
    while at < count:
        width = min(count - at, rng.randint(1, 5))
        layers.append(list(range(at, at + width)))
        at += width
    found = set[tuple[int, int]]()
    for number in range(1, len(layers)):
        for node in layers[number]:
            before = layers[number - 1] if rng.random() < 0.85 else layers[rng.randrange(number)]
            found |= {(source, node) for source in rng.sample(before, min(len(before), rng.randint(1, 3)))}
    return sorted(found)


def _branches(rng: random.Random, count: int) -> Edges:
    found: Edges = []
    begin = 0
    while begin < count - 1:
        ends, at = [], begin + 1
        for _ in range(rng.randint(1, 5)):
            last = begin
            for _ in range(rng.randint(1, 6)):
                if at < count - 1:
                    found.append((last, at))
                    last, at = at, at + 1
            ends.append(last)
        found += sorted({(last, at) for last in ends})
        begin = at
    return sorted(set(found))


def _scattered(rng: random.Random, count: int) -> Edges:
    def read(node: int) -> Iterator[tuple[int, int]]:
        near = range(max(0, node - 12), node)
        yield from ((source, node) for source in rng.sample(near, min(len(near), rng.randint(1, 3))))

    return sorted(edge for node in range(1, count) for edge in read(node))
