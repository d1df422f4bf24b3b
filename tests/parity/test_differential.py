"""Random models x random legal plans equal one device, on ranks that are started once for all of them."""

from __future__ import annotations

import time
from functools import cache
from unittest import mock

import pytest
import torch

from examples.parity.differential import running
from examples.parity.differential.__main__ import main
from examples.parity.differential.cases import Prepared, Refused, run
from examples.parity.differential.models import random_model
from placer.plans.plan import Plan
from placer.runtime import VerifyReport
from placer.runtime.spmd import Axis, conversions
from placer.runtime.spmd.conversions import Way

# A seed whose first 12 models hold every family: experts in both forms, attention by one op and written out, ...
SEED, CASES, RANKS = 108, 60, 8


@cache
def every() -> tuple[running.Outcome, ...]:
    """All cases."""
    return tuple(running.outcomes(SEED, range(CASES), RANKS))


def plans() -> list[Plan]:
    return [one.case.plan for one in every()]


@pytest.mark.in_turns
def test_random_models_under_random_plans_equal_one_device() -> None:
    wrong = [f"{one.verdict} {one.case}: {one.told}" for one in every() if one.verdict != "equal"]
    assert len(every()) == CASES
    assert not wrong, "\n".join(wrong)


def test_the_cases_hold_every_kind_of_layout() -> None:
    found = plans()
    stages = [stage for plan in found for stage in plan.stages]
    assert {plan.schedule for plan in found} == {"1f1b", "gpipe", "zero-bubble", "interleaved", "branched"}
    assert {stage.sharding for stage in stages} == {"none", "optimizer", "gradients", "parameters"}
    assert {stage.recompute for stage in stages} == {False, True, "selective"}
    assert any(stage.recomputed is not None for stage in stages)
    assert {1, 2, 4} <= {stage.degree for stage in stages}
    assert {2, 4, 8} <= {plan.world_size for plan in found}
    assert {"tensor", "height", "width"} <= {layout.axis for plan in found for layout in plan.layouts}


def test_the_cases_hold_uneven_shares_meshes_microbatches_and_clipped_gradients() -> None:
    found = plans()
    assert any(len(set(plan.stages[0].shares)) > 1 for plan in found)
    assert any(len({(mesh.replicas, mesh.degree) for mesh in plan.meshes}) > 1 for plan in found)
    assert any(len(set(plan.microbatches)) > 1 for plan in found)
    assert {plan.settings.clip_norm is None for plan in found} == {False, True}
    assert sum(plan.settings.optimizer == "adamw" for plan in found) > CASES // 2


def test_the_cases_hold_every_family_of_ops_cut_in_many_ways() -> None:
    ways = {way for one in every() for way in one.case.ways}
    cut = {op.split(".")[1] for op, choice in ways if choice not in ("whole", "deferred")}
    assert cut >= {
        "linear",
        "scaled_dot_product_attention",
        "embedding",
        "cross_entropy_loss",
        "layer_norm",
        "rms_norm",
    }
    assert {"conv1d", "conv2d", "conv3d"} & cut and {"max_pool2d", "avg_pool1d", "adaptive_avg_pool1d"} & cut
    assert cut >= {"batch_norm", "dropout", "topk", "softmax", "cat", "transpose", "mean"}
    assert len(ways) > 150


def test_labels_are_left_out_and_some_models_drop() -> None:
    graphs = [plan.graph for plan in plans()]
    assert sum(graph.loss.ignore_index is not None for graph in graphs) > CASES // 2
    assert any("dropout" in op.target for graph in graphs for kind in graph.classes for op in kind.ops)


def test_plans_that_are_drawn_again_are_counted() -> None:
    assert sum(sum(one.case.redrawn.values()) for one in every()) > 0


def test_the_same_seed_gives_the_same_model() -> None:
    first, second = (random_model("x").model.state_dict() for _ in range(2))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def forgetful(seed: int, number: int, ranks: int) -> VerifyReport | Refused:
    """A runtime in which a gradient that each rank has a part of is taken for the whole."""

    def returned(gradient: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
        return gradient if by.name == "all_reduce" else conversions.moved(gradient, axis, by)

    with mock.patch.object(conversions, "returned", returned):
        return run(seed, number, ranks)


def hanging(seed: int, number: int, ranks: int, compile: str = "") -> VerifyReport | Refused:
    """Ranks that do not come back."""
    time.sleep(60)
    return Refused(why="late")


def cut_case() -> Prepared:
    """A case whose replicas are two devices."""
    return next(one.case for one in every() if one.case.plan.world_size == one.case.plan.stages[0].degree == 2)


@pytest.mark.in_turns
def test_a_bug_in_an_adjoint_is_caught() -> None:
    number = cut_case().number
    found = next(iter(running.outcomes(SEED, [number], RANKS, forgetful)))
    assert found.verdict == "DIFFERS" and "gradients" in found.told


@pytest.mark.in_turns
def test_a_case_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    number = cut_case().number
    monkeypatch.setattr("examples.parity.differential.__main__.run", hanging)
    monkeypatch.setattr(running.outcomes, "__defaults__", (hanging, 1.0))
    assert main(["--seed", str(SEED), "--case", str(number)]) == 1
    shown = capsys.readouterr().out
    assert f"--seed {SEED} --ranks 8 --case {number}" in shown and "did not come back within 1 s" in shown


@pytest.mark.in_turns
def test_one_case_can_be_run_again_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    number = cut_case().number
    assert main(["--seed", str(SEED), "--case", str(number)]) == 0
    assert f"equal    {number:>4}" in capsys.readouterr().out
