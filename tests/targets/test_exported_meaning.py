"""What a framework does by itself is what the plan means; where it is not, the file, a note or a refusal says so."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from layout_plans import CONFIG, ROWS, pinned
from torch.distributed.pipelining.schedules import get_schedule_class

from placer.api import problem
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.asked import parse_pins
from placer.targets.frameworks.automodel import SCHEDULES
from placer.targets.frameworks.export import export_plan, inexpressible
from placer.targets.frameworks.hybrid_layout import hybrid_layout
from placer.targets.frameworks.nearest import nearest
from placer.targets.frameworks.torchtitan_file import read_torchtitan
from placer.targets.frameworks.transformers import lacks

pytestmark = pytest.mark.in_turns

BASE = "titan_base:build"
WHOLE = ("pipeline=1", "tensor=1", "data=8", "recompute=no")


def asked(*pins: str, precision: str = "float32", **settings: Any) -> Plan:
    """A plan of replicas under pins, its settings changed afterwards: the layout is what they are told of."""
    plan = pinned(*WHOLE, *pins, precision=precision)
    halves = (ROWS // 2, ROWS // 2)
    return replace(plan, microbatches=halves, settings=replace(plan.settings, **settings), ledger=None)


def yaml_of(plan: Plan, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(export_plan(plan, name).text)
    return found


def test_a_plan_that_does_not_clip_is_not_clipped_elsewhere() -> None:
    plan = asked("shard=none", clip_norm=None)
    assert "max_norm=1e400," in export_plan(plan, "torchtitan", BASE).text
    assert read_torchtitan(export_plan(plan, "torchtitan", BASE).text, "it.py").tensor == 1, "written as a literal"
    assert "--clip-grad 0.0\n" in export_plan(plan, "megatron").text
    assert yaml_of(plan, "automodel")["clip_grad_norm"] == {"max_norm": inf}
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 9.0)
    torch.nn.utils.clip_grad_norm_([weight], float("1e400"))
    assert weight.grad.tolist() == [9.0, 9.0, 9.0]


def test_the_rate_and_the_decay_stay_the_plan_s() -> None:
    plan = asked("shard=none", weight_decay=0.3)
    assert "LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0)" in export_plan(plan, "torchtitan", BASE).text
    assert "--lr-decay-style constant\n--lr-warmup-iters 0\n" in export_plan(plan, "megatron").text
    assert yaml_of(plan, "automodel")["lr_scheduler"] == {"lr_decay_style": "constant", "lr_warmup_steps": 0}
    told = yaml_of(asked("shard=none", precision="bfloat16", weight_decay=0.3), "bridge")["scheduler"]
    assert (told["lr_decay_style"], told["lr_warmup_iters"]) == ("constant", 0)
    assert told["start_weight_decay"] == told["end_weight_decay"] == 0.3


def test_automodel_is_told_only_what_its_strategy_has_and_all_of_the_precision_and_the_optimizer() -> None:
    whole = yaml_of(asked("shard=none", precision="bfloat16-autocast"), "automodel")
    assert "sequence_parallel" not in whole["distributed"], "an error under ddp"
    assert whole["distributed"]["autocast_dtype"] == "bfloat16"
    shared = yaml_of(asked("shard=parameters", optimizer="sgd", momentum=0.5), "automodel")
    assert shared["distributed"]["mp_policy"] == {"param_dtype": "float32", "reduce_dtype": "float32"}
    assert shared["model"] == {"torch_dtype": "float32"}
    assert shared["optimizer"] == {
        "_target_": "torch.optim.SGD", "lr": 0.001, "weight_decay": 0.01, "momentum": 0.5,
    }  # fmt: skip
    assert "master weights" in " ".join(inexpressible(asked("shard=none", precision="bfloat16"), "automodel"))


def test_automodel_s_schedules_are_torch_s_own() -> None:
    for schedule in SCHEDULES.values():
        assert get_schedule_class(schedule).__name__ == f"Schedule{schedule}"


def test_megatron_shards_the_state_of_adam_alone() -> None:
    plan = asked("shard=optimizer", precision="bfloat16", optimizer="sgd", momentum=0.9)
    for name in ("megatron", "bridge"):
        assert "shards the state of Adam alone" in " ".join(inexpressible(plan, name))
        assert not inexpressible(asked("shard=none", precision="bfloat16", optimizer="sgd"), name)


def test_gradients_are_summed_in_float32_where_it_can_be_said() -> None:
    half = asked("shard=none", precision="float16")
    assert "--accumulate-allreduce-grads-in-fp32\n" in export_plan(half, "megatron").text
    assert any("float16" in reason for reason in inexpressible(half, "bridge"))
    assert any("float32" in reason for reason in inexpressible(asked("shard=none"), "bridge"))
    shared = json.loads(export_plan(asked("shard=optimizer", precision="bfloat16"), "deepspeed").text)
    assert (shared["communication_data_type"], shared["data_types"]) == ("fp32", {"grad_accum_dtype": "fp32"})
    whole = export_plan(asked("shard=none", precision="bfloat16"), "deepspeed")
    assert "communication_data_type" not in whole.text, "refused without ZeRO"
    assert any("gradients are summed in bfloat16" in note for note in whole.notes)
    cast = json.loads(export_plan(asked("shard=optimizer", precision="bfloat16-autocast"), "deepspeed").text)
    assert cast["torch_autocast"]["lower_precision_safe_modules"] == []


def test_zero_takes_the_optimizers_of_torch() -> None:
    told = json.loads(export_plan(asked("shard=gradients", optimizer="sgd"), "deepspeed").text)
    assert told["zero_allow_untested_optimizer"] is True
    assert "zero_allow_untested_optimizer" not in export_plan(asked("shard=gradients"), "deepspeed").text


def test_the_trainer_is_told_what_runs_again_without_a_warning() -> None:
    import transformers

    said = json.loads(export_plan(asked("shard=none"), "transformers").text)["training_arguments"]
    assert transformers.TrainingArguments(**said, use_cpu=True).activation_checkpointing is False


def test_the_trainer_is_not_asked_to_cut_layers_on_processors() -> None:
    layout = replace(hybrid_layout(asked("shard=none"))[0], tensor=2)
    assert not list(lacks(layout))
    assert "no tensor parallelism on CPUs" in " ".join(lacks(replace(layout, on_cpus=True)))


@pytest.mark.parametrize(("name", "parts"), [
    ("megatron", ("out of weight decay", "--calculate-per-token-loss", "dropout")),
    ("deepspeed", ("equally many",)),
    ("accelerate", ("equally many", "AdamW, a constant rate of 0.001", "no clipping")),
    ("transformers", ("out of weight decay",)),
])  # fmt: skip
def test_what_a_file_leaves_to_its_framework_is_noted(name: str, parts: tuple[str, ...]) -> None:
    notes = " ".join(export_plan(asked("shard=none", clip_norm=None), name).notes)
    for part in parts:
        assert part in notes


def test_what_recomputes_may_be_fixed_by_the_settings_of_a_plan_for_a_framework() -> None:
    given = problem(CONFIG, "h100x4", batch="16x64", settings=RunSettings(recompute="full"))
    pins = parse_pins(("sequence=2", "data=2"), given.graph)
    plan = nearest(replace(given, pins=pins), "torchtitan").plan
    assert plan.stages[0].recompute is True
    assert not inexpressible(plan, "torchtitan")


def test_torchtitan_s_cast_of_norms_is_noted(tmp_path: Path) -> None:
    plan = asked("shard=parameters", precision="bfloat16-autocast")
    written = tmp_path / "it.py"
    written.write_text(export_plan(plan, "torchtitan", BASE).text)
    assert "those of norms too" in written.read_text()
