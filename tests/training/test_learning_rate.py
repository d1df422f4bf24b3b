"""The learning rate of each step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import UsageError
from placer.runtime.training.run_report import LearningRate


def test_a_constant_rate_stays() -> None:
    rate = LearningRate(peak=0.5, steps=10)
    assert [rate.at(step) for step in (0, 5, 9, 50)] == [0.5] * 4


def test_warmup_rises_linearly_to_the_peak() -> None:
    rate = LearningRate(peak=1.0, steps=10, warmup_steps=4)
    assert [rate.at(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_decay_ends_at_its_final_share() -> None:
    rate = LearningRate(peak=2.0, steps=14, warmup_steps=4, decay="linear", final=0.1)
    assert rate.at(4) == 2.0
    assert rate.at(9) == pytest.approx(2.0 * (1 - 0.9 / 2))
    assert rate.at(14) == rate.at(100) == pytest.approx(2.0 * 0.1)


def test_cosine_decay_passes_the_middle_at_half_way() -> None:
    rate = LearningRate(peak=1.0, steps=20, decay="cosine", final=0.2)
    assert rate.at(10) == pytest.approx((1 + 0.2) / 2)
    assert rate.at(5) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)


@given(st.sampled_from(("constant", "linear", "cosine")), st.integers(0, 20), st.integers(0, 60))
def test_no_rate_is_above_the_peak_or_below_the_final_share(decay: str, warmup: int, step: int) -> None:
    rate = LearningRate(peak=1.0, steps=40, warmup_steps=warmup, decay=decay, final=0.01)  # type: ignore[arg-type]
    assert 0.01 <= rate.at(step) <= 1.0


def test_more_warmup_than_steps_is_refused() -> None:
    with pytest.raises(UsageError, match=r"11 warmup steps do not fit into 10 steps"):
        LearningRate(peak=1.0, steps=10, warmup_steps=11)
