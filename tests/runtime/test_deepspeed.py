"""The same plans on DeepSpeed's engine: losses and weights equal one device's; what it cannot run is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.parity.cases import Case, plan_of
from execute_plans import tiny_plan
from opaque_models import WIDTH
from placer.errors import IllegalPlanError, UsageError
from placer.plans.plan import Layout, Plan
from placer.plans.settings import RunSettings
from placer.runtime.deepspeed.limits import require_runnable
from placer.runtime.distributed.launch import launch_module
from placer.runtime.training.run_report import ExecuteOptions

pytest.importorskip("deepspeed")

from deepspeed_ranks import PLANS, STEPS
from writing_models import BATCH

SECONDS = 1800.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs")
    launch_module(("deepspeed_ranks", str(folder)), 4, SECONDS)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PLANS)
def test_losses_and_weights_after_three_steps_are_those_of_one_device(name: str, runs: Path) -> None:
    losses, expected, held_out, difference, held, wanted = json.loads((runs / f"{name}.json").read_text())
    assert len(losses) == STEPS and held == wanted
    assert losses == pytest.approx(expected, rel=1e-5)
    assert difference < 1e-5
    assert held_out < losses[0]


REFUSED: dict[str, Callable[[], Plan]] = {
    "its schedule is gpipe": lambda: tiny_plan(2, 2, schedule="gpipe", model="untied"),
    "stages share embedding.weight": lambda: tiny_plan(2, 2),
    "ZeRO 2 and 3 do not go with its pipeline": lambda: tiny_plan(4, 2, model="untied", sharding="gradients"),
    "share 2 positions": lambda: tiny_plan(2, 2, model="untied", schedule="interleaved", looped=2),
    "without ZeRO it keeps": lambda: tiny_plan(2, 1, settings=RunSettings(offload="optimizer")),
    "its precision is bfloat16": lambda: tiny_plan(2, 1, settings=RunSettings(precision="bfloat16")),
    "numbers without dims .layers.0.number": lambda: plan_of(Case(model="writing_models:unreached", shapes=BATCH)),
    "the model has opaque parts": lambda: plan_of(Case(model="opaque_models:routed", shapes=(("x", (8, WIDTH)),))),
    "ops are cut over the devices": lambda: replace(tiny_plan(2, 1), layouts=(Layout(degree=2, splits=()),)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_deepspeed_cannot_run_is_refused_with_the_reason(reason: str) -> None:
    with pytest.raises(IllegalPlanError, match=reason):
        require_runnable(REFUSED[reason]())


def test_a_checkpoint_of_another_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="--engine placer"):
        ExecuteOptions(engine="deepspeed", checkpoint="folder")
