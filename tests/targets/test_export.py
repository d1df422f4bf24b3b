"""Plans in the words of other frameworks, read by these frameworks' own code where it installs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from layout_plans import LAYERS, LENGTH, ROWS, asked, drawn, pinned
from typer.testing import CliRunner

from placer.api import problem, solve
from placer.cli import app
from placer.errors import UsageError
from placer.plans.plan import Asked, Plan, Stage
from placer.search.asked import parse_pins
from placer.search.judge import solve_with
from placer.targets.frameworks.asked_layout import AskedLayout
from placer.targets.frameworks.even_rows import with_even_rows
from placer.targets.frameworks.export import FRAMEWORKS, InexpressibleError, export_plan, inexpressible
from placer.targets.frameworks.hybrid_layout import HybridLayout, hybrid_layout
from placer.targets.frameworks.megatron import model_parallel
from placer.targets.frameworks.megatron_file import read_megatron
from placer.targets.frameworks.nearest import nearest
from placer.targets.frameworks.torchtitan_file import read_torchtitan

# Warnings of other packages are not ours.
pytestmark = [pytest.mark.in_turns, pytest.mark.filterwarnings("ignore")]
COUNT = 20
BASE = "titan_base:build"
# What each framework can compute in.
PRECISION = {"megatron": "bfloat16", "bridge": "bfloat16"}


def expressible(name: str) -> list[tuple[Plan, HybridLayout, str]]:
    """Drawn plans that a framework can be told, their layouts, and the files."""
    plans = drawn(COUNT, precision=PRECISION.get(name, "bfloat16-autocast"))
    told = [plan for plan in plans if not inexpressible(plan, name)]
    base = BASE if name == "torchtitan" else ""
    return [(plan, hybrid_layout(plan)[0], export_plan(plan, name, base).text) for plan in told]


def test_the_drawn_plans_are_of_many_kinds() -> None:
    plans = drawn(COUNT)
    layouts = [hybrid_layout(plan)[0] for plan in plans]
    assert {layout.pipeline for layout in layouts} >= {1, 2, 4}
    assert {layout.sharding for layout in layouts} == {"none", "optimizer", "gradients", "parameters"}
    assert {layout.tensor for layout in layouts} == {1, 2}
    assert {layout.virtual for layout in layouts} > {1}
    assert len({layout.microbatches for layout in layouts}) > 2
    for plan, layout in zip(plans, layouts, strict=True):
        assert layout.pipeline * layout.data * layout.tensor * layout.context * layout.expert == layout.world
        assert layout.rows == sum(plan.microbatches) == ROWS
        assert len(set(plan.microbatches)) == 1
        assert layout.micro_rows * layout.microbatches * layout.data_ranks == ROWS or said_uneven(plan)
    assert sum(map(said_uneven, plans)) < COUNT / 2


def test_of_equally_fast_plans_the_one_of_even_microbatches_is_chosen() -> None:
    # Its devices wait for their host, whatever rows they have: 28 + 4 would be as fast.
    assert pinned("shard=optimizer", "microbatches=2").microbatches == (16, 16)


def said_uneven(plan: Plan) -> bool:
    """Whether a plan is said to have replicas of unlike numbers of rows, which no framework has."""
    return any("do not divide by" in reason for reason in hybrid_layout(plan)[1])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_is_told_some_plans_and_refused_others_by_name(name: str) -> None:
    told = expressible(name)
    assert told
    plans = drawn(COUNT, precision=PRECISION.get(name, "bfloat16-autocast"))
    for plan in plans:
        reasons = inexpressible(plan, name)
        if reasons:
            with pytest.raises(InexpressibleError) as error:
                export_plan(plan, name)
            assert all(reason in str(error.value) for reason in reasons)
            assert error.value.exit_code == 1
    assert len(told) < len(plans)


def theirs(module: str) -> Any:
    """A module of a framework's own."""
    return pytest.importorskip(module, reason=f"{module.split('.')[0]} is not installed", exc_type=ImportError)


def imported(text: str, folder: Path, number: int) -> ModuleType:
    path = folder / f"placer_written_{number}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torchtitan_reads_its_files(tmp_path: Path) -> None:
    theirs("torchtitan.config")
    dims_of = theirs("torchtitan.distributed.parallel_dims").ParallelDims.from_config
    for number, (plan, layout, text) in enumerate(expressible("torchtitan")):
        config = imported(text, tmp_path, number).placer_plan()
        dims = dims_of(config.parallelism, plan.world_size)
        assert (dims.pp, dims.tp, dims.cp, dims.ep) == (layout.pipeline, layout.tensor, layout.context, layout.expert)
        assert dims.dp_replicate * dims.dp_shard == layout.data_ranks
        parts = config.parallelism.module_fqns_per_model_part
        assert len(parts or [[]]) == len(plan.stages)
        if parts:
            layers = [module for part in parts for module in part if module.startswith("layers.")]
            assert layers == [f"layers.{number}" for number in range(LAYERS)]
        training = config.training
        steps = training.global_batch_size // (training.local_batch_size * layout.data_ranks)
        micro = config.parallelism.pipeline_parallel_microbatch_size if layout.pipeline > 1 else None
        assert steps * (training.local_batch_size // micro if micro else 1) == len(plan.microbatches)
        assert (config.activation_checkpoint is not None) == bool(plan.stages[0].recompute)


def test_megatron_core_reads_its_layouts() -> None:
    kinds = theirs("megatron.core.transformer.enums").LayerType
    parsed = theirs("megatron.core.transformer.pipeline_parallel_layer_layout").PipelineParallelLayerLayout
    configured = theirs("megatron.core.transformer.transformer_config").TransformerConfig
    for plan, layout, _ in expressible("megatron"):
        fields = model_parallel(layout)
        sizes = {"num_layers": LAYERS, "hidden_size": 64, "num_attention_heads": 4, "bf16": True}
        config = configured(**sizes, **fields, **_types(layout))
        assert config.pipeline_model_parallel_size == plan.positions
        if layout.pipeline > 1:
            read = parsed(fields["pipeline_model_parallel_layout"], layout.pipeline).layout
            counts = [sum(kind is kinds.decoder for kind in read[s % layout.pipeline][s // layout.pipeline])
                      for s in range(len(plan.stages))]  # fmt: skip
            assert counts == [part.layers for part in layout.parts]
            assert read[0][0][0] is kinds.embedding
            assert read[-1][-1][-1] is kinds.loss


def _types(layout: HybridLayout) -> dict[str, Any]:
    import torch

    return {"pipeline_dtype": torch.bfloat16} if layout.pipeline > 1 else {}


def test_deepspeed_reads_its_files() -> None:
    configured = theirs("deepspeed.runtime.config").DeepSpeedConfig
    for plan, layout, text in expressible("deepspeed"):
        document = json.loads(text)
        assert document["train_batch_size"] == layout.micro_rows * len(plan.microbatches) * layout.data_ranks
        # On one process the batch is of one data-parallel rank.
        alone = configured({**document, "train_batch_size": layout.micro_rows * len(plan.microbatches)})
        assert alone.train_micro_batch_size_per_gpu == layout.micro_rows
        assert alone.gradient_accumulation_steps == len(plan.microbatches)
        assert alone.zero_optimization_stage == {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[
            plan.stages[0].sharding if layout.data > 1 else "none"
        ]  # fmt: skip


def test_accelerate_reads_its_files(tmp_path: Path) -> None:
    configured = theirs("accelerate.commands.config.config_args").ClusterConfig
    for number, (plan, layout, text) in enumerate(expressible("accelerate")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        config = configured.from_yaml_file(str(path))
        assert config.num_processes == plan.world_size
        sizes = {name.removeprefix("parallelism_config_"): size for name, size in config.parallelism_config.items()}
        assert sizes.get("tp_size", 1) == layout.tensor
        if sizes:
            assert sizes["dp_replicate_size"] * sizes["dp_shard_size"] * sizes["tp_size"] == plan.world_size


def test_transformers_reads_its_parts() -> None:
    configured = theirs("transformers.distributed.configuration_utils").DistributedConfig
    fields = theirs("transformers").TrainingArguments.__dataclass_fields__
    for plan, layout, text in expressible("transformers"):
        document = json.loads(text)
        config = configured(**document["distributed_config"])
        assert (config.tp_size or 1) == layout.tensor
        assert (config.fsdp_size or 1) * (config.dp_replicate_size or 1) == layout.data_ranks
        assert set(document["training_arguments"]) <= set(fields)
        arguments = document["training_arguments"]
        rows = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] * layout.data_ranks
        assert rows == plan.rows


def test_yaml_targets_say_the_same_degrees() -> None:
    for _, layout, text in expressible("bridge"):
        model = yaml.safe_load(text)["model"]
        assert model["tensor_model_parallel_size"] == layout.tensor
        assert model["pipeline_model_parallel_size"] == layout.pipeline
    for _, layout, text in expressible("automodel"):
        found = yaml.safe_load(text)["distributed"]
        assert found["dp_size"] * found["tp_size"] * found["cp_size"] * found["pp_size"] == layout.world
        parts = found.get("pipeline", {}).get("module_fqns_per_model_part", [])
        assert [name for part in parts for name in part] in ([], _hugging_face_names())


def _hugging_face_names() -> list[str]:
    layers = [f"model.layers.{number}" for number in range(LAYERS)]
    return ["model.embed_tokens", *layers, "model.norm", "lm_head"]


def said(layout: AskedLayout) -> tuple[object, ...]:
    return (layout.pipeline, layout.tensor, layout.context, layout.expert, layout.micro_rows, layout.rows,
            layout.length, layout.recompute, layout.stages)  # fmt: skip


def meant(layout: HybridLayout) -> tuple[object, ...]:
    stages = tuple(part.layers for part in layout.parts)
    return (layout.pipeline, layout.tensor, layout.context, layout.expert, layout.micro_rows, ROWS, LENGTH,
            layout.recompute, stages)  # fmt: skip


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_what_is_exported_and_imported_is_the_same_layout(name: str) -> None:
    again = 0
    for plan, layout, text in expressible(name):
        read = read_megatron(text, "it") if name == "megatron" else read_torchtitan(text, "it.py")
        assert said(read) == meant(layout)
        if layout.pipeline > 1:
            assert read.schedule == plan.schedule
        if layout.data > 1 and layout.expert == 1:
            assert read.sharding == plan.stages[0].sharding
        if again < 4:
            again += 1
            kind = PRECISION.get(name, "bfloat16-autocast")
            given = asked(precision=kind)
            again_asked = replace(given, pins=parse_pins(read.pins(plan.graph, plan.world_size), plan.graph))
            made = with_even_rows(again_asked, solve_with(again_asked, "auto")).plan
            assert replace(hybrid_layout(made)[0], bucket_bytes=0, sequence_parallel=False) == replace(
                layout, bucket_bytes=0, sequence_parallel=False
            )
    assert again == 4


def test_what_no_framework_can_be_told_is_named_all_at_once() -> None:
    plan = pinned("pipeline=2", "data=2", "tensor=1", "microbatches=2", "recompute=no", "schedule=1f1b", "shard=none")
    first, second = plan.stages
    odd = replace(
        plan,
        microbatches=(20, 12),
        stages=(replace(first, shares=(3, 1)), replace(second, recompute=True)),
        ledger=None,
    )
    reasons = " ".join(inexpressible(odd, "megatron"))
    for part in ("unequal shares", "recompute of their own", "unlike numbers of rows (20, 12)"):
        assert part in reasons


def test_what_recomputes_is_said_where_there_are_words_for_it() -> None:
    ends = "model.layers.3@stage=0", "model.layers.4@stage=1"
    pins = "pipeline=2", "tensor=1", "shard=none", "schedule=1f1b", "recompute=selective"
    plan = pinned(*pins, *ends, precision="bfloat16")
    assert "--recompute-granularity selective" in export_plan(plan, "megatron").text
    for name, read in (("megatron", read_megatron), ("torchtitan", read_torchtitan)):
        asked_for = read(export_plan(plan, name, BASE if name == "torchtitan" else "").text, "it.py")
        assert asked_for.recompute == "selective"
        assert "recompute=selective" in asked_for.pins(plan.graph, plan.world_size)
    assert any("all but its products" in reason for reason in inexpressible(plan, "automodel"))
    first, second = (replace(stage, recompute=True) for stage in plan.stages)
    before = next(index for index, block in enumerate(plan.graph.blocks) if block.name.endswith(".0"))
    some = replace(plan, stages=(replace(first, recomputed=before + 2), replace(second, recomputed=2)), ledger=None)
    text = export_plan(some, "megatron").text
    assert "--recompute-granularity full" in text
    assert "--recompute-method block" in text
    assert "--recompute-num-layers 2" in text
    assert any("first 2 layers of each stage" in reason for reason in inexpressible(some, "torchtitan"))
    unlike = replace(some, stages=(some.stages[0], replace(second, recomputed=1)))
    assert "its stages have recompute of their own" in inexpressible(unlike, "megatron")


@pytest.mark.parametrize(("name", "pins", "part"), [
    ("torchtitan", ("shard=optimizer", "data=8"), "ZeRO 1"),
    ("accelerate", ("pipeline=2",), "no pipelines"),
])  # fmt: skip
def test_the_nearest_plan_can_be_told(name: str, pins: tuple[str, ...], part: str) -> None:
    kind = PRECISION.get(name, "bfloat16-autocast")
    plan = pinned(*pins, precision=kind)
    assert part in " ".join(inexpressible(plan, name))
    found = nearest(asked(precision=kind), name).plan
    assert not inexpressible(found, name)
    assert found.ledger is not None


@pytest.mark.parametrize(("name", "kept"), [("megatron", True), ("deepspeed", False)])
def test_the_nearest_plan_keeps_the_pins_of_the_plan_or_says_which_it_does_not(
    tmp_path: Path, name: str, kept: bool
) -> None:
    pins = ("pipeline=2", "microbatches=4", "tensor=2", "data=2")
    given = asked(precision="bfloat16")
    pinned_more = parse_pins((*pins, "schedule=zero-bubble"), given.graph)
    plan = replace(solve(replace(given, pins=pinned_more)), asked=Asked(pins=pins))
    assert inexpressible(plan, name)
    plan.save(tmp_path / "plan.json")
    command = ["export", str(tmp_path / "plan.json"), "--to", name, "--nearest", "-o", str(tmp_path / "it"), "--json"]
    ended = CliRunner().invoke(app, command)
    assert ended.exception is None
    text = (tmp_path / "it").read_text()
    assert json.loads(ended.stdout)["dropped_pins"] == ([] if kept else ["pipeline=2"])
    if kept:
        assert "--tensor-model-parallel-size 2\n--pipeline-model-parallel-size 2\n" in text
        assert f"--micro-batch-size {ROWS // 4 // 2}\n" in text, "four microbatches over two replicas"


def test_accelerate_is_not_asked_to_shard_on_processors() -> None:
    given = problem("examples.models:tiny_llama", "localx2", batch="8x16")
    plans = {
        shard: solve_with(replace(given, pins=parse_pins(("data=2", f"shard={shard}"), given.graph)), "auto").plan
        for shard in ("none", "parameters")
    }
    assert not inexpressible(plans["none"], "accelerate")
    assert "on CPUs accelerate trains whole replicas alone" in " ".join(
        inexpressible(plans["parameters"], "accelerate")
    )


def stage_names(layout: str) -> Iterator[int]:
    yield from read_megatron(
        f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{layout}'", "it"
    ).stages


@pytest.mark.parametrize(("layout", "layers"), [
    ("Et*3|t*2L", (3, 2)), ("Ett|(tt|)*2tL", (2, 2, 2, 1)), ("E|t,t|tt|L", (0, 2, 2, 0)),
])  # fmt: skip
def test_layout_strings_are_unrolled(layout: str, layers: tuple[int, ...]) -> None:
    assert tuple(stage_names(layout)) == layers


def test_a_shell_script_and_a_toml_of_today_are_read() -> None:
    script = """#!/bin/bash
TP=2
export PP=4
ARGS=(
    --tensor-model-parallel-size $TP  # inside a node
    --pipeline-model-parallel-size ${PP} --num-layers 8
    --micro-batch-size 1 --global-batch-size=32 --seq-length 64
    --use-distributed-optimizer --bf16 --recompute-activations
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${ARGS[@]} --lr 1e-4
"""
    read = read_megatron(script, "train.sh")
    assert (read.tensor, read.pipeline, read.micro_rows, read.rows, read.length) == (2, 4, 1, 32, 64)
    assert (read.sharding, read.precision) == ("optimizer", "bfloat16")
    assert read.recompute == "selective"
    assert read.unread == ("selective recompute: there of attention's core alone, here of all but products",)
    toml = """
[training]
local_batch_size = 4
seq_len = 64
[parallelism]
data_parallel_shard_degree = -1
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_layers_per_stage = 4
[activation_checkpoint]
mode = "full"
"""
    titan = read_torchtitan(toml, "train.toml", layers=8)
    assert (titan.pipeline, titan.data, titan.sharding, titan.recompute) == (2, 0, "gradients", True)
    assert titan.stages == (4, 4)


@pytest.mark.parametrize(("text", "where", "part"), [
    ("--tensor-model-parallel-size two", "a.sh", "'two'"),
    ("--tensor-model-parallel-size", "a.sh", "whole number"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tt|L'", "a.sh", "3 stages"),
    ("--pipeline-model-parallel-layout 'Et*99999999|L'", "a.sh", "more than"),
    ("--pipeline-model-parallel-layout 'Exyz|L'", "a.sh", "no pipeline layout"),
    ("--lr 'open", "a.sh", "no list of flags"),
    ("x = (", "a.py", "no Python"),
    ("import os\nos.system('true')", "a.py", "no ParallelismConfig"),
    ("ParallelismConfig(tensor_parallel_degree=int(8))", "a.py", "computed"),
    ("ParallelismConfig(tensor_parallel_degree=0)", "a.py", "above 0"),
    ("a = ParallelismConfig()\nb = ParallelismConfig()", "a.py", "several"),
    ("[parallelism", "a.toml", "no TOML"),
    ("[training]\nseq_len=1", "a.toml", "no section [parallelism]"),
    ("[parallelism]\ntensor_parallel_degree='2'", "a.toml", "whole number"),
])  # fmt: skip
def test_what_is_no_layout_is_refused(text: str, where: str, part: str) -> None:
    read = read_megatron if where.endswith(".sh") else read_torchtitan
    with pytest.raises(UsageError) as error:
        read(text, where)
    assert part in str(error.value)


def test_names_of_a_model_cannot_leave_their_comment(tmp_path: Path) -> None:
    plan = pinned("pipeline=1", "tensor=1", "shard=parameters", "microbatches=1")
    hostile = '"""\nimport os; os.abort()\n"""'
    odd = replace(plan, graph=replace(plan.graph, name=hostile), cluster=replace(plan.cluster, name=hostile))
    text = export_plan(odd, "torchtitan", BASE).text
    compile(text, "it", "exec")
    assert "os.abort()" not in text.replace("?", "") or text.count('"""') == 2
    for bad in ("os:system;x", "a b:c", "torchtitan", "x:y()"):
        with pytest.raises(UsageError, match="no function"):
            export_plan(plan, "torchtitan", bad)


def test_a_stage_that_cuts_what_is_before_the_layers_is_refused() -> None:
    plan = pinned("pipeline=2", "microbatches=2", "recompute=no")
    blocks = list(plan.graph.blocks)
    split = replace(plan.graph, blocks=(replace(blocks[0], name="model.odd"), *blocks))
    stages = (Stage(first=0, last=1, devices=(0,)), Stage(first=1, last=len(blocks) + 1, devices=(1,)))
    reasons = hybrid_layout(replace(plan, graph=split, stages=stages, ledger=None))[1]
    assert any("before the first layer" in reason for reason in reasons)
