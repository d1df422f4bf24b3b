"""Megatron's split of a transformer is the published one, and its rule of thumb is a baseline that keeps pins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from mixed_plans import machines as unlike_machines
from placer.cluster.cluster import Cluster
from placer.costs.step_estimate import estimate
from placer.errors import UsageError
from placer.io.model_shape import Shape
from placer.legality import check
from placer.plans.plan import Layout, ModelRef
from placer.plans.settings import RunSettings
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import Pins, Problem
from placer.strategies.baselines.megatron import MegatronDegrees, MegatronLayouts
from placer.tracer.published.models import model_graph

pytestmark = pytest.mark.in_turns

GPT = Shape(
    kind="gpt", layers=8, hidden=1024, heads=16, key_heads=16, inner=4096, vocabulary=50304, sequence=512
)  # fmt: skip
LLAMA = replace(GPT, kind="llama", key_heads=8, vocabulary=32000)
ROWS = 32
GROUPS = Cluster.load("a100x8*2").groups


@cache
def layouts(shape: Shape = GPT, cluster: str = "a100x8*2") -> MegatronLayouts:
    settings = RunSettings(precision="bfloat16")
    model = ModelRef(kind="config", reference="", fingerprint="")
    machines = Cluster.load(cluster)
    return MegatronLayouts(
        Problem(graph=model_graph(shape), cluster=machines, settings=settings, model=model, rows=ROWS)
    )


def choices(layout: Layout | None, block: int) -> dict[str, str]:
    assert layout is not None
    graph = layouts().problem.graph
    kind = graph.blocks[block].kind
    split = layout.splits[kind]
    assert split is not None
    return dict(zip([op.name for op in graph.classes[kind].ops], split.choices, strict=True))


@pytest.mark.parametrize("sequence", [False, True])
def test_products_are_cut_by_columns_then_rows_attention_by_heads_tables_and_loss_by_vocabulary(sequence: bool) -> None:
    layout = layouts().split(4, sequence=sequence)
    layer, first, last = choices(layout, 1), choices(layout, 0), choices(layout, -1)
    # Queries, keys and values of a head lie side by side: columns of the first product are whole heads.
    assert [layer[f"linear_{i}"] for i in (1, 2, 3, 4)] == ["n", "k", "n", "k"]
    assert layer["scaled_dot_product_attention_1"] == "heads"
    assert first["embedding_1"] == "vocabulary"
    assert first.get("embedding_2", "whole") != "vocabulary"  # positions are not words
    assert (last["linear_1"], last["cross_entropy_loss_1"]) == ("n", "classes")


def test_norms_are_whole_without_sequence_parallelism_and_cut_with_it() -> None:
    norms = ("layer_norm_1", "layer_norm_2")
    whole, cut = (choices(layouts().split(4, sequence=sequence), 1) for sequence in (False, True))
    assert [whole[norm] for norm in norms] == ["whole", "whole"]
    assert [cut[norm] for norm in norms] == ["dim 1", "dim 1"]


def test_sequence_parallelism_keeps_less() -> None:
    held = [
        estimate(layouts().plan(MegatronDegrees(tensor=8, data=2, rows=4, sequence=sequence))).memory[0].activations
        for sequence in (False, True)
    ]
    assert held[1] < held[0]


def test_scores_that_megatron_makes_again_are_said_to_nobody() -> None:
    """Devices that share a layer gather and sum around its products; torch's selective recompute does so twice."""
    plan = layouts().plan(MegatronDegrees(tensor=8, data=2, rows=4, recompute="selective"))
    own = RunSettings(precision="bfloat16", stack="torch")
    core = replace(own, stack="megatron-core", attention="eager")
    slow = Cluster(name="slow", groups=tuple((replace(n, link=replace(n.link, bandwidth=1e9)), c) for n, c in GROUPS))

    def again(settings: RunSettings, cluster: Cluster) -> float:
        return estimate(replace(plan, settings=settings, cluster=cluster)).seconds.recompute

    assert again(core, slow) == again(core, plan.cluster) > 0
    assert again(own, slow) > again(own, plan.cluster)


@pytest.mark.parametrize(
    "degrees",
    [
        MegatronDegrees(tensor=2, pipeline=4, data=2, rows=2),
        MegatronDegrees(tensor=4, pipeline=2, data=2, virtual=2, rows=2),
        MegatronDegrees(tensor=8, pipeline=1, data=2, rows=4, recompute=True, sharding="gradients"),
        MegatronDegrees(pipeline=8, data=2, rows=1, sequence=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_every_published_layout_is_a_legal_plan_of_its_degrees(shape: Shape, degrees: MegatronDegrees) -> None:
    plan = layouts(shape).plan(degrees)
    assert not check(plan)
    stage = plan.stages[0]
    assert (stage.degree, plan.positions, stage.replicas) == (degrees.tensor, degrees.pipeline, degrees.data)
    assert len(plan.stages) == degrees.pipeline * degrees.virtual
    assert set(plan.microbatches) == {degrees.rows * degrees.data}


def test_layers_are_divided_evenly_and_the_ends_keep_embedding_and_head() -> None:
    plan = layouts().plan(MegatronDegrees(tensor=2, pipeline=4, data=2))
    assert [stage.last - stage.first for stage in plan.stages] == [3, 2, 2, 3]


def test_a_layout_of_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="64 devices"):
        layouts().plan(MegatronDegrees(tensor=8, data=8))


@pytest.mark.parametrize("degrees", [MegatronDegrees(tensor=4), MegatronDegrees(tensor=2, context=2)])
def test_a_replica_of_more_devices_than_are_alike_is_refused(degrees: MegatronDegrees) -> None:
    """A node of two GPUs and two CPU workers has four devices, and no four of a kind."""
    unlike = replace(layouts().problem, cluster=unlike_machines(2, 2), settings=RunSettings())
    with pytest.raises(UsageError, match="ask for other degrees"):
        MegatronLayouts(unlike).plan(degrees)


@pytest.mark.parametrize("pins", [Pins(), Pins(tensor=4), Pins(pipeline=4, data=4), Pins(tensor=2, microbatches=4)])
def test_the_rule_of_thumb_keeps_pins(pins: Pins) -> None:
    found = solve_with(replace(layouts().problem, pins=pins), "megatron")
    assert not broken_pins(found.plan, pins)


def test_what_does_not_fit_one_device_is_cut_inside_the_node_first() -> None:
    large = replace(GPT, layers=24, hidden=4096, heads=32, key_heads=32, inner=16384)
    plan = solve_with(layouts(large).problem, "megatron").plan
    assert plan.stages[0].degree > 1
    assert plan.positions == 1
