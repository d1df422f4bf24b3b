"""Parts in evaluation: an instance keeps its own, what placer builds is put in training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._device import _device_constructors

import placer
from placer.errors import CaptureError
from placer.runtime import load
from placer.tracer import capture

pytestmark = pytest.mark.in_turns

SHAPES = {"x": (6, 5), "y": ((6,), "int64")}


class Backed(nn.Module):
    """A backbone with statistics and dropout, in evaluation as it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A loss."""
        return functional.cross_entropy(self.head(self.back(x)), y)


def batch() -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return {"x": torch.randn(6, 5, generator=drawn), "y": torch.randint(4, (6,), generator=drawn)}


def test_the_parts_of_an_instance_stay_as_they_are() -> None:
    model = Backed()
    with torch.no_grad():
        expected = model(**batch())
    plan = placer.plan(model, "localx1", batch=SHAPES)
    assert any("back and 3 more modules are in evaluation" in one for one in plan.assumptions)
    run = load(plan, model)
    assert run.step(batch()) == pytest.approx(float(expected), rel=1e-6)
    assert not model.back.training and float(model.state_dict()["back.1.num_batches_tracked"]) == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_the_caller_wants_no_gradients_what_is_captured_trains(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    expected = capture("test_modes:Backed", batch=SHAPES)
    with mode():
        assert capture("test_modes:Backed", batch=SHAPES) == expected
    assert expected.backward_flops > expected.forward_flops


def test_what_is_built_for_a_run_trains() -> None:
    plan = placer.plan("test_modes:Backed", "localx1", batch=SHAPES)
    assert any("a run puts all in training" in one for one in plan.assumptions)
    run = load(plan)
    run.step(batch())
    assert float(run.full_state_dict()["back.1.num_batches_tracked"]) == 1


class Kept(Backed):
    """Says itself that its backbone stays in evaluation."""

    def train(self, mode: bool = True) -> Kept:
        """All but the backbone."""
        super().train(mode)
        self.back.eval()
        return self


def test_what_a_model_keeps_in_evaluation_itself_is_not_said_to_train() -> None:
    plan = placer.plan("test_modes:Kept", "localx1", batch=SHAPES)
    assert not any("in evaluation" in one for one in plan.assumptions)
    run = load(plan)
    run.step(batch())
    assert float(run.full_state_dict()["back.1.num_batches_tracked"]) == 0


class Checked(Backed):
    """Looks at values where it is not exported."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A loss."""
        if not torch.compiler.is_compiling() and not bool(x.isfinite().all()):
            raise ValueError("no numbers")
        return super().forward(x, y)


class Looking(Backed):
    """Looks at values whether it is exported or not."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A loss."""
        return super().forward(x, y) if bool((x > 0).any()) else x.sum()


def test_checks_of_values_may_be_left_out_of_an_export() -> None:
    assert placer.capture("test_modes:Checked", batch=SHAPES).loss.reduction == "sum"
    with pytest.raises(CaptureError, match="values of tensors"):
        placer.capture("test_modes:Looking", batch=SHAPES)


class Placed(nn.Module):
    """Makes the numbers of places in forward, on the default device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        h: torch.Tensor = self.layer(x)
        return h.index_add(1, torch.tensor([0, 2]), x[:, :2]).pow(2).mean()


def test_an_instance_that_is_captured_first_leaves_torchs_default_device_as_it_was() -> None:
    """torch lists what takes a default device when one is first set: were it during an export, without those that are
    watched there, for the rest of the process."""
    _device_constructors.cache_clear()
    placer.capture(Placed(), batch={"x": (6, 5)})
    with torch.device("meta"):
        assert torch.tensor([0]).is_meta
