"""How replicas on several hosts sum, in the plan: chosen by cost, refused where it cannot be, equal to one device."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

import mixed_ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of, run_case
from graphs import BlockSpec, chain_graph
from mixed_plans import machines, on
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Cluster, Link
from placer.costs.communication.reductions import reduction_seconds
from placer.costs.step_estimate import costs_of, estimate, with_reductions
from placer.legality import check
from placer.plans.plan import Plan, Reduction
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.report.plan_table import plan_table
from placer.runtime.dry import DryRuns, rank_classes
from pool import on_ranks

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT, replicas=4, microbatches=(5, 3))
PIPELINE = replace(WORDS, positions=2, replicas=2, schedule="1f1b")
NODES = machines(0, 2, nodes=2, nic=1e7)
# Of the pipeline each position has a device on both nodes.
PLACES = {1: (), 2: (0, 2, 1, 3)}
WAYS: tuple[Reduction, ...] = get_args(Reduction)


def summed(plan: Plan, way: Reduction) -> Plan:
    return replace(plan, stages=tuple(replace(stage, reduction=way) for stage in plan.stages))


def made(case: Case, way: Reduction) -> Plan:
    return summed(on(plan_of(case), NODES, PLACES[case.positions]), way)


def unequal(*links: float) -> Cluster:
    """Two CPUs behind each of these links, of so many bytes a second."""
    (node, _), *_ = NODES.groups
    nics = [Link(name="nic", latency_seconds=1e-5, bandwidth=link) for link in links]
    return replace(NODES, groups=tuple((replace(node, nic=nic), 1) for nic in nics), levels=())


def replicas(cluster: Cluster) -> Plan:
    graph = chain_graph([BlockSpec(parameters=2**18, flops=10**6, output=10)] * 2, rows=8)
    return pipeline_plan(graph, replicas=cluster.size, machines=cluster, microbatches=(8,))


def chosen(plan: Plan) -> Plan:
    return with_reductions(costs_of(plan), plan)


@pytest.mark.parametrize("way", ["hierarchical", "server"])
@pytest.mark.parametrize("case", [WORDS, replace(WORDS, sharding="optimizer")], ids=str)
def test_one_stage_sums_beside_its_backward_as_one_device_does(case: Case, way: Reduction) -> None:
    plan = made(case, way)
    assert plan.reduces_beside and not check(plan)
    report = on_ranks(4, run_case, plan, 2)[0]
    assert report.passed, str(report)


def test_a_pipeline_sums_by_a_server_as_one_device_does() -> None:
    plan = made(PIPELINE, "server")
    assert not check(plan)
    report = on_ranks(4, run_case, plan, 2)[0]
    assert report.passed, str(report)


@pytest.mark.parametrize("way", ["hierarchical", "server"])
def test_ranks_communicate_what_their_programs_say(way: Reduction) -> None:
    plan = made(WORDS, way)
    sums = [entry for entry in lower(plan)[0].instructions if isinstance(entry, Collective)]
    size = sum(entry.bytes for entry in sums if entry.purpose == "gradients")
    assert on_ranks(4, mixed_ranks.recorded, plan_of(WORDS), NODES, (), way) == [((), size)] * 4


def test_a_dry_run_shows_what_a_server_does() -> None:
    plan = made(WORDS, "server")
    server = DryRuns(plan).of(0)
    assert server.passed
    assert {one.kind for one in server.communications} >= {"receive", "send"}
    assert len(rank_classes(plan)) == 4


def test_the_cheapest_way_is_chosen_and_told() -> None:
    for links in ((1e7, 1e7), (1e8, 1e7), (1e7, 1e8, 1e7)):
        plan = chosen(replicas(unequal(*links)))
        found = reduction_seconds(plan.cluster, plan.stages[0].devices, 2**21)
        assert plan.stages[0].reduction == min(found, key=lambda way: found[way]) != "flat"
        assert not check(plan)


def test_gpus_and_one_node_sum_as_they_did() -> None:
    for cluster in (machines(2, 0, nodes=2), machines(0, 4), machines(1, 1, nodes=2)):
        plan = replicas(cluster)
        assert with_reductions(costs_of(plan), plan) is plan


def test_a_plan_says_nothing_of_what_is_usual_and_reads_what_it_says() -> None:
    plan = made(WORDS, "server")
    assert Plan.from_json(plan.to_json()) == plan
    usual = summed(plan, "flat")
    assert "reduction" not in json.loads(usual.to_json())["stages"][0]
    assert Plan.from_json(usual.to_json()) == usual
    said = usual.to_json().replace('"degree": 1\n', '"degree": 1,\n   "reduction": "flat"\n', 1)
    assert said != usual.to_json() and Plan.from_json(said) == usual


@pytest.mark.parametrize(
    ("plan", "way", "said"),
    [
        (replicas(machines(0, 4)), "server", "for CPUs on several nodes; use reduction flat"),
        (replicas(machines(2, 0, nodes=2)), "hierarchical", "some of them on one; use reduction flat"),
        (replicas(machines(0, 1, nodes=4)), "hierarchical", "use reduction flat or server"),
        (replicas(machines(0, 1)), "server", "has no whole ones on several replicas"),
    ],
)
def test_a_way_that_replicas_do_not_have_is_refused(plan: Plan, way: Reduction, said: str) -> None:
    (broken,) = check(summed(plan, way))
    assert broken.rule == "reductions" and said in broken.message


def test_the_plan_table_says_how_a_stage_sums() -> None:
    plan = chosen(replicas(unequal(1e7, 1e8, 1e7)))
    told = plan_table(replace(plan, ledger=estimate(plan)))
    assert "stage 0 sums gradients (2 MiB) over its nodes" in told
