"""`granularity="op"`: every operator is placed by itself, and what is placed so runs as on one device."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from torch import nn

import placer
from eager_ranks import differences, on_one_device, trained
from examples import branching, models
from examples.branching import branching_batch
from execute_models import LENGTH
from placer.api import replan
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from pool import on_ranks

pytestmark = pytest.mark.in_turns

FLOAT64 = RunSettings(precision="float64")
ROWS = 4


def shapes(model: nn.Module) -> dict[str, object]:
    batch = branching_batch(model, ROWS)
    return {name: (tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in batch.items()}


def by_op(model: nn.Module) -> Graph:
    return placer.capture(model, batch=shapes(model), granularity="op")


def work(graph: Graph) -> tuple[int, int, int]:
    """Operators, FLOPs and weight elements, which no division into blocks changes."""
    flops = sum(graph.class_flops[block.kind].at(graph.rows) for block in (*graph.blocks, graph.prologue))
    names = {name for block in graph.blocks for name in block.parameters}
    return sum(1 for _ in graph.ops), int(flops), len(names)


def test_each_operator_is_a_block_and_nothing_is_lost() -> None:
    model = branching.tiny_two_towers()
    graph, layers = by_op(model), placer.capture(model, batch=shapes(model))
    assert graph.granularity == "op" and layers.granularity == "block"
    assert {len(graph.block_class(index).ops) for index in range(len(graph.blocks))} == {1}
    assert work(graph) == work(layers)
    assert len({block.name for block in graph.blocks}) == len(graph.blocks) > len(layers.blocks)


def test_operators_of_repeated_layers_are_of_one_class() -> None:
    model = models.tiny_gpt2()
    graph = placer.capture(model, batch=f"{ROWS}x{LENGTH}", granularity="op")
    kinds = {block.name: block.kind for block in graph.blocks}
    first, second = (f"transformer.h.{layer}.mlp.c_fc" for layer in (0, 1))
    assert [kind for name, kind in kinds.items() if name.startswith(first)] == [
        kind for name, kind in kinds.items() if name.startswith(second)
    ]
    assert len(graph.classes) < len(graph.blocks) / 2


def test_what_writes_stays_with_what_it_writes() -> None:
    model = models.tiny_resnet()
    graph = placer.capture(model, batch={"pixel_values": (ROWS, 3, 32, 32), "labels": ((ROWS,), "int64")},
                           granularity="op")  # fmt: skip
    writers = [name for index, block in enumerate(graph.blocks) for name in block.parameters
               if graph.block_class(index).parameters[block.parameters.index(name)].buffer]  # fmt: skip
    assert len(writers) == len(set(writers)) > 0


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("two_towers", "horizontal"), ("multi_task", "heft"), ("dlrm", "stages"), ("clip", "heft"),
     ("inception", "horizontal")],
)  # fmt: skip
def test_operators_on_two_ranks_train_as_one_device(kind: str, strategy: str) -> None:
    reference = f"examples.branching:tiny_{kind}"
    plan = placer.plan(
        reference, "localx2", batch=shapes(getattr(branching, f"tiny_{kind}")()), settings=FLOAT64, strategy=strategy,
        budget=60, pins=("data=1",), granularity="op",
    )  # fmt: skip
    two = divided(plan)
    expected = on_one_device(two)
    for found in on_ranks(two.world_size, trained, two):
        assert differences(found, expected) == []


def divided(plan: Plan) -> Plan:
    """The plan, or where one device was enough, one that parts its operators in the middle."""
    if plan.positions > 1:
        return plan
    (stage,) = plan.stages
    half = (stage.first + stage.last) // 2
    ranges = pairwise((stage.first, half, stage.last))
    return replace(
        plan, ledger=None,
        stages=tuple(replace(stage, first=a, last=b, devices=(i,)) for i, (a, b) in enumerate(ranges)),
    )  # fmt: skip


def test_the_plan_remembers_it() -> None:
    model = branching.tiny_multi_task()
    plan = placer.plan(
        "examples.branching:tiny_multi_task", "localx2", batch=shapes(model), granularity="op", budget=20
    )
    assert Plan.from_json(plan.to_json()).graph.granularity == "op"
    assert replan(plan, "localx1").graph.granularity == "op"
