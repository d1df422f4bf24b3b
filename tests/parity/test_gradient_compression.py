"""Gradients that replicas sum in 16 bits: as a loop by hand sums them, half the bytes everywhere, never silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import jsonschema
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

import mixed_ranks
import synchrony_ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of, run_case
from graphs import BlockSpec, chain_graph
from mixed_plans import machines
from pipeline_plans import pipeline_plan
from placer.costs.communication.reductions import reduction_seconds
from placer.costs.step_estimate import costs_of, estimate
from placer.errors import IllegalPlanError, UsageError
from placer.legality import check
from placer.plans.plan import Plan, Sharding, plan_schema
from placer.plans.settings import GradientCompression, Precision, RunSettings
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.report.documents import plan_document
from placer.report.plan_table import plan_table
from placer.runtime import VerifyReport
from placer.runtime.data_parallel.synchrony import Synchrony, require_replicas
from placer.runtime.deepspeed.limits import require_runnable
from placer.runtime.dry import DryRuns
from placer.runtime.training import trust
from placer.search.judge import solve_with
from placer.simulator.simulation import simulate
from pool import on_ranks
from problems import device, nodes, random_problem

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT, replicas=2, optimizer="sgd")
TEMPERED = replace(WORDS, model="examples.parity.models:tempered")
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
NODES = machines(0, 2, nodes=2, nic=1e7)
SLOW = machines(0, 1, nodes=4, nic=1e6)


def compressed(plan: Plan, dtype: GradientCompression = "bfloat16") -> Plan:
    return replace(plan, settings=replace(plan.settings, gradient_compression=dtype))


def replicated(sharding: Sharding = "none", bucket_bytes: int = 2**18) -> Plan:
    """Four replicas that spend most of a step on their gradients."""
    graph = chain_graph([BlockSpec(parameters=2**18, flops=10**6, output=10)] * 2, rows=8)
    plan = pipeline_plan(graph, replicas=4, machines=SLOW, microbatches=(8,))
    stages = tuple(replace(stage, sharding=sharding) for stage in plan.stages)
    return replace(plan, stages=stages, bucket_bytes=bucket_bytes)


@pytest.mark.in_turns
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "case",
    [
        *(replace(TEMPERED, sharding=sharding) for sharding in SHARDINGS),
        replace(WORDS, shares=(3, 1)),
        replace(TEMPERED, positions=2, microbatches=(4, 4)),
    ],
    ids=str,
)
def test_a_compressed_run_is_a_loop_that_casts_each_replicas_gradients_itself(
    case: Case, dtype: GradientCompression
) -> None:
    plan = compressed(plan_of(case), dtype)
    assert not check(plan)
    found = on_ranks(case.ranks, synchrony_ranks.trained, plan, Synchrony(), 3)[0]
    # What stages share is summed whole.
    by_hand = synchrony_ranks.by_hand_compressed(plan, 3, whole=("temperature",) if case.positions > 1 else ())
    assert found.losses == pytest.approx(by_hand.losses, rel=1e-9)
    for name, tensor in by_hand.state.items():
        torch.testing.assert_close(found.state[name], tensor, rtol=1e-9, atol=1e-12)


def test_a_compressed_run_is_not_that_of_one_device_to_what_whole_sums_are() -> None:
    plan = plan_of(TEMPERED)
    whole, rounded = (
        on_ranks(2, synchrony_ranks.trained, one, Synchrony(), 2)[0].losses[-1] for one in (plan, compressed(plan))
    )
    assert 1e-8 < abs(whole - rounded) < 1e-2


@pytest.mark.parametrize("way", ["flat", "hierarchical", "server"])
def test_ranks_send_a_quarter_of_float64_in_each_way_of_summing(way: str) -> None:
    plan = plan_of(replace(WORDS, replicas=4, microbatches=(5, 3)))
    whole, few = (on_ranks(4, mixed_ranks.recorded, one, NODES, (), way) for one in (plan, compressed(plan)))
    assert [differences for differences, _ in (*whole, *few)] == [()] * 8
    assert [size for _, size in few] == [size // 4 for _, size in whole]


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_ranks_scatter_what_their_programs_say(sharding: Sharding) -> None:
    plan = compressed(plan_of(replace(TEMPERED, sharding=sharding)))
    assert [one for one, _ in on_ranks(2, mixed_ranks.recorded, plan, plan.cluster, ())] == [(), ()]
    scattered = [one for one in sums(plan) if one.kind == "reduce_scatter"]
    assert scattered and {one.dtype for one in scattered} == {"bfloat16"}


@pytest.mark.in_turns
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_dry_run_casts_as_the_run_does(sharding: Sharding) -> None:
    assert DryRuns(compressed(plan_of(replace(TEMPERED, sharding=sharding)))).of(0).passed


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_verify_holds_whole_sums_to_one_device_and_compressed_ones_to_their_rounding(precision: Precision) -> None:
    plan = compressed(plan_of(replace(WORDS, precision=precision)))
    report = on_ranks(2, run_case, plan, 2)[0]
    assert report.passed, str(report)
    exact = [one for one in report.comparisons if one.precision == "float64"]
    assert max(one.allowed for one in exact) <= 1e-6 and any(one.quantity == "gradients" for one in exact)
    rounded = [one for one in report.comparisons if one.precision == f"{precision}/bfloat16"]
    assert {one.quantity for one in rounded if one.allowed > 1e-3} == {"gradients", "norm"}
    assert max(one.relative for one in rounded if one.quantity == "gradients") > 1e-4
    assert "but for gradients that were summed in bfloat16" in str(report)
    assert any("changes the mathematics" in note for note in report.notes)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_half_the_bytes_are_priced_by_the_closed_form_and_played_by_the_simulator(sharding: Sharding) -> None:
    plan = replicated(sharding)
    whole, few = estimate(plan), estimate(compressed(plan))
    assert 2 * few.reduced_bytes == whole.reduced_bytes
    assert few.seconds.reduction < whole.seconds.reduction
    assert [2 * one.bytes for one in sums(compressed(plan))] == [one.bytes for one in sums(plan)]
    for ledger, made in ((whole, plan), (few, compressed(plan))):
        assert simulate(made).ledger.step_seconds == pytest.approx(ledger.step_seconds, rel=0.2)


def test_a_compressed_bucket_takes_what_half_of_it_takes_and_its_casts() -> None:
    plan = replicated()
    size, devices = 2.0**20, plan.stages[0].devices
    whole, few = (costs_of(one).after_backward.bucket(devices, size) for one in (plan, compressed(plan)))
    full, half = (reduction_seconds(SLOW, devices, part)["flat"] for part in (size, size / 2))
    casts = 2 * (size + size / 2) / SLOW.devices[0].memory_bandwidth
    assert whole - few == pytest.approx(full - half - casts, rel=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_searches_and_their_bounds_know_the_compressed_bytes(seed: int) -> None:
    chip = device(memory=2**30, rate=1e11, bandwidth=1e10)
    drawn = random_problem(seed)
    asked = replace(drawn.settings, gradient_compression="float16")
    problem = replace(drawn, settings=asked, cluster=nodes(chip, per_node=1, count=2))
    best, found = (solve_with(problem, name) for name in ("exhaustive", "stages"))
    assert best.plan.ledger is not None and found.plan.ledger is not None and found.bound is not None
    assert found.plan.ledger.step_seconds == pytest.approx(best.plan.ledger.step_seconds, rel=1e-9)
    assert found.bound <= best.plan.ledger.step_seconds * (1 + 1e-9)


def test_a_plan_says_nothing_of_what_is_usual_and_that_it_changes_the_mathematics() -> None:
    plan = plan_of(WORDS)
    assert "gradient_compression" not in plan.to_json() and "gradient_compression" not in plan_document(plan)
    asked = compressed(plan)
    assert Plan.from_json(asked.to_json()) == asked
    jsonschema.validate(json.loads(asked.to_json()), plan_schema())
    text = " ".join(plan_table(asked).split())
    assert "cast to bfloat16 while replicas sum them (gradient_compression), which changes the mathematics" in text
    assert plan_document(asked)["changes_mathematics"] is True
    assert any("changes the mathematics" in line for line in trust.require_runnable(asked))


def test_without_replicas_there_is_nothing_to_compress() -> None:
    asked = compressed(plan_of(replace(WORDS, replicas=1)))
    assert not asked.compresses and "nothing to cast to bfloat16" in plan_table(asked)
    assert not [one for one in sums(asked) if one.dtype == "bfloat16"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_gradients_of_16_bits_are_refused(precision: Precision) -> None:
    with pytest.raises(UsageError, match="have 16 bits until float32 sums them; leave it out"):
        RunSettings(precision=precision, gradient_compression="bfloat16")


def test_what_does_not_sum_every_step_is_refused() -> None:
    with pytest.raises(UsageError, match="gradients are summed in bfloat16, which is of synchronous steps alone"):
        require_replicas(compressed(plan_of(WORDS)), Synchrony(kind="stale", staleness=1))


def test_other_engines_refuse_what_they_would_round_in_their_own_way() -> None:
    with pytest.raises(IllegalPlanError, match="summed in bfloat16, which DeepSpeed would round in its own way"):
        require_runnable(compressed(plan_of(replace(WORDS, precision="float32"))))


def sums(plan: Plan) -> list[Collective]:
    found = (entry for entry in lower(plan)[0].instructions if isinstance(entry, Collective))
    return [one for one in found if one.purpose == "gradients"]


class Scaled(nn.Module):
    """A loss whose gradients float16 does not hold: of 1e-9 they vanish, of 1e7 they become infinite."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(8, 8), scale

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.scale * nn.functional.mse_loss(self.layer(x), y)


def vanishing() -> Scaled:
    return Scaled(1e-9)


def overflowing() -> Scaled:
    return Scaled(1e7)


@pytest.mark.in_turns
@pytest.mark.parametrize("factory", [vanishing, overflowing])
def test_what_float16_does_not_hold_is_told_as_different(factory: Callable[[], nn.Module]) -> None:
    case = Case(
        model=f"test_gradient_compression:{factory.__name__}", shapes=(("x", (8, 8)), ("y", (8, 8))), replicas=2,
        microbatches=(8,), precision="float32",
    )  # fmt: skip
    plan = plan_of(case)
    settings = replace(plan.settings, gradient_compression="float16", learning_rate=1e-7)
    report = on_ranks(2, run_case, replace(plan, settings=settings), 2)[0]
    assert not report.passed
    assert {entry.precision for entry in report.comparisons if not entry.equal} == {"float32/float16"}
    adapter = TypeAdapter(VerifyReport)
    assert str(adapter.validate_json(json.dumps(adapter.dump_python(report)))) == str(report)  # as ranks hand it over
