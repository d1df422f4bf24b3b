"""Readers, the evaluator and the legality check of placement files, against arithmetic by hand."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings

from placement_cases import placements, problems, small_enough
from placer.errors import StrategyError, UsageError
from placer.placement.answers import judged
from placer.placement.evaluator import device_loads, finish_time, largest_load
from placer.placement.formats import PlaceRequest, read_problem
from placer.placement.legality import classes, precedences, violations
from placer.placement.problem import Placement, PlacementNode, PlacementProblem

ASKED = PlaceRequest()


def node(name: str, accelerator: float, host: float, send: float, size: float = 1.0, **more: object) -> PlacementNode:
    return PlacementNode(name=name, accelerator=accelerator, host=host, send=send, size=size, **more)  # type: ignore[arg-type]


def diamond(**devices: float) -> PlacementProblem:
    """a -> b, a -> c, b -> d, c -> d."""
    return PlacementProblem(
        nodes=(node("a", 1, 10, 0.5), node("b", 2, 20, 0.25), node("c", 3, 30, 0.125), node("d", 4, 40, 7)),
        edges=((0, 1), (0, 2), (1, 3), (2, 3)),
        accelerators=int(devices.get("accelerators", 2)), cpus=int(devices.get("cpus", 1)),
        memory=devices.get("memory", 4.0),
    )  # fmt: skip


def test_an_output_read_twice_across_a_boundary_is_paid_once_by_each_device() -> None:
    loads = device_loads(diamond(), (0, 1, 1, 1))
    assert loads == (1 + 0.5, 2 + 3 + 4 + 0.5, 0)


def test_an_accelerator_pays_what_comes_in_and_what_goes_out_and_a_cpu_pays_nothing() -> None:
    loads = device_loads(diamond(), (0, 1, 2, 1))
    assert loads == (1 + 0.5, 2 + 4 + 0.5 + 0.125 + 0 * 0.25, 30)


def test_the_output_of_a_node_that_nobody_else_reads_costs_nothing() -> None:
    assert largest_load(diamond(), (0, 0, 0, 0)) == 1 + 2 + 3 + 4


def test_the_finish_time_is_the_longest_path_of_whole_sets() -> None:
    first, second = 1 + 2 + 0.5 + 0.25, 3 + 4 + 0.5 + 0.25
    assert finish_time(diamond(cpus=0), (0, 0, 1, 1)) == first + second


def test_host_nodes_run_beside_each_other() -> None:
    assert finish_time(diamond(), (0, 2, 2, 1)) == (1 + 0.5) + max(20, 30) + (4 + 0.25 + 0.125)


def test_parts_that_wait_for_each_other_have_no_finish_time() -> None:
    with pytest.raises(UsageError, match="wait for each other"):
        finish_time(diamond(), (0, 1, 0, 0))


@pytest.mark.parametrize(
    ("placement", "form", "expected"),
    [
        ((0, 1, 0, 0), "contiguous", "wait for each other"),
        ((0, 1, 0, 0), "latency", "wait for each other"),
        ((0, 1, 2, 0), "latency", "wait for each other"),
        ((0, 0, 0), "free", "3 nodes"),
        ((0, 0, 0, 3), "free", "4 nodes, each on one of 3 devices"),
    ],
)
def test_a_placement_that_cannot_be_is_named(placement: Placement, form: str, expected: str) -> None:
    complaints = violations(diamond(), placement, form)  # type: ignore[arg-type]
    assert len(complaints) == 1
    assert expected in complaints[0]


def test_a_split_without_contiguity_is_legal_in_free_form_only() -> None:
    assert violations(diamond(), (0, 1, 0, 0), "free") == ()


def test_memory_binds_on_accelerators_only() -> None:
    tight = diamond(memory=2.0)
    assert violations(tight, (0, 0, 2, 2), "contiguous") == ()
    assert violations(tight, (0, 0, 0, 2), "contiguous") == ("accelerator0 holds 3 of 2 bytes",)


def test_colours_and_support_are_held() -> None:
    nodes = (node("a", 1, 1, 0, colour=7), node("b", 1, 1, 0, colour=7), node("c", 1, 1, 0, supported=False))
    problem = PlacementProblem(nodes=nodes, edges=(), accelerators=2, cpus=1, memory=9)
    assert violations(problem, (0, 1, 2), "free") == ("colour 7 lies on 2 devices",)
    assert violations(problem, (0, 0, 1), "free") == ("node c is not supported on accelerator1",)


def test_an_orphaned_backward_node_is_ordered_by_the_mirror_image_of_its_edges() -> None:
    nodes = (
        node("f", 1, 1, 0, colour=1),
        node("b", 1, 1, 0, colour=1, backward=True),
        node("o", 1, 1, 0, backward=True),
    )
    problem = PlacementProblem(nodes=nodes, edges=((1, 2),), accelerators=2, cpus=0, memory=9)
    label = classes(problem)
    assert precedences(problem, label) == {(label[2], label[1])}


def laid_out(problem: PlacementProblem, placement: Placement) -> bool:
    """Whether some order of the devices makes every prefix of it down-closed: contiguity as it is defined."""
    label = classes(problem)
    device = dict(zip(label, placement, strict=True))
    pairs = precedences(problem, label)
    return any(
        all(order.index(device[a]) <= order.index(device[b]) for a, b in pairs)
        for order in itertools.permutations(range(problem.devices))
    )


@settings(max_examples=60, derandomize=True)
@given(problems(largest=5))
def test_contiguous_means_a_chain_of_down_closed_sets(problem: PlacementProblem) -> None:
    for placement in placements(problem) if small_enough(problem) else ():
        cycles = [text for text in violations(problem, placement, "contiguous") if "cycle" in text]
        assert laid_out(problem, placement) == (not cycles)


def test_a_solver_that_claims_too_high_a_bound_is_caught() -> None:
    with pytest.raises(StrategyError, match="proved 11"):
        judged(diamond(), (0, 0, 0, 0), "contiguous", bound=11.0, seconds=0.0, notes=())


def test_a_solver_that_breaks_contiguity_is_caught() -> None:
    with pytest.raises(StrategyError, match="cycle"):
        judged(diamond(), (0, 1, 0, 0), "contiguous", bound=0.0, seconds=0.0, notes=())


def test_a_bound_moved_by_rounding_is_the_objective() -> None:
    answer = judged(diamond(), (0, 0, 0, 0), "contiguous", bound=10.0 + 1e-12, seconds=0.0, notes=())
    assert (answer.bound, answer.gap, answer.status) == (10.0, 0.0, "optimal")


EXPERTS = {
    "bert24_inference": 20.084,
    "bert24_training": 49.4049,
    "gnmt_training": 137.154,
    "resnet50_inference": 43.9183,
}


@pytest.mark.parametrize("name", sorted(EXPERTS))
def test_the_evaluator_gives_the_published_expert_splits_their_published_value(shared: Path, name: str) -> None:
    folder = shared / "placement" / "dnn-partitioning"
    problem = read(folder / "throughput-inputs" / "LayerGraphs" / f"{name}.json")
    split = json.loads((folder / "human-experts" / f"{name}_expert.json").read_text())
    parts = [*(part["nodes"] for part in split["fpgas"]), *(part["nodes"] for part in split["cpus"])]
    device = {str(member): index for index, members in enumerate(parts) for member in members}
    placement = tuple(device[node.name] for node in problem.nodes)
    assert largest_load(problem, placement) == pytest.approx(EXPERTS[name], rel=1e-5)


def read(path: Path, request: PlaceRequest = ASKED) -> PlacementProblem:
    problem = read_problem(path, request)
    assert isinstance(problem, PlacementProblem)
    return problem


def test_every_published_input_can_be_read(shared: Path) -> None:
    found = [
        read(path).format
        for folder, pattern in (
            ("dnn-partitioning", "*-inputs/*/*.json"),
            ("pipedream", "**/*.txt"),
            ("dapple", "*/*.txt"),
        )
        for path in sorted((shared / "placement" / folder).glob(pattern))
        if path.name != "LICENSE.txt"
    ]
    assert (found.count("dnn-partitioning"), found.count("pipedream")) == (15, 14 + 5 + 7)


def test_a_profile_line_is_read_with_its_costs(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(
        "node1 -- Linear(2, 3) -- forward_compute_time=1.5, backward_compute_time=2.25, "
        "activation_size=[100.0; 28.0], parameter_size=72.000 -- stage_id=0\n"
        "n2 -- ReLU -- forward_compute_time=1, backward_compute_time=0, activation_size=0, parameter_size=0\n"
        "\tnode1 -- n2\n"
    )
    problem = read(path, PlaceRequest(devices=3, bandwidth=1e6))
    first = problem.nodes[0]
    assert (first.accelerator, first.size, first.send) == (1.5 + 2.25, 100 + 28 + 72, 2 * 128 / 1e6 * 1000)
    assert (problem.edges, problem.accelerators, problem.cpus) == (((0, 1),), 3, 0)
    assert math.isinf(problem.memory)
