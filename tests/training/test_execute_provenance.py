"""A plan that no longer fits what it was made with is refused, with what changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import placer
from examples.parity.processes import processes
from execute_plans import two_rank_plan
from placer.errors import StalePlanError
from placer.io.versions import versions
from placer.plans.provenance import changes, made_elsewhere, require_fresh
from placer.runtime import load


def test_a_plan_made_here_is_fresh() -> None:
    plan = replace(two_rank_plan(), versions=versions())
    require_fresh(plan, model=plan.model.fingerprint, cluster=processes(2))
    assert not made_elsewhere(plan)


def test_the_error_says_what_changed() -> None:
    old = tuple((name, "1.0" if name == "torch" else text) for name, text in versions())
    made = two_rank_plan()
    plan = replace(made, versions=old, model=replace(made.model, fingerprint="a"))
    with pytest.raises(
        StalePlanError, match=r"the model \(fingerprint a.*the cluster.*torch \(1\.0 in the plan"
    ) as error:
        require_fresh(plan, model="b", cluster=processes(3))
    assert "plan again" in str(error.value).lower()


def test_a_patch_version_does_not_matter() -> None:
    patched = tuple((name, f"{text.split('+')[0]}.99" if name == "torch" else text) for name, text in versions())
    assert changes(replace(two_rank_plan(), versions=patched)) == ()


def test_another_machine_is_noticed() -> None:
    assert made_elsewhere(replace(two_rank_plan(), versions=(("machine", "elsewhere"),)))


class Twice(nn.Module):
    """Two layers, of one weight or of two, and a constant between them: a fingerprint tells neither."""

    def __init__(self, *, tied: bool, factor: float) -> None:
        super().__init__()
        self.one, self.two = (nn.Linear(8, 8, bias=False) for _ in range(2))
        self.factor = factor
        if tied:
            self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(torch.tanh(self.one(x)) * self.factor)
        return made.square().mean()


@pytest.mark.parametrize("tied", [True, False])
def test_weights_that_are_tied_otherwise_than_planned_are_noticed(tied: bool) -> None:
    plan = placer.plan(Twice(tied=tied, factor=0.5), "localx1", batch={"x": (4, 8)})
    said = "two.weight is one of its own" if tied else "two.weight is none, or tied to another"
    with pytest.raises(StalePlanError, match=rf"the plan is stale.*{said}\). Plan again"):
        load(plan, Twice(tied=not tied, factor=0.5))
    assert load(plan, Twice(tied=tied, factor=0.5)).rank == 0


def test_another_constant_in_forward_is_noticed() -> None:
    plan = placer.plan(Twice(tied=False, factor=0.5), "localx1", batch={"x": (4, 8)})
    with pytest.raises(StalePlanError, match=r"provenance.py:\d+ calls aten.mul.Tensor\(t0, 0.7\), in the plan"):
        load(plan, Twice(tied=False, factor=0.7))
