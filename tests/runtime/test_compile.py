"""Plans whose blocks run by torch.compile equal one device's; what it cannot do is refused before training."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import fx, nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.nn import functional

import compile_ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case, capture_of, plan_of
from examples.parity.drawing import factory
from examples.parity.named_splits import split_plan
from execute_plans import tiny_plan
from placer import tracer
from placer.cli.commands.running.execute import run
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime import load
from placer.runtime.executor.compile import (
    COMPILING_SECONDS,
    CompiledSegment,
    Compiler,
    Segment,
    divided,
    patience,
    require_compilable,
    require_ready,
)
from placer.runtime.executor.rank_builder import axis_of
from placer.runtime.measuring.memory import SavedTensors
from placer.runtime.spmd import LocalBlocks, talks
from placer.runtime.spmd import graph_ops as forms
from placer.runtime.stages.block_code import BlockCode
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.training.run_report import ExecuteOptions
from placer.runtime.training.trust import require_runnable
from placer.runtime.weights.meta_model import prepared_model
from pool import on_ranks
from split_pickers import columns_and_rows, convolutions, nothing, rows_of_the_sequence

pytestmark = pytest.mark.in_turns

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = Case(model="examples.parity.models:dropping_words", shapes=parity_models.TEXT, microbatches=(4, 4))
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES, microbatches=(4, 4), recompute=True)
MIXTRAL = Case(model="examples.models:tiny_mixtral", precision="float32", microbatches=(4, 4), recompute=True)
CPU = torch.device("cpu")
aten = torch.ops.aten
# How often torch compiles one code anew before it gives up.
LIMIT = torch._dynamo.config.recompile_limit

PLANS = {
    "data, uneven microbatches": lambda: plan_of(replace(WORDS, replicas=2)),
    "parameters, recompute": lambda: plan_of(replace(IMAGES, replicas=2, sharding="parameters")),
    "pipeline, dropout, recompute": lambda: plan_of(replace(DROPPING, positions=2, recompute=True)),
    "pipeline, dropout, selective recompute": lambda: plan_of(replace(DROPPING, positions=2, recompute="selective")),
    "data, random numbers": lambda: plan_of(
        Case(model=factory("waits"), shapes=(("x", (8, 8)), ("y", (8, 8))), microbatches=(4, 4), replicas=2)
    ),
    "tensor, recompute": lambda: split_plan(
        replace(WORDS, microbatches=(4, 4), recompute=True), 2, columns_and_rows, "whole"
    ),
    "sequence, dropout": lambda: split_plan(DROPPING, 2, rows_of_the_sequence(nothing), "cut 1"),
    "height, recompute": lambda: split_plan(IMAGES, 2, convolutions("space 0"), "cut 2"),
    "expert, recompute": lambda: plan_of(replace(MIXTRAL, axis="expert", degree=2)),
}


#: These take many times as long to compile as the others.
LARGE = ("sequence, dropout", "expert, recompute")


@pytest.fixture(scope="module")
def known() -> None:
    """Ranks know the small models and torch's compiler: they are started once, and need not import it one by one."""
    code, x, weight = next(_products([1]))
    Compiler("aot_eager", CPU).run(code, PassContext(rows=4, global_rows=4, training=True), x, weight)
    on_ranks(2, compile_ranks.told, *(PLANS[name]() for name in PLANS if name not in LARGE))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in PLANS])
def test_a_compiled_plan_equals_the_reference_run(name: str) -> None:
    for report, graphs in on_ranks(2, compile_ranks.equal, PLANS[name]()):
        assert report.passed, str(report)
        assert graphs


def _blocks(plan: Plan) -> list[BlockCode]:
    cut = capture_of(plan).cut(plan, prepared_model(plan, None, CPU))
    if plan.layouts:
        cut = replace(cut, lowering=LocalBlocks.of(plan, axis_of(plan, 0)))
    return [cut.block(index) for index in range(len(plan.graph.blocks))]


def _segments(code: BlockCode) -> tuple[list[Segment], fx.GraphModule]:
    found: list[Segment] = []

    def noted(segment: Segment) -> nn.Module:
        found.append(segment)
        return nn.Identity()

    return found, divided(code.module, noted)


def test_all_that_talks_to_other_ranks_stays_out_of_compiled_code_in_its_order() -> None:
    plan = split_plan(WORDS, 2, columns_and_rows, "whole")
    talking = 0
    for code in _blocks(plan):
        segments, outer = _segments(code)
        told = [node.target for node in code.module.graph.nodes if talks(node)]
        assert [node.target for node in outer.graph.nodes if talks(node)] == told
        assert not any(talks(node) for segment in segments for node in segment.graph.nodes)
        talking += len(told)
    assert talking


def test_like_blocks_are_compiled_once_and_others_apart() -> None:
    def keys(code: BlockCode) -> list[Hashable]:
        return [segment.key for segment in _segments(code)[0]]

    plan = plan_of(WORDS)
    by_kind: dict[int, list[list[Hashable]]] = {}
    for code in _blocks(plan):
        by_kind.setdefault(plan.graph.blocks[code.index].kind, []).append(keys(code))
    assert any(len(like) > 1 for like in by_kind.values())
    assert all(one == like[0] for like in by_kind.values() for one in like)
    first = [like[0] for like in by_kind.values()]
    assert all(one != other for place, one in enumerate(first) for other in first[:place])


def _products(widths: Sequence[int]) -> Iterator[tuple[BlockCode, torch.Tensor, torch.Tensor]]:
    """Blocks of the same ops on tensors of other sizes, with what they are given."""
    for index, width in enumerate(widths):
        graph = fx.Graph()
        _, x, weight = (graph.placeholder(name) for name in ("mode", "x", "weight"))
        product = graph.call_function(aten.linear.default, (x, weight))
        graph.output((graph.call_function(aten.gelu.default, (product,)),))
        module = fx.GraphModule(nn.Module(), graph)
        code = BlockCode(index=index, inputs=("x", "p:weight"), outputs=("y",), module=module)
        yield code, torch.randn(4, width), torch.randn(3, width, requires_grad=True)


def test_any_number_of_like_blocks_of_other_sizes_are_compiled() -> None:
    compiler, mode = Compiler("aot_eager", CPU), PassContext(rows=4, global_rows=4, training=True)
    counters.clear()
    for code, x, weight in _products([*range(2, LIMIT + 4), 2, 3]):
        (made,) = compiler.run(code, mode, x, weight)
        torch.testing.assert_close(made, functional.gelu(x @ weight.t()))
    assert counters["stats"]["unique_graphs"] == LIMIT + 2


def _gated(start: Callable[..., object], end: Callable[..., object]) -> fx.GraphModule:
    """What a block computes between two ops that talk to other ranks."""
    graph = fx.Graph()
    _, x = (graph.placeholder(name) for name in ("mode", "x"))
    came = graph.call_function(start, (x,))
    gated = graph.call_function(aten.mul.Tensor, (graph.call_function(aten.silu.default, (came,)), came))
    graph.output((graph.call_function(end, (gated,)),))
    return fx.GraphModule(nn.Module(), graph)


def test_what_is_computed_at_the_ranks_of_experts_is_compiled_once_for_any_number_of_rows() -> None:
    found: list[Segment] = []

    def noted(segment: Segment) -> nn.Module:
        found.append(segment)
        return CompiledSegment(segment, "aot_eager")

    apart = divided(_gated(forms.local_op("experts_to"), forms.local_op("experts_from")), noted)
    divided(_gated(forms.local_op("experts_apart"), forms.local_op("experts_apart")), noted)
    assert [segment.varies for segment in found] == [True, False]
    (compiled,) = apart.children()
    counters.clear()
    for rows in range(LIMIT + 4):
        x = torch.randn(rows, 3, requires_grad=True)
        (made,) = compiled(PassContext(rows=4, global_rows=4, training=True), x)
        torch.testing.assert_close(made, functional.silu(x) * x)
    # Two for sizes that torch takes for constants, 0 and 1, one for the first of the others, one for any.
    assert counters["stats"]["unique_graphs"] <= 4


def test_a_block_that_runs_again_in_the_step_that_is_watched_for_memory_repeats_its_forward() -> None:
    plan = tiny_plan(1, 1, microbatches=(4, 4), recompute=True)
    batch = tracer.random_batch(plan.graph, plan.rows, 0)
    losses = []
    for compile in ("", "aot_eager"):
        executor = load(plan, compile=compile)
        with SavedTensors(()).watching():
            losses.append(executor.step(batch))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_what_cannot_be_compiled_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    split = tiny_plan(2, 2, schedule="zero-bubble")
    with pytest.raises(UsageError, match=r"zero-bubble runs a backward in two parts.*--pin schedule=1f1b"):
        load(split, compile="aot_eager")
    require_compilable(split, "")
    with pytest.raises(UsageError, match=r"no backend 'cudagraphs'.*inductor, aot_eager"):
        require_compilable(tiny_plan(2, 2), "cudagraphs")
    with pytest.raises(UsageError, match=r"random numbers by aten\.bernoulli"):
        require_ready("aot_eager", CPU, ["aten.bernoulli"])
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(UsageError, match="needs a C\\+\\+ compiler"):
        require_ready("inductor", CPU, ())
    with pytest.raises(UsageError, match="--compile was asked for with --engine deepspeed"):
        ExecuteOptions(engine="deepspeed", compile="inductor")


def test_a_dry_run_is_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dry-run runs ops one by one"):
        run(tmp_path / "plan.json", dry_run=True, compile=True)


def test_ranks_wait_longer_for_those_that_compile() -> None:
    assert patience(60.0, "") == 60.0
    assert patience(60.0, "inductor") == COMPILING_SECONDS
    assert patience(2 * COMPILING_SECONDS, "inductor") == 2 * COMPILING_SECONDS


def test_a_run_that_was_priced_otherwise_says_so() -> None:
    plan = tiny_plan(2, 1)
    fused = replace(plan, settings=RunSettings(fusion=True))
    assert any("give --compile" in line for line in require_runnable(fused))
    assert not any("priced" in line for line in require_runnable(fused, compiled=True))
    assert any("op by op and runs compiled" in line for line in require_runnable(plan, compiled=True))
