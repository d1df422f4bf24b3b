"""A gradient that is zero but for rounding is judged by what it was summed from; a wrong one is still found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from placer.runtime import verify
from placer.runtime.verify.gradient_magnitudes import TermMagnitudes
from placer.runtime.weights.model_state import ModelState

IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES, precision="float32")
BIAS = "layers.1.0.bias"


def test_the_magnitude_of_a_bias_is_the_sum_of_its_terms() -> None:
    torch.manual_seed(0)
    layer, factors = nn.Linear(3, 4), torch.randn(5, 6, 4)
    summed = TermMagnitudes(dict(layer.named_parameters()))
    loss = (layer(torch.randn(5, 6, 3)) * factors).sum()
    summed.watch(loss)
    loss.backward()
    assert set(summed.magnitudes) == {"bias"}
    assert torch.allclose(summed.magnitudes["bias"], factors.abs().sum((0, 1)).double())


def test_a_bias_before_batch_norm_has_a_gradient_of_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3)
    summed = TermMagnitudes(dict(convolution.named_parameters()))
    loss = nn.BatchNorm2d(8)(convolution(torch.randn(4, 3, 9, 9))).pow(3).sum()
    summed.watch(loss)
    loss.backward()
    gradient = convolution.bias.grad if convolution.bias is not None else None
    assert gradient is not None
    assert float(gradient.abs().max()) < 1e-6 * float(summed.magnitudes["bias"].max())


def test_two_backwards_add_up() -> None:
    layer = nn.Linear(3, 4)
    summed = TermMagnitudes(dict(layer.named_parameters()))
    for _ in range(2):
        loss = layer(torch.ones(5, 3)).sum()
        summed.watch(loss)
        loss.backward()
    assert summed.magnitudes["bias"].tolist() == [2 * 5.0] * 4


@pytest.mark.parametrize(("share", "passes"), [(0.0, True), (5e-8, True), (1e-3, False)])
def test_a_vanishing_gradient_may_differ_by_rounding_and_by_no_more(
    monkeypatch: pytest.MonkeyPatch, share: float, passes: bool
) -> None:
    true = ModelState.full_gradients

    def planted(self: ModelState) -> dict[str, torch.Tensor]:
        gradients = true(self)
        largest = max(float(gradient.abs().max()) for gradient in gradients.values())
        return gradients | {BIAS: gradients[BIAS] + share * largest}

    monkeypatch.setattr(ModelState, "full_gradients", planted)
    report = verify(plan_of(IMAGES), 1)
    assert report.passed == passes, str(report)
    if not passes:
        assert (report.worst.quantity, report.worst.where) == ("gradients", BIAS)
