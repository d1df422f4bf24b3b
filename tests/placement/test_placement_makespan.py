"""The finish time on devices that do one op at a time: the player, the reader of DOPPLER's graphs, search and bound."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings

from placement_cases import problems
from placer.errors import InfeasibleError, UsageError
from placer.placement.answers import PlaceAnswer
from placer.placement.device_queues import DeviceQueues
from placer.placement.formats import PlaceRequest, read_problem, reader, recognised
from placer.placement.legality import violations
from placer.placement.problem import Placement, PlacementNode, PlacementProblem
from placer.placement.solvers import place
from placer.strategies.lists.finish_time.relaxed import relaxed, simple_bound
from placer.strategies.lists.from_file import node_tasks

# Two inputs and three ops: 0 and 1 feed 2.
TEXT = "5\n0, 1,\n0, 1, \n2, 2, \n10000000000,40000000000\n20000000000,80000000000\n30000000000,0\n"
MAKESPAN = PlaceRequest(objective="makespan")


def ticking_clock(problem: PlacementProblem, placement: Placement, tick: float) -> float:
    """The finish time by a clock that goes on tick by tick and looks at every op and device; all costs are whole ticks.

    Written from the rules alone: it shares nothing with the player but the problem.
    """

    def seconds(node: int) -> float:
        own = problem.nodes[node]
        return own.accelerator if placement[node] < problem.accelerators else own.host

    def way(node: int, reader_: int) -> float:
        ends = [placement[node], placement[reader_]]
        return 0.0 if ends[0] == ends[1] else problem.nodes[node].send * sum(d < problem.accelerators for d in ends)

    makers = {n: {a for a, b in problem.edges if b == n} for n in range(len(problem.nodes))}
    ended: dict[int, float] = {}
    begun: set[int] = set()
    queues: dict[int, list[int]] = {device: [] for device in range(problem.devices)}
    busy: dict[int, float] = dict.fromkeys(range(problem.devices), 0.0)
    now = 0.0
    while len(ended) < len(problem.nodes):
        again = True
        while again:  # ops that take no time make others arrive at the same tick
            again = False
            waiting = [n for n in makers if n not in begun and all(n not in line for line in queues.values())]
            here = [n for n in waiting if all(m in ended and ended[m] + way(m, n) <= now for m in makers[n])]
            for n in here[:1]:  # one by one: what it makes at this very tick may stand before the others in the file
                queues[placement[n]].append(n)
                again = True
            for device, line in queues.items():
                if line and busy[device] <= now:
                    n = line.pop(0)
                    begun.add(n)
                    ended[n] = busy[device] = now + seconds(n)
                    again = True
        now += tick
    return max(ended.values())


@settings(max_examples=120)
@given(problems(largest=7))
def test_the_player_agrees_with_a_clock_that_ticks(problem: PlacementProblem) -> None:
    for shift in range(3):
        placement = tuple((node + shift * (node % 2)) % problem.devices for node in range(len(problem.nodes)))
        assert DeviceQueues(problem).finish(placement) == ticking_clock(problem, placement, 0.25)


def answer(problem: PlacementProblem) -> PlaceAnswer | None:
    try:
        return place(problem, PlaceRequest(objective="makespan", budget=2_000))
    except InfeasibleError:
        return None


@settings(max_examples=12, derandomize=True)
@given(problems(largest=5))
def test_no_placement_is_below_the_bound_and_the_search_finds_the_best(problem: PlacementProblem) -> None:
    queues = DeviceQueues(problem)
    every = (p for p in product(range(problem.devices), repeat=len(problem.nodes)))
    best = min((queues.finish(p) for p in every if not violations(problem, p, "makespan")), default=math.inf)
    found = answer(problem)
    if found is None:
        return
    assert found.bound <= best * (1 + 1e-9)
    assert found.objective <= best * 1.25 + 1e-9


def test_the_relaxed_program_proves_what_the_simple_bound_does_not() -> None:
    """Three ops feed one; each edge takes as long as an op: one device takes 4, two devices 3, the ways alone 2."""
    nodes = tuple(PlacementNode(name=str(n), accelerator=1.0, host=0.0, send=0.5) for n in range(4))
    problem = PlacementProblem(nodes=nodes, edges=((0, 3), (1, 3), (2, 3)), accelerators=2, cpus=0, memory=math.inf)
    tasks = node_tasks(problem, "makespan")
    assert simple_bound(tasks) == 2.0
    proof = relaxed(tasks, (0,) * 4, 4.0, effort=10.0, seconds=None)
    assert proof.bound == pytest.approx(3.0, rel=1e-4) and proof.bound <= 3.0
    assert proof.placement is not None and DeviceQueues(problem).finish(proof.placement) == 3.0


def test_a_graph_of_doppler_is_recognised_and_read(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(TEXT)
    assert recognised(TEXT, "graph.txt") == "doppler"
    problem = read_problem(path, PlaceRequest(devices=2))
    assert isinstance(problem, PlacementProblem)
    assert problem.edges == ((0, 2), (1, 2)) and problem.accelerators == 2
    queues = DeviceQueues(problem)
    assert queues.finish((0, 0, 0)) == 1 + 2 + 3
    assert queues.finish((0, 1, 1)) == max(1 + 4, 2) + 3
    assert queues.finish((0, 1, 0)) == 2 + 8 + 3
    found = place(problem, PlaceRequest())
    assert (found.objective, found.unit) == (6.0, "x 1e10")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("5\n", "6\n", "line 1: 6 nodes are announced, 2 inputs and 3 ops follow"),
        ("2, 2, \n", "2, \n", "lines 3 and 4: 2 edges begin and 1 end"),
        ("2, 2, \n", "2, 7, \n", "line 4: an edge names op 7, the file has ops 0 to 2"),
        ("30000000000,0", "30000000000", "line 7: 1 numbers, 2 were expected"),
        ("30000000000,0", "x,0", "line 7: 'x,0' is no list of numbers"),
        ("30000000000,0", "-1,0", "line 7: finite numbers of at least 0"),
        ("2, 2, \n", "2, 0, \n", "the edges form a cycle"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new, 1)
    if "cycle" in message:
        text = text.replace("0, 1, \n2", "0, 2, \n2")
    with pytest.raises(UsageError, match=message):
        reader("doppler")(text, "graph.txt", PlaceRequest())


@pytest.mark.parametrize("lines", (1, 3, 4))
def test_a_file_that_ends_early_is_told(lines: int) -> None:
    with pytest.raises(UsageError, match=f"ends after {lines} lines"):
        reader("doppler")("\n".join(TEXT.splitlines()[:lines]), "graph.txt", PlaceRequest())


def test_free_form_is_no_choice_of_the_makespan() -> None:
    problem = reader("doppler")(TEXT, "graph.txt", PlaceRequest())
    with pytest.raises(UsageError, match="makespan, which has the free form anyway"):
        place(problem, PlaceRequest(free_form=True))


# What was reached by the same rules before (reference data, 2026): one device, METIS, annealing from these.
KNOWN = {
    "chain_mm_112nodes": (4800.28, 1200.10),
    "ffnn_192nodes": (226.78, 56.696),
    "transformer_block_215nodes": (388.68, 188.32),
    "full_transformer_layer_261nodes": (388.98, 155.93),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", KNOWN)
def test_the_published_graphs_are_no_slower_than_the_best_known(shared: Path, name: str) -> None:
    path = shared / "placement" / "doppler" / f"{name}.txt"
    one, best = KNOWN[name]
    asked = PlaceRequest(strategy="single")
    assert place(read_problem(path, asked), asked).objective == pytest.approx(one, abs=0.005)
    short = PlaceRequest(budget=3_000)
    found = place(read_problem(path, short), short)
    assert found.objective <= best + 0.02
    assert found.bound >= 0.99 * sum(node.accelerator for node in _nodes(path)) / 4


def _nodes(path: Path) -> tuple[PlacementNode, ...]:
    problem = read_problem(path, PlaceRequest())
    assert isinstance(problem, PlacementProblem)
    return problem.nodes
