"""The runtime heeds the settings a plan was priced with, or says that it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from examples.parity.cases import Case, plan_of
from placer import tracer
from placer.cli.commands.running.execute import run_document
from placer.costs.step_estimate import estimate
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime import load
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.microbatch import BatchSplit, Microbatch
from placer.runtime.training.run_report import RunReport
from placer.runtime.training.trust import require_runnable

pytestmark = pytest.mark.in_turns


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Names of all ops that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.names.add(func._schema.name)
        return cast(Callable[..., object], func)(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def gpt2() -> Plan:
    return plan_of(Case(model="examples.models:tiny_gpt2", precision="float32", microbatches=(8,)))


def test_attention_runs_as_the_plan_was_priced(gpt2: Plan) -> None:
    losses, fused = {}, {}
    kinds: tuple[Literal["flash", "eager"], ...] = ("flash", "eager")
    for attention in kinds:
        plan = replace(gpt2, settings=replace(gpt2.settings, attention=attention))
        executor = load(plan)
        batch = tracer.random_batch(plan.graph, plan.rows, 0)
        with Ops() as ops:
            losses[attention] = executor.step(batch)
        fused[attention] = any("scaled_dot_product" in name for name in ops.names)
    assert fused == {"flash": True, "eager": False}
    assert losses["eager"] == pytest.approx(losses["flash"], rel=1e-5)


class _Clock:
    """Seconds that pass where somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_the_seconds_of_a_step_hold_the_dividing_of_its_batch(gpt2: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, executor = _Clock(), load(gpt2)
    divided = BatchSplit.microbatches

    def slowly(self: BatchSplit, batch: Batch, *, step: int | None, training: bool) -> tuple[Microbatch, ...]:
        clock.now += 5.0
        return divided(self, batch, step=step, training=training)

    monkeypatch.setattr("placer.runtime.executor.executor.time", clock)
    monkeypatch.setattr(BatchSplit, "microbatches", slowly)
    executor.step(tracer.random_batch(gpt2.graph, gpt2.rows, 0))
    assert executor.timings == [5.0]


def test_one_learning_rate_does_not_replace_those_of_groups(gpt2: Plan) -> None:
    def own(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        first, *others = parameters
        groups: list[dict[str, object]] = [{"params": [first], "lr": 0.1}, {"params": others}]
        return torch.optim.SGD(groups, lr=0.01)

    executor = load(gpt2, optimizer=own)
    with pytest.raises(UsageError, match=r"learning rates 0\.01, 0\.1.*param_groups"):
        executor.set_learning_rate(0.5)


def test_settings_that_the_runtime_does_not_heed_are_named(gpt2: Plan) -> None:
    assert require_runnable(gpt2) == ()
    fused = replace(gpt2, settings=RunSettings(fusion=True))
    assert any("fusion" in warning for warning in require_runnable(fused))
    core = replace(gpt2, settings=RunSettings(stack="megatron-core"))
    assert any("megatron-core" in warning for warning in require_runnable(core))
    pair = plan_of(Case(model="examples.models:tiny_gpt2", replicas=2, microbatches=(8,)))
    after = replace(pair, settings=RunSettings(overlap=False))
    assert require_runnable(after) == ()
    sharded = replace(after, stages=tuple(replace(stage, sharding="parameters") for stage in after.stages))
    assert not any("overlap" in warning for warning in require_runnable(sharded))  # on CPUs FSDP2 has none
    (node, count), *_ = sharded.cluster.groups
    chips = tuple((replace(chip, backend="cuda"), number) for chip, number in node.devices)
    on_gpus = replace(sharded, cluster=replace(sharded.cluster, groups=((replace(node, devices=chips), count),)))
    assert any("overlap" in warning for warning in require_runnable(on_gpus))


def test_a_run_is_reported_with_its_speed(gpt2: Plan) -> None:
    report = RunReport(
        ranks=1, data="synthetic", first_step=0, losses=(3.0,) * 4, step_seconds=(9.0, 9.0, 0.5, 0.5), rows=8,
        tokens_per_row=12, predicted=estimate(gpt2),
    )  # fmt: skip
    document = run_document(report)
    assert (document["rows_per_second"], document["tokens_per_second"]) == (8 / 0.5, 8 * 12 / 0.5)
    predicted = estimate(gpt2)
    assert document["mfu"] == pytest.approx(predicted.flops / 0.5 / predicted.peak_flops)
