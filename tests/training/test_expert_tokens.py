"""Tokens of experts counted in a run: each once, whatever the layout, in a form that planning takes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import split_runs
from examples.parity.cases import Case, plan_of
from placer.cli.options import parsed_loads
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.measuring.expert_tokens import ExpertLayer, Tally, require_alike, save_loads, summed_loads
from placer.runtime.stages.pass_context import PassContext
from placer.search.problem import Pins
from pool import on_ranks
from split_plans import searched_plans

pytestmark = pytest.mark.in_turns

MIXTRAL = Case(model="examples.models:tiny_mixtral", precision="float32", microbatches=(4, 4))
STEPS = 2


def layouts() -> dict[str, Plan]:
    """Two replicas of unequal shares that recompute, and devices that share experts."""
    return {
        "replicas": plan_of(replace(MIXTRAL, replicas=2, shares=(3, 1), recompute=True)),
        "expert": searched_plans(MIXTRAL, 2, Pins(expert=2))[0],
    }


def test_every_layout_counts_every_token_once_and_the_same() -> None:
    found = {}
    for name, plan in layouts().items():
        first, second = on_ranks(2, split_runs.counted_tokens, plan, STEPS)
        assert first == second
        found[name] = first
    layers = found["replicas"]
    assert [layer.name for layer in layers] == [f"model.layers.{i}.mlp.experts" for i in range(len(layers))]
    graph = plan_of(MIXTRAL).graph
    tokens = graph.inputs[0].tensor.shape[1].fixed * plan_of(MIXTRAL).rows
    assert {sum(layer.tokens) for layer in layers} == {2 * tokens * STEPS}  # two experts a token
    assert {layer.dropped for layer in layers} == {0}
    assert all(other == layers for other in found.values())


def test_what_lies_behind_the_last_expert_is_dropped_and_what_runs_again_does_not_count() -> None:
    tally, mode = Tally(), PassContext(rows=2, global_rows=2, training=True)
    x, ends = torch.zeros(10, 3), torch.tensor([2, 2, 7], dtype=torch.int32)
    for given in (mode, mode.again(), replace(mode, training=False), mode):
        tally(given, x, ends)
    assert tally.rows == 20
    assert tally.counts is not None and tally.counts.tolist() == [4, 0, 10]


def test_saved_loads_are_read_back_by_the_planner(tmp_path: Path) -> None:
    layers = [ExpertLayer(name="a", tokens=(3, 1)), ExpertLayer(name="b", tokens=(0, 4), dropped=2)]
    save_loads(layers, str(tmp_path / "loads"))
    assert parsed_loads(str(tmp_path / "loads")) == summed_loads(layers) == (3, 5)


def test_loads_of_a_model_without_experts_are_refused() -> None:
    with pytest.raises(UsageError, match="has no experts; leave it out"):
        require_alike(plan_of(Case(model="examples.models:tiny_gpt2")))
