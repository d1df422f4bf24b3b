"""Piper's problem: the evaluator's formula, the solver against every plan of small problems, the published settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import IllegalPlanError, Infeasible, InfeasibleError, UsageError
from placer.placement.formats import PlaceRequest, read_problem
from placer.placement.formats.piper import read_piper
from placer.placement.published_planners.piper import (
    PiperEdge,
    PiperNode,
    PiperProblem,
    PiperStage,
    Variant,
    published_settings,
    value_of,
)
from placer.placement.solvers import place
from placer.report.placement import answer_document
from placer.strategies.engine.knapsack import cheapest_choice
from placer.strategies.placement.benchmarks import piper_row
from placer.strategies.placement.piper.search import PiperSolution, solve_piper


def variant(name: str, time: float, *, weights: float = 0.0, a: float = 1.0, b: float = 0.0) -> Variant:
    return Variant(name=name, time=time, parameter_bytes=weights, a_bytes=a, b_bytes=b)


def chain(times: list[float], *, devices: int, memory: float, edge: float = 0.0) -> PiperProblem:
    """Nodes in a row, each plain (a=1) or, at 4/3 of the time, recomputed (a=0.25, b=0.25)."""
    nodes = tuple(
        PiperNode(id=i, name="", variants=((1, (variant("plain", t), variant("again", t * 4 / 3, a=0.25, b=0.25))),))
        for i, t in enumerate(times)
    )
    edges = tuple(PiperEdge(source=i, target=i + 1, bytes=edge) for i in range(len(times) - 1))
    return PiperProblem(nodes=nodes, edges=edges, devices=devices, memory_bytes=memory, bandwidth=1.0, microbatches=8)


def test_the_value_of_two_stages_is_the_formula() -> None:
    problem = chain([6.0, 8.0, 3.0], devices=3, memory=10.0, edge=0.5)
    weighted = tuple(
        replace(n, variants=((1, tuple(replace(v, parameter_bytes=2.0) for v in n.at(1))),)) for n in problem.nodes
    )
    problem = replace(problem, nodes=weighted)
    stages = (
        PiperStage(nodes=(0, 1), data=2, tensor=1, variants=("plain", "again")),
        PiperStage(nodes=(2,), data=1, tensor=1, variants=("plain",)),
    )
    value = value_of(problem, stages)
    first = (6 + 8 * 4 / 3) / 2 + 2 * 0.5 / 2 + 4 * (2 - 1) / 2 * (2 + 2) / 8
    assert value.times == pytest.approx((first, 3 + 2 * 0.5))
    # the first stage keeps ceil((2 + 1) / 2) = 2 microbatches, the last one 1
    assert value.memory_bytes == pytest.approx((2 * (1 + 0.25) + 0.25, 1.0))
    assert value.value == max(value.times)


@pytest.mark.parametrize(
    ("stages", "word"),
    [
        ([((0, 1), 1, "plain"), ((2,), 1, "nowhere")], "no variant"),
        ([((0, 2), 1, "plain"), ((1,), 1, "plain")], "earlier stage"),
        ([((0, 1), 1, "plain")], "hold 2 nodes"),
        ([((0, 1, 2), 3, "plain")], "does not divide"),
        ([((0, 1, 2), 8, "plain")], "8 devices used"),
        ([((0,), 1, "plain"), ((1, 2), 1, "plain")], "GiB"),
    ],
)
def test_plans_that_break_a_rule_are_refused_by_name(stages: list[tuple[tuple[int, ...], int, str]], word: str) -> None:
    problem = chain([6.0, 8.0, 3.0], devices=3, memory=1.5)
    plan = tuple(PiperStage(nodes=n, data=d, tensor=1, variants=(v,) * len(n)) for n, d, v in stages)
    with pytest.raises(IllegalPlanError, match=word):
        value_of(problem, plan)


def every_plan(problem: PiperProblem) -> Iterator[tuple[PiperStage, ...]]:
    """Every cover of the nodes by stages in order, with every degree and every variant; legality apart."""
    ids = frozenset(problem.by_id)
    before = {i: {e.source for e in problem.edges if e.target == i} for i in ids}

    def covers(left: frozenset[int], devices: int) -> Iterator[tuple[PiperStage, ...]]:
        if not left:
            yield ()
        done = ids - left
        for size in range(1, len(left) + 1):
            for nodes in itertools.combinations(sorted(left), size):
                if any(before[i] - done - set(nodes) for i in nodes):
                    continue
                for tensor, data in itertools.product((1, 2), range(1, devices + 1)):
                    names = [[v.name for v in problem.by_id[i].at(tensor)] for i in nodes]
                    if tensor * data > devices or not all(names):
                        continue
                    for chosen in itertools.product(*names):
                        stage = PiperStage(nodes=nodes, data=data, tensor=tensor, variants=chosen)
                        for rest in covers(left - set(nodes), devices - tensor * data):
                            yield (stage, *rest)

    return covers(ids, problem.devices)


def best_of_all(problem: PiperProblem) -> float:
    """The least value of any legal plan; inf where there is none."""
    best = float("inf")
    for plan in every_plan(problem):
        try:
            best = min(best, value_of(problem, plan).value)
        except IllegalPlanError:
            continue
    return best


whole = st.integers(0, 6)


@st.composite
def problems(draw: st.DrawFn) -> PiperProblem:
    """Up to four nodes, edges to later ones, variants that differ in everything, degrees 1 and sometimes 2."""
    count = draw(st.integers(1, 4))
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count) if draw(st.booleans())]

    def made(node: int, name: str) -> Variant:
        def sync(others: list[int]) -> tuple[tuple[int, float], ...]:
            return tuple((other, float(draw(whole))) for other in others)

        return Variant(
            name=name,
            time=float(draw(st.integers(1, 12))),
            parameter_bytes=float(draw(whole)),
            a_bytes=float(draw(whole)),
            b_bytes=float(draw(whole)),
            forward_bytes=sync([i for i, j in pairs if j == node]),
            backward_bytes=sync([j for i, j in pairs if i == node]),
        )

    nodes = []
    for node in range(count):
        degrees = draw(st.sampled_from([(1,), (1, 2), (2,)]))
        names = ["x", "y", "z"][: draw(st.integers(1, 3))]
        nodes.append(
            PiperNode(id=node, name="", variants=tuple((t, tuple(made(node, n) for n in names)) for t in degrees))
        )
    return PiperProblem(
        nodes=tuple(nodes),
        edges=tuple(PiperEdge(source=i, target=j, bytes=float(draw(whole))) for i, j in pairs),
        devices=draw(st.integers(1, 3)),
        memory_bytes=float(draw(st.integers(2, 30))),
        bandwidth=float(draw(st.sampled_from([1, 4]))),
        microbatches=draw(st.sampled_from([1, 2, 6])),
    )


@pytest.mark.in_turns
@settings(max_examples=150)
@given(problems())
def test_the_solver_finds_the_best_of_all_plans_and_proves_it(problem: PiperProblem) -> None:
    best, found = best_of_all(problem), solve_piper(problem)
    if isinstance(found, Infeasible):
        assert best == float("inf")
    else:
        assert found.objective == pytest.approx(best, rel=1e-9)
        assert best * (1 - 1e-8) <= found.bound <= best * (1 + 1e-12)
        assert value_of(problem, found.stages).value == found.objective


@settings(max_examples=60)
@given(problems())
def test_a_search_of_one_order_of_the_nodes_never_claims_too_much(problem: PiperProblem) -> None:
    found = solve_piper(problem, many=1)
    if not isinstance(found, Infeasible):
        best = best_of_all(problem)
        assert found.bound <= best * (1 + 1e-12)
        assert found.objective >= best * (1 - 1e-12)


@settings(max_examples=100)
@given(st.data())
def test_the_knapsack_is_exact(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3)))
    numbers = st.lists(st.integers(0, 9), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    cost, size = (np.array(data.draw(numbers), dtype=np.float64).reshape(shape) for _ in range(2))
    capacity = float(data.draw(st.integers(0, 40)))
    found = cheapest_choice(cost, size, capacity)
    rows = np.arange(shape[0])
    fitting = [
        float(cost[rows, list(x)].sum())
        for x in itertools.product(range(shape[1]), repeat=shape[0])
        if size[rows, list(x)].sum() <= capacity
    ]
    if not fitting:
        assert found.cost == float("inf")
    else:
        assert found.cost == min(fitting)
        assert found.bound == pytest.approx(found.cost, rel=1e-11) and found.bound <= found.cost
        assert size[rows, found.chosen].sum() <= capacity


def test_a_knapsack_cut_short_still_gives_a_bound_and_an_answer() -> None:
    random = np.random.default_rng(0)
    cost, size = random.random((30, 2)), random.random((30, 2))
    short, exact = cheapest_choice(cost, size, 12.0, kept=1), cheapest_choice(cost, size, 12.0)
    assert short.bound <= exact.cost <= short.cost


def test_a_search_cut_short_has_a_plan_and_a_bound() -> None:
    problem = chain([5, 7, 4, 9, 6], devices=4, memory=4.0, edge=0.1)
    exact, short = solve_piper(problem), solve_piper(problem, seconds=1e-9)
    assert isinstance(exact, PiperSolution) and isinstance(short, PiperSolution)
    assert short.bound <= exact.objective <= short.objective
    assert value_of(problem, short.stages).value == short.objective


def test_more_memory_or_more_devices_are_never_worse() -> None:
    values = {}
    for devices, memory in itertools.product((2, 4), (4.0, 8.0)):
        found = solve_piper(chain([5, 7, 4, 9, 6], devices=devices, memory=memory, edge=0.1))
        assert isinstance(found, PiperSolution)
        values[devices, memory] = found.objective
    assert values[4, 8.0] <= values[4, 4.0] <= values[2, 4.0]
    assert values[4, 8.0] <= values[2, 8.0] <= values[2, 4.0]


def test_too_little_memory_is_infeasible_and_says_what_binds() -> None:
    found = solve_piper(chain([5, 7, 4], devices=2, memory=0.3))
    assert isinstance(found, Infeasible)
    assert "GiB on each of 2 devices" in found.binding


def ladder(rungs: int) -> PiperProblem:
    """Two rows of nodes with a rung between them every third: more ideals than are all looked at."""
    nodes = tuple(replace(chain([1.0 + i % 3], devices=1, memory=1.0).nodes[0], id=i) for i in range(2 * rungs))
    rows = [PiperEdge(source=i, target=i + 2, bytes=0.1) for i in range(2 * rungs - 2)]
    across = [PiperEdge(source=i, target=i + 1, bytes=0.1) for i in range(0, 2 * rungs, 6)]
    return PiperProblem(
        nodes=nodes, edges=(*rows, *across), devices=4, memory_bytes=30.0, bandwidth=1.0, microbatches=8
    )


def test_a_graph_with_too_many_ideals_is_placed_near_the_best_with_a_bound() -> None:
    problem = ladder(12)
    exact, found = solve_piper(problem), solve_piper(problem, many=60)
    assert isinstance(exact, PiperSolution) and isinstance(found, PiperSolution)
    assert exact.gap == 0
    assert found.bound <= exact.objective <= found.objective <= exact.objective * 1.02


def test_a_graph_with_a_cycle_is_refused() -> None:
    problem = chain([1, 2], devices=2, memory=8.0)
    with pytest.raises(UsageError, match="cycle"):
        solve_piper(replace(problem, edges=(*problem.edges, PiperEdge(source=1, target=0, bytes=1.0))))


def test_place_prints_stages_with_degrees_and_variants(shared: Path) -> None:
    request = PlaceRequest(devices=8, memory=8 * GIB, bandwidth=25 * GIB)
    problem = read_problem(shared / "placement/piper/inputs/bert32a100.json", request)
    answer = place(problem, request)
    document = answer_document(answer)
    assert answer.objective == pytest.approx(0.16585575) and answer.status == "optimal"
    assert sum(stage.data * stage.tensor for stage in answer.stages) <= 8
    assert all(len(stage.variants) == len(stage.nodes) for stage in answer.stages)
    assert isinstance(document["stages"], list) and "variants" in str(document["stages"][0])


def test_place_says_what_binds(shared: Path) -> None:
    request = PlaceRequest(devices=8, memory=GIB)
    problem = read_problem(shared / "placement/piper/inputs/bert32a100.json", request)
    with pytest.raises(InfeasibleError, match="1 GiB on each of 8 devices"):
        place(problem, request)


def test_a_file_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"maxDevices": 2}))
    with pytest.raises(UsageError, match="maxMemoryPerDevice"):
        read_piper(tmp_path / "x.json")


GIB = 2**30


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("graph", "devices", "memory", "microbatches", "known"),
    [
        ("bert32a100", 8, 8, 1920, 0.16585575),
        ("bert32a100", 32, 2, 1920, 0.0665495),
        ("bert32a100", 512, 1, 1920, 0.00878004036),
        ("bert32a100", 512, 80, 1920, 0.00227252011),
        ("resnet", 8, 4, 7680, 73.493286),
        ("resnet", 32, 2, 7680, 24.6258985),
        ("resnet", 128, 8, 7680, 3.89450409),
    ],
)
def test_published_settings_are_at_most_the_best_known_value_and_proved(
    shared: Path, graph: str, devices: int, memory: int, microbatches: int, known: float
) -> None:
    request = PlaceRequest(devices=devices, memory=memory * GIB, bandwidth=25 * GIB, microbatches=microbatches)
    problem = read_piper(shared / "placement/piper/inputs" / f"{graph}.json", request)
    found = solve_piper(problem)
    assert isinstance(found, PiperSolution)
    # the known values are given to nine digits
    assert found.objective <= known * (1 + 1e-8)
    assert found.gap <= 1e-9
    assert value_of(problem, found.stages).value == found.objective


@pytest.mark.parametrize(
    ("graph", "devices", "memory"), [("bert32a100", 8, 2), ("bert32a100", 64, 1), ("resnet", 16, 1.5)]
)
def test_published_settings_without_a_plan_have_none(shared: Path, graph: str, devices: int, memory: float) -> None:
    path = shared / "placement/piper/inputs" / f"{graph}.json"
    request = PlaceRequest(devices=devices, memory=memory * GIB, bandwidth=25 * GIB, microbatches=7680)
    problem = read_piper(path, request)
    assert isinstance(solve_piper(problem), Infeasible)


def test_every_listed_setting_is_in_the_bench() -> None:
    settings = published_settings()
    assert len(settings) == 17 + 18
    assert sum(setting.best_known is None for setting in settings) == 4 + 2


def test_a_row_stands_beside_what_is_known(shared: Path) -> None:
    setting = next(s for s in published_settings() if (s.graph, s.devices, s.memory_GiB) == ("bert32a100", 8, 8))
    found = piper_row(shared / "placement", setting)
    assert found is not None and found.value == pytest.approx(found.known) and found.gap == 0
    assert found.published[0][0] == "equal split"
