"""A branch that no gradient reaches, on a device that reads it late: its backward may be done before its readers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import placer
import verify_ranks
from clusters import INSIDE, SLOW, cluster
from pool import on_ranks

pytestmark = pytest.mark.in_turns

VIEWS = {"v1": torch.randn(8, 12), "v2": torch.randn(8, 12)}


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))


class Taught(nn.Module):
    """A frozen teacher and a student, each of both views, as in BYOL (arXiv:2006.07733)."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = _layers().requires_grad_(False), _layers()

    def forward(self, v1: torch.Tensor, v2: torch.Tensor) -> torch.Tensor:
        """How far the student is off."""
        with torch.no_grad():
            first, second = self.teacher(v1), self.teacher(v2)
        return nn.functional.mse_loss(self.student(v1), second) + nn.functional.mse_loss(self.student(v2), first)


BRANCHED = ("schedule=branched", "pipeline=2")


@pytest.mark.parametrize("pins", [BRANCHED, (*BRANCHED, "microbatches=2")], ids=" ".join)
def test_a_teacher_that_learns_nothing_runs_beside_its_student(pins: tuple[str, ...]) -> None:
    machines = cluster(per_node=2, device=SLOW, inside=INSIDE)
    plan = placer.plan("test_frozen_branches:Taught", machines, batch=VIEWS, pins=pins, strategy="horizontal")
    assert plan.schedule == "branched" and len(plan.stages) > 2
    report = on_ranks(plan.world_size, verify_ranks.one, plan)[0]
    assert report.passed, str(report)
