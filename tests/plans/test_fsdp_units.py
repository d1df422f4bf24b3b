"""What FSDP2 gathers and scatters as a unit: a block's parameters, and of those that several blocks read one root's.

Seconds are held to the collectives of the plan's program, which runs record as such (`test_record`); where nothing
hides them, over a link that leaves nothing else to see, they add up to what a step says of them.
"""

from __future__ import annotations

import pytest

from graphs import BlockSpec, chain_graph
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Link
from placer.costs.communication.network import Network
from placer.costs.costs import Costs
from placer.costs.memory.block_ranges import Moved
from placer.costs.step_estimate import estimate
from placer.plans.plan import Sharding
from placer.program.instructions import Collective
from placer.program.lowering import lower
from problems import cluster, device

MACHINES = cluster(*[device(bandwidth=1e20)] * 4, link=Link(name="slow", latency_seconds=0.0, bandwidth=1e6))
TIED = [[], [(0, 3)], [(1, 2)], [(0, 3), (1, 2)]]


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
@pytest.mark.parametrize("tied", TIED, ids=str)
def test_a_step_takes_what_the_collectives_of_its_program_take(tied: list[tuple[int, int]], sharding: Sharding) -> None:
    graph = chain_graph([BlockSpec(parameters=10**6)] * 4, tied=tied)
    plan = pipeline_plan(graph, replicas=2, sharding=sharding, machines=MACHINES)
    network, program = Network(plan.cluster), lower(plan)[0]
    issued = [one for one in program.instructions if isinstance(one, Collective) and one.engine == "fsdp"]
    assert len({one.unit for one in issued}) == 4 - 2 * len(tied) + bool(tied)
    said = sum(network.collective(one.kind, one.ranks, one.bytes) for one in issued)
    assert estimate(plan).seconds.reduction == pytest.approx(said, rel=1e-3)


def test_what_blocks_of_several_stages_read_is_a_unit_of_each() -> None:
    """Two stages with one reader each: no root, and as many bytes as of a model that ties nothing."""
    graphs = [chain_graph([BlockSpec(parameters=10**6)] * 4, tied=tied) for tied in ([], [(0, 3)])]
    untied, tied = (
        Costs(plan.graph, plan.cluster, plan.settings).stage_times.stage(
            2, 4, device=2, rows=1, sharding="parameters", devices=(2, 3)
        )
        for plan in (pipeline_plan(graph, positions=2, replicas=2, machines=MACHINES) for graph in graphs)
    )
    assert tied == untied


def test_the_root_is_whole_on_every_device_until_the_backward_ends() -> None:
    """While a middle block goes backward, which takes most: its parameters and gradient, of 4 MB each."""
    blocks = [BlockSpec(parameters=10**6)] * 5
    blocks[2] = BlockSpec(parameters=10**6, output=10**7)
    held = []
    for tied in ([], [(0, 4)]):
        plan = pipeline_plan(chain_graph(blocks, tied=tied), replicas=2, sharding="parameters", machines=MACHINES)
        ranges = Costs(plan.graph, plan.cluster, plan.settings).ranges
        backward = ranges.of(0, 5).backward
        held.append(backward.temporary(False, 1, Moved(parameters=True, gradients=True)).at_once)
    assert held[1] - held[0] == 2 * 4 * 10**6
