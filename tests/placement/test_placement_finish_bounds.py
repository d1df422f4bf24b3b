"""Lower bounds of the finish time: folded tasks, heads and tails, queues; against every placement of small problems."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from placer.errors import InfeasibleError
from placer.placement.device_queues import DeviceQueues
from placer.placement.formats import PlaceRequest, read_problem
from placer.placement.legality import violations
from placer.placement.problem import PlacementNode, PlacementProblem
from placer.placement.solvers import place
from placer.strategies.lists.finish_time.contraction import Way, contracted, far_from_long, short_tasks
from placer.strategies.lists.finish_time.relaxed import relaxed, simple_bound
from placer.strategies.lists.from_file import node_tasks
from placer.strategies.lists.task_graph import TaskGraph


def drawn(seed: int) -> PlacementProblem:
    """Ops of which many take next to no time, with messages as long as ops, on two or three devices."""
    rng = random.Random(seed)
    count = rng.randint(4, 8)
    devices = rng.choice((2, 3)) if count < 7 else 2
    cpus = rng.choice((0, 0, 1)) if devices == 2 else 0

    def node(name: int) -> PlacementNode:
        seconds = rng.choice((0.0, 0.001, 0.002, 1.0, 2.0, round(rng.uniform(0.3, 3), 2)))
        send = rng.choice((0.0, 0.001, 1.0, rng.uniform(0, 4)))
        return PlacementNode(name=str(name), accelerator=seconds, host=seconds * rng.choice((1, 3)), send=send)

    order, share = rng.sample(range(count), count), rng.uniform(0.2, 0.6)
    edges = tuple((order[a], order[b]) for b in range(count) for a in range(b) if rng.random() < share)
    nodes = tuple(map(node, range(count)))
    return PlacementProblem(nodes=nodes, edges=edges, accelerators=devices - cpus, cpus=cpus, memory=math.inf)


def pairs(count: int, devices: int) -> PlacementProblem:
    """One op feeds pairs of long ones, each pair one more, and all these the last; long messages behind long ops."""
    nodes: list[PlacementNode] = []
    edges: list[tuple[int, int]] = []

    def op(seconds: float, send: float, *reads: int) -> int:
        edges.extend((maker, len(nodes)) for maker in reads)
        nodes.append(PlacementNode(name=str(len(nodes)), accelerator=seconds, host=0.0, send=send))
        return len(nodes) - 1

    source = op(0.001, 0.001)
    long = [op(1.0, 2.0, source) for _ in range(2 * count)]
    reduced = [op(0.001, 0.001, one) for one in long]
    op(0.001, 0.0, *[op(1.0, 2.0, reduced[pair], reduced[pair + count]) for pair in range(count)])
    return PlacementProblem(nodes=tuple(nodes), edges=tuple(edges), accelerators=devices, cpus=0, memory=math.inf)


def unlike_ways() -> PlacementProblem:
    """An accelerator and a CPU: a message takes the longer, the more of its ends are accelerators, so that arrivals do
    not follow from who shares a device alone. Who takes them for known proves too much here."""
    costs = ((3.0, 3.0, 3.75), (1.0, 3.0, 2.5), (0.4, 0.4, 0.0), (2.34, 7.02, 0.001), (1.7, 1.7, 1.0), (1.8, 1.8, 0.0))
    nodes = tuple(
        PlacementNode(name=str(name), accelerator=fast, host=slow, send=send)
        for name, (fast, slow, send) in enumerate((*costs, (1.0, 3.0, 0.0)))
    )
    edges = ((1, 5), (1, 3), (1, 2), (0, 4), (0, 3), (4, 6), (6, 2))
    return PlacementProblem(nodes=nodes, edges=edges, accelerators=1, cpus=1, memory=math.inf)


def limited(seed: int) -> PlacementProblem:
    """The same ops with bytes, of which devices hold not many more than all need, some of them of a colour or for a CPU
    alone."""
    problem, rng = drawn(seed), random.Random(seed)
    nodes = tuple(
        replace(
            node,
            size=float(rng.choice((0, 1, 2, 4, 4.5))),
            colour=rng.choice((None, None, 0, 1)),
            supported=not problem.cpus or rng.random() < 0.8,
        )
        for node in problem.nodes
    )
    held = sum(node.size for node in nodes)
    memory = rng.choice((held / problem.devices, held / problem.devices + 1, 0.7 * held, math.inf))
    return replace(problem, nodes=nodes, memory=memory)


def every_legal(problem: PlacementProblem) -> list[tuple[float, tuple[int, ...]]]:
    """The finish time of each legal placement, the shortest first."""
    queues = DeviceQueues(problem)
    every = product(range(problem.devices), repeat=len(problem.nodes))
    return sorted((queues.finish(p), p) for p in every if not violations(problem, p, "makespan"))


@pytest.mark.in_turns
def test_no_placement_is_below_the_bound() -> None:
    above = 0
    for seed, problem in enumerate((unlike_ways(), *map(drawn, range(60)), *map(limited, range(120)))):
        tasks, every = node_tasks(problem, "makespan"), every_legal(problem)
        for value, placement in every[:: max(1, len(every) // 2)][:2]:
            bound = relaxed(tasks, placement, value, effort=2.0, seconds=None).bound
            assert bound <= every[0][0] * (1 + 1e-9), seed
            above += bound > simple_bound(tasks) * 1.001
    assert above > 60  # programs did prove more


@pytest.mark.in_turns
def test_an_answer_keeps_memory_and_colours_and_there_is_one_where_a_placement_is_legal() -> None:
    request = PlaceRequest(objective="makespan", budget=10**8)
    for problem in map(limited, range(60)):
        every = every_legal(problem)
        if not every:
            with pytest.raises(InfeasibleError):
                place(problem, request)
            continue
        found = place(problem, request)
        assert found.bound <= every[0][0] * (1 + 1e-9) <= found.objective * (1 + 2e-9)


@pytest.mark.parametrize(
    ("seconds", "sizes", "memory", "best"),
    [
        ((2.0, 0.0, 1.0, 0.0), (100.0, 400.0, 100.0, 100.0), 400.0, 3.0),  # short ops have bytes too
        ((1.0, 1.0, 1.0, 1.0), (1.0, 5.0, 4.0, 3.0), 7.0, 2.0),  # no list scheduler fits
        ((1.0, 1.0, 1.0), (9e18, 3e18, 1e18), 9.5e18, 2.0),  # more bytes than 64 bits count
    ],
)
def test_memory_that_binds(seconds: tuple[float, ...], sizes: tuple[float, ...], memory: float, best: float) -> None:
    nodes = tuple(
        PlacementNode(name=str(n), accelerator=own, host=0.0, size=size)
        for n, (own, size) in enumerate(zip(seconds, sizes, strict=True))
    )
    problem = PlacementProblem(nodes=nodes, edges=(), accelerators=2, cpus=0, memory=memory)
    found = place(problem, PlaceRequest(objective="makespan"))
    assert found.objective == best and found.bound == pytest.approx(best)


@pytest.mark.in_turns
def test_waiting_in_queues_is_proven() -> None:
    """In any order the last long ops may begin as soon as their pairs are done: 5 s. First come first served what
    reduces a pair waits behind all that came before it: 6 s."""
    problem = pairs(4, 4)
    found = place(problem, PlaceRequest(objective="makespan"))
    assert found.objective == pytest.approx(6.0, abs=0.01)
    assert 5.99 < found.bound <= found.objective


def tasks_of(costs: tuple[tuple[float, float], ...], edges: tuple[tuple[int, int], ...]) -> TaskGraph:
    """Ops of so many seconds, and so many for half of their message's way, on two accelerators."""
    nodes = [
        PlacementNode(name=str(n), accelerator=seconds, host=0.0, send=send) for n, (seconds, send) in enumerate(costs)
    ]
    problem = PlacementProblem(nodes=tuple(nodes), edges=edges, accelerators=2, cpus=0, memory=math.inf)
    return node_tasks(problem, "makespan")


def test_a_folded_task_leaves_a_way() -> None:
    tasks = tasks_of(((1.0, 2.0), (0.125, 0.25), (1.0, 0.0)), ((0, 1), (1, 2)))
    short = short_tasks(tasks, 0.125)
    assert short == {1}
    part = contracted(tasks, frozenset(range(3)), short, 0.125)
    assert part.tasks == (0, 2)
    assert part.ways == (Way(source=0, target=2, lag=0.125, sent=0.5),)
    assert part.exact == {0}  # when 2 arrives depends on when 1 had its turn
    assert far_from_long(tasks, short, 0.125) == frozenset()


def test_a_join_of_long_messages_stays() -> None:
    """That its makers share a device, or send, must not be forgotten; where messages are short it is not needed."""
    edges = ((0, 2), (1, 2), (2, 3))
    for send, stays in ((2.0, (0, 1, 2, 3)), (0.0, (0, 1, 3))):
        tasks = tasks_of(((1.0, send), (1.0, send), (0.0, 0.0), (1.0, 0.0)), edges)
        assert contracted(tasks, frozenset(range(4)), short_tasks(tasks, 0.01), 0.01).tasks == stays


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ("transformer_block_215nodes", "full_transformer_layer_261nodes"))
@pytest.mark.timeout(300)
def test_published_transformers_are_proven_within_a_tenth(shared: Path, name: str) -> None:
    path = shared / "placement" / "doppler" / f"{name}.txt"
    found = place(read_problem(path, PlaceRequest()), PlaceRequest())
    assert found.bound >= found.objective / 1.1
