"""List schedulers and partitioners: on tasks, on blocks of models, and on placement files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import problems
from clusters import SLOW, cluster
from graphs import BlockSpec, branching_graph, chain_graph
from placement_cases import problems as placement_problems
from placer.cluster.cluster import Link
from placer.costs.communication.network import LinkCost
from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.legality import check
from placer.placement.formats import PlaceRequest, read_problem
from placer.placement.legality import Form, violations
from placer.placement.problem import PlacementProblem
from placer.placement.solvers import place
from placer.search.judge import solve_with
from placer.strategies.lists.favourites import favourites
from placer.strategies.lists.from_file import listed
from placer.strategies.lists.methods import METHODS
from placer.strategies.lists.task_graph import Edge, TaskGraph

STRATEGIES = ("heft", "etf", "sct", "critical_path", "greedy", "metis")
THIN = Link(name="thin", latency_seconds=1e-5, bandwidth=1e8)
HEAVY = BlockSpec(flops=50_000_000, parameters=200_000)


def tasks_of(
    seconds: list[tuple[float, ...]], edges: list[tuple[int, int, float]], memory: float = math.inf,
    sizes: list[float] | None = None,
) -> TaskGraph:  # fmt: skip
    """Tasks whose edges take as long between any two devices."""
    devices = len(seconds[0])
    return TaskGraph(
        names=tuple(f"task {index}" for index in range(len(seconds))),
        seconds=tuple(seconds),
        size=tuple(sizes or [0.0] * len(seconds)),
        group=tuple(range(len(seconds))),
        edges=tuple(Edge(source=a, target=b, size=size) for a, b, size in edges),
        memory=(memory,) * devices,
        links=((LinkCost(0.0, 1.0),) * devices,) * devices,
    )


def placed(name: str, tasks: TaskGraph) -> tuple[int, ...]:
    found = METHODS[name](tasks)
    assert not isinstance(found, Infeasible), found
    return found


# The example of the paper of HEFT, figures 2 and 3 and table 3 (its tasks count from 1): it ends after 80.
PAPER_SECONDS: list[tuple[float, ...]] = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10), (13, 16, 9), (7, 15, 11), (5, 11, 14),
    (18, 12, 20), (21, 7, 16),
]  # fmt: skip
PAPER_EDGES = [
    (1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23), (4, 8, 27),
    (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13),
]  # fmt: skip
PAPER_RANKS = (108, 77, 80, 80, 69, 190 / 3, 128 / 3, 107 / 3, 133 / 3, 44 / 3)
PAPER_PLACES = {1: 3, 2: 1, 3: 3, 4: 2, 5: 3, 6: 2, 7: 3, 8: 1, 9: 2, 10: 2}


def test_heft_places_the_example_of_its_paper_as_printed() -> None:
    tasks = tasks_of(PAPER_SECONDS, [(a - 1, b - 1, size) for a, b, size in PAPER_EDGES])
    assert tasks.ranks(communication=True) == pytest.approx(PAPER_RANKS)
    assert placed("heft", tasks) == tuple(PAPER_PLACES[task] - 1 for task in range(1, 11))


def test_a_long_transfer_keeps_a_chain_together_and_free_branches_apart() -> None:
    diamond = [(0, 1, 9.0), (0, 2, 9.0), (1, 3, 9.0), (2, 3, 9.0)]
    for name in ("heft", "etf", "sct", "critical_path"):
        assert len(set(placed(name, tasks_of([(1.0, 1.0)] * 4, diamond)))) == 1
        assert sorted(placed(name, tasks_of([(1.0, 1.0)] * 2, []))) == [0, 1]


def test_etf_fills_the_wait_that_critical_path_leaves() -> None:
    # Task 2 waits for what 1 sends until 6; task 3 can begin at 1. Critical path has listed task 2 by then.
    tasks = tasks_of([(1.0, 1.0), (1.0, 1.0), (10.0, 10.0), (2.0, 2.0)], [(0, 2, 5.0), (1, 2, 5.0)])
    assert placed("etf", tasks) == (0, 1, 0, 0)
    assert placed("critical_path", tasks) == (0, 1, 0, 1)


def test_the_favourite_child_stays_and_its_device_waits_for_it() -> None:
    # Of a fork the child whose input takes longest is the favourite.
    tasks = tasks_of([(2.0, 2.0)] * 3, [(0, 1, 1.0), (0, 2, 1.5)])
    assert {maker: edge.target for maker, edge in favourites(tasks).items()} == {0: 2}
    place_of = placed("sct", tasks)
    assert place_of[2] == place_of[0] != place_of[1]


def test_greedy_levels_loads_and_single_takes_the_fastest_device() -> None:
    tasks = tasks_of([(4.0, 2.0), (4.0, 2.0), (4.0, 2.0)], [(0, 1, 100.0)])
    assert placed("greedy", tasks) == (1, 0, 1)
    assert placed("single", tasks) == (1, 1, 1)


def test_metis_cuts_the_thin_edge_and_gives_shares_by_speed() -> None:
    ring = [(0, 1, 9.0), (1, 2, 9.0), (2, 3, 0.1), (3, 4, 9.0), (4, 5, 9.0)]
    assert placed("metis", tasks_of([(1.0, 1.0)] * 6, ring))[:4] in ((0, 0, 0, 1), (1, 1, 1, 0))
    places = placed("metis", tasks_of([(1.0, 2.0)] * 6, [(a, a + 1, 1.0) for a in range(5)]))
    assert places.count(0) == 4


def test_all_lists_at_once_find_what_the_best_of_them_finds() -> None:
    towers = ((), (0,), (1,), (), (3,), (4,), (2, 5))
    for scale in (1, 3, 10):
        graph = branching_graph([replace(HEAVY, flops=HEAVY.flops * (1 + k % scale)) for k in range(7)], towers)
        given = problems.problem(graph, cluster(per_node=3, device=SLOW, inside=THIN), rows=2)
        every = [solve_with(given, name).plan.ledger for name in (*STRATEGIES, "lists")]
        times = [ledger.step_seconds for ledger in every if ledger is not None]
        assert times[-1] == min(times[:-1])


@st.composite
def task_graphs(draw: st.DrawFn) -> TaskGraph:
    """Up to eight tasks on up to three unlike devices, some of which may not run some; tight memory, groups, cycles
    forbidden or not."""
    count, devices = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    costs = st.sampled_from((0.0, 1.0, 2.5, math.inf))
    rows = [tuple(draw(costs) for _ in range(devices)) for _ in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if draw(st.integers(0, 2)) == 0]
    made = tasks_of(
        [row if any(map(math.isfinite, row)) else (1.0,) * devices for row in rows],
        [(a, b, draw(st.sampled_from((0.0, 0.5, 3.0)))) for a, b in pairs],
        draw(st.sampled_from((math.inf, 6.0, 3.0))),
        [float(draw(st.integers(0, 3))) for _ in range(count)],
    )
    contiguous = draw(st.booleans())
    group = tuple(index if draw(st.booleans()) else index // 2 for index in range(count))
    lone = frozenset({devices - 1}) if contiguous and draw(st.booleans()) else frozenset[int]()
    return replace(made, contiguous=contiguous, group=tuple(range(count)) if contiguous else group, lone=lone)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=60)
@given(tasks=task_graphs())
def test_whatever_is_placed_runs_where_it_may_fits_and_keeps_together(name: str, tasks: TaskGraph) -> None:
    found = METHODS[name](tasks)
    if isinstance(found, Infeasible):
        assert found.binding.startswith("memory")
        return
    assert len(found) == tasks.count
    for group in set(tasks.group):
        assert len({place for place, own in zip(found, tasks.group, strict=True) if own == group}) == 1
    for device in tasks.devices:
        own = [task for task, place in enumerate(found) if place == device]
        assert all(math.isfinite(tasks.seconds[task][device]) for task in own)
        assert sum(tasks.size[task] for task in own) <= tasks.memory[device]
    if tasks.contiguous and name != "metis":
        parts = [f"task {t}" if place in tasks.lone else f"device {place}" for t, place in enumerate(found)]
        ends = {(parts[edge.source], parts[edge.target]) for edge in tasks.edges}
        waits: nx.DiGraph[str] = nx.DiGraph()
        waits.add_edges_from(pair for pair in ends if pair[0] != pair[1])
        assert nx.is_directed_acyclic_graph(waits)


# -- models


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_towers_stand_apart_and_the_plan_is_legal(name: str) -> None:
    graph = branching_graph([HEAVY] * 6 + [BlockSpec()], ((), (0,), (1,), (), (3,), (4,), (2, 5)))
    found = solve_with(problems.problem(graph, cluster(per_node=2, device=SLOW, inside=THIN), rows=1), name).plan
    assert check(found) == ()
    homes = {block: stage.devices for stage in found.stages for block in range(stage.first, stage.last)}
    if name not in ("greedy",):  # it knows nothing of edges
        assert homes[0] == homes[1] == homes[2] != homes[3] == homes[4] == homes[5]


@pytest.mark.parametrize("name", (*STRATEGIES, "single"))
@pytest.mark.parametrize("seed", range(4))
def test_plans_on_unlike_devices_are_legal_or_it_is_said_why_not(name: str, seed: int) -> None:
    asked = problems.unequal_problem(seed)
    try:
        found = solve_with(asked, name)
    except InfeasibleError as error:
        assert str(error)
        return
    assert check(found.plan) == ()


def test_the_best_single_device_is_the_fastest_that_holds_the_model() -> None:
    slow, fast = problems.device(rate=1e11, name="slow"), problems.device(rate=1e12, name="fast")
    small = problems.device(rate=1e13, name="small", memory=1000)
    graph = chain_graph([HEAVY] * 3)
    found = solve_with(problems.problem(graph, problems.cluster(slow, small, fast)), "single").plan
    assert [stage.devices for stage in found.stages] == [(2,)]


def test_what_fits_nowhere_is_told_with_the_block() -> None:
    tiny = replace(SLOW, memory_bytes=1000)
    asked = problems.problem(chain_graph([HEAVY] * 4), cluster(per_node=2, device=tiny, inside=THIN))
    for name in STRATEGIES:
        with pytest.raises(InfeasibleError, match=r"memory: .*block blocks\.\d"):
            solve_with(asked, name)


def test_without_pymetis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(UsageError, match=r"placer-planner\[partition\]"):
        solve_with(problems.problem(chain_graph([HEAVY] * 4), cluster(per_node=2)), "metis")


# -- files


@pytest.mark.in_turns
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=60)
@given(asked=placement_problems(training=False), form=st.sampled_from(("contiguous", "free", "latency")))
def test_placements_of_files_are_legal_in_their_form(name: str, asked: PlacementProblem, form: Form) -> None:
    found = listed(asked, form, name)
    assert isinstance(found, Infeasible) or violations(asked, found, form) == ()


# What the publishers' own greedy list scheduler reached (Tarnawski et al., NeurIPS 2020, latency inputs).
@pytest.mark.parametrize(("case", "published"), [("bert24_inference", 100.219), ("gnmt_inference", 268.5)])
def test_heft_reaches_the_published_greedy_finish_time(shared: Path, case: str, published: float) -> None:
    (path,) = (shared / "placement" / "dnn-partitioning" / "latency-inputs").glob(f"*/{case}.json")
    asked = PlaceRequest(objective="latency", strategy="heft")
    found = place(read_problem(path, asked), asked)
    assert found.objective == pytest.approx(published, abs=5e-4)
    assert found.bound == 0.0 and found.status == "feasible"


def test_the_command_prints_one_document_and_nothing_of_metis(tmp_path: Path) -> None:
    nodes = [
        {"id": i, "fpgaLatency": 100.0 * (i == 0), "cpuLatency": 1.0, "size": 0, "supportedOnFpga": 1} for i in range(4)
    ]
    content = {"maxFPGAs": 4, "maxCPUs": 0, "maxSizePerFPGA": 10, "nodes": nodes, "edges": []}
    (tmp_path / "problem.json").write_text(json.dumps(content))
    command = [sys.executable, "-m", "placer", "place", "problem.json", "--strategy", "metis", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["objective"] == 100.0


def test_an_unknown_one_lists_the_known(shared: Path) -> None:
    (path,) = (shared / "placement" / "dnn-partitioning" / "latency-inputs").glob("*/bert24_inference.json")
    asked = PlaceRequest(strategy="nothing")
    with pytest.raises(UsageError, match=r"'nothing'; known: heft, .*exact"):
        place(read_problem(path, asked), asked)
