"""A rank run on fake tensors does what its program says, agrees with its peers, and counts the bytes of a real run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from typer.testing import CliRunner

import placer
from clusters import cluster
from dry_ranks import measured
from examples.parity.cases import Case
from examples.parity.named_splits import split_plan
from execute_plans import tiny_plan
from placer.cli import app
from placer.cluster.cluster import Cluster, Node
from placer.errors import UsageError
from placer.graph import BlockClass
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.program.instructions import Message, program_document
from placer.runtime import load
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.dry import DryRuns, rank_classes
from placer.runtime.executor.code_text import rank_code
from placer.runtime.measuring.memory import Allocated
from placer.spmd.propagation import Wishes
from placer.tracer import random_batch
from pool import on_ranks

pytestmark = pytest.mark.in_turns

GPT2 = Case(model="examples.models:tiny_gpt2", replicas=1, microbatches=(2, 2))


def columns(kind: BlockClass) -> Wishes:
    """Every product that can is cut on its columns."""
    return {op.name: "n" for op in kind.ops if op.kind == "matmul"}


PLANS: dict[str, Callable[[], Plan]] = {
    "pipeline": lambda: tiny_plan(2, 2),
    "pipeline, recompute": lambda: tiny_plan(2, 2, recompute=True),
    "zero-bubble": lambda: tiny_plan(2, 2, schedule="zero-bubble", model="untied"),
    "interleaved": lambda: tiny_plan(2, 2, schedule="interleaved", looped=2),
    "ddp": lambda: tiny_plan(2, 1),
    "fsdp parameters": lambda: tiny_plan(2, 1, sharding="parameters"),
    "fsdp gradients": lambda: tiny_plan(2, 1, sharding="gradients"),
    "divided update": lambda: tiny_plan(2, 1, sharding="optimizer"),
    "a rank without rows": lambda: tiny_plan(2, 1, microbatches=(4, 1)),
    "pipeline x fsdp": lambda: tiny_plan(4, 2, sharding="parameters"),
}


@cache
def dry(name: str) -> DryRuns:
    return DryRuns(PLANS[name]())


@pytest.mark.parametrize("name", PLANS)
def test_every_rank_does_what_its_program_says_and_agrees_with_its_peers(name: str) -> None:
    for ranks in rank_classes(PLANS[name]()):
        found = dry(name).of(ranks[0])
        assert found.differences == () and found.disagreements == () and found.passed
        assert found.communications
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["pipeline", "pipeline, recompute", "ddp", "fsdp parameters"])
def test_a_dry_run_counts_and_sends_what_a_real_run_does(name: str) -> None:
    plan = PLANS[name]()
    for rank, (memory, allocated, communications) in enumerate(on_ranks(2, measured, plan)):
        found = dry(name).of(rank)
        assert found.memory.categories == memory.categories
        assert found.communications == communications
        # DDP's buckets are real in a dry run, and a real batch has sizes of its own.
        assert found.allocated_bytes == pytest.approx(allocated, rel=0.02)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_sent_is_not_kept_until_the_step_ends(rank: int) -> None:
    few, many = dry("pipeline").of(rank), DryRuns(tiny_plan(2, 2, microbatches=(4,) * 8)).of(rank)
    sent = [sum(c.bytes for c in found.communications if c.kind == "send") for found in (few, many)]
    assert sent[1] == 2 * sent[0]
    assert many.allocated_bytes - few.allocated_bytes < sent[0] / 2


def test_a_step_cut_over_the_devices_of_a_replica_meets_them_inside_its_blocks() -> None:
    plan = split_plan(GPT2, 2, columns)
    for rank in range(2):
        found = DryRuns(plan).of(rank)
        assert found.differences == () and found.disagreements == ()
        assert found.inside and all(entry.ranks == (0, 1) for entry in found.inside)


def test_a_dry_run_without_gradients_around_it_is_the_same() -> None:
    plan = PLANS["pipeline"]()
    with torch.no_grad():
        found = DryRuns(plan).of(0)
    assert found.passed and found.allocated_bytes == dry("pipeline").of(0).allocated_bytes


def test_a_plan_that_does_not_fit_says_so_and_what_it_needs() -> None:
    plan = PLANS["pipeline"]()
    small = replace(plan, cluster=with_memory(plan.cluster, 2**16))
    found = DryRuns(small).of(0)
    assert not found.fits and not found.passed
    assert found.needed_bytes > found.available_bytes == 2**16


def with_memory(cluster: Cluster, size: int) -> Cluster:
    ((node, count),) = cluster.groups
    devices = tuple((replace(chip, memory_bytes=size), number) for chip, number in node.devices)
    assert isinstance(node, Node)
    return replace(cluster, groups=((replace(node, devices=devices), count),))


def test_ranks_that_differ_in_nothing_but_their_peers_are_one_class() -> None:
    classes = rank_classes(tiny_plan(8, 2, microbatches=(8,)))
    assert sorted(rank for ranks in classes for rank in ranks) == list(range(8))
    assert classes == ((0,), (1, 2, 3), (4,), (5, 6, 7))


def test_a_rank_the_plan_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="--rank 2: the plan has ranks 0 to 1"):
        dry("pipeline").of(2)


class Classes(nn.Module):
    """Scores of far more bytes than everything before them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 8192)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.body(x)), y)


def test_of_scores_cut_on_classes_a_loss_keeps_one_tensor() -> None:
    batch = {"x": torch.zeros(512, 16), "y": torch.zeros(512, dtype=torch.int64)}
    plan = placer.plan(
        "test_dry_run:Classes", cluster(per_node=2), batch=batch, pins=("tensor=2", "microbatches=1", "recompute=no")
    )
    assert "vocabulary_cross_entropy" in rank_code(plan, 0)
    scores = 512 * 8192 // 2 * 4
    assert scores <= DryRuns(plan).of(0).memory.activations < 1.1 * scores


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("dry") / "plan.json"
    PLANS["pipeline"]().save(file)
    return file


def test_the_command_reports_shapes_order_and_memory(plan_file: Path) -> None:
    result = CliRunner().invoke(app, ["execute", str(plan_file), "--dry-run", "--rank", "1", "--json"])
    assert result.exit_code == 0, result.output
    (rank,) = json.loads(result.stdout)["ranks"]
    assert rank["rank"] == 1 and rank["passed"] and rank["communications"][0]["kind"] == "receive"
    assert rank["memory"]["parameters_bytes"] == rank["predicted_memory"]["parameters_bytes"] > 0


def test_the_command_exits_1_where_a_peer_would_do_something_else(plan_file: Path, tmp_path: Path) -> None:
    program = dry("pipeline").programs[0]
    at = next(i for i, entry in enumerate(program.instructions) if isinstance(entry, Message))
    wrong = replace(program, instructions=(*program.instructions[:at], *program.instructions[at + 1 :]))
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps({"program": program_document(wrong)}))
    result = CliRunner().invoke(app, ["execute", str(plan_file), "--dry-run", "--rank", "1", "--program", str(file)])
    assert result.exit_code == 1
    assert "rank 1 and rank 0: " in result.output and "rank 0 has none to meet it" in result.output


@pytest.mark.parametrize("arguments", [["--dry-run", "--rank", "9"], ["--rank", "1"]])
def test_misuse_of_the_command_exits_2(plan_file: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["execute", str(plan_file), *arguments])
    assert isinstance(result.exception, UsageError) and result.exception.exit_code == 2


def test_what_is_alive_at_once_is_what_torchs_memory_tracker_counts() -> None:
    # The tracker takes one call of a module a step.
    plan = tiny_plan(1, 1, microbatches=(8,), settings=RunSettings(clip_norm=None))
    executor = load(plan)
    batch = random_batch(plan.graph, plan.rows, 0)
    executor.step(batch)
    optimizer = executor.updater.optimizer
    assert optimizer is not None
    tracker = MemTracker()
    tracker.track_external(*executor.stages.values(), optimizer)
    with tracker:
        executor.step(batch)
    wanted = tracker.get_tracker_snapshot("peak")[executor.device]["Total"]
    held = TrainingState(executor).held
    with Allocated((*held.parameters, *held.buffers, *held.optimizer)) as allocated:
        executor.step(batch)
    assert allocated.peak == pytest.approx(wanted, rel=0.02)
